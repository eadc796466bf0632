"""A decision as files: one HTML page that opens without a network, and JSON."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from pbrl.evaluation.decision import CANNOT_SEE, Decision
from pbrl.training.files import write_json, write_text

WIDTH, ROW = 640, 34  # of the picture, in pixels
LARGEST = 4.0  # bounds are drawn up to so many times the largest difference


def write_decision(decision: Decision, name: str, out: Path) -> tuple[Path, Path]:
    """Write ``decision.html`` and ``decision.json`` into ``out``."""
    page, data = out / "decision.html", out / "decision.json"
    write_json(data, {"run": name, **decision.to_json()})
    write_text(page, render_decision(decision, name))
    return page, data


def render_decision(decision: Decision, name: str) -> str:
    """The page as text."""
    css = (resources.files("pbrl.reports") / "assets" / "report.css").read_text()
    title = html.escape(f"{name}: {decision.verdict}")
    sections = [
        _list("Why", decision.reasons),
        f"<h2>Opinions</h2>{_picture(decision)}{_table(decision)}",
        f"<h2>Overlap</h2><p>{html.escape(decision.overlap)}</p>",
        _list("Opinions that exclude one another", decision.disagreements),
        _list("Before you believe it", decision.warnings),
        _list("What no method here can see", CANNOT_SEE),
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<link rel="icon" href="data:,"><title>{title}</title><style>{css}</style></head>'
        f"<body><header><h1>{title}</h1></header><main>{''.join(sections)}</main></body></html>\n"
    )


def _list(title: str, sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f"<h2>{html.escape(title)}</h2><ul>{items}</ul>"


def _table(decision: Decision) -> str:
    level = f"{decision.level:.0%}"
    heads = (
        "opinion", "policy", decision.baseline, "difference", f"at least ({level})",
        f"at most ({level})", "effective episodes",
    )  # fmt: skip
    rows = []
    for method, o in decision.opinions.items():
        low, high = o.bound(decision.level), o.bound(decision.level, upper=True)
        cells = [
            _number(o.value), _number(o.baseline), _number(o.difference, "+"), _number(low, "+"),
            _number(high, "+"), f"{o.effective:.1f} of {decision.episodes}",
        ]  # fmt: skip
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        rows.append(f"<tr><td>{method}</td>{numbers}</tr>")
    top = "".join(f'<th scope="col">{html.escape(head)}</th>' for head in heads)
    return (
        f"<p>Discounted values (gamma {decision.gamma:g}) at the initial states of the episodes "
        "that judge; bounds are one-sided, of the difference.</p>"
        f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{"".join(rows)}</tbody>'
        "</table></div>"
    )


def _number(value: float, sign: str = "") -> str:
    return f"{value:{sign}.4g}" if math.isfinite(value) else "none"


def _picture(decision: Decision) -> str:
    """Every method's difference with its bounds, and the line at 0."""
    level, opinions = decision.level, decision.opinions
    reach = max([abs(o.difference) for o in opinions.values()] + [1e-9]) * LARGEST
    spans = {
        name: (max(o.bound(level), -reach), o.difference, min(o.bound(level, upper=True), reach))
        for name, o in opinions.items()
    }
    low = min(0.0, *(span[0] for span in spans.values()))
    high = max(0.0, *(span[2] for span in spans.values()))
    margin, width = 70, WIDTH - 90

    def place(x: float) -> float:
        return margin + width * (x - low) / max(high - low, 1e-12)

    height = ROW * len(spans) + 24
    drawn = [
        f'<line x1="{place(0):.1f}" x2="{place(0):.1f}" y1="0" y2="{height - 20}" '
        'stroke="var(--dim)" stroke-dasharray="4 3"/>',
        f'<text x="{place(0):.1f}" y="{height - 4}" text-anchor="middle">no difference</text>',
    ]
    for i, (name, (least, middle, most)) in enumerate(spans.items()):
        y = ROW * i + ROW / 2
        drawn.append(
            f'<text x="0" y="{y + 5:.1f}">{name}</text>'
            f'<line x1="{place(least):.1f}" x2="{place(most):.1f}" y1="{y}" y2="{y}" '
            'stroke="#3b82c4" stroke-width="3"/>'
            f'<circle cx="{place(middle):.1f}" cy="{y}" r="5" fill="#3b82c4"/>'
        )
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" style="max-width:100%" role="img" '
        'aria-label="Difference to the baseline by method, with its bounds" font-size="14" '
        f'fill="var(--text)">{"".join(drawn)}</svg>'
    )
