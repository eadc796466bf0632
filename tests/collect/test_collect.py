"""Collecting datasets: tiers in order, exact continuation, stored policies, bad input."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import pbrl
from pbrl.cli.collect import main
from pbrl.collect import TIERS, Collected, collect, collect_policy
from pbrl.collect.online import OnlineConfig, OnlineTraining, sac_config
from pbrl.collect.policies import policy_of, uniform_policy
from pbrl.collect.rollouts import play_rows
from pbrl.data.loading import open_source
from pbrl.data.rows import Rows
from pbrl.envs.player import Player
from pbrl.errors import PbrlError
from pbrl.training.progress import TrainingProgress

DOUBLE, SINGLE = "InvertedDoublePendulum-v5", "InvertedPendulum-v5"
SMALL: dict[str, Any] = {
    "steps": 1000,
    "train_steps": 2000,
    "start_steps": 300,
    "hidden": (32, 32),
    "learning_rate": 3e-3,
    "batch_size": 64,
    "threads": 1,
    "quiet": True,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("collected")


@pytest.fixture(scope="module")
def tiers(folder: Path) -> dict[str, Collected]:
    return {item.tier: item for item in collect(DOUBLE, out=folder, **SMALL)}


# ------------------------------------------------------------------------------- tiers


def test_tiers_come_in_order_of_quality(tiers: dict[str, Collected]) -> None:
    # Counted here from the files, not taken from what collect says.
    means = {}
    for name, item in tiers.items():
        returns = pbrl.load_dataset(item.path).episode_returns()
        means[name] = float(returns.mean())
        assert means[name] == pytest.approx(item.return_mean, rel=1e-5)
        assert len(returns) == item.episodes
    assert means["random"] < means["medium-replay"] < means["medium"] < means["expert"]
    assert means["medium"] < means["medium-expert"] < means["expert"]


def test_files_tell_environment_scores_bounds_and_recipe(tiers: dict[str, Collected]) -> None:
    medium = open_source(tiers["medium"].path).metadata
    assert medium.env_id == DOUBLE
    recipe = medium.recipe
    assert (recipe["tier"], recipe["seed"], recipe["steps"]) == ("medium", 0, 1000)
    assert recipe["training"]["sac"]["hidden"] == [32, 32]
    assert "mujoco" in recipe["versions"]
    chosen = recipe["chosen"]
    low, high = chosen["random"]["return_mean"], chosen["expert"]["return_mean"]
    assert medium.reference_scores == (low, high)
    # About a third of the way; SAC's snapshots are not dense enough for exactly that.
    share = (chosen["medium"]["return_mean"] - low) / (high - low)
    assert 0.15 < share < 0.6
    info = pbrl.load_dataset(tiers["expert"].path).info
    assert info.action_low is not None
    assert info.action_low.tolist() == [-1.0]


def test_replay_holds_what_sac_had_seen(tiers: dict[str, Collected]) -> None:
    opened = open_source(tiers["medium-replay"].path)
    rows = opened.read()
    assert len(rows) == opened.metadata.recipe["chosen"]["medium"]["step"]
    assert_is_a_log(rows)
    # The first 300 actions are uniform in [-1, 1]: deviation 1 / sqrt(3).
    assert rows.actions[:300].std() == pytest.approx(1 / math.sqrt(3), rel=0.1)


def test_medium_expert_is_half_and_half(tiers: dict[str, Collected]) -> None:
    parts = {name: open_source(tiers[name].path).read() for name in TIERS}
    mixed = parts["medium-expert"]
    assert len(mixed) == 1000
    for name, half in (("medium", mixed[:500]), ("expert", mixed[500:])):
        np.testing.assert_array_equal(half.observations, parts[name].observations[:500])
        np.testing.assert_array_equal(half.actions, parts[name].actions[:500])
    assert_is_a_log(mixed)


def assert_is_a_log(rows: Rows) -> None:
    """Episodes hang together: the next observation is the following row's, up to each end."""
    assert rows.timeouts is not None
    assert rows.next_observations is not None
    assert not (rows.terminals & rows.timeouts).any()
    ends = rows.terminals | rows.timeouts
    assert ends[-1]
    inside = ~ends[:-1]
    np.testing.assert_array_equal(
        rows.next_observations[:-1][inside], rows.observations[1:][inside]
    )


