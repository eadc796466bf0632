"""Every shell and Python block of README and docs runs, and the site builds without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(m[1], m[2]) for m in FENCE.finditer(page.read_text())]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_blocks_run(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The blocks of a page run in order in one empty directory, as a reader would type them."""
    if any('"hopper_medium-v2.hdf5"' in code for _, code in blocks(page)):  # a file of D4RL's
        real: Path = request.getfixturevalue("real_data")
        (tmp_path / "hopper_medium-v2.hdf5").symlink_to(
            real / "d4rl-slices" / "hopper_medium-v2.hdf5"
        )
    scripts = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
    }
    for kind, code in blocks(page):
        command = [sys.executable, "-c", code] if kind == "python" else ["bash", "-ec", code]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{page.name}:\n{code}\n{done.stdout}\n{done.stderr}"


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "index.html").exists()


def test_readme_links_exist() -> None:
    text = (ROOT / "README.md").read_text()
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", text):
        assert (ROOT / target).exists(), target
