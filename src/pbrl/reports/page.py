"""One self-contained HTML page from runs."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from pbrl.errors import optional_import
from pbrl.evaluation.statistics import (
    GAP_THRESHOLD,
    aggregates,
    performance_profile,
    score_matrix,
)
from pbrl.experiments.collect_results import Curve, over_seeds
from pbrl.reports import charts
from pbrl.reports.gather import KINDS, PROBED, ReportRun, find_run_directories, read_runs
from pbrl.training.files import write_text

Groups = Mapping[tuple[str, str], Sequence[ReportRun]]


def write_report(places: Sequence[Path], out: Path, title: str = "pbrl report") -> int:
    """Write one page about the runs at or below ``places``; returns how many there are."""
    runs = read_runs(find_run_directories(places))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, render(runs, title))
    return len(runs)


def render(runs: Sequence[ReportRun], title: str = "pbrl report") -> str:
    """The page as text; everything it needs is inside."""
    plotly = optional_import("plotly.offline", "report").get_plotlyjs()
    groups: dict[tuple[str, str], list[ReportRun]] = {}
    for run in runs:
        groups.setdefault((run.result.dataset, run.result.label), []).append(run)
    drawn: list[dict[str, Any]] = []
    sections = [
        _section("Scores", _scores_table(groups) + _key(runs) + _score_notes(runs)),
        _section("Learning curves", _holders(_learning_charts(groups), drawn)),
        _section("Uncertainty and Q during training", _holders(_value_charts(groups), drawn)),
        _section("Aggregates and performance profiles", _statistics(groups, drawn)),
        _section("Cost", _cost_table(groups)),
        _section("Settings", _settings(groups)),
        _section("Where this comes from", _origins(runs)),
    ]
    parts = {
        "title": html.escape(title),
        "summary": html.escape(_summary(runs, groups)),
        "sections": "\n".join(sections),
        "css": _asset("report.css"),
        "plotly": plotly,
        "charts": json.dumps(drawn, allow_nan=False).replace("<", "\\u003c"),
        "script": _asset("report.js"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match.group(1)], _asset("template.html"))


def _asset(name: str) -> str:
    return (resources.files("pbrl.reports") / "assets" / name).read_text()


def _summary(runs: Sequence[ReportRun], groups: Groups) -> str:
    datasets = {dataset for dataset, _ in groups}
    systems = {label for _, label in groups}
    unfinished = sum(not run.finished for run in runs)
    text = f"{len(runs)} runs, {len(systems)} systems, {len(datasets)} datasets."
    return text + (f" {unfinished} of them are not finished." if unfinished else "")


# ---------------------------------------------------------------------------- tables


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]], name: str) -> str:
    """A sortable table; a cell is a text, or (text, number to sort by)."""
    top = "".join(
        f'<th scope="col"><button type="button">{html.escape(h)}</button></th>' for h in heads
    )
    body = []
    for row in rows:
        cells = []
        for cell in row:
            text, key = cell if isinstance(cell, tuple) else (cell, None)
            number = isinstance(key, int | float) and np.isfinite(key)
            sort = f' data-sort="{key}" class="number"' if number else ""
            cells.append(f"<td{sort}>{html.escape(str(text))}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll"><table id="{name}" class="sortable"><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _cell(values: Sequence[float], digits: int = 1) -> tuple[str, float]:
    if not values:
        return "–", float("-inf")
    mean, std = float(np.mean(values)), float(np.std(values))
    text = f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if len(values) > 1 else "")
    return text, mean


def _scores_table(groups: Groups) -> str:
    rows = []
    for (dataset, label), runs in groups.items():
        last = [r.result.last for r in runs if r.result.last is not None]
        best = [r.result.best for r in runs if r.result.best is not None]
        unit = "normalised" if all(r.result.normalised for r in runs) else "return"
        behaviour = runs[0].info["data"].get("behaviour_return_mean")
        rows.append(
            [
                dataset,
                label,
                _cell(last),
                _cell(best),
                (str(len(runs)), len(runs)),
                unit,
                ("–", float("-inf")) if behaviour is None else (f"{behaviour:.1f}", behaviour),
            ]
        )
    heads = [
        "data", "system", "last score", "best score", "seeds", "unit", "return of the data",
    ]  # fmt: skip
    return _table(heads, rows, "scores")


def _key(runs: Sequence[ReportRun]) -> str:
    """What the systems are that have too many settings of their own for a name."""
    described = {run.result.label: run.described for run in runs}
    items = [
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>"
        for name, text in described.items()
        if name != text
    ]
    return f"<dl>{''.join(items)}</dl>" if items else ""


def _score_notes(runs: Sequence[ReportRun]) -> str:
    sources = {
        str(run.info["data"].get("score_source"))
        for run in runs
        if run.info["data"].get("score_source")
    }
    note = (
        "Mean ± deviation over seeds. The last score is the last policy's: what the paper reports. "
        "The best is the highest on the way, which one can pick only with the simulator at hand."
    )
    if sources:
        note += f" Normalised by the reference returns of {', '.join(sorted(sources))}."
    return f"<p>{html.escape(note)}</p>"


def _cost_table(groups: Groups) -> str:
    rows = []
    for (dataset, label), runs in groups.items():
        rates = [r.steps_per_second for r in runs if r.steps_per_second]
        hours = [r.steps / r.steps_per_second / 3600 for r in runs if r.steps_per_second]
        info = runs[0].info
        rows.append(
            [
                dataset,
                label,
                (f"{runs[0].steps:,}", runs[0].steps),
                _cell(rates),
                _cell(hours, 3),
                _cell([r.evaluation_seconds / 3600 for r in runs], 3),
                f"{info.get('device', '?')}, {info.get('threads', '?')} threads",
            ]
        )
    heads = [
        "data", "system", "steps", "steps/s", "hours of training", "hours of evaluation", "on",
    ]  # fmt: skip
    return _table(heads, rows, "cost")


def _settings(groups: Groups) -> str:
    out = []
    for (dataset, label), runs in groups.items():
        text = json.dumps(runs[0].info["config"], indent=2)
        out.append(
            f"<details><summary>{html.escape(f'{dataset}: {label}')}</summary>"
            f"{_column_names(runs[0].info['data'])}<pre>{html.escape(text)}</pre></details>"
        )
    return "".join(out)


def _column_names(data: Mapping[str, Any]) -> str:
    """What the log calls the policy's inputs and outputs; runs of an older pbrl do not know."""
    rows = [(what, data.get(f"{what}_names")) for what in ("observation", "action")]
    return "".join(
        f"<p>{what.capitalize()}s: {html.escape(', '.join(names))}</p>"
        for what, names in rows
        if names
    )


