"""A full disk, or a kill, in the middle of writing: a sentence, and nothing is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from row_samples import as_arrays, random_rows, write_npz

from pbrl.data import convert
from pbrl.data.scratch import scratch_beside

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits and locks of POSIX")

# The largest file of this process, which a write beyond it meets as a full disk.
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from pbrl.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


def limited(size: int, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIMITED, str(size), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("log") / "log.npz"
    np.savez(
        path,
        observations=rng.normal(size=(9000, 17)).astype(np.float32),
        actions=rng.uniform(-1, 1, (9000, 6)).astype(np.float32),
        rewards=rng.normal(size=9000).astype(np.float32),
        terminals=np.arange(9000) % 100 == 99,
    )
    return path


# No room at all, for the first bytes, and in the middle.
@pytest.mark.parametrize("size", [0, 5000, 400_000])
@pytest.mark.parametrize("suffix", [".hdf5", ".npz", ".csv", ".parquet", ".store"])
def test_convert(log: Path, tmp_path: Path, suffix: str, size: int) -> None:
    done = limited(size, "data", "convert", log, tmp_path / f"out{suffix}")
    assert done.returncode == 2, done.stderr
    assert f"out{suffix}' failed" in done.stderr
    assert "Nothing was kept" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [0, 5000, 400_000])
def test_convert_for_minari(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    done = limited(size, "data", "convert", log, "minari:mine/set-v0")
    assert done.returncode == 2, done.stderr
    assert "set-v0' failed" in done.stderr
    assert "Nothing was kept" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize("suffix", [".hdf5", ".npz", ".store"])
def test_collect(tmp_path: Path, suffix: str) -> None:
    words = ["data", "collect", "Pendulum-v1", "--tiers", "random", "--steps", "9000"]
    done = limited(50_000, *words, "--out", tmp_path / f"out{suffix}")
    assert done.returncode == 2, done.stderr
    assert f"out{suffix}' failed" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*out*"))


def test_a_page_keeps_its_name_for_the_whole(log: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("before")
    done = limited(3000, "data", "inspect", log, "--html", page)
    assert done.returncode == 2, done.stderr
    assert "Cannot write" in done.stderr
    assert page.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_what_a_killed_command_left_goes_with_the_next(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "in.npz", as_arrays(random_rows()))
    target = tmp_path / "out.hdf5"
    left = tmp_path / ".out.hdf5.abc123.tmp"
    left.mkdir()
    (left / "out.hdf5").write_bytes(b"half")
    with scratch_beside(target) as in_use:
        assert not left.exists()
        convert(source, target)  # somebody else's, who is still at work
        assert in_use.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.npz", "out.hdf5"]
