"""Every table and figure of the paper as data: what to run, where it stands, what it says.

Other packages bring theirs by an entry point of the group ``pbrl.experiments``: an ``Experiment``
whose ``drawing`` is a function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal

from pbrl.errors import PbrlError, unknown_name
from pbrl.experiments import paper

ENTRY_POINTS = "pbrl.experiments"

Drawing = Literal["toy", "scores", "curve", "uncertainty", "ablation", "cost", "statistics"]

GYM, ADROIT = paper.datasets("table1"), tuple(f"{name}-v0" for name in paper.datasets("table4"))
# The text of appendices C and D speaks of a medium and a medium-replay set; Fig. 3 names Walker2d.
WALKER = ("walker2d-medium-replay-v2", "walker2d-medium-v2")


@dataclass(frozen=True)
class Variant:
    """One curve or column: an algorithm with some settings changed.

    Attributes:
        label: as it stands in the figure.
        algorithm: by our name.
        settings: what differs from the preset.
    """

    label: str
    algorithm: str = "pbrl"
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A table or figure.

    Attributes:
        name: for the command line.
        title: one line.
        place: where the paper has it.
        claim: what the paper says it shows; empty where it says nothing.
        drawing: how the results are shown: one of ours by name, or a function of the experiment,
            its ``Plan``, the ``RunResult`` of every run and sentences on what was reduced, which
            returns a ``Drawn``.
        variants: what to train.
        datasets: the paper's.
        seeds: the paper's number (5 where it gives none).
        quantities: metrics to draw besides the score, with their titles.
        preset: of the paper's protocol.
        table: the paper's table to compare with.
    """

    name: str
    title: str
    place: str
    claim: str
    drawing: Drawing | Callable[..., Any]
    variants: tuple[Variant, ...] = ()
    datasets: tuple[str, ...] = WALKER
    seeds: int = 5
    quantities: Mapping[str, str] = field(default_factory=dict)
    preset: str = "paper"
    table: str | None = None


ABLATIONS = "pbrl-ablations"


def _values(name: str, values: tuple[Any, ...], label: str) -> tuple[Variant, ...]:
    return tuple(Variant(f"{label}{value}", settings={name: value}) for value in values)


def _systems(table: str) -> tuple[Variant, ...]:
    return tuple(
        Variant(theirs, paper.ALGORITHM_NAMES[theirs]) for theirs in paper.algorithms(table)
    )


PBRL = Variant("PBRL")
Q_DATA, Q_POLICY, U_POLICY = "q_data", "q_policy", "u_policy"

_NO_OOD = {"n_ood": 0}
REGULARISERS = (
    Variant("OOD sampling"),
    Variant("none", settings=_NO_OOD),
    Variant("L2 1e-2", ABLATIONS, settings={**_NO_OOD, "l2": 1e-2}),
    Variant("L2 1e-4", ABLATIONS, settings={**_NO_OOD, "l2": 1e-4}),
    Variant("SN[-1]", ABLATIONS, settings={**_NO_OOD, "spectral_norm": 1}),
    Variant("SN[-1,-2]", ABLATIONS, settings={**_NO_OOD, "spectral_norm": 2}),
    # Taken literally (all layers), pessimistic initialisation leaves Q a constant: see the docs.
    Variant(
        "PI-small",
        ABLATIONS,
        settings={**_NO_OOD, "pessimistic_init": "small", "pessimistic_init_layers": "last"},
    ),
    Variant(
        "PI-large",
        ABLATIONS,
        settings={**_NO_OOD, "pessimistic_init": "large", "pessimistic_init_layers": "last"},
    ),
)

EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        Experiment(
            "fig1a",
            "U of ten networks around sixty points in the plane",
            "Fig. 1a",
            "the uncertainty rises smoothly from the data points outwards",
            "toy",
            datasets=(),
            seeds=1,
        ),
        Experiment(
            "table1",
            "Normalised scores on Gym data",
            "Table 1",
            "PBRL and PBRL-Prior have the best averages, 74.37 and 76.66 as printed",
            "scores",
            _systems("table1"),
            GYM,
            table="table1",
        ),
        Experiment(
            "fig2",
            "Training curve averaged over the Gym datasets",
            "Fig. 2",
            "PBRL starts below TD3-BC and CQL and ends above them",
            "curve",
            _systems("table1"),
            GYM,
        ),
        Experiment(
            "fig3",
            "U and Q of five kinds of actions during training",
            "Fig. 3",
            "U is least for data actions, a little more with small noise, large with large noise "
            "and for random actions; no OOD action has a superior Q",
            "uncertainty",
            (PBRL,),
        ),
        Experiment(
            "ablation-k",
            "Number of critics K",
            "Appendix C, first figure",
            "K of 6, 8 and 10 end alike; larger K is steadier",
            "ablation",
            _values("ensemble_size", (2, 4, 6, 8, 10), "K = "),
        ),
        Experiment(
            "ablation-in-penalty",
            "Where data targets are penalised",
            "Appendix C, second figure",
            "penalising the next Q performs best",
            "ablation",
            (
                Variant("next Q"),
                Variant("reward", ABLATIONS, {"in_penalty": "reward"}),
                Variant("both", ABLATIONS, {"in_penalty": "both"}),
            ),
        ),
        Experiment(
            "ablation-beta-in",
            "beta_in",
            "Appendix C, third figure",
            "insensitive on medium; best between 0.0001 and 0.01 on medium-replay",
            "ablation",
            _values("beta_in", (0.1, 0.01, 0.001, 0.0001), "beta_in = "),
        ),
        Experiment(
            "ablation-beta-ood",
            "beta_ood constant against decaying",
            "Appendix C, fourth and fifth figures",
            "1.0 suits medium, 0.1 and 0.01 medium-replay, decay both; a large constant makes Q of "
            "data actions too low",
            "ablation",
            (
                Variant("decay"),
                *(
                    Variant(
                        f"constant {value}",
                        settings={"beta_ood_schedule": "constant", "beta_ood": value},
                    )
                    for value in (0.01, 0.1, 1.0)
                ),
            ),
            quantities={Q_DATA: "Q of data actions"},
        ),
        Experiment(
            "ablation-actor",
            "The actor follows the min, mean or max of the critics",
            "Appendix C, sixth figure",
            "min performs best, mean is reasonable but can be unsteady, max is worst",
            "ablation",
            (
                Variant("min"),
                Variant("mean", ABLATIONS, {"actor_objective": "mean"}),
                Variant("max", ABLATIONS, {"actor_objective": "max"}),
            ),
            quantities={Q_POLICY: "Q of the policy's actions"},
        ),
        Experiment(
            "ablation-n-ood",
            "Number of OOD actions",
            "Appendix C, seventh figure",
            "poor without OOD actions, better with two, robust beyond",
            "ablation",
            _values("n_ood", (0, 2, 5, 10), "N_ood = "),
            quantities={Q_POLICY: "Q of the policy's actions"},
        ),
        Experiment(
            "ablation-ood-target",
            "OOD target: pessimistic or zero",
            "Appendix C, last three figures",
            "a target of zero pulls Q of all actions towards zero and performs poorly",
            "ablation",
            (
                Variant("Q - beta U (PBRL)"),
                Variant("zero", ABLATIONS, {"ood_target": "zero"}),
            ),
            quantities={Q_DATA: "Q of data actions", Q_POLICY: "Q of the policy's actions"},
        ),
        Experiment(
            "regularisers",
            "Other regularisers in place of OOD sampling",
            "Appendix D",
            "OOD sampling is the only one with reasonable performance",
            "ablation",
            REGULARISERS,
            quantities={
                "trajectory_q": "Q along the policy's trajectories",
                "trajectory_u": "U along the policy's trajectories",
            },
        ),
        Experiment(
            "table3",
            "Seconds per 1000 steps, memory and parameters",
            "Table 3",
            "PBRL takes 52.1 s and 1.52M parameters, CQL 30.3 s and 0.42M, on their GPU",
            "cost",
            (Variant("CQL", "cql"), Variant("PBRL")),
            datasets=(),
            seeds=1,
        ),
        Experiment(
            "table4",
            "Normalised scores on Adroit data",
            "Table 4",
            "PBRL averages 46.79, and 14.52 without the expert sets, as printed",
            "scores",
            _systems("table4"),
            ADROIT,
            seeds=3,
            preset="adroit",
            table="table4",
        ),
        Experiment(
            "statistics",
            "Aggregates with intervals, and performance profiles",
            "Appendix F",
            "PBRL and PBRL-Prior outperform the others with little variability",
            "statistics",
            _systems("table1"),
            GYM,
            table="table1",
        ),
    )
}


@cache
def experiments() -> dict[str, Experiment]:
    """The paper's tables and figures by name, and those that installed packages bring."""
    found: dict[str, Experiment] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            brought = entry.load()
        except (ImportError, AttributeError) as error:
            raise PbrlError(
                f"The experiment at '{entry.value}' cannot be imported ({error}); repair or remove "
                "the package that brings it."
            ) from error
        if not isinstance(brought, Experiment):
            raise PbrlError(
                f"'{entry.value}' is no pbrl.experiments.Experiment; repair or remove its package."
            )
        found[brought.name] = brought
    return found | EXPERIMENTS


def experiment(name: str) -> Experiment:
    """The experiment called ``name``, or an error that suggests the nearest one."""
    if name not in experiments():
        raise unknown_name("experiment", name, experiments())
    return experiments()[name]
