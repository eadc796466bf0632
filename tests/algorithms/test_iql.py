"""IQL against its paper and its authors' code."""

from __future__ import annotations

import math

import pytest
import torch
from algorithm_tester import AlgorithmCase, AlgorithmTester
from plain_networks import (
    PlainCritics,
    PlainMLP,
    assert_equal_networks,
    in_double,
    random_batches,
    same_generator,
    step,
)

from pbrl.algorithms.iql import IQL, IQLConfig
from pbrl.nn.ensemble import EnsembleMLP
from pbrl.nn.policy import GaussianPolicy
from pbrl.training.config import make_config


class TestIQL(AlgorithmTester):
    case = AlgorithmCase(
        IQL,
        {
            "hidden": (32, 32),
            "policy_hidden": (32, 32),
            "critic_lr": 3e-3,
            "actor_lr": 3e-3,
            "tau": 0.05,
            "expectile": 0.8,
            "temperature": 10.0,
        },
        max_regret=0.1,
        bad_settings=(
            ({"expectile": 1.0}, "expectile"),
            ({"temperature": -1.0}, "temperature"),
            ({"policy_dropout": 1.0}, "policy_dropout"),
            ({"max_weight": 0.0}, "max_weight"),
        ),
    )


def plain_value(network: EnsembleMLP) -> PlainMLP:
    layers = [(w[0], b[0, 0]) for w, b in zip(network.weights, network.biases, strict=True)]
    return PlainMLP([*layers, (network.head_weight[0].T, network.head_bias[0, 0])])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_updates_match_a_plain_transcription(dropout: float) -> None:
    """Order and targets of the authors' code: V, then policy, then critics, then their targets."""
    config = IQLConfig(
        hidden=(16, 12), policy_hidden=(10, 14), tau=0.1, critic_lr=1e-3, actor_lr=2e-3,
        temperature=4.0, max_weight=1.5, policy_dropout=dropout,
    )  # fmt: skip
    total = 5
    algorithm = IQL(config, 3, 2, seed=3, total_steps=total)
    in_double(algorithm)
    generator = same_generator(algorithm)
    actor = PlainMLP.of(algorithm.policy.network)
    log_std = algorithm.policy.log_std.detach().clone().requires_grad_()
    critics, targets = PlainCritics(algorithm.critics), PlainCritics(algorithm.critics)
    value = plain_value(algorithm.value)
    critic_adam = torch.optim.Adam(critics.parameters, lr=1e-3)
    value_adam = torch.optim.Adam(value.parameters, lr=1e-3)
    actor_adam = torch.optim.Adam([*actor.parameters, log_std], lr=2e-3)

    for iteration, batch in enumerate(random_batches(7)):
        s, a, r, s2, d = batch
        with torch.no_grad():
            q1, q2 = targets(s, a)
            q = torch.minimum(q1, q2)
        v = value(s).squeeze(1)
        asymmetric = torch.where(q > v, 0.7 * (q - v) ** 2, 0.3 * (q - v) ** 2)
        step(value_adam, asymmetric.mean())

        with torch.no_grad():
            weight = torch.exp(4.0 * (q - value(s).squeeze(1))).clamp(max=1.5)
        x = s
        for w, b in actor.layers[:-1]:
            x = torch.relu(x @ w + b)
            if dropout:
                kept = torch.empty_like(x).bernoulli_(1 - dropout, generator=generator)
                x = x * kept / (1 - dropout)
        mean = torch.tanh(x @ actor.layers[-1][0] + actor.layers[-1][1])
        density = torch.distributions.Normal(mean, log_std.exp()).log_prob(a).sum(1)
        share = min(iteration, total) / total
        actor_adam.param_groups[0]["lr"] = 2e-3 * 0.5 * (1 + math.cos(math.pi * share))
        step(actor_adam, -(weight * density).mean())

        with torch.no_grad():
            y = r + 0.99 * (1 - d) * value(s2).squeeze(1)
        q1, q2 = critics(s, a)
        step(critic_adam, ((q1 - y) ** 2).mean() + ((q2 - y) ** 2).mean())
        targets.move_towards(critics, 0.1)

        metrics = algorithm.update(batch)
        assert abs(metrics["weight"].item() - weight.mean().item()) < 1e-9
        assert_equal_networks(value.parameters, plain_value(algorithm.value).parameters)
        assert_equal_networks(critics.parameters, PlainCritics(algorithm.critics).parameters)
        assert_equal_networks(targets.parameters, PlainCritics(algorithm.targets).parameters)
        assert_equal_networks(actor.parameters, PlainMLP.of(algorithm.policy.network).parameters)
        assert_equal_networks([log_std], [algorithm.policy.log_std])


def test_v_is_the_expectile_of_the_logged_returns() -> None:
    """With one state, gamma out of play and rewards 0 or 1 the expectile is known: it is 0.9."""
    algorithm = IQL(IQLConfig(hidden=(8,), expectile=0.9, critic_lr=3e-3, tau=1.0), 1, 1, seed=0)
    s = torch.zeros(200, 1)
    a = torch.cat([torch.zeros(100, 1), torch.ones(100, 1)])
    batch = random_batches(1)[0]._replace(
        observations=s, actions=a, rewards=a[:, 0], next_observations=s, terminals=torch.ones(200)
    )
    for _ in range(3000):
        algorithm.update(batch)
    # Half the rows at 0, half at 1: (1 - 0.9) v = 0.9 (1 - v).
    assert algorithm.value.values(s)[0, 0].item() == pytest.approx(0.9, abs=0.02)


def test_the_policy_draws_around_its_mode_and_stays_in_the_box() -> None:
    policy = GaussianPolicy(2, 3, (8,), generator=torch.Generator().manual_seed(0))
    policy.log_std.data = torch.tensor([-9.0, -1.0, 3.0])  # clamped to [-5, 2]
    s = torch.zeros(20_000, 2)
    with torch.no_grad():
        mode, drawn = policy.act(s), policy.act(s, False, torch.Generator().manual_seed(0))
    assert drawn.abs().max() <= 1
    assert (drawn - mode)[:, 0].std().item() == pytest.approx(math.exp(-5), rel=0.03)
    assert (drawn - mode)[:, 1].std().item() == pytest.approx(math.exp(-1), rel=0.03)
    assert (drawn[:, 2].abs() == 1).float().mean() > 0.8  # a deviation of e^2


def test_settings_follow_the_name_of_the_data() -> None:
    def settings(name: str, preset: str = "paper") -> tuple[str, float, float, float]:
        run = make_config("iql", preset, name)
        own = run.settings
        assert isinstance(own, IQLConfig)
        return run.normalize_rewards, own.expectile, own.temperature, own.policy_dropout

    assert settings("hopper-medium-v2") == ("return-range", 0.7, 3.0, 0.0)
    assert settings("walker2d_expert-v2.hdf5", "fast") == ("return-range", 0.7, 3.0, 0.0)
    assert settings("pen-human-v1") == ("none", 0.7, 0.5, 0.1)
    assert settings("antmaze-umaze-v2") == ("none", 0.9, 10.0, 0.0)
    assert settings("plant.csv") == ("none", 0.7, 3.0, 0.0)