def test_complete_datasets_are_kept_and_others_not_replaced(
    tiers: dict[str, Collected], folder: Path
) -> None:
    before = {name: item.path.read_bytes() for name, item in tiers.items()}
    again = collect(DOUBLE, out=folder, **SMALL)
    assert [item.fresh for item in again] == [False] * len(TIERS)
    assert [(i.rows, i.episodes) for i in again] == [(i.rows, i.episodes) for i in tiers.values()]
    with pytest.raises(PbrlError, match=r"other settings.*--overwrite"):
        collect(DOUBLE, ["expert"], out=folder, **SMALL | {"steps": 999})
    with pytest.raises(PbrlError, match=r"other settings \(sac\).*another --out"):
        collect(DOUBLE, ["expert"], out=folder, **SMALL | {"learning_rate": 1e-3})
    assert {name: item.path.read_bytes() for name, item in tiers.items()} == before


def test_another_tier_later_needs_no_new_training(
    tiers: dict[str, Collected], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pbrl.algorithms.sac.SAC.update", _never)
    wanted = folder / "expert.npz"
    made = collect(DOUBLE, ["expert"], out=wanted, **SMALL)
    rows, other = (open_source(path).read() for path in (made[0].path, tiers["expert"].path))
    np.testing.assert_array_equal(rows.observations, other.observations)


def _never(*_: Any) -> None:
    raise AssertionError("trained again")


# ------------------------------------------------------------------------------- going on


def test_a_killed_training_goes_on_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = OnlineConfig(SINGLE, 500, 100, 3, sac_config((16, 16), 3e-3, 32))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(config, whole)

    def die(step: int) -> Callable[..., Any]:
        real = OnlineTraining._explore

        def explore(self: OnlineTraining, observation: Any) -> Any:
            if self.step == step:
                raise KeyboardInterrupt
            return real(self, observation)

        return explore

    for step in (80, 260, 420):  # before the first update and in the middle of episodes
        with monkeypatch.context() as patch:
            patch.setattr(OnlineTraining, "_explore", die(step))
            with pytest.raises(KeyboardInterrupt):
                train(config, killed)
    resumed = train(config, killed)
    assert resumed.step == 500

    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    assert len([path for path in files if path.parent.name == "policies"]) == 100
    for file in files:
        assert (whole / file).read_bytes() == (killed / file).read_bytes(), file


def train(config: OnlineConfig, path: Path) -> OnlineTraining:
    from rich.console import Console

    player = Player(config.env_id)
    training = OnlineTraining(config, path, player)
    training.run(TrainingProgress(config.steps, 0, Console(), quiet=True))
    player.close()
    return training


def test_a_damaged_training_is_refused(tmp_path: Path) -> None:
    config = OnlineConfig(SINGLE, 120, 50, 0, sac_config((8,), 3e-3, 16))
    train(config, tmp_path)
    (tmp_path / "replay.npy").write_bytes(b"not a table")
    with pytest.raises(PbrlError, match="replay buffer"):
        train(config, tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(PbrlError, match="damaged"):
        train(config, tmp_path)


# ------------------------------------------------------------------------------- rollouts


def test_rollouts_have_the_asked_rows_and_repeat() -> None:
    player = Player(SINGLE)
    policy = uniform_policy(player.low, player.high)
    first, second, other = (
        Rows.concatenate(list(play_rows(player, policy, 123, seed))) for seed in ((1,), (1,), (2,))
    )
    player.close()
    assert len(first) == 123
    assert_is_a_log(first)
    np.testing.assert_array_equal(first.observations, second.observations)
    assert not np.array_equal(first.observations, other.observations)
    assert first.actions.min() < -2.5  # the environment's actions reach from -3 to 3
    assert np.abs(first.actions).max() <= 3


def test_episodes_are_not_chosen_by_their_length() -> None:
    # A quick way to cut at N rows would favour episodes that end early.
    player = Player(SINGLE)
    policy = uniform_policy(player.low, player.high)
    rows = Rows.concatenate(list(play_rows(player, policy, 3000, (0,))))
    longer = Rows.concatenate(list(play_rows(player, policy, 4000, (0,))))
    player.close()
    np.testing.assert_array_equal(rows.observations, longer.observations[:3000])


def test_a_run_of_ours_is_played(tmp_path: Path) -> None:
    run = pbrl.train(
        steps=3, batch_size=8, run_dir=tmp_path / "run", eval=False, tensorboard=False, quiet=True
    )
    made = collect_policy(
        run.path, steps=150, out=tmp_path / "played.npz", deterministic=True, threads=1
    )
    rows = open_source(made.path).read()
    agent = pbrl.load_agent(run.path)
    np.testing.assert_allclose(rows.actions, agent.act(rows.observations), atol=1e-6)
    sampled = collect_policy(run.path, steps=150, out=tmp_path / "sampled.npz", threads=1)
    rows = open_source(sampled.path).read()
    assert np.abs(rows.actions - agent.act(rows.observations)).mean() > 0.1
    assert pbrl.load_dataset(sampled.path).info.env_id == DOUBLE


# ------------------------------------------------------------------------------- D4RL's policies


def write_policy(path: Path, *, transposed: bool = False, constant: bool = False) -> None:
    """A D4RL-like file: S = 4, A = 1, one hidden unit, mean 0.5 + 2 relu(s_0), log-std -1."""
    with h5py.File(path, "w") as file:
        for key, shape in (("observations", (3, 4)), ("actions", (3, 1)), ("rewards", (3,))):
            file[key] = np.zeros(shape, np.float32)
        file["terminals"] = np.array([False, False, True])
        weights: dict[str, tuple[Any, Any]] = {
            "fc0": ([[1.0, 0, 0, 0]], [0.0]),
            "last_fc": ([[2.0]], [0.5]),
        }
        if constant:
            file["infos/action_log_std"] = np.full((3, 1), -1.0)
            weights["last_fc_log_std"] = ([[9.0]], [9.0])  # untrained, must not be used
        else:
            weights["last_fc_log_std"] = ([[0.0]], [-1.0])
        for name, (weight, bias) in weights.items():
            matrix = np.array(weight)
            file[f"metadata/policy/{name}/weight"] = matrix.T if transposed else matrix
            file[f"metadata/policy/{name}/bias"] = np.array(bias)
        file["metadata/policy/nonlinearity"] = "relu"
        file["metadata/policy/output_distribution"] = "gaussian" if constant else "tanh_gaussian"


@pytest.mark.parametrize(("transposed", "constant"), [(False, False), (True, False), (False, True)])
def test_stored_policy_by_hand(tmp_path: Path, transposed: bool, constant: bool) -> None:
    path = tmp_path / "file.hdf5"
    write_policy(path, transposed=transposed, constant=constant)
    policy, env_id, _ = policy_of(path, deterministic=False)
    assert env_id is None
    observations = np.tile(np.array([[0.3, 5, 5, 5], [-1, 5, 5, 5]], np.float32), (20_000, 1))
    actions = policy(observations, np.random.default_rng(0)).astype(np.float64)
    before = actions if constant else np.arctanh(actions)
    assert before[::2].mean() == pytest.approx(1.1, abs=0.01)
    assert before[1::2].mean() == pytest.approx(0.5, abs=0.01)
    assert before[1::2].std() == pytest.approx(math.exp(-1), rel=0.02)
    mean, _, _ = policy_of(path, deterministic=True)
    expected = 1.1 if constant else math.tanh(1.1)
    assert mean(observations, np.random.default_rng(0))[0, 0] == pytest.approx(expected)


def test_hopper_medium_policy_is_the_recorded_one(real_data: Path) -> None:
    """Its log-probabilities of the recorded actions are the recorded log-probabilities."""
    path = real_data / "d4rl-slices" / "hopper_medium-v2.hdf5"
    policy, env_id, _ = policy_of(path, deterministic=False)
    assert env_id == "pbrl/HopperD4RL-v0"
    with h5py.File(path, "r") as file:
        observations, actions = file["observations"][:], file["actions"][:].astype(np.float64)
        recorded = file["infos/action_log_probs"][:]
    mean, log_std = policy.distribution(observations)  # type: ignore[attr-defined]
    before = np.arctanh(actions)
    z = (before - mean) / np.exp(log_std)
    gaussian = -0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)
    computed = (gaussian - np.log(1 - actions**2 + 1e-6)).sum(1)
    assert np.median(np.abs(computed - recorded)) < 1e-3


@pytest.mark.parametrize("name", ["pen-expert-v1", "door-expert-v1"])
def test_adroit_expert_means_are_the_recorded_ones(real_data: Path, name: str) -> None:
    path = real_data / "d4rl-slices" / f"{name}.hdf5"
    policy, env_id, _ = policy_of(path, deterministic=False)
    assert env_id == f"pbrl/{name.split('-')[0].capitalize()}D4RL-v0"
    with h5py.File(path, "r") as file:
        observations, recorded = file["observations"][:], file["infos/action_mean"][:]
        log_std = file["infos/action_log_std"][:]
    mean, used = policy.distribution(observations)  # type: ignore[attr-defined]
    np.testing.assert_allclose(mean, recorded, atol=1e-5)
    np.testing.assert_allclose(used, log_std, atol=1e-6)


@pytest.mark.parametrize("name", ["pen-cloned-v1", "door-cloned-v1"])
def test_adroit_cloned_policy_acts_as_recorded(real_data: Path, name: str) -> None:
    path = real_data / "d4rl-slices" / f"{name}.hdf5"
    policy, _, _ = policy_of(path, deterministic=False)
    with h5py.File(path, "r") as file:
        observations, recorded = file["observations"][:], file["actions"][:]
    actions = np.clip(policy(observations, np.random.default_rng(0)), -1, 1)
    np.testing.assert_allclose(actions, recorded, atol=1e-4)


def test_hopper_medium_is_made_again(real_data: Path, tmp_path: Path) -> None:
    source = real_data / "d4rl-slices" / "hopper_medium-v2.hdf5"
    made = collect_policy(source, steps=4000, out=tmp_path, threads=1)
    dataset = pbrl.load_dataset(made.path)
    assert dataset.info.env_id == "pbrl/HopperD4RL-v0"
    assert dataset.info.score_source == "D4RL"
    assert "regenerated" in dataset.info.name
    # D4RL's mean is 1422 with a deviation of about 380 over episodes; these are about nine, the
    # last one cut. docs/collect.md has the figure over more than 100.
    whole = dataset.episode_returns()[:-1]
    assert 1100 < whole.mean() < 1750


# ------------------------------------------------------------------------------- bad input


def _broken_layer(path: Path) -> None:
    write_policy(path)
    with h5py.File(path, "r+") as file:
        del file["metadata/policy/last_fc/bias"]


def _odd_activation(path: Path) -> None:
    write_policy(path)
    with h5py.File(path, "r+") as file:
        del file["metadata/policy/nonlinearity"]
        file["metadata/policy/nonlinearity"] = "sine"


def _no_policy(path: Path) -> None:
    write_policy(path)
    with h5py.File(path, "r+") as file:
        del file["metadata"]


@pytest.mark.parametrize(
    ("write", "arguments", "sentence"),
    [
        (None, "", "Name an environment"),
        (None, "Hoper-v5 --steps 2000", "Did you mean 'Hopper-v5'"),
        (None, "CartPole-v1 --steps 2000", "continuous vectors"),
        (None, f"{SINGLE} --tiers expert,mediun", "Did you mean 'medium'"),
        (None, f"{SINGLE} --tiers ,", "at least one tier"),
        (None, f"{SINGLE} --steps 0", "--steps must be at least 1"),
        (None, f"{SINGLE} --steps 100", "must be larger than --start-steps 1000"),
        (None, f"{SINGLE} --steps 2000 --seed -1", "--seed"),
        (None, f"{SINGLE} --steps 2000 --threads -1", "--threads"),
        (None, f"{SINGLE} --steps 2000 --hidden 0", "hidden needs positive"),
        (None, f"{SINGLE} --steps 2000 --learning-rate 0", "must be positive"),
        (None, f"{SINGLE} --steps 2000 --out x.npz", "names one file, but 5"),
        (write_policy, f"{SINGLE} --steps 2000 --out p.hdf5/x", "p.hdf5"),
        (None, "--policy nowhere.hdf5", "nowhere.hdf5"),
        (None, "--policy nowhere", "no file or directory 'nowhere'"),
        (None, "--policy .", "holds no pbrl run"),
        (_no_policy, "--policy p.hdf5", "holds no policy"),
        (_broken_layer, "--policy p.hdf5", "lacks a weight or bias of 'last_fc'"),
        (_odd_activation, "--policy p.hdf5", "unknown nonlinearity 'sine'"),
        (write_policy, "--policy p.hdf5", "does not say its environment"),
        (write_policy, f"{DOUBLE} --policy p.hdf5 --steps 9", "does not fit"),
        (lambda path: path.write_text("text"), "--policy p.hdf5", "p.hdf5"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Path], None] | None,
    arguments: str,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if write is not None:
        write(tmp_path / "p.hdf5")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(PbrlError) as caught:
        main(arguments.split())
    text = str(caught.value)
    assert sentence in text, text
    assert "\n" not in text
    assert sorted(tmp_path.rglob("*")) == before, "something half-made was left behind"


def test_the_command_prints_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_policy(tmp_path / "p.hdf5")
    words = f"{SINGLE} --policy p.hdf5 --steps 50 --threads 1 --out made.npz"
    assert main(words.split()) == 0
    assert "made.npz" in capsys.readouterr().out
    assert len(open_source("made.npz").read()) == 50
    assert main(f"{SINGLE} --tiers random --steps 50 --threads 1 --format npz".split()) == 0
    assert (tmp_path / "collected" / f"{SINGLE}-random.npz").is_file()
    assert not (tmp_path / "collected" / f"{SINGLE}-sac").exists()
