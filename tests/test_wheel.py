"""What is installed is what was tested: the wheel, in an environment that never saw the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src", "examples")


def run(*words: str | Path, cwd: Path) -> str:
    hidden = ("PYTHONPATH", "PYTHONHOME")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel and what it depends on."""
    place = tmp_path_factory.mktemp("wheel")
    sources = place / "sources"
    sources.mkdir()
    for name in SOURCES:  # a copy, because building leaves files in the tree
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, sources / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, sources / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-build-isolation", "--no-index"]
    run(*pip, "wheel", *alone, "--wheel-dir", place, sources, cwd=place)
    (wheel,) = place.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", place / "venv", cwd=place)
    python = place / "venv" / "bin" / "python"
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=place)
    # Dependencies are those of the tests, without their editable pbrl: its .pth is not followed.
    purelib = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place)
    (Path(purelib.strip()) / "tested.pth").write_text(sysconfig.get_path("purelib"))
    shutil.rmtree(sources)
    return python.parent


@pytest.mark.slow
def test_a_stranger_installs_trains_and_looks(installed: Path, tmp_path: Path) -> None:
    place = run(installed / "python", "-c", "import pbrl; print(pbrl.__file__)", cwd=tmp_path)
    assert installed.parent in Path(place.strip()).parents
    assert "usage: pbrl COMMAND" in run(installed / "pbrl", "--help", cwd=tmp_path)
    train = ["train", "--steps", "20", "--threads", "1", "--eval-episodes", "1"]
    said = run(installed / "pbrl", *train, "--run-dir", "first", cwd=tmp_path)
    assert "normalised score" in said
    run(installed / "pbrl", "export", "first", cwd=tmp_path)
    page = tmp_path / "report.html"
    run(installed / "pbrl", "report", "first", "--out", page, cwd=tmp_path)
    assert page.stat().st_size > 100_000
    run(installed / "pbrl", "theory", "lemma2", cwd=tmp_path)
    run(installed / "python", "-c", "import pbrl.bench.pbrl_single_file", cwd=tmp_path)


@pytest.mark.slow
def test_gymnasium_finds_the_environments(installed: Path, tmp_path: Path) -> None:
    """Without importing pbrl: Gymnasium 1.0 took its plug-ins away and reads a module's name."""
    code = """
import gymnasium
env = gymnasium.make("pbrl.envs.registered:pbrl/HopperD4RL-v0")
observation, _ = env.reset(seed=0)
print(observation.shape, env.spec.max_episode_steps)
from importlib.metadata import entry_points
(plugin,) = (p for p in entry_points(group="gymnasium.envs") if p.value.startswith("pbrl."))
del gymnasium.registry["pbrl/HopperD4RL-v0"]
plugin.load()()
gymnasium.make("pbrl/HopperD4RL-v0")
"""
    assert "(11,) 1000" in run(installed / "python", "-W", "ignore", "-c", code, cwd=tmp_path)
