"""Minari datasets: the real door-human set, and clear words for what cannot be trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium.spaces import Box

from pbrl.data import load_dataset
from pbrl.errors import PbrlError

BOX = {"type": "Box", "dtype": "float32", "shape": [2], "low": [-1.0, -1.0], "high": [1.0, 1.0]}
FREE = BOX | {"low": [-np.inf] * 2, "high": [np.inf] * 2}


def make_minari(
    root: Path,
    *,
    observation_space: Any = FREE,
    action_space: Any = BOX,
    episodes: tuple[tuple[int, bool, bool], ...] = ((3, True, False), (2, False, True)),
    change: dict[str, Any] | None = None,
    **metadata: Any,
) -> Path:
    """A Minari dataset by hand; each episode is (steps, terminated, truncated)."""
    folder = root / "my" / "set-v0" / "data"
    folder.mkdir(parents=True)
    described = {
        "env_spec": json.dumps({"id": "Mine-v0", "max_episode_steps": 50}),
        "dataset_id": "my/set-v0",
        "observation_space": json.dumps(observation_space),
        "action_space": json.dumps(action_space),
        "data_format": "hdf5",
    }
    (folder / "metadata.json").write_text(json.dumps(described | metadata))
    rng = np.random.default_rng(0)
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for number, (steps, terminated, truncated) in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            ends = np.zeros((2, steps), bool)
            ends[:, -1] = terminated, truncated
            arrays = {
                "observations": rng.normal(size=(steps + 1, 2)),
                "actions": rng.uniform(-1, 1, (steps, 2)).astype("float32"),
                "rewards": np.arange(steps) + 10.0 * number,
                "terminations": ends[0],
                "truncations": ends[1],
            }
            for key, values in (arrays | (change or {})).items():
                if values is not None:
                    group[key] = values
    return root / "my" / "set-v0"


def test_the_real_door_human_set(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(real_data / "minari"))
    dataset = load_dataset("D4RL/door/human-v2")
    assert len(dataset) == 6729
    assert len(list(dataset.episodes())) == 25
    assert dataset.info.name == "D4RL/door/human-v2"
    assert dataset.info.env_id == "AdroitHandDoor-v1"
    assert dataset.info.score_source == "Minari"
    assert dataset.info.reference_scores == (-45.80706024169922, 2940.578369140625)
    by_path = load_dataset(real_data / "minari" / "D4RL" / "door" / "human-v2")
    assert by_path.fingerprint == dataset.fingerprint
    with h5py.File(
        real_data / "minari" / "D4RL" / "door" / "human-v2" / "data" / "main_data.hdf5"
    ) as file:
        start = 0
        for number, rows in enumerate(dataset.episodes()):
            group = file[f"episode_{number}"]
            assert rows.start == start
            whole = group["observations"][()].astype(np.float32)
            np.testing.assert_array_equal(dataset.observations[rows], whole[:-1])
            np.testing.assert_array_equal(dataset.next_observations[rows], whole[1:])
            np.testing.assert_array_equal(dataset.actions[rows], group["actions"][()])
            np.testing.assert_array_equal(dataset.terminals[rows], group["terminations"][()])
            start = rows.stop


def test_the_minari_package_agrees(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(real_data / "minari"))
    theirs = minari.load_dataset("D4RL/door/human-v2")
    ours = load_dataset("D4RL/door/human-v2")
    returns = [float(np.sum(episode.rewards)) for episode in theirs.iterate_episodes()]
    np.testing.assert_allclose(ours.episode_returns(), returns, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of what its metadata could say besides
@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_the_younger_storage_reads_as_the_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Written by the minari package itself; twelve episodes, whose folders do not sort as text."""
    minari = pytest.importorskip("minari")
    pytest.importorskip("pyarrow")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    for data_format in ("hdf5", kind):
        rng = np.random.default_rng(0)
        episodes = []
        for number in range(12):
            n = int(rng.integers(2, 9))
            last = [False] * (n - 1) + [True]
            episodes.append(
                EpisodeBuffer(
                    id=number,
                    observations=rng.normal(size=(n + 1, 3)).astype(np.float32),
                    actions=rng.uniform(-1, 1, (n, 2)).astype(np.float32),
                    rewards=list(rng.normal(size=n)),
                    terminations=last if number % 2 else [False] * n,
                    truncations=[False] * n if number % 2 else last,
                )
            )
        minari.create_dataset_from_buffers(
            f"set-{'old' if data_format == 'hdf5' else 'new'}-v0",
            episodes,
            observation_space=Box(-9, 9, (3,), np.float32),
            action_space=Box(-1, 1, (2,), np.float32),
            data_format=data_format,
        )
    old, new = load_dataset("set-old-v0"), load_dataset("set-new-v0")
    assert new.fingerprint == old.fingerprint
    assert new.terminals.sum() == 6
    damaged = next((tmp_path / "set-new-v0" / "data" / "7").glob(f"*.{kind}"))
    damaged.write_bytes(damaged.read_bytes()[:200])
    with pytest.raises(PbrlError, match=f"Minari {kind}"):
        load_dataset("set-new-v0")


