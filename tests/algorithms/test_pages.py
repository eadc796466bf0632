"""Every algorithm has a page in docs/algorithms that names its settings and what it logs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from algorithm_tester import tiny_dataset

from pbrl.algorithms import ALGORITHMS
from pbrl.data.training_data import TrainingData
from pbrl.training.config import make_config

DOCS = Path(__file__).parent.parent.parent / "docs"
ON_PAGE = {"pbrl-prior": "pbrl", "pbrl-ablations": "pbrl"}  # others have one of their name
PAGES = sorted((DOCS / "algorithms").glob("*.md"))
STEPS = 10


def drawer(name: str) -> Any:
    """A module of docs/draw."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "draw" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_algorithm_has_a_page() -> None:
    assert {ON_PAGE.get(name, name) for name in ALGORITHMS} <= {page.stem for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_settings_of_a_page_are_the_codes(page: Path) -> None:
    text = page.read_text()
    assert drawer("settings").with_settings(text) == text, "run: python docs/draw/settings.py"


@pytest.mark.parametrize(
    "name", [n for n in ALGORITHMS if DOCS / "algorithms" / f"{n}.md" in PAGES]
)
def test_a_page_names_every_logged_metric(name: str) -> None:
    own = {"termination": "none", "lagrange_threshold": 5.0}
    known = {key: own[key] for key in own if hasattr(ALGORITHMS[name].Config(), key)}
    config = make_config(name, "demo", "tiny", steps=STEPS, batch_size=32, **known)
    algorithm = ALGORITHMS[name](config.settings, total_steps=STEPS)
    data = TrainingData(tiny_dataset(200))
    algorithm.prepare(data)
    logged: set[str] = set()
    for _ in range(STEPS):
        batch = data.sample(32, torch.Generator().manual_seed(0))
        logged |= set(algorithm.update(batch)) | set(algorithm.diagnostics(batch))
    text = (DOCS / "algorithms" / f"{ON_PAGE.get(name, name)}.md").read_text()
    common = (DOCS / "algorithms" / "index.md").read_text()
    shared = {m for m in logged if f"`{m}`" in common.split("Algorithms with a tuned")[0]}
    assert {m for m in logged - shared if f"`{m}`" not in text} == set()
