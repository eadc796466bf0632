"""docs/architecture.md says the truth: its walk is a run's, and its recipes work as they stand."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
from row_samples import as_arrays, random_rows

from test_architecture import ORDER

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
FILE = re.compile(r'^```\w+ title="(.+?)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)

TRACE = """
import importlib
import sys
from pathlib import Path

import pbrl

ROOT = str(Path(pbrl.__file__).parent) + "/"
seen = []


def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(ROOT) and code.co_name != "<module>":
        module = code.co_filename.removeprefix(ROOT)
        if seen[-1:] != [module]:
            seen.append(module)


for module in sys.argv[1:]:  # what runs on import is no part of the walk
    importlib.import_module("pbrl." + module.removesuffix(".py").replace("/", "."))
from pbrl.cli.main import main

sys.setprofile(note)
main(["train", "--dataset", "log.npz", "--algorithm", "pbrl", "--preset", "demo", "--steps", "3",
      "--batch-size", "8", "--no-eval", "--no-tensorboard", "--run-dir", "runs/walk"])
main(["report", "runs"])
sys.setprofile(None)
print("WALK", *seen)
"""


def section(title: str) -> str:
    """The text of a recipe."""
    return PAGE.split(f"### {title}\n")[1].split("\n## ")[0].split("\n### ")[0]


def install(title: str, site: Path) -> list[list[str]]:
    """Put a recipe's modules beside pbrl, as an installer does; returns the commands to type."""
    files = dict(FILE.findall(section(title)))
    about = site / "recipe-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: recipe\nVersion: 1.0\n")
    project = tomllib.loads(files.pop("pyproject.toml"))
    for group, entries in project["project"]["entry-points"].items():
        lines = [f"[{group}]", *(f"{name} = {place}" for name, place in entries.items())]
        (about / "entry_points.txt").write_text("\n".join(lines))
    for name, text in files.items():
        (site / name).write_text(text)
    [console] = CONSOLE.findall(section(title))
    return [shlex.split(line.removeprefix("$ ")) for line in console.splitlines()]


def run(words: list[str], site: Path) -> str:
    """A command in a fresh process that finds the recipes beside pbrl."""
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        cwd=site.parent,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def follow(title: str, site: Path) -> str:
    """Install a recipe and type its commands; returns what they print."""
    commands = install(title, site)
    assert {words[0] for words in commands} == {"pbrl"}
    return "".join(run(["-m", *words], site) for words in commands)


def test_a_row_passes_the_modules_of_the_walk_in_this_order(tmp_path: Path) -> None:
    named = re.findall(r"^\| \d+ \| `(.+?)` \|", PAGE, re.MULTILINE)
    assert 10 < len(named) <= 20
    np.savez(tmp_path / "log.npz", **as_arrays(random_rows(3, 100)))
    (tmp_path / "site").mkdir()
    shown = run(["-c", TRACE, *named], tmp_path / "site")
    passed = iter(next(x for x in shown.splitlines() if x.startswith("WALK")).split())
    for module in named:  # each after the one before it
        assert module in passed, f"the walk never comes to {module}, or not in this order"


def test_an_algorithm_is_added(tmp_path: Path) -> None:
    shown = follow("Add an algorithm", tmp_path / "site")
    assert "return" in shown
    records = (tmp_path / "runs" / "median" / "metrics.jsonl").read_text().splitlines()
    losses = [r["actor_loss"] for r in map(json.loads, records) if "actor_loss" in r]
    assert losses[-1] < losses[0]
    summary = json.loads((tmp_path / "runs" / "median" / "summary.json").read_text())
    assert summary["steps"] == 300


def test_a_format_is_added(tmp_path: Path) -> None:
    arrays = as_arrays(random_rows(3, 100))
    rows = [{name: column[i].tolist() for name, column in arrays.items()} for i in range(100)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert "100 raw rows" in follow("Add a file format", tmp_path / "site")
    assert (tmp_path / "runs" / "lines" / "summary.json").exists()


def test_a_figure_is_added(tmp_path: Path) -> None:
    shown = follow("Add a figure", tmp_path / "site")
    assert "Cloning by squared error and by likelihood" in shown
    assert "The paper says" not in shown
    made = tmp_path / "reproduce" / "cloning-smoke"
    assert (made / "figure.png").stat().st_size > 5000
    last = json.loads((made / "results.json").read_text())["last_errors"]
    assert [row[:2] for row in last] == [
        ["squared error", 0],
        ["squared error", 1],
        ["likelihood", 0],
        ["likelihood", 1],
    ]


def test_the_picture_of_the_rooms_is_the_house() -> None:
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "draw" / "rooms.py")
    assert spec is not None
    assert spec.loader is not None
    drawn = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawn)
    levels = [tuple(", ".join(n for n, _, _ in level).split(", ")) for level in drawn.ROOMS]
    assert levels == ORDER
    assert (ROOT / "docs" / "images" / "rooms.svg").read_text() == drawn.rooms_svg(), (
        "draw it anew: python docs/draw/rooms.py"
    )
