"""The behaviour every algorithm of the package must show, whatever is inside it.

A test module describes its algorithm as an ``AlgorithmCase`` and inherits the tests::

    class TestBC(AlgorithmTester):
        case = AlgorithmCase(BC, {"hidden": (32, 32)}, max_regret=0.05)

The tiny task has a known optimum. Observations are uniform in [-1, 1]^3, every episode is one step
long, and the reward is 2 - |a - f(s)|^2 with f(s) the best action. Half of the logged actions are
uniform in [-1, 1]^2, the others lie around f(s) + a bias. The regret E|a - f(s)|^2 is

- about 0.97 for random actions and 0.58 for the logged ones,
- 0.3 for the untrained policies, whose actions are near zero,
- 0.17 for perfect cloning, whose answer is the mean logged action: only an algorithm that listens
  to the rewards can do better.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from pbrl.algorithms import ALGORITHMS
from pbrl.algorithms.base import Algorithm
from pbrl.data.dataset import DatasetInfo, TransitionDataset
from pbrl.data.training_data import TrainingData
from pbrl.errors import PbrlError
from pbrl.training.config import make_config

OBSERVATION_DIM, ACTION_DIM = 3, 2
BIAS, NOISE = torch.tensor([-0.2, 0.2]), 0.2  # of the logged actions that are not uniform


def best_action(observations: Tensor) -> Tensor:
    """f(s), well inside the box, ``[B, 3] -> [B, 2]``."""
    x, y, z = observations.unbind(1)
    return torch.stack([0.3 + 0.3 * torch.tanh(2 * x), -0.4 + 0.3 * y * z], dim=1)


def tiny_dataset(rows: int = 2000, seed: int = 0) -> TransitionDataset:
    """The tiny task's log."""
    generator = torch.Generator().manual_seed(seed)
    s = torch.empty(rows, OBSERVATION_DIM).uniform_(-1, 1, generator=generator)
    s2 = torch.empty(rows, OBSERVATION_DIM).uniform_(-1, 1, generator=generator)
    uniform = torch.empty(rows, ACTION_DIM).uniform_(-1, 1, generator=generator)
    noise = torch.empty(rows, ACTION_DIM).normal_(0, NOISE, generator=generator)
    a = (best_action(s) + BIAS + noise).clamp(-1, 1)
    a[::2] = uniform[::2]
    r = 2 - (a - best_action(s)).square().sum(1)
    ends = np.ones(rows, np.bool_)
    info = DatasetInfo("tiny")
    return TransitionDataset(s.numpy(), a.numpy(), r.numpy(), s2.numpy(), ends, ends, info)


def regret(algorithm: Algorithm, rows: int = 500) -> float:
    """E|a - f(s)|^2 of the deterministic policy on states that are not in the log."""
    generator = torch.Generator().manual_seed(99)
    s = torch.empty(rows, OBSERVATION_DIM).uniform_(-1, 1, generator=generator)
    return float((algorithm.act(s) - best_action(s)).square().sum(1).mean())


@dataclass(frozen=True)
class AlgorithmCase:
    """One algorithm and what it must reach.

    Attributes:
        algorithm: the class under test.
        config: settings small enough for the tiny task.
        max_regret: level that training must reach (see the module's description).
        updates: steps to reach it.
        resume_updates: steps before and after the interruption of the resume test.
        bad_settings: overrides that must be refused, each with a piece of the expected sentence.
        dataset: makes the log; the tiny task's by default.
    """

    algorithm: type[Algorithm]
    config: Mapping[str, Any]
    max_regret: float
    updates: int = 400
    resume_updates: int = 6
    bad_settings: Sequence[tuple[Mapping[str, Any], str]] = field(default_factory=tuple)
    dataset: Callable[[], TransitionDataset] = tiny_dataset


