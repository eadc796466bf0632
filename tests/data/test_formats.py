"""The registry of formats: what is in it, and that others can add to it through public hooks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from row_samples import as_arrays, assert_same_rows, random_rows, write_npz

from pbrl.cli.data import main
from pbrl.data import Format, convert, formats, load_dataset, register_format
from pbrl.data.formats import FORMATS, format_of, stem_of, suffix_of
from pbrl.data.loading import open_source
from pbrl.errors import PbrlError

# A whole format as somebody else would write it: numbers in lines of text, with D4RL's keys.
LINES = '''
"""Logs as lines: each begins with its column's name."""

from contextlib import suppress
from pathlib import Path

import numpy as np

from pbrl.data import Format, Metadata, Reading, Rows, RowSource, source_of_arrays


def read(path: Path, how: Reading) -> RowSource:
    arrays = {}
    for line in path.read_text().splitlines():
        name, width, *numbers = line.split()
        values = np.array([float.fromhex(number) for number in numbers])
        arrays[name] = values.reshape(-1, int(width)) if int(width) else values
    return source_of_arrays(f"'{path}'", arrays, Metadata(path.stem, str(path)), how.strict)


class Writer:
    def __init__(self, path: Path, source: RowSource) -> None:
        self.path, self.names, self.blocks = path, source.columns(), []

    def append(self, rows: Rows) -> None:
        self.blocks.append(rows)

    def close(self) -> None:
        rows = Rows.concatenate(self.blocks)
        with self.path.open("w") as file:
            for name in self.names:
                values = getattr(rows, name)
                width = values.shape[1] if values.ndim == 2 else 0
                numbers = " ".join(float(value).hex() for value in values.ravel())
                file.write(f"{name} {width} {numbers}\\n")

    def abandon(self) -> None:
        pass


LINES = Format(read, Writer)
'''


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory that holds a package with a format, as an installer leaves it."""
    place = tmp_path / "site"
    about = place / "lines_for_pbrl-1.0.dist-info"
    about.mkdir(parents=True)
    (place / "lines_for_pbrl.py").write_text(LINES)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lines-for-pbrl\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[pbrl.formats]\nlines = lines_for_pbrl:LINES\n")
    return place


def pbrl(installed: Path, *words: str | Path) -> str:
    """The command line in a fresh process that finds the package beside pbrl."""
    paths = [str(installed), *sys.path]
    done = subprocess.run(
        [sys.executable, "-m", "pbrl", *map(str, words)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        cwd=installed.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_installed_package_brings_a_format(tmp_path: Path, installed: Path) -> None:
    rows = random_rows(3, 200)
    npz = write_npz(tmp_path / "x.npz", as_arrays(rows))
    pbrl(installed, "data", "convert", npz, "x.lines")
    assert "timeouts 0 " in (tmp_path / "x.lines").read_text()
    assert "200 raw rows" in pbrl(installed, "data", "inspect", "x.lines")
    pbrl(installed, "train", "--algorithm", "bc", "--dataset", "x.lines", "--steps", "20",
         "--batch-size", "32", "--no-eval", "--run-dir", "run")  # fmt: skip
    assert (tmp_path / "run" / "summary.json").exists()
    pbrl(installed, "data", "convert", "x.lines", "back.npz")
    assert_same_rows(open_source(tmp_path / "back.npz").read(), rows)


@pytest.fixture
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_REGISTERED", {})


@pytest.mark.usefixtures("_forgotten")
def test_a_program_registers_a_format(tmp_path: Path) -> None:
    names: dict[str, Format] = {}
    exec(LINES, names)
    source = write_npz(tmp_path / "x.npz", as_arrays(random_rows(5)))
    with pytest.raises(PbrlError, match=r"unknown suffix '.lines'. Known: .hdf5, .h5, .npz, "):
        convert(source, tmp_path / "x.lines")
    register_format(".lines", names["LINES"])
    convert(source, tmp_path / "x.lines")
    fingerprint = load_dataset(tmp_path / "x.lines").fingerprint
    assert fingerprint == load_dataset(source).fingerprint
    with pytest.raises(PbrlError, match=r"'.lines' is taken"):
        register_format(".lines", names["LINES"])
    with pytest.raises(PbrlError, match=r"'.csv' is taken"):
        register_format(".csv", names["LINES"])
    with pytest.raises(PbrlError, match="A suffix is a dot"):
        register_format("lines", names["LINES"])


@pytest.mark.usefixtures("_forgotten")
def test_a_format_that_is_only_read_is_not_written(tmp_path: Path) -> None:
    names: dict[str, Format] = {}
    exec(LINES, names)
    register_format(".lines", Format(names["LINES"].reader))
    source = write_npz(tmp_path / "x.npz", as_arrays(random_rows(5)))
    with pytest.raises(PbrlError, match="such files are only read"):
        convert(source, tmp_path / "x.lines")
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


def test_what_a_writer_puts_beside_its_file_goes_along(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "x.npz", as_arrays(random_rows(5)))
    (tmp_path / "out").mkdir()
    convert(source, tmp_path / "out" / "x.csv")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["x.csv", "x.csv.json"]


def test_names_with_and_without_a_known_suffix() -> None:
    assert suffix_of("a/b.HDF5") == ".hdf5"
    assert stem_of("a/b.v2.npz") == "b.v2"
    for name in ("hopper-medium-v2", "demo", "D4RL/door/human-v2", ".csv", "csv"):
        assert suffix_of(name) == ""
        assert stem_of(name) == Path(name).name


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_line_of_the_registry_leads_to_a_format(suffix: str) -> None:
    assert isinstance(format_of("x" + suffix), Format)


def test_the_help_of_convert_names_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["convert", "--help"])
    told = capsys.readouterr().out
    assert [suffix for suffix in FORMATS if suffix not in told] == []
