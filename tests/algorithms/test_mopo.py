"""MOPO: rollouts and penalty by hand, exact resume in both phases, and the shared tester."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from algorithm_tester import (
    ACTION_DIM,
    OBSERVATION_DIM,
    AlgorithmCase,
    AlgorithmTester,
    tiny_dataset,
)
from torch import Tensor

from pbrl.algorithms.dynamics import DynamicsModel
from pbrl.algorithms.mopo import MOPO, MOPOConfig
from pbrl.data.dataset import DatasetInfo, TransitionDataset
from pbrl.data.preprocessing import Preprocessing
from pbrl.data.training_data import Batch, TrainingData
from pbrl.errors import PbrlError

SMALL: dict[str, Any] = {
    "hidden": (32, 32),
    "policy_hidden": (32, 32),
    "model_hidden": (32, 32),
    "termination": "none",
    "rollout_batch": 500,
    "rollout_interval": 25,
    "rollout_length": 1,
}


class TestMOPO(AlgorithmTester):
    case = AlgorithmCase(
        MOPO,
        {
            **SMALL,
            "model_lr": 3e-3,
            "critic_lr": 3e-3,
            "actor_lr": 1e-3,
            "alpha_lr": 1e-2,
            "initial_log_alpha": -1.0,
            # A broad policy: the critics see little else than its own actions.
            "target_entropy": 0.5,
            # In this task the next state is noise: only one step ahead can be known.
            "gamma": 0.1,
            "tau": 0.05,
            "penalty": 0.1,
            "rollout_interval": 10,
        },
        max_regret=0.08,
        updates=500,
        bad_settings=(
            ({"penalty": -1.0}, "penalty"),
            ({"rollout_length": 0}, "rollout_length"),
            ({"real_ratio": 1.5}, "real_ratio"),
            ({"elites": 8}, "elites"),
            ({"model_hidden": ()}, "model_hidden"),
            ({"model_lr": 0.0}, "model_lr"),
            ({"model_weight_decay": (-1.0,)}, "model_weight_decay"),
            ({"model_fraction": 0.0}, "model_fraction"),
            ({"termination": "ant"}, "termination"),
            ({"gamma": 1.0}, "gamma"),
            ({"critic_lr": 0.0}, "critic_lr"),
        ),
    )

    # 40 steps: 12 for the model, the others for the policy. Save in the middle of the model's
    # training, at its end, and between two generations of rollouts.
    @pytest.mark.parametrize("save_at", [5, 12, 30])
    def test_resumes_bit_exactly_in_each_phase(self, save_at: int) -> None:
        overrides = {"rollout_interval": 7, "rollout_batch": 40, "rollout_retain": 2}
        whole = self.make(seed=1, total_steps=40, **overrides)
        first = self.make(seed=1, total_steps=40, **overrides)
        data, g = self.data(), torch.Generator().manual_seed(0)
        batches = [data.sample(128, g) for _ in range(40)]
        for batch in batches:
            whole.update(batch)
        for batch in batches[:save_at]:
            first.update(batch)
        state = self.snapshot(first)
        assert isinstance(whole, MOPO)
        assert isinstance(first, MOPO)
        assert first.trainer.finished == (save_at >= 12)
        resumed = self.make(seed=9, total_steps=40, **overrides)  # another split until loaded
        resumed.load_state_dict(state)
        for batch in batches[save_at:]:
            resumed.update(batch)
        self.assert_same(resumed.state_dict(), whole.state_dict())
        assert whole.buffer.size == 80  # the oldest two of four generations are gone

    def test_state_can_be_loaded_before_the_data_are_known(self) -> None:
        first = self.make(seed=1)
        self.train(first, 3)
        config = first.config
        resumed = MOPO(config, OBSERVATION_DIM, ACTION_DIM, seed=9, total_steps=self.case.updates)
        resumed.load_state_dict(self.snapshot(first))
        resumed.prepare(self.data())
        self.train(first, 3, batch_seed=2)
        self.train(resumed, 3, batch_seed=2)
        self.assert_same(first.state_dict(), resumed.state_dict())


# -------------------------------------------------------------------- a model known by heart


def linear_model(algorithm: MOPO) -> tuple[Tensor, Tensor]:
    """Make every elite s' = s + s @ M + a @ L, reward = s[0] + member, with known deviations.

    Returns M ``[S, S]`` and L ``[A, S]``.
    """
    g = torch.Generator().manual_seed(0)
    m = 0.1 * torch.randn(OBSERVATION_DIM, OBSERVATION_DIM, generator=g)
    lin = 0.1 * torch.randn(ACTION_DIM, OBSERVATION_DIM, generator=g)
    model = algorithm.model

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        s, a = x[:, :OBSERVATION_DIM], x[:, OBSERVATION_DIM:]
        delta = s @ m + a @ lin
        reward = s[:, :1]
        mean = torch.cat([reward, delta], 1).expand(model.members, -1, -1)
        # Member k's deviations are e^-(20 + k): none to speak of, but of known norm.
        member = torch.arange(model.members, dtype=x.dtype).view(-1, 1, 1)
        return mean, (-2 * (20 + member)).expand(mean.shape)

    model.forward = forward  # type: ignore[method-assign]
    return m, lin


def made(dataset: TransitionDataset | None = None, **overrides: Any) -> MOPO:
    config = MOPOConfig(**{**SMALL, **overrides})
    algorithm = MOPO(config, OBSERVATION_DIM, ACTION_DIM, seed=0, total_steps=40)
    algorithm.prepare(TrainingData(dataset or tiny_dataset(200)))
    return algorithm


def test_rollouts_follow_a_linear_model_step_by_step() -> None:
    algorithm = made(rollout_length=3, rollout_batch=6, penalty=2e8)
    m, lin = linear_model(algorithm)
    algorithm.termination_function = lambda s2: s2[:, 0] > 0.5
    metrics = algorithm.roll_out()
    rows = algorithm.buffer.rows[: algorithm.buffer.size]
    s, a, r, s2, done = rows.split([3, 2, 1, 3, 1], 1)
    assert algorithm.data is not None
    starts = algorithm.data.gather(torch.arange(200)).observations
    assert all(bool((row == starts).all(1).any()) for row in s[:6])  # from real states
    torch.testing.assert_close(s2, s + s @ m + a @ lin, atol=1e-6, rtol=1e-5)
    # Reward s[0] - lambda * u; u is the largest member's norm of four equal deviations.
    u = 2 * np.exp(-20.0)  # sqrt(4) * e^-20, of member 0
    torch.testing.assert_close(r[:, 0], s[:, 0] - 2e8 * u, atol=1e-4, rtol=1e-5)
    assert float(metrics["rollout_penalty"]) == pytest.approx(u, rel=1e-4)
    assert torch.equal(done[:, 0], (s2[:, 0] > 0.5).float())
    # Every step goes on from the states that had not ended, in order.
    begin, alive = 0, 6
    for _ in range(3):
        end = begin + alive
        living = s2[begin:end][done[begin:end, 0] == 0]
        alive = min(len(living), algorithm.buffer.size - end)
        assert torch.equal(s[end : end + alive], living[:alive])
        begin = end
    assert begin == algorithm.buffer.size
    assert 0 < float(done.sum()) < len(done)


def test_rollouts_stop_when_every_episode_has_ended() -> None:
    algorithm = made(rollout_length=3, rollout_batch=6)
    algorithm.termination_function = lambda s2: torch.ones(len(s2), dtype=torch.bool)
    algorithm.roll_out()
    assert algorithm.buffer.size == 6


def test_termination_sees_raw_observations() -> None:
    dataset = tiny_dataset(200)
    maps = dataclasses.replace(
        Preprocessing.identity(OBSERVATION_DIM, ACTION_DIM),
        observation_shift=np.array([10, 20, 30], np.float32),
        observation_scale=np.array([2, 3, 4], np.float32),
    )
    algorithm = MOPO(MOPOConfig(**SMALL), seed=0, total_steps=40)
    seen: list[Tensor] = []

    def spy(raw: Tensor) -> Tensor:
        seen.append(raw)
        return torch.zeros(len(raw), dtype=torch.bool)

    algorithm.termination_function = spy
    algorithm.prepare(TrainingData(dataset, maps))
    algorithm.roll_out()
    s2 = algorithm.buffer.rows[:500, 6:9]
    expected = s2 * torch.tensor([2.0, 3.0, 4.0]) + torch.tensor([10.0, 20.0, 30.0])
    torch.testing.assert_close(seen[0], expected)


def test_batches_mix_few_real_and_many_imagined_rows() -> None:
    algorithm = made(real_ratio=0.05)
    fake = Batch(
        torch.full((9, 3), 7.0),
        torch.zeros(9, 2),
        torch.zeros(9),
        torch.zeros(9, 3),
        torch.zeros(9),
    )
    algorithm.buffer.add(fake)
    assert algorithm.data is not None
    batch = algorithm.data.sample(256, torch.Generator().manual_seed(0))
    mixed = algorithm._mixed(batch)
    assert len(mixed.rewards) == 256
    for got, real in zip(mixed, batch, strict=True):
        assert torch.equal(got[:12], real[:12])
    assert bool((mixed.observations[12:] == 7).all())
    all_real = made(real_ratio=1.0)._mixed(batch)
    assert all_real is batch


def test_updates_train_the_model_first_and_the_policy_after() -> None:
    algorithm = made(rollout_interval=10)
    assert algorithm.data is not None
    g = torch.Generator().manual_seed(0)
    kinds = []
    for _ in range(40):
        before = algorithm.sac.policy.network.head.weight.detach().clone()
        metrics = algorithm.update(algorithm.data.sample(64, g))
        moved = not torch.equal(before, algorithm.sac.policy.network.head.weight)
        kinds.append(("model_loss" in metrics, moved, "rollout_penalty" in metrics))
    model = kinds.index((False, True, True))
    assert model == 12  # 0.3 of 40
    assert kinds[:12] == [(True, False, False)] * 12
    assert kinds[12:] == [(False, True, i % 10 == 0) for i in range(28)]


def test_judges_by_critics_and_separately_by_the_model() -> None:
    algorithm = made()
    s, a = torch.rand(5, OBSERVATION_DIM), torch.rand(5, ACTION_DIM)
    q = algorithm.q_values(s, a)
    torch.testing.assert_close(algorithm.uncertainty(s, a), (q[0] - q[1]).abs() / 2)
    _, log_var = algorithm.model(torch.cat([s, a], 1))
    expected = [
        max(float(log_var[k, i].detach().double().exp().sum().sqrt()) for k in range(7))
        for i in range(5)
    ]
    assert algorithm.model_uncertainty(s, a).tolist() == pytest.approx(expected, rel=1e-5)


def test_refuses_what_it_cannot_know() -> None:
    with pytest.raises(PbrlError, match=r"no rule for data without an environment.*termination_f"):
        made(termination="auto")
    config = MOPOConfig(**SMALL)
    algorithm = MOPO(config, OBSERVATION_DIM, ACTION_DIM)
    batch = TrainingData(tiny_dataset(200)).sample(64, torch.Generator().manual_seed(0))
    with pytest.raises(PbrlError, match=r"prepare\(data\)"):
        algorithm.update(batch)
    with pytest.raises(PbrlError, match="reads observations of size 11"):
        made(termination="hopper")


def test_terminal_rows_of_shifted_data_are_left_out_and_said_so() -> None:
    rows = tiny_dataset(200)
    shifted = dataclasses.replace(
        rows, next_observations=np.roll(rows.observations, -1, 0), terminals=np.arange(200) % 2 == 0
    )
    algorithm = MOPO(MOPOConfig(**SMALL), seed=0, total_steps=40)
    notes = algorithm.prepare(TrainingData(shifted))
    assert any(note.startswith("100 terminal rows") for note in notes)
    assert len(algorithm.trainer.rows) + len(algorithm.trainer.holdout[0]) == 100


def test_rollout_settings_by_dataset() -> None:
    def setting(name: str) -> tuple[int, float] | None:
        found = MOPO.dataset_overrides(name)
        return (found["rollout_length"], found["penalty"]) if found else None

    assert setting("hopper-medium-v2") == (5, 5.0)
    assert setting("hopper-medium-regen.hdf5") == (5, 5.0)
    assert setting("walker2d-medium-expert-v2") == (1, 2.0)
    assert setting("halfcheetah-medium-replay-v2") == (5, 1.0)
    assert setting("hopper-expert-v2") is None
    assert setting("pen-human-v1") is None


def test_known_environment_needs_no_setting() -> None:
    rng = np.random.default_rng(0)
    s = rng.normal(1, 0.01, (40, 11)).astype(np.float32)
    ends = np.zeros(40, np.bool_)
    dataset = TransitionDataset(
        s,
        np.zeros((40, 3), np.float32),
        np.zeros(40, np.float32),
        s,
        ends,
        ends,
        DatasetInfo("x", env_id="pbrl/HopperD4RL-v0"),
    )
    algorithm = MOPO(MOPOConfig(**{**SMALL, "termination": "auto"}), seed=0, total_steps=40)
    notes = algorithm.prepare(TrainingData(dataset))
    assert any("rule hopper" in note for note in notes)
    assert isinstance(algorithm.model, DynamicsModel)
