"""Every shell and Python block of README and docs runs, and the site builds without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pbrl.sweep.jobs import expand, read_spec

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
FENCE = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    """A page as test reports call it."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(m[1], m[2]) for m in FENCE.finditer(page.read_text())]


SLOW = {"data.md", "getting-started.md", "trust.md"}  # pages whose blocks take over fifteen seconds


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.name in SLOW else [], id=name_of(page))
        for page in PAGES
        if blocks(page) and page.name != "own-log.md"  # tests/test_own_log.py follows that one
    ],
)
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


LEADS = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)[^)]*\)")
CODE = re.compile(r"^( *)```.*?^\1```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """A page without its code."""
    return CODE.sub("", page.read_text())


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "results").rglob("*.md"))], ids=name_of)
def test_links_and_images_are_there(page: Path) -> None:
    targets = [target for target in LEADS.findall(prose(page)) if target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_of_prose_have_at_most_160_characters(page: Path) -> None:
    lines = CODE.sub(lambda code: code[0] if "\n" not in code[0] else "", page.read_text())
    long = [line for line in lines.splitlines() if len(line) > 160]
    assert [line for line in long if not line.lstrip().startswith("|")] == []  # tables cannot wrap


@pytest.mark.parametrize("page", DOCS, ids=name_of)
def test_a_page_begins_by_saying_whom_it_is_for(page: Path) -> None:
    title, opening = page.read_text().split("\n\n")[:2]
    assert title.startswith("# ")
    assert opening.startswith("For ")


@pytest.mark.parametrize("sweep", sorted((ROOT / "results").rglob("*.yaml")), ids=name_of)
def test_recipes_of_results_are_sweeps(sweep: Path) -> None:
    assert len(expand(read_spec(sweep))) > 1
