"""Draws docs/images/rooms.svg, the rooms of the package: ``python docs/draw/rooms.py``."""

from __future__ import annotations

from html import escape
from pathlib import Path

# From the ground up: a room imports only from rooms below it in the picture. What a room is for,
# and the steps of the reader's walk (docs/architecture.md) that pass through it.
ROOMS: tuple[tuple[tuple[str, str, str], ...], ...] = (
    (("errors, console", "one sentence for what went wrong", ""),),
    (("envs", "tasks, D4RL's physics, the loop that steps", ""),),
    (("data", "files → rows → transitions → minibatches", "5–12"),),
    (("nn", "the stacked ensemble, policies, critics", "14–15"),),
    (("algorithms", "one file an algorithm", "13"),),
    (("deploy", "agent, guard, ONNX policy", ""),),
    (("evaluation", "scores, probes, value without a simulator", ""),),
    (("training", "the loop, checkpoints, metrics, runs", "2–4, 16"),),
    (("theory", "linear MDPs, on NumPy alone", ""),),
    (
        ("collect", "data from a simulator", ""),
        ("sweep", "many runs", ""),
        ("bench", "speed", ""),
    ),
    (("experiments", "the paper's tables and figures", "17"),),
    (("reports", "one HTML page from runs", "18–19"),),
    (("cli", "parses, calls, prints", "1"),),
)
WIDTH, ROW, GAP, LEFT = 640, 36, 6, 10
INK, PALE, WALK, WALKED = "#22303c", "#eef2f5", "#0072b2", "#dcecf7"


def rooms_svg() -> str:
    """The picture: a row a level, the entrance on top, rooms on the walk in blue."""
    height = 2 * LEFT + len(ROOMS) * (ROW + GAP) - GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" fill="{INK}">',
        "<title>The rooms of pbrl: each imports only from rooms below it</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for level, rooms in enumerate(reversed(ROOMS)):
        width = (WIDTH - 2 * LEFT - (len(rooms) - 1) * GAP) / len(rooms)
        for index, (name, purpose, steps) in enumerate(rooms):
            x, y = LEFT + index * (width + GAP), LEFT + level * (ROW + GAP)
            colours = (WALKED, WALK) if steps else (PALE, "#b8c4ce")
            parts.append(
                f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{ROW}" rx="5" '
                f'fill="{colours[0]}" stroke="{colours[1]}"/>'
            )
            middle = y + ROW / 2 + 5
            parts.append(
                f'<text x="{x + 10:.0f}" y="{middle:.0f}" font-size="14" font-weight="bold">'
                f"{escape(name)}</text>"
            )
            indent = 68 if len(rooms) > 1 else 150
            parts.append(
                f'<text x="{x + indent:.0f}" y="{middle:.0f}" font-size="13">'
                f"{escape(purpose)}</text>"
            )
            if steps:
                parts.append(
                    f'<text x="{x + width - 10:.0f}" y="{middle:.0f}" font-size="13" '
                    f'fill="{WALK}" text-anchor="end">{escape(steps)}</text>'
                )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    Path(__file__).parent.parent.joinpath("images", "rooms.svg").write_text(rooms_svg())