def _origins(runs: Sequence[ReportRun]) -> str:
    rows = []
    for run in runs:
        info, result = run.info, run.result
        versions = ", ".join(f"{k} {v}" for k, v in info.get("versions", {}).items())
        rows.append(
            [
                result.run.path.name,
                result.label,
                (str(result.seed), result.seed),
                "finished" if run.finished else "not finished",
                f"{info['data']['name']} {info['data']['fingerprint'][:16]}",
                str(info.get("git_revision") or "–"),
                versions,
            ]
        )
    heads = ["run", "system", "seed", "state", "data and fingerprint", "git revision", "versions"]
    return _table(heads, rows, "origins")


# ---------------------------------------------------------------------------- charts


def _holders(made: Sequence[dict[str, Any]], drawn: list[dict[str, Any]]) -> str:
    """Places for charts; the charts themselves go to ``drawn``."""
    drawn += made
    if not made:
        return "<p>These runs have no such records.</p>"
    return "".join(
        f'<h3>{html.escape(item["title"])}</h3><div class="chart" id="{item["id"]}" role="img" '
        f'style="height: {item["layout"]["height"]}px" '
        f'aria-label="{html.escape(item["title"])}"></div>'
        for item in made
    )


def _by_dataset(groups: Groups) -> dict[str, dict[str, Sequence[ReportRun]]]:
    out: dict[str, dict[str, Sequence[ReportRun]]] = {}
    for (dataset, label), runs in groups.items():
        out.setdefault(dataset, {})[label] = runs
    return out


