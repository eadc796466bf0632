"""From gathered runs to a figure, a Markdown table and numbers, for every kind of experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pbrl.errors import PbrlError
from pbrl.evaluation.probe import KINDS
from pbrl.evaluation.statistics import (
    AGGREGATES,
    GAP_THRESHOLD,
    aggregates,
    performance_profile,
    score_matrix,
)
from pbrl.experiments import figures, paper
from pbrl.experiments.budgets import Plan
from pbrl.experiments.collect_results import Curve, RunResult, data_name, group, over_seeds
from pbrl.experiments.cost import measure_cost
from pbrl.experiments.definitions import Experiment
from pbrl.experiments.figures import DPI
from pbrl.experiments.paper import Cell
from pbrl.experiments.tables import averages, beside, cells_json, markdown, spread
from pbrl.experiments.toy import MEMBERS, POINTS, fig1a

# Fig. 3: no other kind of action may have a mean Q above the data's by more than this share.
Q_MARGIN = 0.05


@dataclass(frozen=True)
class Drawn:
    """A figure with its numbers."""

    figure: Any
    table: str
    numbers: dict[str, Any]


def toy() -> Drawn:
    """Fig. 1a."""
    result = fig1a(seed=0)
    rows = [[f"{radius:g}", f"{spread:.4f}"] for radius, spread in result.by_radius()]
    table = markdown(["distance", "mean U"], rows) + (
        f"\nMean U beyond radius 5: {result.far_outside:.4f}; at the points: "
        f"{result.at_points:.4f}; ratio {result.ratio:.1f}.\n"
    )
    numbers = {
        "members": MEMBERS,
        "points": POINTS,
        "u_at_points": result.at_points,
        "u_far_outside": result.far_outside,
        "ratio": result.ratio,
        "fit_error": result.fit_error,
        "u_by_radius": result.by_radius(),
    }
    return Drawn(figures.draw_toy(result), table, numbers)


def costs(chosen: Experiment, budget: str) -> Drawn:
    """Table 3."""
    updates = 2 if budget == "smoke" else 10
    rows = []
    for variant in chosen.variants:
        measured = measure_cost(variant.algorithm, updates)
        rows.append({"label": variant.label, **measured, "paper": paper.COSTS[variant.label]})
    table = markdown(
        ["system", "s per 1000 steps", "paper", "memory GB", "paper", "parameters M", "paper"],
        [
            [
                row["label"],
                f"{row['seconds_per_1000_steps']:.1f}",
                row["paper"]["seconds_per_1000_steps"],
                f"{row['memory_gb']:.2f}",
                row["paper"]["memory_gb"],
                f"{row['parameters_millions']:.2f}",
                row["paper"]["parameters_millions"],
            ]
            for row in rows
        ],
    )
    footer = [
        f"ours: CPU seconds, one thread, median of {updates} updates, peak memory of the process; "
        "paper: one GPU and its memory: only parameters compare directly"
    ]
    numbers = {"systems": rows, "measured": footer[0]}
    return Drawn(figures.draw_costs(rows, footer), table, numbers)


def ablation(
    chosen: Experiment, plan: Plan, results: Sequence[RunResult], footer: Sequence[str]
) -> Drawn:
    """Curves of scores and other quantities, one for each variant."""
    unit = unit_of(results)
    groups = group(results)
    rows: dict[str, dict[str, dict[str, Curve]]] = {unit: {}}
    rows |= {title: {} for title in chosen.quantities.values()}
    for (dataset, label), runs in groups.items():
        curves = {unit: over_seeds([run.scores for run in runs])}
        for quantity, title in chosen.quantities.items():
            curves[title] = over_seeds([run.quantities.get(quantity, []) for run in runs])
        for title, curve in curves.items():
            panel = rows[title].setdefault(dataset, {})
            if curve is not None:
                panel[label] = curve
    numbers: dict[str, Any] = {
        "unit": unit,
        "curves": {
            title: {
                dataset: {label: curve.to_json() for label, curve in panel.items()}
                for dataset, panel in panels.items()
            }
            for title, panels in rows.items()
        },
        "runs": runs_json(results),
    }
    heads, lines = ["data", "variant", "seeds", f"last {unit}", f"best {unit} on the way"], []
    heads += [f"last {title}" for title in chosen.quantities.values()]
    for (dataset, label), runs in groups.items():
        line = [
            dataset,
            label,
            len(runs),
            spread(r.last for r in runs),
            spread(r.best for r in runs),
        ]
        for quantity in chosen.quantities:
            found = [run.quantities.get(quantity) for run in runs]
            line.append(spread(values[-1][1] if values else None for values in found))
        lines.append(line)
    table = markdown(heads, lines)
    if chosen.name == "ablation-actor":
        fitted = [r.quantities["beta_0"][-1][1] for r in results if "beta_0" in r.quantities]
        if fitted:
            numbers["beta_0"] = {"mean": float(np.mean(fitted)), "runs": len(fitted)}
            table += (
                f"\nmin_k Q fits mean_k Q - beta_0 Std_k Q with beta_0 = {np.mean(fitted):.2f} at "
                "the policy's actions (appendix B.3's remark).\n"
            )
    title = f"{chosen.title} ({chosen.place})"
    return Drawn(figures.draw_curves(title, rows, footer), table, numbers)


def uncertainty(
    chosen: Experiment, plan: Plan, results: Sequence[RunResult], footer: Sequence[str]
) -> Drawn:
    """Fig. 3: U and Q of the five kinds of actions."""
    curves: dict[str, dict[str, dict[str, Curve]]] = {"u_mean": {}, "q_mean": {}}
    for (dataset, _), runs in group(results).items():
        for what, panels in curves.items():
            found = {k: over_seeds([r.quantities[f"{what}/{k}"] for r in runs]) for k in KINDS}
            panels[dataset] = {k: curve for k, curve in found.items() if curve is not None}
    lines: list[list[str]] = []
    verdicts: dict[str, dict[str, Any]] = {}
    for dataset in curves["u_mean"]:
        u = {kind: float(c.mean[-1]) for kind, c in curves["u_mean"][dataset].items()}
        q = {kind: float(c.mean[-1]) for kind, c in curves["q_mean"][dataset].items()}
        lines += [[dataset, kind, f"{u[kind]:.4g}", f"{q[kind]:.5g}"] for kind in u]
        margin = Q_MARGIN * abs(q["offline"])
        verdicts[dataset] = {
            "u_ordered": u["offline"] < u["noise1"] < u["noise2"],
            "u_random_above_offline": u["random"] > u["offline"],
            "q_margin": margin,
            "q_largest_excess": max(q[k] - q["offline"] for k in KINDS if k != "offline"),
            "q_no_superior": all(q[k] <= q["offline"] + margin for k in KINDS),
        }
    table = markdown(["data", "actions", "U", "Q"], lines)
    for dataset, verdict in verdicts.items():
        table += (
            f"\n{dataset}: U offline < noise1 < noise2: {_yes(verdict['u_ordered'])}; random above "
            f"offline: {_yes(verdict['u_random_above_offline'])}; no mean Q above the data's by "
            f"more than {Q_MARGIN:.0%}: {_yes(verdict['q_no_superior'])} (largest excess "
            f"{verdict['q_largest_excess']:.3g}).\n"
        )
    numbers = {
        "curves": {
            what: {d: {k: c.to_json() for k, c in kinds.items()} for d, kinds in panels.items()}
            for what, panels in curves.items()
        },
        "verdicts": verdicts,
        "runs": runs_json(results),
    }
    return Drawn(figures.draw_kinds(f"{chosen.title} (Fig. 3)", curves, footer), table, numbers)


def curve(
    chosen: Experiment, plan: Plan, results: Sequence[RunResult], footer: Sequence[str]
) -> Drawn:
    """Fig. 2: scores during training, averaged over datasets, with the deviation over seeds."""
    unit = unit_of(results)
    averaged: dict[str, Curve] = {}
    lines = []
    for label in dict.fromkeys(result.label for result in results):
        by_seed: dict[int, list[RunResult]] = {}
        for result in results:
            if result.label == label:
                by_seed.setdefault(result.seed, []).append(result)
        # A seed counts where it has every dataset, so that all points stand on the same tasks.
        whole = [runs for runs in by_seed.values() if len(runs) == len(plan.datasets)]
        means = []
        for runs in whole:
            mean = over_seeds([run.scores for run in runs])
            if mean is not None:
                means.append(
                    [(int(s), float(v)) for s, v in zip(mean.steps, mean.mean, strict=True)]
                )
        found = over_seeds(means)
        if found is not None:
            averaged[label] = found
            lines.append([label, found.seeds, f"{found.mean[-1]:.1f} ± {found.std[-1]:.1f}"])
    name = f"mean over {len(plan.datasets)} dataset" + "s" * (len(plan.datasets) > 1)
    rows = {unit: {name: averaged}}
    numbers = {
        "unit": unit,
        "curves": {label: c.to_json() for label, c in averaged.items()},
        "runs": runs_json(results),
    }
    table = markdown(["system", "seeds", f"last {unit}"], lines)
    return Drawn(figures.draw_curves(f"{chosen.title} (Fig. 2)", rows, footer), table, numbers)


def scores(
    chosen: Experiment, plan: Plan, results: Sequence[RunResult], footer: Sequence[str]
) -> Drawn:
    """Tables 1 and 4: last scores, with the paper's beside them."""
    assert chosen.table is not None
    unit, labels = unit_of(results), paper.algorithms(chosen.table)
    ours: dict[str, dict[str, Cell]] = {data_name(name): {} for name in plan.datasets}
    for (dataset, label), runs in group(results).items():
        last = [run.last for run in runs if run.last is not None]
        if last:
            ours[dataset][label] = Cell(float(np.mean(last)), float(np.std(last)))
    theirs: dict[str, dict[str, Cell]] = {}
    for dataset in ours:
        found = {label: paper.cell_of(chosen.table, dataset, label) for label in labels}
        theirs[dataset] = {label: cell for label, cell in found.items() if cell is not None}
    lines = [
        [dataset, *(beside(ours[dataset].get(n), theirs[dataset].get(n)) for n in labels)]
        for dataset in ours
    ]
    lines.append(["**average**", *averages(ours, theirs, labels, list(ours))])
    without = [name for name in ours if "expert" not in name]
    if chosen.table == "table4" and 0 < len(without) < len(ours):
        lines.append(["**without expert**", *averages(ours, theirs, labels, without)])
    table = markdown(["data", *labels], lines) + (
        f"\n{unit[0].upper()}{unit[1:]} of the last policy, mean ± deviation over {plan.seeds} "
        "seeds; in brackets the paper's. Averages are of the cells shown.\n"
    )
    numbers = {
        "unit": unit,
        "ours": cells_json(ours),
        "paper": cells_json(theirs),
        "runs": runs_json(results),
    }
    title = f"{chosen.title} ({chosen.place})"
    return Drawn(figures.draw_scores(title, ours, theirs, unit, footer), table, numbers)


