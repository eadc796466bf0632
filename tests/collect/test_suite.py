"""The suite: five tiers a task, reused and gone on with, and never mixed with others."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import pbrl
from pbrl.cli.main import main
from pbrl.collect.online import OnlineTraining
from pbrl.collect.suite import (
    D4RL_RETURNS,
    TASKS,
    TIERS,
    SuiteConfig,
    SuiteSet,
    make_suite,
    set_path,
    sets_of,
)
from pbrl.data.loading import open_source
from pbrl.errors import PbrlError
from pbrl.evaluation.scores import normalized_score

SMALL = SuiteConfig(
    rows=300, train_steps=400, start_steps=100, replay_until=0, hidden=(8, 8), batch_size=16
)
SIZES = {"hopper": (11, 3), "walker2d": (17, 6), "halfcheetah": (17, 6)}


def write_policy(path: Path, task: str, mean: float, seed: int = 0) -> Path:
    """A D4RL-like file whose policy answers around ``tanh(mean)``."""
    s, a = SIZES[task]
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, shape in (("observations", (3, s)), ("actions", (3, a)), ("rewards", (3,))):
            file[key] = np.zeros(shape, np.float32)
        file["terminals"] = np.array([False, False, True])
        for name, weight, bias in (
            ("fc0", rng.normal(size=(5, s)), np.zeros(5)),
            ("last_fc", np.zeros((a, 5)), np.full(a, mean)),
            ("last_fc_log_std", np.zeros((a, 5)), np.full(a, -2.0)),
        ):
            file[f"metadata/policy/{name}/weight"] = weight
            file[f"metadata/policy/{name}/bias"] = bias
    return path


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies")
    write_policy(folder / "slices" / "hopper_medium-v2.hdf5", "hopper", 0.1)
    write_policy(folder / "hopper-expert.hdf5", "hopper", 0.3)
    return folder


def make(out: Path, policies: Path | None, **changes: Any) -> list[SuiteSet]:
    options = {"tasks": ("hopper",), "quiet": True}
    config = dataclasses.replace(SMALL, **{k: v for k, v in changes.items() if k not in SETTINGS})
    options |= {key: value for key, value in changes.items() if key in SETTINGS}
    folders = [] if policies is None else [policies]
    return make_suite("d4rl-gym", out, config, policies=folders, **options)  # type: ignore[arg-type]


SETTINGS = ("tasks", "tiers", "say")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory, policies: Path) -> Path:
    out = tmp_path_factory.mktemp("suite")
    make(out, policies)
    return out


def test_every_set_says_what_it_is(suite: Path) -> None:
    report = json.loads((suite / "suite.json").read_text())["sets"]
    assert list(report) == [f"hopper-{tier}" for tier in TIERS]
    for tier in TIERS:
        path = set_path(suite, "hopper", tier)
        data = pbrl.load_dataset(path)
        assert "(regenerated)" in data.info.name
        assert data.info.env_id == "pbrl/HopperD4RL-v0"
        assert data.info.score_source == "D4RL"
        recipe = open_source(path).metadata.recipe
        assert "D4RL's physics" in recipe["provenance"]
        # Counted here from the rows, not taken from what the suite says.
        mean = float(data.episode_returns().mean())
        assert recipe["return_mean"] == pytest.approx(mean, rel=1e-4)
        assert recipe["d4rl_return_mean"] == D4RL_RETURNS["hopper"][tier]
        assert report[f"hopper-{tier}"]["return_mean"] == pytest.approx(mean, abs=0.01)


def test_the_tiers_are_what_they_are_called(suite: Path) -> None:
    rows = {tier: open_source(set_path(suite, "hopper", tier)).read() for tier in TIERS}
    assert [len(rows[tier]) for tier in ("random", "medium", "expert")] == [300] * 3
    # Uniform, as the log-probabilities in D4RL's random files say: 1/2 everywhere.
    uniform = rows["random"].actions
    assert uniform.std() == pytest.approx(1 / np.sqrt(3), rel=0.05)
    for tier, mean in (("medium", 0.1), ("expert", 0.3)):
        assert np.arctanh(rows[tier].actions).mean() == pytest.approx(mean, abs=0.02)
    halves = [len({*map(bytes, rows["medium-expert"].observations)} & {*map(bytes, r.observations)})
              for r in (rows["medium"], rows["expert"])]  # fmt: skip
    assert sum(halves) == len(rows["medium-expert"])
    assert halves[0] == pytest.approx(150, abs=50)
    assert halves[1] == pytest.approx(150, abs=50)
    replay = open_source(set_path(suite, "hopper", "medium-replay"))
    step = replay.metadata.recipe["medium"]["step"]
    assert replay.length == step
    table = np.load(suite / "sac" / "hopper" / "replay.npy")
    np.testing.assert_array_equal(rows["medium-replay"].observations, table[:step, :11])


def test_what_is_there_is_reused(
    suite: Path, policies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in suite.glob("*.hdf5")}
    monkeypatch.setattr("pbrl.algorithms.sac.SAC.update", _never)
    again = make(suite, policies)
    assert not any(item.made.fresh for item in again)
    assert {path: path.read_bytes() for path in suite.glob("*.hdf5")} == before


def _never(*_: Any) -> None:
    raise AssertionError("trained again")


def test_what_was_stopped_goes_on_to_the_same_sets(
    suite: Path, policies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = OnlineTraining._explore

    def die(self: OnlineTraining, observation: Any) -> Any:
        if self.step == 60:
            raise KeyboardInterrupt
        return real(self, observation)

    with monkeypatch.context() as patch:
        patch.setattr(OnlineTraining, "_explore", die)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path, policies)
    assert len(list(tmp_path.glob("*.hdf5"))) == 4
    made = make(tmp_path, policies)
    assert [item.made.fresh for item in made] == [False] * 4 + [True]
    for tier in TIERS:
        mine, other = (open_source(set_path(place, "hopper", tier)) for place in (suite, tmp_path))
        for key in ("observations", "actions", "rewards", "terminals", "timeouts"):
            np.testing.assert_array_equal(getattr(mine.read(), key), getattr(other.read(), key))
        assert mine.metadata.recipe == other.metadata.recipe


def test_sac_makes_the_policies_where_none_are_given(tmp_path: Path) -> None:
    made = make(tmp_path, None, train_steps=300, tiers=("medium", "expert"))
    recipes = [open_source(item.made.path).metadata.recipe for item in made]
    assert recipes[0]["medium"]["step"] < recipes[1]["expert"]["step"]
    trials = json.loads((tmp_path / "sac" / "hopper" / "trials.json").read_text())
    last = sorted(map(int, trials))[-10:]
    assert recipes[1]["expert"]["return_mean"] == max(trials[str(step)] for step in last)
    assert "pbrl's SAC after" in recipes[0]["provenance"]


def test_a_policy_that_never_becomes_medium_makes_no_replay_set(
    tmp_path: Path, policies: Path
) -> None:
    with pytest.raises(PbrlError, match=r"D4RL's medium policy earns 1,422: .* --train-steps"):
        make(tmp_path, policies, replay_until=1.0, train_steps=120, tiers=("random", *TIERS[-1:]))
    assert [path.stem for path in tmp_path.glob("*.hdf5")] == ["hopper-random"]


def test_nothing_is_mixed_silently(suite: Path, policies: Path, tmp_path: Path) -> None:
    before = {path.name for path in suite.iterdir()}
    with pytest.raises(PbrlError, match=r"was made with rows 300; give the same settings"):
        make(suite, policies, rows=400)
    with pytest.raises(PbrlError, match=r"was made with seed 0"):
        make(suite, policies, seed=1, tiers=("random",))
    with pytest.raises(PbrlError, match=r"hopper-medium.hdf5' was made with another policy"):
        make(suite, None)
    with pytest.raises(PbrlError, match=r"'hopper-medium-replay'|was made with another policy"):
        make(suite, policies, train_steps=500)
    assert {path.name for path in suite.iterdir()} == before
    np.savez(tmp_path / "x.npz", observations=np.zeros((2, 11)), actions=np.zeros((2, 3)),
             rewards=np.zeros(2), terminals=np.zeros(2, bool))  # fmt: skip
    stray = str(tmp_path / "hopper-expert.hdf5")
    assert main(["data", "convert", str(tmp_path / "x.npz"), stray]) == 0
    with pytest.raises(PbrlError, match="was not made by 'pbrl data suite'; give another --out"):
        make(tmp_path, policies, tiers=("random",))


def test_missing_and_doubtful_policies(policies: Path, tmp_path: Path) -> None:
    with pytest.raises(PbrlError, match=r"No policy of walker2d-medium in .*walker2d_medium-v2"):
        make(tmp_path / "out", policies, tasks=("hopper", "walker2d"))
    with pytest.raises(PbrlError, match="no directory"):
        make(tmp_path / "out", policies / "none")
    write_policy(tmp_path / "p" / "hopper_medium-v2.hdf5", "hopper", 0.1)
    write_policy(tmp_path / "p" / "more" / "hopper-medium.hdf5", "hopper", 0.1)  # a copy
    made = make(tmp_path / "out", tmp_path / "p", tiers=("medium",))
    assert made[0].made.fresh
    write_policy(tmp_path / "p" / "more" / "hopper-medium.hdf5", "hopper", 0.2)
    with pytest.raises(PbrlError, match="There are different policies of hopper-medium"):
        make(tmp_path / "out", tmp_path / "p", tiers=("medium",))


def test_unknown_names_and_missing_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PbrlError, match=r"Unknown tier 'medum'\. Did you mean 'medium'"):
        make(tmp_path, None, tiers=("medum",))
    with pytest.raises(PbrlError, match="Unknown task 'ant'"):
        make(tmp_path, None, tasks=("ant",))
    with pytest.raises(PbrlError, match="Unknown suite 'd4rl'"):
        make_suite("d4rl", tmp_path)

    def broken(env_id: str) -> Any:
        raise PbrlError(f"Environment '{env_id}' cannot be made here: no MuJoCo")

    monkeypatch.setattr("pbrl.envs.player.make_env", broken)
    with pytest.raises(PbrlError, match="cannot be made here"):
        make(tmp_path, None)
    assert list(tmp_path.iterdir()) == []


def test_a_suite_with_gaps_is_no_suite(suite: Path, policies: Path, tmp_path: Path) -> None:
    assert len(sets_of(suite, ("hopper",))) == 5
    with pytest.raises(PbrlError, match=r"has 5 of the 15 sets; .* goes on"):
        sets_of(suite)
    make(tmp_path, policies, rows=200)
    odd = set_path(tmp_path, "hopper", "expert")
    odd.write_bytes(set_path(suite, "hopper", "expert").read_bytes())
    with pytest.raises(PbrlError, match="hopper-expert has rows 300, hopper-random 200"):
        sets_of(tmp_path, ("hopper",))


def test_d4rls_returns_are_of_fifteen_sets() -> None:
    """Against D4RL's own figures, where the mixture follows from its halves and their episodes."""
    assert [len(D4RL_RETURNS[task]) for task in TASKS] == [5, 5, 5]
    episodes = {"hopper": (2186, 1027), "halfcheetah": (1000, 1000), "walker2d": (1190, 1000)}
    for task, counts in episodes.items():
        known = D4RL_RETURNS[task]
        mean = np.average([known["medium"], known["expert"]], weights=counts)
        assert known["medium-expert"] == pytest.approx(mean, rel=1e-4)
    assert normalized_score([1422.06], (-20.272305, 3234.3))[0] == pytest.approx(44.3, abs=0.05)


def test_the_command(
    suite: Path, policies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data", "suite", "d4rl-gym", "--out", str(tmp_path), "--rows", "100"]
    words += ["--policies", str(policies), "--tasks", "hopper", "--tiers", "random,medium"]
    assert main(words) == 0
    assert "(1,422)" in capsys.readouterr().out
    assert main(words) == 0
    assert "* there already" in capsys.readouterr().out
    assert main([*words[:-1], "expert"]) == 0  # the report keeps what earlier calls made
    report = json.loads((tmp_path / "suite.json").read_text())
    assert list(report["sets"]) == ["hopper-random", "hopper-medium", "hopper-expert"]
    assert main([*words, "--rows", "99"]) == 2
    assert "rows 100" in capsys.readouterr().err


def test_real_random_and_medium_rows_are_of_this_kind(real_data: Path) -> None:
    """The slices of D4RL's own files, by which the tiers were chosen."""
    with h5py.File(real_data / "d4rl-slices" / "hopper_random-v1.hdf5") as file:
        recorded = file["infos/action_log_probs"][:]
    np.testing.assert_allclose(recorded, 3 * np.log(0.5), atol=1e-6)  # uniform in [-1, 1]^3
