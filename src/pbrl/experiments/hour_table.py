"""The page of ``pbrl reproduce table1 --budget hour``: tables, curves and what they come to."""

from __future__ import annotations

import base64
import dataclasses
import html
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from pbrl.evaluation.scores import normalized_score
from pbrl.evaluation.statistics import AGGREGATES, Estimate, aggregates, score_matrix
from pbrl.experiments import paper
from pbrl.experiments.budgets import Plan
from pbrl.experiments.collect_results import Curve, RunResult, data_name, group, over_seeds
from pbrl.experiments.definitions import Experiment
from pbrl.experiments.drawings import Drawn, runs_json
from pbrl.experiments.figures import draw_curves
from pbrl.experiments.paper import Cell
from pbrl.experiments.speeds import speed_of
from pbrl.experiments.tables import beside, cells_json, markdown

EPISODES = 20
"""Of every evaluation."""
NOISE = 0.05
"""Of observations and actions, in deviations of the data."""

MEAN = "mean score over all sets"

Values = Mapping[tuple[str, str], Sequence[float]]  # (dataset, system) -> one value a seed


def draw(
    chosen: Experiment, plan: Plan, results: Sequence[RunResult], footer: Sequence[str]
) -> Drawn:
    """The table, the same under noise, what it comes to, and curves of score against minutes."""
    names = [data_name(dataset) for dataset in plan.datasets]
    labels = [v.label for v in chosen.variants if any(r.label == v.label for r in results)]
    groups = group(results)
    last = {key: [r.last for r in runs if r.last is not None] for key, runs in groups.items()}
    noisy = {
        key: [r.quantities["noisy"][-1][1] for r in runs if "noisy" in r.quantities]
        for key, runs in groups.items()
    }
    logged = {name: _logged(runs[0]) for (name, _), runs in groups.items()}
    theirs = {name: paper.cell_of("table1", name, "PBRL") for name in names}

    heads = ["data", "their mean", *labels, "paper's PBRL, 1M steps"]
    lines = [
        [
            name,
            _text(logged.get(name)),
            *(beside(_cell(last.get((name, label))), None) for label in labels),
            beside(theirs[name], None),
        ]
        for name in names
    ]
    means = {label: _means(last, names, label) for label in labels}
    printed = [theirs[name] for name in names]
    paper_mean = float(np.mean([c.mean for c in printed if c])) if all(printed) else None
    known = [mean for name in names if (mean := logged.get(name)) is not None]
    lines.append(
        [
            "**mean**",
            _text(float(np.mean(known)) if len(known) == len(names) else None),
            *(_text(means[label].get("mean")) for label in labels),
            _text(paper_mean),
        ]
    )
    verdicts = {label: _verdict(label, names, last, logged, results) for label in labels}
    table = (
        markdown(heads, lines)
        + f"\nNormalised score of the last policy, {EPISODES} episodes, {plan.seeds} "
        f"seed{'s' * (plan.seeds > 1)}.\n\n"
        + markdown(
            ["data", *labels],
            [[n, *(beside(_cell(noisy.get((n, label))), None) for label in labels)] for n in names],
        )
        + f"\nThe same policies under noise of {NOISE:.0%} of the data's deviations on "
        "observations and actions.\n\n"
        + markdown(
            ["system", *AGGREGATES, *next(iter(verdicts.values()))],
            [
                [label, *(_interval(means[label].get(n)) for n in AGGREGATES), *verdict.values()]
                for label, verdict in verdicts.items()
            ],
        )
        + "\nOver the sets, with rliable's stratified-bootstrap 95 % interval over seeds (none "
        "with one seed). A set counts as won where the score is the highest of the row; worst vs. "
        "data: the least score less the data's own; late fall: the largest between evaluations in "
        "the last quarter of a run; U in order: runs where it rises from the data's actions over "
        "noise 0.1 to noise 0.5.\n"
    )
    numbers = {
        "minutes": minutes_of(results),
        "ours": cells_json(_cells(last, names)),
        "noisy": cells_json(_cells(noisy, names)),
        "data": logged,
        "paper": {name: None if c is None else c.mean for name, c in theirs.items()},
        "aggregates": {k: {n: e.to_json() for n, e in v.items()} for k, v in means.items()},
        "verdicts": verdicts,
        "runs": runs_json(results),
    }
    figure = draw_curves(
        "Score against minutes of one quiet core", _panels(results, labels), footer, "minutes"
    )
    for axis in figure.axes:
        axis.set_visible(bool(axis.lines) or axis.get_legend() is not None)
        if axis.get_ylabel() == MEAN:
            axis.set_title("")
    return Drawn(figure, table, numbers)


def minutes_of(results: Sequence[RunResult]) -> dict[str, float]:
    """Minutes on one quiet core of every system's longest run."""
    out: dict[str, float] = {}
    for result in results:
        steps = result.run.config.steps
        out[result.label] = max(out.get(result.label, 0), round(steps / _speed(result) / 60, 2))
    return out


def _speed(result: RunResult) -> float:
    data = result.run.info["data"]
    return speed_of(
        result.run.config.algorithm, int(data["observation_dim"]), int(data["action_dim"])
    )


def _logged(result: RunResult) -> float | None:
    """The data's own mean score."""
    scores, mean = result.run.reference_scores, result.run.info["data"]["behaviour_return_mean"]
    return None if scores is None else float(normalized_score([mean], scores)[0])


