"""Datasets written for Minari: the package itself loads them, and reading back loses nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from row_samples import as_arrays, random_rows, write_hdf5, write_npz

from pbrl.cli.main import main
from pbrl.data import Metadata, Recorder, Rows, convert, load_dataset
from pbrl.data.loading import open_source
from pbrl.errors import PbrlError


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Minari's own directory, which is not there yet."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def theirs(dataset_id: str) -> Any:
    """As the minari package loads it."""
    return pytest.importorskip("minari").load_dataset(dataset_id)


def described(root: Path, dataset_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / dataset_id / "data" / "metadata.json").read_text())
    return found


def three_episodes() -> Rows:
    """Three steps to a terminal, two to a timeout, two when the log ends."""
    observations = np.arange(14, dtype=np.float32).reshape(7, 2)
    following = np.roll(observations, -1, axis=0)
    following[[2, 4, 6]] = [[90, 91], [92, 93], [94, 95]]
    return Rows(
        observations,
        np.linspace(-1, 1, 7, dtype=np.float32)[:, None],
        np.arange(7, dtype=np.float32),
        np.arange(7) == 2,
        np.arange(7) == 4,
        following,
    )


def test_minari_reads_the_episodes(tmp_path: Path) -> None:
    write_npz(tmp_path / "log.npz", as_arrays(three_episodes()))
    done = convert(tmp_path / "log.npz", "minari:mine/three-v0")
    assert done.rows == 7
    loaded = theirs("mine/three-v0")
    assert (loaded.total_episodes, loaded.total_steps) == (3, 7)
    first, second, third = loaded.iterate_episodes()
    np.testing.assert_array_equal(first.observations, [[0, 1], [2, 3], [4, 5], [90, 91]])
    np.testing.assert_array_equal(second.observations, [[6, 7], [8, 9], [92, 93]])
    np.testing.assert_array_equal(third.observations, [[10, 11], [12, 13], [94, 95]])
    np.testing.assert_array_equal(first.rewards, [0, 1, 2])
    np.testing.assert_array_equal(second.actions[:, 0], np.linspace(-1, 1, 7, dtype="f4")[3:5])
    assert first.terminations.tolist() == [False, False, True]
    assert first.truncations.tolist() == [False, False, False]
    assert second.truncations.tolist() == third.truncations.tolist() == [False, True]
    assert not second.terminations.any()
    assert loaded.observation_space.contains(first.observations[0])


def test_the_demo_comes_back_with_all_that_is_known() -> None:
    convert("demo", "minari:mine/demo-v0")
    before, after = load_dataset("demo"), load_dataset("mine/demo-v0")
    assert after.fingerprint == before.fingerprint
    assert load_dataset("minari:mine/demo-v0").fingerprint == before.fingerprint
    for name in ("env_id", "reference_scores", "score_source", "action_low", "notes"):
        assert getattr(after.info, name) == getattr(before.info, name), name
    assert open_source("mine/demo-v0").metadata.recipe == open_source("demo").metadata.recipe
    loaded = theirs("mine/demo-v0")
    assert loaded.spec.env_spec.id == "InvertedDoublePendulum-v5"
    assert loaded.action_space.low == [-1]
    assert before.info.reference_scores is not None
    assert loaded.storage.metadata["ref_max_score"] == before.info.reference_scores[1]
    returns = [episode.rewards.sum() for episode in loaded.iterate_episodes()]
    np.testing.assert_allclose(before.episode_returns(), returns, rtol=1e-5)


@pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
@pytest.mark.parametrize("timeouts", [True, False])
@pytest.mark.parametrize("following", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_transitions_are_trained_on(
    tmp_path: Path, suffix: str, timeouts: bool, following: bool, seed: int
) -> None:
    arrays = as_arrays(random_rows(seed, 60, timeouts=timeouts, following=following))
    path = (write_npz if suffix == ".npz" else write_hdf5)(tmp_path / f"log{suffix}", arrays)
    done = convert(path, "minari:mine/set-v0")
    before, after = load_dataset(path), load_dataset("mine/set-v0")
    for name in ("observations", "actions", "rewards", "next_observations", "terminals"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name), name)
    if timeouts:
        assert after.fingerprint == before.fingerprint
    assert ("the last one was repeated" in done.notes[-1]) is not following


def test_a_shuffled_log_keeps_its_transitions(tmp_path: Path) -> None:
    rows = random_rows(0, 40, timeouts=False)[np.random.default_rng(0).permutation(40)]
    path = write_npz(tmp_path / "log.npz", as_arrays(rows))
    done = convert(path, "minari:mine/set-v0")
    assert "Minari's episodes end at each of them" in done.notes[-1]
    after = load_dataset("mine/set-v0")
    np.testing.assert_array_equal(after.next_observations, rows.next_observations)
    np.testing.assert_array_equal(after.observations, rows.observations)


def test_a_log_without_next_observations_repeats_the_last(root: Path, tmp_path: Path) -> None:
    rows = replace(three_episodes(), next_observations=None)
    convert(write_npz(tmp_path / "log.npz", as_arrays(rows)), "minari:mine/set-v0")
    first = next(theirs("mine/set-v0").iterate_episodes())
    np.testing.assert_array_equal(first.observations[-2:], [[4, 5], [4, 5]])
    assert "repeated" in described(root, "mine/set-v0")["description"]


def test_episodes_reach_across_blocks() -> None:
    rows = three_episodes()
    with Recorder("minari:mine/blocks-v0", 2, 1, metadata=Metadata("x")) as recorder:
        for part in (slice(0, 2), slice(2, 4), slice(4, 5), slice(5, 6), slice(6, 7)):
            recorder.append(rows[part])
    lengths = [len(episode.rewards) for episode in theirs("mine/blocks-v0").iterate_episodes()]
    assert lengths == [3, 2, 2]
    np.testing.assert_array_equal(
        load_dataset("mine/blocks-v0").next_observations, rows.next_observations
    )


def test_credits_go_along(root: Path, tmp_path: Path) -> None:
    path = write_npz(tmp_path / "log.npz", as_arrays(three_episodes()))
    convert(path, "minari:mine/set-v0")
    file = root / "mine" / "set-v0" / "data" / "metadata.json"
    credit = {"author": ["Ada"], "code_permalink": "https://example.org/code"}
    file.write_text(json.dumps(json.loads(file.read_text()) | credit))
    convert("mine/set-v0", tmp_path / "copy.hdf5")
    convert(tmp_path / "copy.hdf5", "minari:mine/set-v1")
    assert described(root, "mine/set-v1").items() >= credit.items()
    assert theirs("mine/set-v1").storage.metadata["author"] == {"Ada"}


@pytest.mark.parametrize(
    "dataset_id",
    ["set", "set-v", "../set-v0", "mine/../set-v0", "/set-v0", "m/set-v0", "mine/my set-v0",
     "mine/data/set-v0", "mine/sét-v0", "mine/set-v01", "mine/set.x-v0", "", "x" * 300 + "-v0"],
)  # fmt: skip
def test_a_bad_id_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str], dataset_id: str
) -> None:
    assert main(["data", "convert", "demo", f"minari:{dataset_id}"]) == 2
    assert "cannot be the id of a Minari dataset" in " ".join(capsys.readouterr().err.split())
    assert not root.exists()


def test_what_is_there_stays_unless_told(root: Path, tmp_path: Path) -> None:
    path = write_npz(tmp_path / "log.npz", as_arrays(three_episodes()))
    convert(path, "minari:mine/set-v0")
    with pytest.raises(PbrlError, match="exists; give --overwrite"):
        convert(path, "minari:mine/set-v0")
    with pytest.raises(PbrlError, match="none can lie inside"):
        convert(path, "minari:mine/set-v0/set-v1")
    (root / "mine" / "other-v0").mkdir()
    with pytest.raises(PbrlError, match="not a Minari dataset"):
        convert(path, "minari:mine/other-v0", overwrite=True)
    write_npz(tmp_path / "log.npz", as_arrays(random_rows(0, 20)))
    convert(path, "minari:mine/set-v0", overwrite=True)
    assert theirs("mine/set-v0").total_steps == 20
    assert sorted(file.name for file in (root / "mine").iterdir()) == ["other-v0", "set-v0"]


def test_collect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # the training's place, beside no dataset of Minari's
    words = ["data", "collect", "Pendulum-v1", "--steps", "300", "--out", "minari:mine/p-v0"]
    assert main([*words, "--tiers", "random,medium", "--train-steps", "2000"]) == 2
    assert "names one dataset, but 2" in " ".join(capsys.readouterr().err.split())
    assert main([*words, "--tiers", "random"]) == 0
    loaded = theirs("mine/p-v0")
    assert loaded.spec.env_spec.id == "Pendulum-v1"
    lengths = [len(episode.rewards) for episode in loaded.iterate_episodes()]
    assert lengths == [200, 100]
    assert main([*words, "--tiers", "random"]) == 0
    assert "there already" in capsys.readouterr().out
    assert main([*words, "--tiers", "random", "--seed", "1"]) == 2
