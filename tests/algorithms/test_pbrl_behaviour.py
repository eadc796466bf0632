"""PBRL, PBRL-Prior and PBRL's variants of our own pass the shared tester."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from algorithm_tester import AlgorithmCase, AlgorithmTester

from pbrl.algorithms.pbrl import PBRL, PBRLConfig, PBRLPrior
from pbrl.data.dataset import DatasetInfo, TransitionDataset
from pbrl.data.training_data import TrainingData

SMALL = {
    "hidden": (32, 32),
    "policy_hidden": (32, 32),
    "ensemble_size": 4,
    "n_ood": 2,
    "critic_lr": 3e-3,
    "actor_lr": 1e-3,
    "alpha_lr": 3e-3,
    "initial_log_alpha": -3.0,
    "tau": 0.05,
}
BAD = (
    ({"ensemble_size": 1}, "ensemble_size"),
    ({"gamma": 1.0}, "gamma"),
    ({"tau": 0.0}, "tau"),
    ({"n_ood": -1}, "n_ood"),
    ({"critic_lr": 0.0}, "critic_lr"),
    ({"policy_average": 1.5}, "policy_average"),
    ({"ood_min_std": -0.1}, "ood_min_std"),
    ({"cloning": -0.1}, "cloning"),
    ({"return_steps": -1}, "return_steps"),
    ({"return_share": 1.1}, "return_share"),
    ({"value_scale": 0.0}, "value_scale"),
    ({"ood_penalty": "relative", "ood_next_states": True}, "ood_next_states"),
)


class TestPBRL(AlgorithmTester):
    case = AlgorithmCase(PBRL, SMALL, max_regret=0.08, bad_settings=BAD)


class TestPBRLPrior(AlgorithmTester):
    case = AlgorithmCase(PBRLPrior, SMALL, max_regret=0.08, bad_settings=BAD)


class TestPBRLWithAnAveragedPolicy(AlgorithmTester):
    case = AlgorithmCase(PBRL, {**SMALL, "policy_average": 0.1}, max_regret=0.08, bad_settings=BAD)


class TestPBRLWithARelativePenalty(AlgorithmTester):
    case = AlgorithmCase(
        PBRL, {**SMALL, "ood_penalty": "relative"}, max_regret=0.08, bad_settings=BAD
    )


class TestPBRLWithCloning(AlgorithmTester):
    case = AlgorithmCase(
        PBRL, {**SMALL, "cloning": 0.1, "cloning_end": 0.02}, max_regret=0.08, bad_settings=BAD
    )


class TestPBRLWithReturns(AlgorithmTester):
    case = AlgorithmCase(
        PBRL,
        # A tenth of the returns is a small unit here: quicker critics.
        {**SMALL, "critic_lr": 2e-2, "return_steps": 4, "return_share": 0.2, "value_scale": "auto"},
        max_regret=0.08,
        bad_settings=BAD,
    )


def chain(rows: int = 400) -> TransitionDataset:
    """Episodes of ten steps with reward 1000 each, then the end; the first observation counts."""
    rng = np.random.default_rng(0)
    step = np.arange(rows) % 10
    s = np.stack([step / 5 - 1, rng.normal(size=rows)], 1).astype(np.float32)
    a = rng.uniform(-1, 1, (rows, 1)).astype(np.float32)
    ends = step == 9
    return TransitionDataset(
        s, a, np.full(rows, 1000, np.float32), np.roll(s, -1, 0), ends, ends, DatasetInfo("chain")
    )


def error_after(steps: int, **settings: Any) -> float:
    """Mean error of Q, over that of a Q of zero, after ``steps`` updates on the chain."""
    data, generator = TrainingData(chain()), torch.Generator().manual_seed(0)
    config = PBRLConfig(**{**SMALL, "n_ood": 0, "gamma": 0.9, **settings})
    algorithm = PBRL(config, total_steps=steps)
    algorithm.prepare(data)
    for _ in range(steps):
        algorithm.update(data.sample(128, generator, algorithm.return_rows()))
    left = 10 - np.arange(400) % 10
    truth = torch.from_numpy(1000 * (1 - 0.9**left) / 0.1)  # all actions are worth the same
    everything = data.gather(torch.arange(400))
    q = algorithm.q_values(everything.observations, everything.actions)
    return float((q - truth).abs().mean() / truth.mean())


def test_values_in_the_logs_units_are_learnt_within_few_steps() -> None:
    assert error_after(150, return_steps=150) > 0.5  # the last layer is still on its way
    assert error_after(150, return_steps=150, value_scale="auto") < 0.1
    assert error_after(150, value_scale="auto") > 0.2  # bootstrapping takes its time
    assert error_after(150, return_share=1.0, value_scale="auto") < 0.1


def test_value_scale_is_the_unit_of_the_untrained_critics() -> None:
    s, a = torch.rand(9, 3), torch.rand(9, 1)
    q = {unit: PBRL(PBRLConfig(value_scale=unit), 3, 1).q_values(s, a) for unit in (1.0, 8.0)}
    assert torch.allclose(q[8.0], 8 * q[1.0])


def test_return_rows_follow_the_run() -> None:
    algorithm = PBRL(PBRLConfig(return_steps=2, return_share=0.25), 3, 1)
    shares = []
    for algorithm.step in range(4):
        rows = algorithm.return_rows()
        assert rows is not None
        shares.append(rows.share)
    assert shares == [1.0, 1.0, 0.25, 0.25]
    assert PBRL(PBRLConfig(), 3, 1).return_rows() is None


def test_critics_start_as_asked() -> None:
    # 4 inputs, 100 units: rlkit takes 1/sqrt(outputs), fan-in 1/sqrt(inputs).
    largest = {
        init: PBRL(PBRLConfig(hidden=(100, 100), critic_init=init), 3, 1).critics.main.weights[0]
        for init in ("rlkit", "fan-in")
    }
    assert 0.09 < largest["rlkit"].abs().max() <= 0.1
    assert 0.45 < largest["fan-in"].abs().max() <= 0.5
