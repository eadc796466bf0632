"""Runs of before: of ``pbrl``, when ``pbrl-anchored`` and ``pbrl-ablations`` had no names.

Until then PBRL had all three's settings. The weights are the same: a run that used one group of
them is read under the name that this group has now, and goes on bit for bit.
"""

from __future__ import annotations

from typing import Any

from pbrl.errors import PbrlError

# What moved, with the values that meant "as the paper has it".
ABLATIONS: dict[str, Any] = {
    "in_penalty": "next_q",
    "reward_penalty": 1.0,
    "ood_actions": "policy",
    "ood_target": "pessimistic",
    "actor_objective": "min",
    "l2": 0.0,
    "spectral_norm": 0,
    "pessimistic_init": "none",
    "pessimistic_init_layers": "last",
}
OURS: dict[str, Any] = {
    "ood_margin": None,
    "cloning": 0.0,
    "cloning_end": 0.0,
    "value_scale": 1.0,
    "lr_end": 1.0,
    "lr_steps": 0,
    "policy_noise": 0.0,
    "policy_average": 0.0,
}
# No settings any more: pbrl-anchored is always like this.
ALWAYS_OURS: dict[str, tuple[Any, Any]] = {
    "layer_norm": (False, True),
    "critic_init": ("rlkit", "fan-in"),
    "cloning_unit": ("size", "gain"),
}
AUTHORS: dict[str, Any] = {
    "ood_next_states": False,
    "std_correction": 0,
    "prior_init": "hidden",
    "target_init": "copy",
}
GONE = ABLATIONS | OURS | {name: paper for name, (paper, _) in ALWAYS_OURS.items()} | AUTHORS


def moved(config: dict[str, Any], where: str) -> dict[str, Any]:
    """A stored config under the name its algorithm has now; most configs are returned as they are.

    Args:
        config: of a ``TrainConfig``, as ``to_json`` writes it.
        where: it was found.
    """
    own = config.get("settings", {})
    if (config.get("algorithm"), config.get("preset")) == ("bear", "first-release"):
        return {**config, "preset": "fixed-weight"}  # it was less than that release
    if config.get("algorithm") not in ("pbrl", "pbrl-prior") or not own.keys() & GONE.keys():
        return config
    old = GONE | own
    changed = {name for name, paper in GONE.items() if old[name] != paper}
    kept = {name: value for name, value in own.items() if name not in GONE}
    if not changed:
        return {**config, "settings": kept}
    if changed <= ABLATIONS.keys():
        settings = {**kept, **{name: old[name] for name in ABLATIONS}}
        return {**config, "algorithm": "pbrl-ablations", "settings": settings}
    ours = all(old[name] == value for name, (_, value) in ALWAYS_OURS.items())
    if (
        changed <= OURS.keys() | ALWAYS_OURS.keys()
        and ours
        and old["policy_noise"] > 0
        and old["ood_margin"] is not None
    ):
        return {
            **config,
            "algorithm": "pbrl-anchored",
            "preset": "fast",
            "normalize_observations": bool(config.get("normalize_observations")),
            "settings": {**kept, **{name: old[name] for name in OURS}},
        }
    raise PbrlError(
        f"{where}: pbrl no longer has {', '.join(sorted(changed))} in this combination: look at "
        f"{_homes(changed)}, and train anew, or go on with the version of pbrl that began the run."
    )


def _homes(changed: set[str]) -> str:
    """The algorithms that have these settings now."""
    groups = {
        "pbrl-anchored": OURS.keys() | ALWAYS_OURS.keys(),
        "pbrl-ablations": ABLATIONS.keys(),
        "pbrl --authors-code": AUTHORS.keys(),
    }
    return " and ".join(name for name, group in groups.items() if changed & group)
