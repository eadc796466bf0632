"""The report's charts as plotly.js sees them: plain dictionaries, no plotly in Python."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pbrl.evaluation.statistics import Estimate, Profile
from pbrl.experiments.collect_results import Curve

COLOURS = (
    "#3b82c4", "#e0662a", "#2ba86d", "#c767a4", "#d9a514", "#56b4e9", "#8064c9", "#8a8a8a",
)  # fmt: skip
KIND_NAMES = {
    "data": "data actions",
    "offline": "data actions",
    "policy": "policy's actions",
    "random": "random actions",
    "noise1": "data + 0.1 noise",
    "noise2": "data + 0.5 noise",
}


def chart(name: str, title: str, traces: list[dict[str, Any]], x: str, y: str) -> dict[str, Any]:
    """A chart for the page's script; colours of text and grid are the page's business."""
    entries = sum(trace.get("showlegend", True) for trace in traces)
    height = 400 + 20 * max(0, entries - 3)  # long legends grow downwards
    layout = {
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}},
        "hovermode": "x unified" if entries <= 8 else "closest",
        "legend": {"orientation": "h", "y": -60 / 280},
        "margin": {"l": 60, "r": 15, "t": 30, "b": 50},
        "height": height,
    }
    return {"id": name, "title": title, "traces": traces, "layout": layout}


def band(label: str, curve: Curve, index: int, show_legend: bool = True) -> list[dict[str, Any]]:
    """A mean with its band of one deviation over seeds."""
    colour, name = COLOURS[index % len(COLOURS)], html.escape(label)
    steps = [int(step) for step in curve.steps]
    low, high = _round(curve.mean - curve.std), _round(curve.mean + curve.std)
    group = f"g{index}"
    edge = {
        "x": steps, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip",
        "showlegend": False, "legendgroup": group, "type": "scatter",
    }  # fmt: skip
    line = {
        "x": steps,
        "y": _round(curve.mean),
        "customdata": _round(curve.std),
        "name": name,
        "mode": "lines+markers",
        "marker": {"size": 4},
        "line": {"color": colour, "width": 2},
        "legendgroup": group,
        "showlegend": show_legend,
        "hovertemplate": "%{y:.4g} ± %{customdata:.2g}<extra>" + name + "</extra>",
        "type": "scatter",
    }
    if curve.seeds == 1:
        return [line]
    return [
        {**edge, "y": high},
        {**edge, "y": low, "fill": "tonexty", "fillcolor": _faint(colour)},
        line,
    ]


def curves_chart(name: str, title: str, curves: Mapping[str, Curve], y: str) -> dict[str, Any]:
    """Learning curves of several systems."""
    traces = [
        trace
        for index, (label, curve) in enumerate(curves.items())
        for trace in band(label, curve, index)
    ]
    return chart(name, title, traces, "gradient steps", y)


def aggregates_chart(estimates: Mapping[str, Mapping[str, Estimate]]) -> dict[str, Any]:
    """Median, IQM, mean and optimality gap with their intervals, grouped by aggregate."""
    traces = []
    for index, (label, values) in enumerate(estimates.items()):
        points = list(values.values())
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": list(values),
                "y": _round(np.array([point.value for point in points])),
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": _round(np.array([p.high - p.value for p in points])),
                    "arrayminus": _round(np.array([p.value - p.low for p in points])),
                },
                "customdata": [[p.low, p.high] for p in points],
                "hovertemplate": "%{y:.1f} [%{customdata[0]:.1f}, %{customdata[1]:.1f}]",
                "name": html.escape(label),
                "marker": {"color": COLOURS[index % len(COLOURS)], "size": 9},
            }
        )
    made = chart("aggregates", "Aggregates with 95 % intervals", traces, "", "score")
    # Systems side by side rather than one over the other.
    made["layout"]["scattermode"] = "group"
    return made


def profiles_chart(name: str, title: str, profiles: Mapping[str, Profile]) -> dict[str, Any]:
    """Performance profiles with pointwise bands."""
    traces: list[dict[str, Any]] = []
    for index, (label, profile) in enumerate(profiles.items()):
        colour, text = COLOURS[index % len(COLOURS)], html.escape(label)
        x = _round(profile.thresholds)
        edge = {
            "x": x, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip",
            "showlegend": False, "legendgroup": f"g{index}", "type": "scatter",
        }  # fmt: skip
        traces += [
            {**edge, "y": _round(profile.high)},
            {**edge, "y": _round(profile.low), "fill": "tonexty", "fillcolor": _faint(colour)},
            {
                "x": x,
                "y": _round(profile.share),
                "name": text,
                "mode": "lines",
                "line": {"color": colour, "width": 2},
                "legendgroup": f"g{index}",
                "hovertemplate": "%{y:.2f}<extra>" + text + "</extra>",
                "type": "scatter",
            },
        ]
    return chart(name, title, traces, "score", "share above the score")


def _round(values: Any) -> list[float | None]:
    """Six digits are enough for a screen, and JSON knows no NaN."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in np.asarray(values, float)]


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


Charts = Sequence[dict[str, Any]]
