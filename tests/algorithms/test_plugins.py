"""Other packages bring algorithms by entry points of the group ``pbrl.algorithms``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pendulum_log import write_log

import pbrl
from pbrl.algorithms import ALGORITHMS, algorithm_class
from pbrl.errors import PbrlError

MODULE = """
from pbrl.algorithms.bc import BC

class Cloning(BC):
    name = "cloning"

class Misnamed(BC):
    name = "other"

class NoAlgorithm:
    name = "nothing"
"""
ENTRIES = """[pbrl.algorithms]
cloning = brought_algorithms:Cloning
misnamed = brought_algorithms:Misnamed
nothing = brought_algorithms:NoAlgorithm
gone = brought_algorithms:Gone
broken = brought_broken:Any
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that looks like an installed package."""
    (tmp_path / "brought_algorithms.py").write_text(MODULE)
    (tmp_path / "brought_broken.py").write_text("raise RuntimeError('no GPU here')\n")
    info = tmp_path / "brought-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = dict(ALGORITHMS)
    monkeypatch.setattr("pbrl.algorithms.ALGORITHMS", known)
    yielded = ("brought_algorithms", "brought_broken")
    for name in yielded:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_a_brought_algorithm_trains_by_its_name(package: Path) -> None:
    assert "brought_algorithms" not in sys.modules, "imported when asked for, not before"
    log = write_log(package / "log.npz")
    run = pbrl.train(
        log, algorithm="cloning", preset="demo", steps=2, eval=False, quiet=True,
        tensorboard=False, run_dir=package / "run",
    )  # fmt: skip
    assert run.agent().algorithm.name == "cloning"
    sys.modules.pop("brought_algorithms")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("clonin", "Did you mean 'cloning'"),
        ("misnamed", "calls itself 'other'"),
        ("nothing", "not a subclass"),
        ("gone", "cannot be loaded: AttributeError"),
        ("broken", "RuntimeError: no GPU here"),
    ],
)
def test_what_is_no_algorithm_is_refused_in_one_sentence(
    name: str, said: str, package: Path
) -> None:
    with pytest.raises(PbrlError, match=said) as caught:
        algorithm_class(name)
    assert "\n" not in str(caught.value)
