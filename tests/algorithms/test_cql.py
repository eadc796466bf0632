"""CQL against its paper."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from algorithm_tester import AlgorithmCase, AlgorithmTester
from plain_networks import (
    PlainCritics,
    PlainGaussian,
    assert_equal_networks,
    in_double,
    log_uniform_density,
    normals,
    random_batches,
    same_generator,
    step,
)
from torch import Tensor

from pbrl.algorithms.cql import CQL, CQLConfig

SMALL = {
    "hidden": (32, 32),
    "policy_hidden": (32, 32),
    "n_actions": 3,
    "min_q_weight": 0.1,
    "critic_lr": 1e-2,
    "actor_lr": 3e-3,
    "alpha_lr": 3e-3,
    "initial_log_alpha": -3.0,
}
BAD = (
    ({"n_actions": 0}, "n_actions"),
    ({"temperature": 0.0}, "temperature"),
    ({"lagrange_threshold": -1.0}, "lagrange_threshold"),
    ({"min_q_weight": -1.0}, "min_q_weight"),
    ({"bc_steps": -1}, "bc_steps"),
    ({"gamma": 1.0}, "gamma"),
)


class TestCQL(AlgorithmTester):
    case = AlgorithmCase(CQL, SMALL, max_regret=0.1, updates=300, bad_settings=BAD)


class TestLagrangeCQL(AlgorithmTester):
    case = AlgorithmCase(
        CQL,
        {**SMALL, "lagrange_threshold": 0.3},
        max_regret=0.1,
        updates=300,
        bad_settings=BAD,
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lagrange_threshold": 1.0},
        {"temperature": 0.5, "entropy_backup": True},
        {"bc_steps": 2},
    ],
)
@pytest.mark.parametrize("chunk_rows", [1000, 30])
def test_updates_match_a_plain_transcription(options: dict[str, Any], chunk_rows: int) -> None:
    n, weight = 3, 2.0
    config = CQLConfig(
        hidden=(12, 10),
        policy_hidden=(9, 11),
        n_actions=n,
        min_q_weight=weight,
        tau=0.1,
        critic_lr=1e-3,
        actor_lr=2e-3,
        alpha_lr=3e-3,
        **options,
    )
    threshold, temperature = config.lagrange_threshold, config.temperature
    algorithm = CQL(config, 3, 2, seed=5)
    in_double(algorithm)
    algorithm.critics.main.chunk_rows = chunk_rows
    generator = same_generator(algorithm)
    policy = PlainGaussian(algorithm.policy.network)
    critics, targets = PlainCritics(algorithm.critics), PlainCritics(algorithm.critics)
    log_alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
    log_multiplier = torch.zeros((), dtype=torch.float64, requires_grad=True)
    critic_adam = torch.optim.Adam(critics.parameters, lr=1e-3)
    policy_adam = torch.optim.Adam(policy.net.parameters, lr=2e-3)
    alpha_adam = torch.optim.Adam([log_alpha], lr=3e-3)
    multiplier_adam = torch.optim.Adam([log_multiplier], lr=1e-3)

    for iteration, batch in enumerate(random_batches(4)):
        s, a, r, s2, d = batch
        mean, std = policy(s)
        u = mean + std * normals(mean, generator)
        log_pi = policy.log_prob(mean, std, u)
        with torch.no_grad():
            mean2, std2 = policy(s2)
            u2 = mean2 + std2 * normals(mean2, generator)
        step(alpha_adam, -(log_alpha * (log_pi.detach() - 2)).mean())
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            value = targets(s2, torch.tanh(u2)).min(0).values
            if config.entropy_backup:
                value = value - alpha * policy.log_prob(mean2, std2, u2)
            y = r + 0.99 * (1 - d) * value

        # (actions, log densities), one pair for every sample of every kind
        samples: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            shape = (len(s), n, 2)
            uniform = torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=generator)
            density = torch.full((len(s),), log_uniform_density(2), dtype=torch.float64)
            samples += [(uniform[:, i], density) for i in range(n)]
            for m, deviation in ((mean, std), (mean2, std2)):
                noise = normals(uniform, generator)
                for i in range(n):
                    ui = m + deviation * noise[:, i]
                    samples.append((torch.tanh(ui), policy.log_prob(m, deviation, ui)))

        if iteration < config.bc_steps:
            gain = policy.log_prob(mean, std, torch.atanh(a))
        else:
            gain = critics(s, torch.tanh(u)).min(0).values
        policy_loss = (alpha * log_pi - gain).mean()

        q = critics(s, a)
        terms = [(critics(s, ai) - log_density) / temperature for ai, log_density in samples]
        log_sum_exp = temperature * torch.stack(terms).exp().sum(0).log()  # [2, B]
        gap = weight * (log_sum_exp - q).mean(1)
        multiplier = log_multiplier.exp().item() if threshold is not None else 1.0
        critic_loss = (((q - y) ** 2).mean(1) + multiplier * gap).sum()

        step(policy_adam, policy_loss)
        step(critic_adam, critic_loss)
        if threshold is not None:
            step(multiplier_adam, -log_multiplier.exp() * (gap.detach() - threshold).mean())
        targets.move_towards(critics, 0.1)

        metrics = algorithm.update(batch)
        torch.testing.assert_close(metrics["cql_gap"], gap.detach().mean())
        torch.testing.assert_close(algorithm.multipliers.log_alpha.detach(), log_alpha.detach())
        torch.testing.assert_close(
            algorithm.multipliers.log_multiplier.detach(), log_multiplier.detach()
        )
        assert_equal_networks(critics.parameters, PlainCritics(algorithm.critics).parameters)
        assert_equal_networks(targets.parameters, PlainCritics(algorithm.targets).parameters)
        fast = PlainGaussian(algorithm.policy.network).net
        assert_equal_networks(policy.net.parameters, fast.parameters)


def test_importance_weights_make_the_sum_an_integral() -> None:
    """With Q = 0 the exact log of the integral of exp Q over [-1, 1]^2 is log 4.

    Every kind of sample estimates that integral, so the mean over 3 N samples of exp(-log density)
    must tend to 4; a missing or wrong density of any kind would show.
    """
    algorithm = CQL(CQLConfig(policy_hidden=(8,), hidden=(4,), n_actions=20_000), 3, 2, seed=1)
    g = torch.Generator().manual_seed(0)
    mean, log_std = (torch.empty(1, 2).normal_(0, 0.3, generator=g) for _ in range(2))
    actions, log_density = algorithm._sampled_actions(mean, log_std, -mean, log_std)
    assert actions.shape == (1, 60_000, 2)
    for kind in log_density[0].double().chunk(3):
        assert abs(kind.neg().exp().mean().item() - 4) < 0.25
        assert abs(kind.neg().logsumexp(0).item() - math.log(4 * 20_000)) < 0.06


def test_multiplier_moves_towards_the_threshold() -> None:
    for threshold, grows in ((0.0, True), (1e3, False)):
        config = CQLConfig(
            hidden=(8,), policy_hidden=(8,), n_actions=2, lagrange_threshold=threshold
        )
        algorithm = CQL(config, 3, 2)
        in_double(algorithm)
        for batch in random_batches(5):
            algorithm.update(batch)
        assert (algorithm.multipliers.log_multiplier.item() > 0) == grows


def test_keeps_unseen_actions_below_the_data() -> None:
    """The point of CQL: data at a = -0.5 only, rewards that say nothing; Q elsewhere is lower."""
    config = CQLConfig(hidden=(32, 32), policy_hidden=(16,), n_actions=5, critic_lr=3e-3)
    algorithm = CQL(config, 3, 2)
    batch = type(b := random_batches(1, rows=64)[0])(*(x.float() for x in b))
    batch = batch._replace(actions=torch.full((64, 2), -0.5), terminals=torch.ones(64))
    for _ in range(150):
        algorithm.update(batch)
    seen = algorithm.q_values(batch.observations, batch.actions).mean()
    unseen = algorithm.q_values(batch.observations, -batch.actions).mean()
    assert seen > unseen + 0.5
