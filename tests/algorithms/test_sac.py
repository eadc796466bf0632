"""SAC is SAC-N with two critics (whose update test_sac_n.py holds to the plain equations)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from algorithm_tester import ACTION_DIM, OBSERVATION_DIM, regret, tiny_dataset

from pbrl.algorithms.base import Algorithm
from pbrl.algorithms.sac import SAC, SACConfig
from pbrl.algorithms.sac_n import SACN, SACNConfig
from pbrl.data.training_data import TrainingData
from pbrl.errors import PbrlError

SMALL: dict[str, Any] = {
    "hidden": (32, 32),
    "policy_hidden": (32, 32),
    "critic_lr": 3e-3,
    "actor_lr": 3e-3,
    "alpha_lr": 1e-2,
    "batch_size": 128,
}


def train(algorithm: Algorithm, updates: int) -> Algorithm:
    data, generator = TrainingData(tiny_dataset()), torch.Generator().manual_seed(0)
    for _ in range(updates):
        algorithm.update(data.sample(algorithm.config.batch_size, generator))
    return algorithm


def test_sac_is_sac_n_with_two_critics() -> None:
    sac = train(SAC(SACConfig(**SMALL), OBSERVATION_DIM, ACTION_DIM, seed=1), 5)
    sac_n = SACN(SACNConfig(**SMALL, ensemble_size=2), OBSERVATION_DIM, ACTION_DIM, seed=1)
    one, other = sac.state_dict(), train(sac_n, 5).state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_sac_learns_the_tiny_task() -> None:
    sac = SAC(SACConfig(**SMALL), OBSERVATION_DIM, ACTION_DIM)
    before = regret(sac)
    assert regret(train(sac, 400)) < 0.1 < before


def test_default_sizes_are_the_authors() -> None:
    sac = SAC(None, OBSERVATION_DIM, ACTION_DIM)
    widths = [tuple(weight.shape) for weight in sac.critics.main.weights]
    assert widths == [(2, OBSERVATION_DIM + ACTION_DIM, 256), (2, 256, 256)]
    assert sac.alpha.target_entropy == -ACTION_DIM
    assert SAC.dataset_overrides("hopper-medium-v2") == {}


@pytest.mark.parametrize(
    "bad",
    [{"hidden": ()}, {"policy_hidden": (0,)}, {"gamma": 1.0}, {"tau": 0.0}, {"actor_lr": 0.0}],
)
def test_refuses_bad_settings(bad: dict[str, Any]) -> None:
    with pytest.raises(PbrlError, match=next(iter(bad))):
        SACConfig(**bad)