def statistics(
    chosen: Experiment, plan: Plan, results: Sequence[RunResult], footer: Sequence[str]
) -> Drawn:
    """Appendix F: aggregates with intervals, and profiles."""
    tasks = list(dict.fromkeys(result.dataset for result in results))
    matrices = {}
    notes = list(footer)
    for label in dict.fromkeys(result.label for result in results):
        found = {t: [r.last for r in results if (r.label, r.dataset) == (label, t)] for t in tasks}
        clean = {t: [x for x in runs if x is not None] for t, runs in found.items()}
        if all(clean.values()):
            matrices[label], note = score_matrix(clean)
            notes += [f"{label}: {note}"] if note else []
    if not matrices:
        raise PbrlError("These runs have no scores: the data name no environment to evaluate in.")
    estimates = {label: aggregates(matrix) for label, matrix in matrices.items()}
    top = max(float(matrix.max()) for matrix in matrices.values())
    bottom = min(0.0, *(float(matrix.min()) for matrix in matrices.values()))
    taus = np.linspace(bottom, top, 101)
    profiles = {
        label: (
            performance_profile(matrix, taus),
            performance_profile(matrix, taus, average_runs=True),
        )
        for label, matrix in matrices.items()
    }
    printed = _paper_aggregates(tasks)
    unit = unit_of(results)
    names = list(AGGREGATES)
    lines = [
        [label, *(f"{e[n].value:.1f} [{e[n].low:.1f}, {e[n].high:.1f}]" for n in names)]
        for label, e in estimates.items()
    ]
    lines += [
        [f"{label} (paper's means)", *(f"{values[n]:.1f}" for n in names)]
        for label, values in printed.items()
    ]
    table = markdown(["system", *names], lines) + (
        f"\n{unit[0].upper()}{unit[1:]}; stratified bootstrap, 95 %, {len(tasks)} tasks, "
        f"optimality gap below {GAP_THRESHOLD:g}. The paper prints means, not seeds: its systems "
        "have no intervals.\n"
    )
    numbers = {
        "unit": unit,
        "tasks": tasks,
        "aggregates": {k: {n: e.to_json() for n, e in v.items()} for k, v in estimates.items()},
        "paper_means": printed,
        "runs": runs_json(results),
    }
    title = f"{chosen.title} ({chosen.place})"
    drawn = figures.draw_statistics(title, estimates, printed, profiles, notes)
    return Drawn(drawn, table, numbers)


