"""Bad input, one test each: one sentence says what is wrong, and nothing wrong gets through."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from row_samples import as_arrays, random_rows, write_hdf5, write_npz

from pbrl.data import convert, load_dataset
from pbrl.errors import PbrlError

Arrays = dict[str, Any]


def good() -> Arrays:
    return as_arrays(random_rows(0, 12))


def without(*keys: str) -> Arrays:
    return {key: values for key, values in good().items() if key not in keys}


def replaced(**changed: Any) -> Arrays:
    return good() | changed


def poked(key: str, place: tuple[int, ...] | int, value: float) -> Arrays:
    arrays = good()
    arrays[key] = arrays[key].astype(np.float64)
    arrays[key][place] = value
    return arrays


def ragged() -> Any:
    values = np.empty(12, object)
    for i in range(12):
        values[i] = [0.0] * (i + 1)
    return values


# What an HDF5 file or an .npz archive may hold, and the words the user must see.
ARRAY_CASES: dict[str, tuple[Callable[[], Arrays], str]] = {
    "no observations": (lambda: without("observations"), "lacks 'observations'"),
    "no actions": (lambda: without("actions"), "lacks 'actions'"),
    "no rewards": (lambda: without("rewards"), "lacks 'rewards'"),
    "no terminals": (lambda: without("terminals"), "lacks 'terminals'"),
    "no keys at all": (lambda: {"data": np.zeros(3)}, "lacks 'observations', 'actions', 'rewards'"),
    "short rewards": (lambda: replaced(rewards=np.zeros(11)), "differ in length .*rewards 11"),
    "long timeouts": (lambda: replaced(timeouts=np.zeros(13, bool)), "differ in length .*13"),
    "flat observations": (
        lambda: replaced(observations=np.zeros(12)),
        r"must have shape \[N, dims\]",
    ),
    "flat actions": (lambda: replaced(actions=np.zeros(12)), r"'actions' .* reshape to \[N, 1\]"),
    "cubic actions": (lambda: replaced(actions=np.zeros((12, 2, 2))), r"'actions' must have shape"),
    "image observations": (
        lambda: replaced(observations=np.zeros((12, 8, 8, 3), np.uint8)),
        "looks like images",
    ),
    "wide rewards": (
        lambda: replaced(rewards=np.zeros((12, 2))),
        r"'rewards' must have shape \[N\]",
    ),
    "scalar rewards": (lambda: replaced(rewards=np.float32(1)), r"'rewards' must have shape"),
    "no rows": (lambda: {key: values[:0] for key, values in good().items()}, "has no rows"),
    "no observation dims": (
        lambda: replaced(observations=np.zeros((12, 0)), next_observations=np.zeros((12, 0))),
        "'observations' has no dimensions",
    ),
    "no action dims": (lambda: replaced(actions=np.zeros((12, 0))), "'actions' has no dimensions"),
    "next observations of another size": (
        lambda: replaced(next_observations=np.zeros((12, 5))),
        "next_observations have 5 dimensions, observations 3",
    ),
    "NaN observation": (
        lambda: poked("observations", (7, 2), np.nan),
        "'observations' has NaN at row 7, column 2",
    ),
    "NaN action": (
        lambda: poked("actions", (3, 1), np.nan),
        "'actions' has NaN at row 3, column 1",
    ),
    "NaN reward": (lambda: poked("rewards", 5, np.nan), "'rewards' has NaN at row 5"),
    "NaN next observation": (
        lambda: poked("next_observations", (11, 0), np.nan),
        "'next_observations' has NaN at row 11",
    ),
    "NaN terminal": (lambda: poked("terminals", 2, np.nan), "'terminals' must be 0 or 1"),
    "infinite observation": (
        lambda: poked("observations", (1, 0), np.inf),
        "'observations' has an infinite value at row 1",
    ),
    "infinite action": (
        lambda: poked("actions", (1, 0), -np.inf),
        "'actions' has an infinite value",
    ),
    "infinite reward": (
        lambda: poked("rewards", 0, np.inf),
        "'rewards' has an infinite value at row 0",
    ),
    "infinite timeout": (lambda: poked("timeouts", 4, np.inf), "'timeouts' must be 0 or 1"),
    "beyond float32": (
        lambda: poked("rewards", 9, 1e300),
        "1e.300 at row 9, which is beyond float32",
    ),
    "terminal of 2": (
        lambda: poked("terminals", 6, 2),
        "'terminals' must be 0 or 1 .* row 6 has 2",
    ),
    "fractional terminal": (lambda: poked("terminals", 6, 0.5), "row 6 has 0.5"),
    "text rewards": (
        lambda: replaced(rewards=np.array([b"1.0"] * 12)),
        "'rewards' holds .* numbers are",
    ),
    "complex actions": (
        lambda: replaced(actions=np.zeros((12, 2), complex)),
        "'actions' holds complex128 values",
    ),
    "only timeouts": (
        lambda: without("next_observations") | {"timeouts": np.ones(12, bool)},
        "no transition: every row ends an episode",
    ),
    "one row": (
        lambda: {k: v[:1] for k, v in without("next_observations").items()},
        "no transition",
    ),
}


@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
@pytest.mark.parametrize("case", ARRAY_CASES)
def test_arrays(tmp_path: Path, case: str, suffix: str) -> None:
    make, message = ARRAY_CASES[case]
    path = tmp_path / f"x.{suffix}"
    write_hdf5(path, make()) if suffix == "hdf5" else write_npz(path, make())
    with pytest.raises(PbrlError, match=message):
        load_dataset(path)


def test_no_episode_end_at_all_is_one_episode(tmp_path: Path) -> None:
    # Not an error: continuing tasks never end. All rows are one episode.
    zeros = np.zeros(12, bool)
    path = write_npz(tmp_path / "x.npz", replaced(terminals=zeros, timeouts=zeros))
    dataset = load_dataset(path)
    assert len(dataset) == 12
    assert list(dataset.episodes()) == [slice(0, 12)]


def test_extra_keys_are_ignored_with_a_note(tmp_path: Path) -> None:
    for path in (
        write_npz(tmp_path / "x.npz", replaced(weather=np.zeros(3))),
        write_hdf5(tmp_path / "x.hdf5", replaced(weather=np.zeros(3))),
    ):
        assert any("weather" in note for note in load_dataset(path).info.notes)


# ------------------------------------------------------------------ whole files


def make_truncated_hdf5(path: Path) -> Path:
    write_hdf5(path, as_arrays(random_rows(0, 2000)))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def make_pickled(path: Path) -> Path:
    np.savez(path, **without("rewards"), rewards=ragged())
    return path


def make_pickled_metadata(path: Path) -> Path:
    np.savez(path, **good(), metadata=np.array({"env_id": "x"}, object))
    return path


def make_ragged_hdf5(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        for key, values in without("observations").items():
            file[key] = values
        column = file.create_dataset("observations", (12,), h5py.vlen_dtype(np.float32))
        column[0] = np.zeros(3)
    return path


def make_group_hdf5(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        for key, values in without("observations").items():
            file[key] = values
        file.create_group("observations")["position"] = np.zeros((12, 2))
    return path


def make_truncated_npz(path: Path) -> Path:
    write_npz(path, good())
    path.write_bytes(path.read_bytes()[:-200])
    return path


def make_damaged_npz(path: Path) -> Path:
    write_npz(path, good())
    data = bytearray(path.read_bytes())
    place = data.index(np.ascontiguousarray(good()["actions"]).tobytes()[:16])
    data[place] ^= 0xFF
    path.write_bytes(bytes(data))
    return path


def text(words: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        path.write_text(words)
        return path

    return make


def directory(path: Path) -> Path:
    path.mkdir()
    return path


def nothing(path: Path) -> Path:
    return path


HEADER = "obs_0,obs_1,action_0,reward,terminal,timeout\n"
ROW = "1,2,0.5,1,0,0\n"

FILE_CASES: dict[str, tuple[str, Callable[[Path], Path], str]] = {
    "empty hdf5": ("x.hdf5", text(""), "cannot be read as HDF5"),
    "truncated hdf5": ("x.hdf5", make_truncated_hdf5, "cannot be read as HDF5: it is truncated"),
    "text renamed to hdf5": ("x.hdf5", text("hello\n" * 99), "cannot be read as HDF5"),
    "web page renamed to hdf5": ("x.hdf5", text("<!doctype html>"), "cannot be read as HDF5"),
    "rows of unequal length in hdf5": ("x.hdf5", make_ragged_hdf5, "holds Python objects"),
    "dictionary observations in hdf5": ("x.hdf5", make_group_hdf5, "is a group, not an array"),
    "directory named hdf5": ("x.hdf5", directory, "is a directory"),
    "missing hdf5": ("x.hdf5", nothing, "No file"),
    "empty npz": ("x.npz", text(""), "not an .npz archive"),
    "text renamed to npz": ("x.npz", text("hello"), "not an .npz archive"),
    "truncated npz": ("x.npz", make_truncated_npz, "not an .npz archive"),
    "damaged npz": ("x.npz", make_damaged_npz, "cannot be read as .npz"),
    "pickled objects in npz": ("x.npz", make_pickled, "pickled Python objects, which are never"),
    "pickled metadata in npz": ("x.npz", make_pickled_metadata, "'metadata' must be JSON text"),
    "missing npz": ("x.npz", nothing, "No file"),
    "unknown suffix": ("x.mat", text("x"), "suffix pbrl does not know"),
    "empty csv": ("x.csv", text(""), "is empty; CSV needs a header"),
    "header only": ("x.csv", text(HEADER), "has no rows"),
    "csv without header": ("x.csv", text(ROW), "starts with numbers"),
    "csv without terminals": (
        "x.csv",
        text("obs_0,action_0,reward\n1,2,3\n"),
        "does not say which columns are terminals",
    ),
    "csv without observations": (
        "x.csv",
        text("a,b\n1,2\n"),
        "does not say which columns are observations, actions, rewards, terminals.*: a, b",
    ),
    "csv with a gap in the observations": (
        "x.csv",
        text("obs_0,obs_2,action_0,reward,terminal\n1,2,3,4,0\n"),
        "lacks column 'obs_1'",
    ),
    "csv with a bad cell": (
        "x.csv",
        text(HEADER + ROW + "1,2,half,1,0,0\n"),
        "line 3, column 'action_0': 'half' is not a number",
    ),
    "csv with an empty cell": (
        "x.csv",
        text(HEADER + ROW + ROW + "1,,0,1,0,0\n"),
        "line 4, column 'obs_1': an empty cell",
    ),
    "csv with a decimal comma": (
        "x.csv",
        text(HEADER + ROW + "1,5,2,0.5,1,0,0\n"),
        "line 3: 7 cells, but the header names 6",
    ),
    "csv with a short row": ("x.csv", text(HEADER + ROW + "1,2\n"), "line 3: 2 cells"),
    "csv with a cut last row": ("x.csv", text(HEADER + ROW * 5 + "1,2,0.5"), "line 7: 3 cells"),
    "csv with NaN": (
        "x.csv",
        text(HEADER + ROW + "nan,2,0,1,0,0\n"),
        "'observations' has NaN at row 1",
    ),
    "csv with underscores": ("x.csv", text(HEADER + "1_0,2,0,1,0,0\n"), "'1_0' is not a number"),
    "csv with a doubled column": (
        "x.csv",
        text("obs_0,obs_0,action_0,reward,terminal\n1,2,3,4,0\n"),
        "more than one column named 'obs_0'",
    ),
    "csv with interleaved episodes": (
        "x.csv",
        text("obs_0,action_0,reward,terminal,episode\n1,2,3,0,7\n1,2,3,0,8\n1,2,3,0,7\n"),
        "episode 7.* goes on at row 2 after another",
    ),
    "csv in another encoding": (
        "x.csv",
        lambda path: _bytes(path, b"obs_0,action_0,reward,terminal\n\xff\xfe,1,1,0\n"),
        "cannot be read as CSV",
    ),
    "csv with a broken side file": (
        "x.csv",
        lambda path: _with_sidecar(path, '{"env_id": 7}'),
        "'env_id' in the metadata cannot be '7'",
    ),
    "missing csv": ("x.csv", nothing, "No file"),
    "text renamed to parquet": ("x.parquet", text("hello"), "cannot be read as Parquet"),
    "missing parquet": ("x.parquet", nothing, "No file"),
    "directory that holds nothing": ("somewhere", directory, "neither a pbrl store"),
}


def _bytes(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _with_sidecar(path: Path, words: str) -> Path:
    path.write_text(HEADER + ROW * 3)
    path.with_name(path.name + ".json").write_text(words)
    return path


@pytest.mark.parametrize("case", FILE_CASES)
def test_files(tmp_path: Path, case: str) -> None:
    name, make, message = FILE_CASES[case]
    path = make(tmp_path / name)
    with pytest.raises(PbrlError, match=message):
        load_dataset(path)


def write_parquet(path: Path, columns: dict[str, Any]) -> Path:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), path)
    return path


BASE = {"obs_0": [1.0, 2, 3], "action_0": [0.1, 0, 0], "reward": [1.0, 1, 1]}
PARQUET_CASES: dict[str, tuple[dict[str, Any], str]] = {
    "null": (
        BASE | {"reward": [1.0, None, 1], "terminal": [False] * 3},
        "'reward' is null at row 1",
    ),
    "null flag": (
        BASE | {"terminal": [False, None, True]},
        "'terminals' .* has no value in 1 rows, first in row 1",
    ),
    "text": (BASE | {"reward": ["a", "b", "c"], "terminal": [0, 0, 1]}, "'reward' holds string"),
    "lists": (
        BASE | {"obs_0": [[1.0, 2], [3.0, 4], [5.0, 6]], "terminal": [0, 0, 1]},
        "one column a dimension",
    ),
    "no rows": ({key: values[:0] for key, values in BASE.items()}, "has no rows"),
    "no terminals": (BASE, "does not say which columns are terminals"),
    "flag of 3": (BASE | {"terminal": [0, 3, 1]}, "'terminals' must be 0 or 1"),
}


@pytest.mark.parametrize("case", PARQUET_CASES)
def test_parquet(tmp_path: Path, case: str) -> None:
    columns, message = PARQUET_CASES[case]
    with pytest.raises(PbrlError, match=message):
        load_dataset(write_parquet(tmp_path / "x.parquet", columns))


@pytest.mark.parametrize("name", ["x.hdf5", "x.npz", "x.csv", "x.parquet"])
def test_no_read_permission(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_npz(tmp_path / "source.npz", good())
    path = convert(source, tmp_path / name).path
    path.chmod(0)
    if os.access(path, os.R_OK):  # the superuser may read anything: let opening itself refuse
        real_open, real_h5 = Path.open, h5py.File

        def refuse(self: Path, *args: Any, **kwargs: Any) -> Any:
            if self == path:
                raise PermissionError(13, "Permission denied")
            return real_open(self, *args, **kwargs)

        def refuse_h5(name: Any, *args: Any, **kwargs: Any) -> Any:
            if Path(name) == path:
                raise PermissionError(13, "Permission denied")
            return real_h5(name, *args, **kwargs)

        monkeypatch.setattr(Path, "open", refuse)
        monkeypatch.setattr(h5py, "File", refuse_h5)
    with pytest.raises(PbrlError, match="No permission to read"):
        load_dataset(path)


NAME_CASES = {
    "hopper-medium-v3": "Did you mean 'hopper-medium-v2'",
    "hoper-medium-v2": "Did you mean 'hopper-medium-v2'",
    "dmeo": "Did you mean 'demo'",
    "nowhere/at/all": "No file or directory",
    "D4RL/dor/human-v2": "pbrl data download D4RL/dor/human-v2",
    "": "name is empty",
    "a\0b": "NUL",
    "x" * 5000: "Cannot look at|Unknown dataset",
}


@pytest.mark.parametrize("name", NAME_CASES)
def test_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(PbrlError, match=NAME_CASES[name]):
        load_dataset(name)


OPTION_CASES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown next_observations": ({"next_observations": "guess"}, "use auto, file or shift"),
    "one bound": ({"action_low": -1}, "Give both"),
    "bounds of another size": ({"action_low": [-1] * 3, "action_high": 1}, "has 3 numbers"),
    "bounds the wrong way": ({"action_low": 1, "action_high": -1}, "low < high"),
    "infinite bounds": ({"action_low": -np.inf, "action_high": 1}, "must be finite"),
    "bounds of text": ({"action_low": "a", "action_high": "b"}, "must be a number"),
    "actions out of range": ({"action_low": -0.1, "action_high": 0.1}, "leave their bounds"),
}


@pytest.mark.parametrize("case", OPTION_CASES)
def test_options(tmp_path: Path, case: str) -> None:
    options, message = OPTION_CASES[case]
    path = write_npz(tmp_path / "x.npz", good())
    with pytest.raises(PbrlError, match=message):
        load_dataset(path, **options)


def test_next_observations_that_are_not_there(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "x.npz", without("next_observations"))
    with pytest.raises(PbrlError, match="has no next_observations of its own"):
        load_dataset(path, next_observations="file")


METADATA_CASES = {
    "not json": "must be JSON text",
    "[1, 2]": "must be a JSON object",
    json.dumps({"reference_scores": [1]}): "'reference_scores' in the metadata",
    json.dumps({"reference_scores": [1, 1]}): "'reference_scores' in the metadata",
    json.dumps({"action_low": "x"}): "'action_low' in the metadata",
    json.dumps(
        {"action_low": [-1], "action_high": [1]}
    ): "bounds of 1 dimensions, its actions have 2",
    json.dumps({"action_low": [-1, -1]}): "declares only one of action_low and action_high",
    json.dumps({"horizon": 0}): "'horizon' in the metadata",
    json.dumps({"shift": "sideways"}): "'shift' in the metadata",
    json.dumps({"prefer_file": "yes"}): "'prefer_file' in the metadata",
    "[" * 100_000: "must be JSON text",
}


@pytest.mark.parametrize("words", METADATA_CASES, ids=lambda words: words[:30])
def test_metadata(tmp_path: Path, words: str) -> None:
    path = write_npz(tmp_path / "x.npz", good() | {"metadata": np.array(words)})
    with pytest.raises(PbrlError, match=METADATA_CASES[words]):
        load_dataset(path)
