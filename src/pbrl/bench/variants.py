"""What ``pbrl bench`` measures."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from pbrl.algorithms import ALGORITHMS
from pbrl.algorithms.base import AlgorithmConfig
from pbrl.algorithms.pbrl import PBRLConfig, PBRLPriorConfig
from pbrl.algorithms.pbrl_anchored import PBRLAnchoredConfig
from pbrl.errors import unknown_name

SIZES = (17, 6)  # observations and actions of HalfCheetah and Walker2d
ROWS = 100_000


@dataclass(frozen=True)
class Variant:
    """An algorithm with settings, or the plain yardstick of the same size.

    The yardstick is PBRL as one writes it first, in one file with plain autograd. Its home is
    ``examples/pbrl_single_file.py``; ``pbrl.bench.pbrl_single_file`` is a link to it, so that an
    installed package has it too and there is only one.
    """

    name: str
    algorithm: str
    config: AlgorithmConfig
    yardstick: bool = False

    @property
    def counted_by_hand(self) -> bool:
        """Whether ``pbrl.bench.flops`` knows the necessary work of a step."""
        return self.algorithm in ("pbrl", "pbrl-prior")


def _pbrl(name: str, yardstick: bool = False, **settings: Any) -> Variant:
    if settings.pop("prior", False):
        return Variant(name, "pbrl-prior", PBRLPriorConfig(**settings))
    return Variant(name, "pbrl", PBRLConfig(**settings), yardstick)


def pbrl_variants() -> list[Variant]:
    """PBRL with and without its options, what came of it for CPUs, and the yardstick."""
    return [
        _pbrl("pbrl N_ood=10", n_ood=10),
        _pbrl("pbrl N_ood=2", n_ood=2),
        _pbrl("pbrl N_ood=10 and s'", n_ood=10, authors_code=True),
        _pbrl("pbrl N_ood=2 and s'", n_ood=2, authors_code=True),
        _pbrl("pbrl-prior N_ood=10", n_ood=10, prior=True),
        Variant("pbrl-anchored", "pbrl-anchored", PBRLAnchoredConfig()),
        _pbrl("plain N_ood=10", yardstick=True, n_ood=10),
        _pbrl("plain N_ood=2", yardstick=True, n_ood=2),
    ]


# Sizes at which peers are usually measured; UWAC's 100 Monte Carlo passes take minutes a step.
_OTHERS: dict[str, dict[str, Any]] = {
    "sac-n": {"ensemble_size": 10},
    "edac": {"ensemble_size": 10},
    "uwac": {"mc_passes": 10},
}


def other_variants() -> list[Variant]:
    """Every other algorithm of the package."""
    out = []
    for name, algorithm in ALGORITHMS.items():
        if not name.startswith("pbrl"):
            fields = {f.name for f in dataclasses.fields(algorithm.Config)}
            chosen = {k: v for k, v in _OTHERS.get(name, {}).items() if k in fields}
            label = " ".join([name, *(f"{k}={v}" for k, v in chosen.items())])
            settings = algorithm.presets["paper"] | chosen
            out.append(Variant(label, name, algorithm.Config(**settings)))
    return out


_SCALE = re.compile(r"K=(\d+) N=(\d+) B=(\d+) H=(\d+)")


def scaling_name(k: int = 10, n: int = 2, batch: int = 256, width: int = 256) -> str:
    """Name of a PBRL variant of any size."""
    return f"K={k} N={n} B={batch} H={width}"


def by_name(name: str) -> Variant:
    """The variant called ``name``."""
    if match := _SCALE.fullmatch(name):
        k, n, batch, width = map(int, match.groups())
        return _pbrl(
            name, ensemble_size=k, n_ood=n, batch_size=batch,
            hidden=(width,) * 3, policy_hidden=(width,) * 3,
        )  # fmt: skip
    variants = {v.name: v for v in (*pbrl_variants(), *other_variants())}
    if name not in variants:
        raise unknown_name("bench variant", name, variants)
    return variants[name]