def _cell(values: Sequence[float] | None) -> Cell | None:
    if not values:
        return None
    return Cell(float(np.mean(values)), float(np.std(values)) if len(values) > 1 else None)


def _cells(values: Values, names: Sequence[str]) -> dict[str, dict[str, Cell]]:
    found = {name: {k: _cell(v) for (n, k), v in values.items() if n == name} for name in names}
    return {name: {k: c for k, c in row.items() if c is not None} for name, row in found.items()}


def _text(value: float | Estimate | None) -> str:
    number = value.value if isinstance(value, Estimate) else value
    return "–" if number is None else f"{number:.1f}"


def _interval(found: Estimate | None) -> str:
    if found is None:
        return "–"
    spread = "" if found.low == found.high else f" [{found.low:.1f}, {found.high:.1f}]"
    return f"{found.value:.1f}{spread}"


def _means(last: Values, names: Sequence[str], label: str) -> dict[str, Estimate]:
    """Aggregates of a system that has every set; nothing otherwise."""
    found = {name: list(last.get((name, label), ())) for name in names}
    return aggregates(score_matrix(found)[0]) if all(found.values()) else {}


def _verdict(
    label: str,
    names: Sequence[str],
    last: Values,
    logged: dict[str, float | None],
    results: Sequence[RunResult],
) -> dict[str, str]:
    """Sets won, how far below the data at worst, the largest late fall, and U in order."""
    mine = {n: float(np.mean(last[n, label])) for n in names if last.get((n, label))}
    best = {
        n: max(float(np.mean(v)) for (name, _), v in last.items() if name == n and v) for n in mine
    }
    gaps = [value - base for n, value in mine.items() if (base := logged.get(n)) is not None]
    runs = [r for r in results if r.label == label]
    falls = [fall for r in runs for fall in _late_falls(r)]
    told = [r for r in runs if "u/offline" in r.quantities]
    ordered = [
        np.all(
            np.diff([r.quantities[f"u/{k}"][-1][1] for k in ("offline", "noise1", "noise2")]) > 0
        )
        for r in told
    ]
    return {
        "sets won": f"{sum(value >= best[n] for n, value in mine.items())} of {len(mine)}",
        "worst vs. data": f"{min(gaps):+.1f}" if gaps else "–",
        "late fall": f"{max(falls):.1f}" if falls else "–",
        "U in order": f"{sum(map(bool, ordered))} of {len(told)}" if told else "–",
    }


def _late_falls(result: RunResult) -> Iterator[float]:
    """Falls from one evaluation to the next in the last quarter of a run."""
    late = [score for step, score in result.scores if step >= 0.75 * result.run.config.steps]
    for before, after in pairwise(late):
        yield max(0.0, before - after)


def _panels(
    results: Sequence[RunResult], labels: Sequence[str]
) -> dict[str, dict[str, dict[str, Curve]]]:
    """Task -> tier -> system -> curve over minutes, and the mean over all sets."""
    rows: dict[str, dict[str, dict[str, Curve]]] = {}
    every: dict[str, list[Curve]] = {label: [] for label in labels}
    groups = group(results)
    tiers = list(dict.fromkeys(name.partition("-")[2] or name for name, _ in groups))
    for (name, label), runs in groups.items():
        curve = over_seeds([run.scores for run in runs])
        if curve is None:
            continue
        timed = dataclasses.replace(curve, steps=curve.steps / _speed(runs[0]) / 60)
        task, _, tier = name.partition("-")
        panel = rows.setdefault(f"{task}: score", {t: {} for t in tiers})
        panel[tier or name][label] = timed
        every[label].append(timed)
    sizes = {len(curve.steps) for curves in every.values() for curve in curves}
    count = max(map(len, every.values()), default=0)
    if count > 1 and len(sizes) == 1:
        rows[MEAN] = {
            tiers[0]: {
                label: Curve(curves[0].steps, np.mean([c.mean for c in curves], 0),
                             np.zeros_like(curves[0].mean), len(curves))
                for label, curves in every.items() if len(curves) == count
            }
        }  # fmt: skip
    return rows


def page(title: str, drawn_table: str, reductions: Sequence[str], picture: bytes) -> str:
    """One page with the tables and the figure (PNG), and nothing beside it."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    block: list[str] = []
    for line in [*drawn_table.splitlines(), ""]:
        if line.startswith("|"):
            block.append(line)
            continue
        if block:
            parts.append(_html_table(block))
            block = []
        if line:
            parts.append(f"<p>{html.escape(line)}</p>")
    inside = base64.b64encode(picture).decode()
    parts.append(f'<img src="data:image/png;base64,{inside}" alt="Score against minutes">')
    parts += [f"<p>{html.escape(sentence)}</p>" for sentence in reductions]
    style = (
        "body{font:15px sans-serif;max-width:75em;margin:2em auto;padding:0 1em}"
        "td,th{padding:.2em .7em;text-align:right}td:first-child,th:first-child{text-align:left}"
        "tr:nth-child(even){background:#f4f4f4}img{max-width:100%}p{color:#444}"
    )
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title><style>{style}</style>\n<body>\n"
        + body
        + "\n</body></html>\n"
    )


def _html_table(lines: Sequence[str]) -> str:
    rows = [[cell.strip().strip("*") for cell in line.strip("| ").split("|")] for line in lines]
    out = []
    for number, row in enumerate(rows):
        if number == 1:  # the line of dashes
            continue
        tag = "th" if number == 0 else "td"
        out.append("<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in row) + "</tr>")
    return "<table>\n" + "\n".join(out) + "\n</table>"