def test_terminations_truncations_and_order(tmp_path: Path) -> None:
    # Twelve episodes: episode_10 comes after episode_9, not after episode_1.
    shapes = tuple((2, bool(i % 2), not i % 2) for i in range(12))
    dataset = load_dataset(make_minari(tmp_path, episodes=shapes))
    np.testing.assert_array_equal(dataset.rewards[::2], 10.0 * np.arange(12))
    np.testing.assert_array_equal(dataset.terminals[1::2], [bool(i % 2) for i in range(12)])
    assert not dataset.terminals[::2].any()
    assert dataset.episode_ends[1::2].all()
    assert not dataset.episode_ends[::2].any()


def test_an_episode_without_end_flags_still_ends(tmp_path: Path) -> None:
    dataset = load_dataset(make_minari(tmp_path, episodes=((3, False, False), (2, True, False))))
    np.testing.assert_array_equal(dataset.episode_ends, [0, 0, 1, 0, 1])
    np.testing.assert_array_equal(dataset.terminals, [0, 0, 0, 0, 1])


def test_bounds_environment_and_missing_scores(tmp_path: Path) -> None:
    info = load_dataset(make_minari(tmp_path)).info
    assert info.env_id == "Mine-v0"
    assert info.reference_scores is None
    assert info.action_high is not None
    np.testing.assert_array_equal(info.action_high, [1, 1])
    assert any("no reference scores" in note for note in info.notes)


def test_known_environment_without_minari_scores_gets_d4rls(tmp_path: Path) -> None:
    space = {"type": "Box", "dtype": "float32", "shape": [11], "low": -9e9, "high": 9e9}
    box = {"type": "Box", "dtype": "float32", "shape": [3], "low": -1.0, "high": 1.0}
    path = make_minari(
        tmp_path,
        observation_space=space,
        action_space=box,
        episodes=((3, True, False),),
        change={"observations": np.zeros((4, 11)), "actions": np.zeros((3, 3))},
        env_spec=json.dumps({"id": "Hopper-v5"}),
    )
    info = load_dataset(path).info
    assert info.env_id == "Hopper-v5"
    assert info.score_source == "D4RL"


IMAGE = {"type": "Box", "dtype": "uint8", "shape": [84, 84, 3], "low": 0, "high": 255}
DISCRETE = {"type": "Discrete", "n": 4, "start": 0}
DICT = {"type": "Dict", "subspaces": {"position": FREE}}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dictionary observations": ({"observation_space": DICT}, "observations of type Dict.*Flatten"),
    "image observations": ({"observation_space": IMAGE}, r"shape \[84, 84, 3\] \(images\)"),
    "text observations": ({"observation_space": {"type": "Text"}}, "observations of type Text"),
    "discrete actions": (
        {"action_space": DISCRETE},
        "actions of type Discrete.*Discrete actions need",
    ),
    "no observation space": ({"observation_space": None}, "no readable 'observation_space'"),
    "other data": ({"data_format": "zarr"}, "HDF5, Arrow and Parquet layouts"),
    "arrow without episodes": ({"data_format": "arrow"}, "holds no episode"),
    "no episode": ({"episodes": ()}, "holds no episode"),
    "short observations": (
        {"change": {"observations": np.zeros((3, 2))}},
        r"n \+ 1 observations",
    ),
    "missing rewards": ({"change": {"rewards": None}}, "episode_0 lacks 'rewards'"),
    "dictionary in the file": (
        {"change": {"observations": None, "observations/position": np.zeros((4, 2))}},
        "is a dictionary",
    ),
    "NaN": (
        {"episodes": ((3, True, False),), "change": {"rewards": np.array([0, np.nan, 0])}},
        "episode_0: 'rewards' has NaN at row 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_on(tmp_path: Path, case: str) -> None:
    options, message = REFUSED[case]
    path = make_minari(tmp_path, **options)
    with pytest.raises(PbrlError, match=message):
        load_dataset(path)


def test_damaged_files(tmp_path: Path) -> None:
    path = make_minari(tmp_path)
    with pytest.raises(PbrlError, match="data file of a Minari dataset"):
        load_dataset(path / "data" / "main_data.hdf5")
    (path / "data" / "main_data.hdf5").write_bytes(b"cut")
    with pytest.raises(PbrlError, match="cannot be read as Minari HDF5"):
        load_dataset(path)
    (path / "data" / "main_data.hdf5").unlink()
    with pytest.raises(PbrlError, match="No file"):
        load_dataset(path)
    (path / "data" / "metadata.json").write_text("{")
    with pytest.raises(PbrlError, match="cannot be read as Minari metadata"):
        load_dataset(path)


def test_a_set_that_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_minari(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert len(load_dataset("my/set-v0")) == 5
    with pytest.raises(PbrlError, match=r"Did you mean 'my/set-v0'.*pbrl data download my/sett-v0"):
        load_dataset("my/sett-v0")