DRAW: dict[str, Callable[[Experiment, Plan, Sequence[RunResult], Sequence[str]], Drawn]] = {
    "ablation": ablation,
    "uncertainty": uncertainty,
    "curve": curve,
    "scores": scores,
    "statistics": statistics,
}


# ---------------------------------------------------------------------------- small things


def _paper_aggregates(tasks: Sequence[str]) -> dict[str, dict[str, float]]:
    """Aggregates of the paper's printed means, where it has every one of ``tasks``."""
    out = {}
    for label in paper.algorithms("table1"):
        cells = [paper.cell_of("table1", task, label) for task in tasks]
        present = [cell.mean for cell in cells if cell is not None]
        if cells and len(present) == len(cells):
            row = np.array([present])
            out[label] = {name: float(function(row)) for name, function in AGGREGATES.items()}
    return out


def runs_json(results: Iterable[RunResult]) -> list[dict[str, Any]]:
    """One short object for each run."""
    return [
        {
            "data": r.dataset,
            "variant": r.label,
            "seed": r.seed,
            "run": r.run.path.name,
            "last": None if r.last is None else round(r.last, 3),
            "best": None if r.best is None else round(r.best, 3),
        }
        for r in results
    ]


def unit_of(results: Sequence[RunResult]) -> str:
    """Normalised score, or return where the data have no reference scores."""
    return "normalised score" if all(r.normalised for r in results) else "return"


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


__all__ = ["DPI", "DRAW", "Drawn", "costs", "markdown", "toy"]
