"""Which rows become transitions: D4RL's rules to the row, and when the file's own are used."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from row_samples import as_arrays, qlearning_reference, random_rows, write_hdf5, write_npz

from pbrl.data import TransitionDataset, load_dataset
from pbrl.envs.tasks import ENVIRONMENTS
from pbrl.errors import PbrlError

SLICES = [
    "ant_medium-v2",
    "door-cloned-v1",
    "door-expert-v1",
    "door-human-v1",
    "halfcheetah_medium_replay-v1",
    "hopper_medium-v2",
    "hopper_medium_replay-v1",
    "hopper_random-v1",
    "pen-cloned-v1",
    "pen-expert-v1",
    "pen-human-v0",
    "pen-human-v1",
]


def assert_matches(dataset: TransitionDataset, expected: dict[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(dataset.observations, expected["obs"])
    np.testing.assert_array_equal(dataset.next_observations, expected["next"])
    np.testing.assert_array_equal(dataset.actions, expected["act"])
    np.testing.assert_array_equal(dataset.rewards, expected["rew"])
    np.testing.assert_array_equal(dataset.terminals, expected["done"])


@pytest.mark.parametrize("name", SLICES)
@pytest.mark.parametrize("with_timeouts", [True, False])
def test_real_files_follow_qlearning_dataset_row_for_row(
    real_data: Path, tmp_path: Path, name: str, with_timeouts: bool
) -> None:
    path = real_data / "d4rl-slices" / f"{name}.hdf5"
    keys = ("observations", "actions", "rewards", "terminals", "timeouts")
    with h5py.File(path) as file:
        arrays = {key: file[key][()] for key in keys}
    family = name.replace("_", "-").split("-")[0]
    horizon = ENVIRONMENTS[family].horizon if family in ENVIRONMENTS else None
    if not with_timeouts:
        # The same rows as a file of D4RL's first version, which has no timeouts.
        del arrays["timeouts"]
        path = write_hdf5(tmp_path / path.name, arrays)
    dataset = load_dataset(path)
    assert_matches(dataset, qlearning_reference(arrays, horizon))
    if family in ENVIRONMENTS:
        assert dataset.info.env_id == ENVIRONMENTS[family].env_id
        assert dataset.info.reference_scores == ENVIRONMENTS[family].reference_scores


def test_step_counting_follows_d4rl_after_terminals_and_timeouts(tmp_path: Path) -> None:
    # Without timeouts D4RL counts steps, and starts at 1 after a terminal row but at 0 after a
    # timeout; pen's limit is 100.
    rng = np.random.default_rng(1)
    arrays = as_arrays(random_rows(1, 3000, 45, 24, timeouts=False, following=False, end_rate=0))
    arrays["terminals"][rng.choice(3000, 17, replace=False)] = True
    arrays["terminals"][[98, 99, 100, 199, 298]] = True
    dataset = load_dataset(write_hdf5(tmp_path / "pen-x.hdf5", arrays))
    expected = qlearning_reference(arrays, 100)
    assert len(expected["rew"]) < 2999 - 10
    assert_matches(dataset, expected)


def test_terminal_and_timeout_are_different_things(tmp_path: Path) -> None:
    observations = np.arange(7, dtype=np.float32)[:, None]
    arrays = {
        "observations": observations,
        "actions": np.zeros((7, 1), np.float32),
        "rewards": np.arange(7, dtype=np.float32),
        "terminals": np.array([0, 0, 1, 0, 0, 0, 0], bool),
        "timeouts": np.array([0, 0, 0, 0, 1, 0, 0], bool),
        "next_observations": observations + 100,
    }
    path = write_npz(tmp_path / "x.npz", arrays)
    shifted = load_dataset(path, next_observations="shift")
    # Row 4 timed out and row 6 is the last: both dropped. The terminal row 2 is kept.
    np.testing.assert_array_equal(shifted.rewards, [0, 1, 2, 3, 5])
    np.testing.assert_array_equal(shifted.terminals, [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(shifted.episode_ends, [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(shifted.next_observations[:, 0], [1, 2, 3, 4, 6])
    np.testing.assert_array_equal(shifted.episode_returns(), [3, 3, 5])

    own = load_dataset(path, next_observations="file")
    np.testing.assert_array_equal(own.rewards, arrays["rewards"])
    np.testing.assert_array_equal(own.next_observations, arrays["next_observations"])
    np.testing.assert_array_equal(own.terminals, arrays["terminals"])
    np.testing.assert_array_equal(own.episode_ends, [0, 0, 1, 0, 1, 0, 1])
    np.testing.assert_array_equal(own.episode_returns(), [3, 7, 11])


def test_terminal_row_next_observation_is_the_files_when_asked_for(real_data: Path) -> None:
    path = real_data / "d4rl-slices" / "hopper_medium-v2.hdf5"
    with h5py.File(path) as file:
        own = file["next_observations"][()]
        first = int(np.flatnonzero(file["terminals"][()])[0])
    shifted, kept = load_dataset(path), load_dataset(path, next_observations="file")
    assert not np.array_equal(shifted.next_observations[first], own[first])
    np.testing.assert_array_equal(kept.next_observations, own)
    assert "qlearning_dataset" in " ".join(shifted.info.notes)
    assert "next_observations = file" in " ".join(shifted.info.notes)


def test_npz_uses_its_own_next_observations_and_says_so(tmp_path: Path) -> None:
    rows = random_rows(3)
    dataset = load_dataset(write_npz(tmp_path / "x.npz", as_arrays(rows)))
    np.testing.assert_array_equal(dataset.next_observations, rows.next_observations)
    assert "the file's own next_observations" in " ".join(dataset.info.notes)


def test_shuffled_hdf5_is_not_shifted(tmp_path: Path) -> None:
    arrays = as_arrays(random_rows(4, 200, end_rate=0.05))
    order = np.random.default_rng(0).permutation(200)
    shuffled = {key: values[order] for key, values in arrays.items()}
    dataset = load_dataset(write_hdf5(tmp_path / "x.hdf5", shuffled))
    np.testing.assert_array_equal(dataset.next_observations, shuffled["next_observations"])
    assert "not in order of time" in " ".join(dataset.info.notes)


def test_hdf5_without_timeouts_or_environment_uses_its_own(tmp_path: Path) -> None:
    arrays = as_arrays(random_rows(5, timeouts=False, end_rate=0.1))
    dataset = load_dataset(write_hdf5(tmp_path / "x.hdf5", arrays))
    np.testing.assert_array_equal(dataset.next_observations, arrays["next_observations"])


def test_regenerated_data_are_labelled_and_scored_in_d4rls_physics(real_data: Path) -> None:
    dataset = load_dataset(real_data / "regenerated" / "hopper-medium-regen.hdf5")
    assert dataset.info.env_id == "pbrl/HopperD4RL-v0"
    assert dataset.info.reference_scores == (-20.272305, 3234.3)
    assert "regen" in dataset.info.name
    assert "D4RL" not in dataset.info.name
    assert any("not D4RL's own data" in note for note in dataset.info.notes)
    assert 1400 < dataset.episode_returns().mean() < 1425


def test_a_renamed_regenerated_file_is_still_labelled(tmp_path: Path) -> None:
    arrays = as_arrays(random_rows(6, 20, 11, 3))
    path = tmp_path / "mydata.hdf5"
    write_hdf5(path, arrays, env_id="Hopper-v4", provenance="regenerated with D4RL's physics")
    info = load_dataset(path).info
    assert info.name == "mydata (regenerated)"
    assert info.env_id == "pbrl/HopperD4RL-v0"


@pytest.mark.parametrize("name", ["antmaze-umaze-v2", "Ant_maze_big-maze_noisy_multistart_True"])
def test_antmaze_is_read_as_d4rl_reads_it_and_says_what_is_missing(
    tmp_path: Path, name: str
) -> None:
    arrays = as_arrays(random_rows(s=29, a=8, following=False))
    path = write_hdf5(tmp_path / f"{name}.hdf5", {**arrays, "infos/goal": np.zeros((9, 2))})
    dataset = load_dataset(path)
    assert_matches(dataset, qlearning_reference(arrays, 1000))
    assert dataset.info.env_id is None
    assert dataset.info.reference_scores is None
    (note,) = (note for note in dataset.info.notes if "AntMaze" in note)
    assert all(word in note for word in ("no evaluation", "no score", "goal"))
    assert not any("AntMaze" in n for n in load_dataset(path, env_id="Ant-v5").info.notes)


def test_plain_gymnasium_environment_stays_plain(tmp_path: Path) -> None:
    arrays = as_arrays(random_rows(6, 20, 11, 3))
    info = load_dataset(write_hdf5(tmp_path / "a.hdf5", arrays, env_id="Hopper-v4")).info
    assert info.env_id == "Hopper-v4"


def test_the_name_counts_only_with_fitting_dimensions(tmp_path: Path) -> None:
    arrays = as_arrays(random_rows(6, 20, 12, 3))
    info = load_dataset(write_hdf5(tmp_path / "hopper-mine.hdf5", arrays)).info
    assert info.env_id is None
    assert info.reference_scores is None
    penguin = as_arrays(random_rows(6, 20, 45, 24))
    assert load_dataset(write_hdf5(tmp_path / "penguin.hdf5", penguin)).info.env_id is None


def test_env_id_is_the_users_to_set(tmp_path: Path) -> None:
    arrays = as_arrays(random_rows(6, 20, 11, 3))
    path = write_npz(tmp_path / "mine.npz", arrays)
    assert load_dataset(path).info.env_id is None
    info = load_dataset(path, env_id="Hopper-v5").info
    assert info.env_id == "Hopper-v5"
    assert info.reference_scores == (-20.272305, 3234.3)
    assert info.score_source == "D4RL"


def test_declared_bounds_and_clipping(tmp_path: Path) -> None:
    arrays = as_arrays(random_rows(7))
    arrays["actions"][4, 1] = 2.5
    path = write_npz(tmp_path / "x.npz", arrays)
    assert load_dataset(path).info.action_low is None
    with pytest.raises(PbrlError, match=r"dimension 1 at row 4: 2\.5 .*--clip-actions"):
        load_dataset(path, action_low=-1, action_high=1)
    clipped = load_dataset(path, action_low=-1, action_high=[1, 2], clip_actions=True)
    assert clipped.actions[4, 1] == 2
    assert clipped.info.action_high is not None
    np.testing.assert_array_equal(clipped.info.action_high, [1, 2])
