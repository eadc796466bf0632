"""Behaviour cloning."""

from __future__ import annotations

import torch
from algorithm_tester import AlgorithmCase, AlgorithmTester
from plain_networks import PlainGaussian, PlainMLP, in_double, random_batches, step

from pbrl.algorithms.bc import BC, BCConfig

SMALL = {"hidden": (32, 32), "actor_lr": 3e-3}
BAD = (
    ({"hidden": ()}, "hidden"),
    ({"actor_lr": 0.0}, "actor_lr"),
)


# Perfect cloning has a regret of 0.17 on the tiny task (the tester explains it).
class TestBC(AlgorithmTester):
    case = AlgorithmCase(BC, SMALL, max_regret=0.20, bad_settings=BAD)


class TestGaussianBC(AlgorithmTester):
    case = AlgorithmCase(BC, {**SMALL, "policy": "gaussian"}, max_regret=0.25, bad_settings=BAD)


def test_deterministic_bc_is_least_squares() -> None:
    algorithm = BC(BCConfig(hidden=(8, 8)), 3, 2, seed=1)
    in_double(algorithm)
    plain = PlainMLP.of(algorithm.policy.network)
    optimizer = torch.optim.Adam(plain.parameters, lr=3e-4)
    for batch in random_batches(5):
        step(optimizer, ((torch.tanh(plain(batch.observations)) - batch.actions) ** 2).mean())
        algorithm.update(batch)
    s = random_batches(1, seed=9)[0].observations
    torch.testing.assert_close(algorithm.act(s), torch.tanh(plain(s)).detach(), rtol=0, atol=1e-12)


def test_gaussian_bc_is_maximum_likelihood() -> None:
    algorithm = BC(BCConfig(hidden=(8, 8), policy="gaussian"), 3, 2, seed=1)
    in_double(algorithm)
    plain = PlainGaussian(algorithm.policy.network)
    optimizer = torch.optim.Adam(plain.net.parameters, lr=3e-4)
    for batch in random_batches(5):
        mean, std = plain(batch.observations)
        loss = -plain.log_prob(mean, std, torch.atanh(batch.actions)).mean()
        step(optimizer, loss)
        metrics = algorithm.update(batch)
        torch.testing.assert_close(metrics["actor_loss"], loss.detach(), rtol=1e-9, atol=1e-9)
    s = random_batches(1, seed=9)[0].observations
    torch.testing.assert_close(algorithm.act(s), torch.tanh(plain(s)[0]).detach())


def test_gaussian_bc_stays_finite_for_actions_at_the_edge() -> None:
    algorithm = BC(BCConfig(hidden=(8,), policy="gaussian"), 3, 2)
    batch = random_batches(1)[0]._replace(actions=torch.ones(16, 2, dtype=torch.float64))
    batch = type(batch)(*(x.float() for x in batch))
    for _ in range(20):
        assert torch.isfinite(algorithm.update(batch)["actor_loss"])
