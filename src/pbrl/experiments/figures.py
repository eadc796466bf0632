"""The pictures. Every one names on itself what was reduced against the paper's protocol."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pbrl.evaluation.probe import DESCRIPTIONS, KINDS
from pbrl.evaluation.statistics import Estimate, Profile
from pbrl.experiments.collect_results import Curve
from pbrl.experiments.paper import Cell
from pbrl.experiments.toy import FAR, ToyResult

# Distinct in print and for colour-blind readers (Okabe and Ito).
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999",
)  # fmt: skip
DPI = 100


def new_figure(width: float, height: float, footer: Sequence[str]) -> Any:
    """A figure with its reductions written below the axes."""
    from matplotlib.figure import Figure

    lines = textwrap.wrap("; ".join(footer), int(width * 16)) if footer else []
    below = 0.14 * len(lines) + 0.1
    figure = Figure(figsize=(width, height + below), layout="constrained")
    edge = below / (height + below)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, edge, 1, 1 - edge))
    if lines:
        figure.text(0.01, 0.01, "\n".join(lines), fontsize=7, color="#555555", va="bottom")
    return figure


def draw_toy(result: ToyResult) -> Any:
    """Fig. 1a: the map of U with the data points, and U by distance."""
    figure = new_figure(9, 4, ())
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    image = left.pcolormesh(result.axis, result.axis, result.uncertainty, shading="gouraud")
    figure.colorbar(image, ax=left, label="U = Std of 10 networks (Eq. 3)")
    left.plot(*result.points.T, "o", color="white", markeredgecolor="black", markersize=4)
    left.set(title="Fig. 1a: uncertainty around 60 points", xlabel="$x_1$", ylabel="$x_2$")
    left.set_aspect("equal")
    radius, spread = zip(*result.by_radius(), strict=True)
    right.plot(radius, spread, "o-", color=COLOURS[0])
    right.axhline(result.at_points, color=COLOURS[1], linestyle="--", label="mean at the points")
    right.axvline(FAR, color="#999999", linestyle=":")
    right.set(
        xlabel="distance from the origin",
        ylabel="mean U",
        yscale="log",
        title=f"beyond {FAR:g}: {result.ratio:.0f} times U at the points",
    )
    right.legend()
    return figure


Panels = Mapping[str, Mapping[str, Curve]]  # label of a curve -> curve, by panel


def draw_curves(
    title: str, rows: Mapping[str, Panels], footer: Sequence[str], xlabel: str = "gradient steps"
) -> Any:
    """Curves with bands of one deviation: a row a quantity, a column a dataset.

    Args:
        title: of the figure.
        rows: quantity -> dataset -> label -> curve.
        footer: what was reduced.
        xlabel: of all panels.
    """
    columns = list(next(iter(rows.values())))
    figure = new_figure(max(6.0, 4.4 * len(columns) + 1.6), 2.9 * len(rows), footer)
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    figure.suptitle(title, fontsize=11)
    shown = [panel for panels in rows.values() for panel in panels.values()]
    labels = list(dict.fromkeys(label for panel in shown for label in panel))
    legend: dict[str, Any] = {}
    for row, (quantity, panels) in zip(axes, rows.items(), strict=True):
        for axis, dataset in zip(row, columns, strict=True):
            for label, curve in panels.get(dataset, {}).items():
                index = labels.index(label)  # the same colour everywhere, whatever is missing here
                colour, style = COLOURS[index % len(COLOURS)], "-" if index < 8 else "--"
                (line,) = axis.plot(
                    curve.steps, curve.mean, style, color=colour, label=label, linewidth=1.4
                )
                legend.setdefault(label, line)
                low, high = curve.mean - curve.std, curve.mean + curve.std
                axis.fill_between(curve.steps, low, high, color=colour, alpha=0.15, linewidth=0)
            axis.set(xlabel=xlabel, ylabel=quantity)
            axis.set_title(dataset, fontsize=9)
            axis.grid(alpha=0.25)
            if _wide(panels.get(dataset, {})):
                axis.set_yscale("symlog", linthresh=1.0)
    if legend:
        handles = [legend[label] for label in labels]
        place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)}
        axes[0, -1].legend(handles, labels, fontsize=7, **place)
    return figure


def _wide(curves: Mapping[str, Curve]) -> bool:
    """Whether one curve leaves the others by so much that a linear axis would show only it."""
    peaks = sorted(float(np.abs(curve.mean).max()) for curve in curves.values())
    return len(peaks) > 1 and peaks[-1] > 30 * max(peaks[len(peaks) // 2], 1e-9)


def draw_kinds(
    title: str, curves: Mapping[str, Mapping[str, Mapping[str, Curve]]], footer: Sequence[str]
) -> Any:
    """Fig. 3: ``{"u_mean" | "q_mean": dataset -> kind -> curve}``."""
    names = {"u_mean": "uncertainty U", "q_mean": "Q"}
    rows = {
        names[quantity]: {
            dataset: {DESCRIPTIONS[kind]: kinds[kind] for kind in KINDS if kind in kinds}
            for dataset, kinds in panels.items()
        }
        for quantity, panels in curves.items()
    }
    return draw_curves(title, rows, footer)


def draw_scores(
    title: str,
    ours: Mapping[str, Mapping[str, Cell]],
    theirs: Mapping[str, Mapping[str, Cell]],
    unit: str,
    footer: Sequence[str],
) -> Any:
    """Scores by dataset and system, ours filled and the paper's hollow."""
    datasets = list(ours)
    labels = list(dict.fromkeys(label for row in ours.values() for label in row))
    figure = new_figure(8, 1.2 + 0.24 * len(datasets) * max(1, len(labels)), footer)
    axis = figure.subplots()
    ticks, names = [], []
    position = 0.0
    for dataset in datasets:
        for index, label in enumerate(labels):
            colour = COLOURS[index % len(COLOURS)]
            for cells, face in ((ours, colour), (theirs, "white")):
                cell = cells.get(dataset, {}).get(label)
                if cell is not None:
                    axis.errorbar(
                        cell.mean,
                        position,
                        xerr=cell.std,
                        fmt="o",
                        color=colour,
                        markerfacecolor=face,
                        markersize=5,
                        linewidth=1,
                    )
            ticks.append(position)
            names.append(f"{dataset}  {label}" if index == 0 else label)
            position += 1
        position += 0.6
    axis.set_yticks(ticks, names, fontsize=7)
    axis.invert_yaxis()
    axis.set(xlabel=f"{unit}, mean and deviation over seeds (filled: ours; hollow: the paper's)")
    axis.set_title(title, fontsize=10)
    axis.grid(axis="x", alpha=0.25)
    return figure