class AlgorithmTester:
    """Tests that a ``Test...`` class inherits; it sets ``case``."""

    case: ClassVar[AlgorithmCase]

    # ------------------------------------------------------------ helpers

    def make(self, seed: int = 0, total_steps: int | None = None, **overrides: Any) -> Algorithm:
        cls, case = self.case.algorithm, self.case
        config = cls.Config(**{"batch_size": 128, **case.config, **overrides})
        algorithm = cls(
            config,
            OBSERVATION_DIM,
            ACTION_DIM,
            seed=seed,
            total_steps=total_steps or case.updates,
        )
        algorithm.prepare(self.data())
        return algorithm

    def data(self) -> TrainingData:
        return TrainingData(self.case.dataset())

    def train(self, algorithm: Algorithm, updates: int, batch_seed: int = 0) -> dict[str, Tensor]:
        data, generator = self.data(), torch.Generator().manual_seed(batch_seed)
        metrics: dict[str, Tensor] = {}
        for _ in range(updates):
            metrics = algorithm.update(data.sample(algorithm.config.batch_size, generator))
        return metrics

    @staticmethod
    def snapshot(algorithm: Algorithm) -> dict[str, Tensor]:
        return {key: value.clone() for key, value in algorithm.state_dict().items()}

    @staticmethod
    def assert_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
        assert one.keys() == other.keys()
        different = [key for key in one if not torch.equal(one[key], other[key])]
        assert not different, f"not bit-equal: {different}"

    # ------------------------------------------------------------ tests

    def test_learns_the_tiny_task(self) -> None:
        algorithm = self.make()
        before = regret(algorithm)
        metrics = self.train(algorithm, self.case.updates)
        assert all(torch.isfinite(value) for value in metrics.values()), metrics
        after = regret(algorithm)
        assert after < self.case.max_regret < before, f"regret {before:.3f} -> {after:.3f}"

    def test_is_deterministic_and_seeded(self) -> None:
        one, other, third = self.make(seed=3), self.make(seed=3), self.make(seed=4)
        for algorithm in (one, other, third):
            self.train(algorithm, 3)
        self.assert_same(one.state_dict(), other.state_dict())
        s = torch.rand(5, OBSERVATION_DIM)
        assert not torch.equal(one.act(s), third.act(s))

    def test_resumes_bit_exactly(self, tmp_path: Path) -> None:
        steps = self.case.resume_updates
        whole, first = self.make(seed=1), self.make(seed=1)
        for algorithm in (whole, first):
            self.train(algorithm, steps, batch_seed=1)
        self.train(whole, steps, batch_seed=2)

        path = tmp_path / "state.safetensors"
        state = {key: value.contiguous() for key, value in self.snapshot(first).items()}
        safetensors.torch.save_file(state, path)
        resumed = self.make(seed=7)  # nothing of its own may survive the loading
        resumed.load_state_dict(safetensors.torch.load_file(path))
        self.assert_same(resumed.state_dict(), state)
        assert resumed.step == steps
        self.train(resumed, steps, batch_seed=2)
        self.assert_same(resumed.state_dict(), whole.state_dict())

    def test_networks_alone_are_enough_to_act_and_judge(self) -> None:
        trained = self.make(seed=1)
        self.train(trained, 3)
        state = {k: v for k, v in self.snapshot(trained).items() if k.startswith("networks/")}
        loaded = self.make(seed=2)
        loaded.load_state_dict(state, networks_only=True)
        s, a = torch.rand(7, OBSERVATION_DIM), torch.rand(7, ACTION_DIM) * 2 - 1
        assert torch.equal(loaded.act(s), trained.act(s))
        if trained.has_critics:
            q = trained.q_values(s, a)
            if torch.equal(q, trained.q_values(s, a)):  # not so with Monte Carlo dropout
                assert torch.equal(loaded.q_values(s, a), q)

    def test_acts_inside_the_box(self) -> None:
        algorithm = self.make()
        for rows in (1, 9):
            s = 100 * torch.randn(rows, OBSERVATION_DIM)
            generator = torch.Generator().manual_seed(0)
            for action in (algorithm.act(s), algorithm.act(s, False, generator)):
                assert action.shape == (rows, ACTION_DIM)
                assert action.abs().max() <= 1
                assert not action.requires_grad

    def test_judges_actions_if_it_has_critics(self) -> None:
        algorithm = self.make()
        self.train(algorithm, 2)
        s, a = torch.rand(9, OBSERVATION_DIM), torch.rand(9, ACTION_DIM) * 2 - 1
        if not algorithm.has_critics:
            with pytest.raises(PbrlError, match="no critics"):
                algorithm.q_values(s, a)
            return
        q, u = algorithm.q_values(s, a), algorithm.uncertainty(s, a)
        assert q.ndim == 2
        assert q.shape[1] == 9
        assert u.shape == (9,)
        assert (u >= 0).all()
        assert (u > 0).any()
        assert not q.requires_grad

    def test_metrics_are_tensors_and_diagnostics_change_nothing(self) -> None:
        algorithm = self.make()
        data, generator = self.data(), torch.Generator().manual_seed(0)
        batch = data.sample(algorithm.config.batch_size, generator)
        metrics = algorithm.update(batch)
        assert metrics
        before = self.snapshot(algorithm)
        for name, value in (metrics | algorithm.diagnostics(batch)).items():
            assert isinstance(value, Tensor), name
            assert value.ndim == 0, name
            assert not value.requires_grad, name
        self.assert_same(algorithm.state_dict(), before)

    def test_builds_itself_from_the_first_data(self) -> None:
        cls, config = self.case.algorithm, self.make().config
        algorithm = cls(config, seed=0, total_steps=self.case.updates)
        algorithm.prepare(self.data())
        self.train(algorithm, 1)
        assert algorithm.act(torch.zeros(1, OBSERVATION_DIM)).shape == (1, ACTION_DIM)

    def test_registered_with_valid_presets(self) -> None:
        cls = self.case.algorithm
        assert ALGORITHMS[cls.name] is cls
        assert {cls.first_preset(), "fast", "demo"} <= cls.presets.keys()
        for preset in cls.presets:
            config = dataclasses.asdict(make_config(cls.name, preset, "unnamed"))
            assert (config | config["settings"]).items() >= cls.presets[preset].items()

    def test_refuses_bad_settings(self) -> None:
        cls = self.case.algorithm
        refused = [({"batch_size": 0}, "batch_size"), *self.case.bad_settings]
        assert len(refused) > 2, "a case names the settings its algorithm must refuse"
        for overrides, piece in refused:
            with pytest.raises(PbrlError, match=piece) as caught:
                cls.Config(**overrides)
            assert str(caught.value).endswith(".")
        with pytest.raises(PbrlError, match=cls.Config.__name__):
            cls(config=object())