def _learning_charts(groups: Groups) -> list[dict[str, Any]]:
    made = []
    for index, (dataset, systems) in enumerate(_by_dataset(groups).items()):
        curves: dict[str, Curve] = {}
        for label, runs in systems.items():
            curve = over_seeds([run.result.scores for run in runs])
            if curve is not None:
                curves[label] = curve
        if curves:
            normal = all(r.result.normalised for runs in systems.values() for r in runs)
            unit = "normalised score" if normal else "return"
            made.append(charts.curves_chart(f"learning-{index}", dataset, curves, unit))
    return made


def _value_charts(groups: Groups) -> list[dict[str, Any]]:
    """U and Q by kind of action, for every system that has critics: five kinds where probed."""
    made = []
    for index, ((dataset, label), runs) in enumerate(groups.items()):
        probed = all(run.probes for run in runs)
        for what, name in (("u", "uncertainty U"), ("q", "Q")):
            curves: dict[str, Curve] = {}
            for kind in PROBED if probed else KINDS:
                key = f"{what}_{kind}"
                found = over_seeds(
                    [run.probes[key] if probed else run.result.quantities[key] for run in runs]
                )
                if found is not None:
                    curves[charts.KIND_NAMES[kind]] = found
            if curves:
                title = f"{dataset}, {label}: {name}"
                made.append(charts.curves_chart(f"values-{what}-{index}", title, curves, name))
    return made


def _statistics(groups: Groups, drawn: list[dict[str, Any]]) -> str:
    """Aggregates over all datasets that every system has, in normalised scores."""
    by_system: dict[str, dict[str, list[float]]] = {}
    for (dataset, label), runs in groups.items():
        last = [r.result.last for r in runs if r.result.last is not None and r.result.normalised]
        if last:
            by_system.setdefault(label, {})[dataset] = last
    tasks = sorted(set.intersection(*(set(v) for v in by_system.values()))) if by_system else []
    if not tasks:
        return "<p>No dataset has normalised scores of every system, so there is no aggregate.</p>"
    estimates, of_runs, of_tasks, notes = {}, {}, {}, []
    matrices = {}
    for label, found in by_system.items():
        matrices[label], note = score_matrix({task: found[task] for task in tasks})
        notes += [f"{label}: {note}."] if note else []
    bottom = min(0.0, *(float(m.min()) for m in matrices.values()))
    taus = np.linspace(bottom, max(float(m.max()) for m in matrices.values()), 81)
    for label, matrix in matrices.items():
        estimates[label] = aggregates(matrix)
        of_runs[label] = performance_profile(matrix, taus)
        of_tasks[label] = performance_profile(matrix, taus, average_runs=True)
    rows = [
        [label, *((f"{e.value:.1f} [{e.low:.1f}, {e.high:.1f}]", e.value) for e in v.values())]
        for label, v in estimates.items()
    ]
    text = (
        f"Last normalised scores over {len(tasks)} tasks ({', '.join(tasks)}); stratified "
        f"bootstrap over seeds, 95 %; optimality gap below {GAP_THRESHOLD:g}, less is better. "
        + " ".join(notes)
    )
    made = [
        charts.aggregates_chart(estimates),
        charts.profiles_chart("profile-runs", "Share of runs above a score", of_runs),
        charts.profiles_chart("profile-tasks", "Share of tasks whose mean is above", of_tasks),
    ]
    heads = ["system", "median", "IQM", "mean", "optimality gap"]
    return f"<p>{html.escape(text)}</p>" + _table(heads, rows, "aggregate") + _holders(made, drawn)


def _section(title: str, body: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{body}</section>"