def draw_statistics(
    title: str,
    estimates: Mapping[str, Mapping[str, Estimate]],
    means: Mapping[str, Mapping[str, float]],
    profiles: Mapping[str, tuple[Profile, Profile]],
    footer: Sequence[str],
) -> Any:
    """Appendix F: four aggregates with intervals, and both performance profiles.

    Args:
        title: of the figure.
        estimates: system -> aggregate -> estimate, of our runs.
        means: system -> aggregate -> value of the paper's printed means, where comparable.
        profiles: system -> (of runs, of task means).
        footer: what was reduced.
    """
    labels = list(estimates)
    height = 1.0 + 0.32 * len(labels)
    figure = new_figure(11, height + 3.4, footer)
    figure.suptitle(title, fontsize=11)
    top, bottom = figure.subfigures(2, 1, height_ratios=(height, 3.2))
    axes = top.subplots(1, 4, sharey=True)
    for axis, name in zip(axes, next(iter(estimates.values())), strict=True):
        for index, label in enumerate(labels):
            found, colour = estimates[label][name], COLOURS[index % len(COLOURS)]
            axis.plot([found.low, found.high], [index, index], color=colour, linewidth=5, alpha=0.4)
            axis.plot(found.value, index, "|", color=colour, markersize=14, markeredgewidth=2)
            if label in means:
                axis.plot(means[label][name], index, "o", color=colour, markerfacecolor="white")
        axis.set_title(name, fontsize=9)
        axis.grid(axis="x", alpha=0.25)
    axes[0].set_yticks(range(len(labels)), labels, fontsize=8)
    axes[0].invert_yaxis()
    panels = bottom.subplots(1, 2, sharey=True)
    names = ("share of runs above the score", "share of tasks whose mean is above the score")
    for which, (axis, name) in enumerate(zip(panels, names, strict=True)):
        for index, label in enumerate(labels):
            profile, colour = profiles[label][which], COLOURS[index % len(COLOURS)]
            axis.plot(profile.thresholds, profile.share, color=colour, label=label)
            axis.fill_between(
                profile.thresholds, profile.low, profile.high, color=colour, alpha=0.15, linewidth=0
            )
        axis.set(xlabel="score", ylabel=name, ylim=(-0.02, 1.02))
        axis.grid(alpha=0.25)
    panels[1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return figure


def draw_costs(rows: Sequence[Mapping[str, Any]], footer: Sequence[str]) -> Any:
    """Table 3 as bars: ours and the paper's, side by side."""
    figure = new_figure(9, 2.6, footer)
    names = {
        "seconds_per_1000_steps": "seconds per 1000 steps",
        "memory_gb": "memory, GB",
        "parameters_millions": "parameters, millions",
    }
    axes = figure.subplots(1, 3)
    for axis, (key, name) in zip(axes, names.items(), strict=True):
        for index, row in enumerate(rows):
            axis.bar(index - 0.2, row[key], 0.38, color=COLOURS[0], label="ours, CPU, 1 thread")
            axis.bar(index + 0.2, row["paper"][key], 0.38, color=COLOURS[4], label="paper, GPU")
        axis.set_xticks(range(len(rows)), [str(row["label"]) for row in rows])
        axis.set_title(name, fontsize=9)
    handles, labels = axes[0].get_legend_handles_labels()
    axes[0].legend(handles[:2], labels[:2], fontsize=7)
    return figure
