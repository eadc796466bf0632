"""``pbrl data inspect --html``: one page with its pictures inside, no other file needed."""

from __future__ import annotations

import io
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from pbrl.data.column_stats import quantiles
from pbrl.data.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1f4e79"

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; }}
h1 {{ margin-bottom: .2rem; }} h2 {{ margin-top: 2.2rem; }}
.numbers {{ display: flex; flex-wrap: wrap; gap: .8rem; padding: 0; list-style: none; }}
.numbers li {{ border: 1px solid #8884; border-radius: .5rem; padding: .5rem 1rem; }}
.numbers b {{ display: block; font-size: 1.4rem; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
th, td {{ padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #8883; }}
th:first-child, td:first-child {{ text-align: left; }}
figure {{ margin: 1rem 0; background: #fff; border-radius: .5rem; }}
svg {{ width: 100%; height: auto; }}
</style></head><body>
{body}
</body></html>
"""


def summary_page(summary: Summary) -> str:
    """The page as HTML text."""
    title = f"{summary.metadata.name}: what the data hold"
    parts = [
        f"<h1>{escape(summary.metadata.name)}</h1>",
        f"<p>{escape(summary.metadata.source)}</p>",
    ]
    parts.append(_numbers(summary))
    parts.append("<h2>Worth knowing</h2>" + _list(summary.findings()))
    if summary.metadata.notes:
        parts.append("<h2>How it was read</h2>" + _list(list(summary.metadata.notes)))
    parts.append("<h2>Episodes</h2>" + _svg(_episode_figure(summary), "returns and lengths"))
    parts.append(_quantile_table(summary))
    parts.append("<h2>Coverage</h2>" + _svg(_coverage_figure(summary), "coverage of the states"))
    parts.append("<h2>Actions</h2>" + _svg(_action_figure(summary), "distribution of actions"))
    parts.append(_stats_table(summary.actions))
    parts.append("<h2>Observations</h2>" + _stats_table(summary.observations))
    parts.append("<h2>Rewards</h2>" + _stats_table(summary.rewards))
    return _PAGE.format(title=escape(title), body="\n".join(parts))


def _numbers(summary: Summary) -> str:
    metadata = summary.metadata
    cut = "not recorded" if summary.timeouts is None else f"{summary.timeouts:,}"
    items = [
        ("transitions", f"{summary.transitions:,}"),
        ("raw rows", f"{summary.rows:,}"),
        ("episodes", f"{len(summary.lengths):,}"),
        ("terminals", f"{summary.terminals:,}"),
        ("timeouts", cut),
        ("mean return", f"{summary.returns.mean():.4g}"),
        ("exact duplicates", f"{summary.duplicates:,}"),
        ("environment", metadata.env_id or "unknown"),
    ]
    if metadata.reference_scores is not None:
        low, high = metadata.reference_scores
        score = 100 * (summary.returns.mean() - low) / (high - low)
        items.append((f"mean score ({metadata.score_source}'s scale)", f"{score:.1f}"))
    cells = "".join(f"<li>{escape(name)}<b>{escape(value)}</b></li>" for name, value in items)
    return f'<ul class="numbers">{cells}</ul>'


def _list(sentences: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in sentences) + "</ul>"


def _table(header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _quantile_table(summary: Summary) -> str:
    returns, lengths = quantiles(summary.returns), quantiles(summary.lengths)
    rows = [
        [name, *(_short(value) for value in values.values())]
        for name, values in (("return", returns), ("length", lengths))
    ]
    return _table(["", *returns], rows)


def _stats_table(stats: Any) -> str:
    rows = [
        [entry["name"], *(_short(entry[key]) for key in ("min", "max", "mean", "std", "bad"))]
        for entry in stats.to_json()
    ]
    return _table(["column", "min", "max", "mean", "std", "NaN or Inf"], rows)


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"


def _figure(columns: int, height: float = 3.0) -> tuple[Figure, list[Axes]]:
    # Figure objects without pyplot: no display, no global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained")
    axes = [figure.add_subplot(1, columns, i + 1) for i in range(columns)]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure, label: str) -> str:
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": "pbrl", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    svg = text[text.index("<svg") :]
    return f'<figure role="img" aria-label="{escape(label)}">{svg}</figure>'


def _episode_figure(summary: Summary) -> Figure:
    figure, (left, middle, right) = _figure(3)
    left.hist(summary.returns, bins=40, color=INK)
    left.set(xlabel="return", ylabel="episodes")
    middle.hist(summary.lengths, bins=40, color=INK)
    middle.set(xlabel="length", ylabel="episodes")
    step = max(1, len(summary.returns) // 4000)
    right.plot(summary.returns[::step], ".", ms=2, color=INK, rasterized=True)
    right.set(xlabel="episode, in file order", ylabel="return")
    return figure


def _coverage_figure(summary: Summary) -> Figure:
    figure, (left, right) = _figure(2, 3.6)
    good = np.isfinite(summary.sample_observations).all(1)
    states = summary.sample_observations[good].astype(np.float64)
    returns = summary.returns[summary.sample_episodes[good]]
    if len(states) > 1:
        centred = states - states.mean(0)
        scale = centred.std(0)
        centred = centred / np.where(scale > 0, scale, 1)
        directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
        plane = centred @ directions.T
        if plane.shape[1] == 1:
            plane = np.column_stack([plane[:, 0], np.zeros(len(plane))])
        dots = left.scatter(
            plane[:, 0], plane[:, 1], c=returns, s=3, cmap="viridis", rasterized=True
        )
        figure.colorbar(dots, ax=left, label="return of the episode")
    left.set(
        xlabel="first principal direction",
        ylabel="second",
        title=f"{len(states):,} sampled observations",
    )
    right.bar(range(len(summary.coverage)), 100 * summary.coverage, color=INK)
    right.set(xlabel="action dimension", ylabel="% of its range visited", ylim=(0, 100))
    return figure


def _action_figure(summary: Summary) -> Figure:
    figure, (left, right) = _figure(2)
    actions = [column[np.isfinite(column)] for column in summary.sample_actions.T]
    shown = [(i, column) for i, column in enumerate(actions) if len(column)]
    if shown:
        left.boxplot([column for _, column in shown], positions=[i for i, _ in shown], sym=",")
    left.set(xlabel="action dimension", ylabel="value")
    rewards = summary.sample_rewards[np.isfinite(summary.sample_rewards)]
    if len(rewards):
        right.hist(rewards, bins=40, color=INK)
    right.set(xlabel="reward", ylabel="sampled rows")
    return figure
