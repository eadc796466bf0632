"""TD3+BC against its paper."""

from __future__ import annotations

import torch
from algorithm_tester import AlgorithmCase, AlgorithmTester
from plain_networks import (
    PlainCritics,
    PlainMLP,
    assert_equal_networks,
    in_double,
    move,
    normals,
    random_batches,
    same_generator,
    step,
)

from pbrl.algorithms.td3bc import TD3BC, TD3BCConfig


class TestTD3BC(AlgorithmTester):
    case = AlgorithmCase(
        TD3BC,
        {
            "hidden": (32, 32),
            "policy_hidden": (32, 32),
            "critic_lr": 3e-3,
            "actor_lr": 3e-3,
            "alpha": 10.0,
        },
        max_regret=0.08,
        bad_settings=(
            ({"policy_freq": 0}, "policy_freq"),
            ({"alpha": -1.0}, "alpha"),
            ({"gamma": 1.5}, "gamma"),
            ({"hidden": (0,)}, "hidden"),
            ({"tau": 2.0}, "tau"),
        ),
    )


def test_updates_match_a_plain_transcription() -> None:
    config = TD3BCConfig(
        hidden=(16, 12), policy_hidden=(10, 14), tau=0.1, critic_lr=1e-3, actor_lr=2e-3
    )
    algorithm = TD3BC(config, 3, 2, seed=3)
    in_double(algorithm)
    generator = same_generator(algorithm)
    actor, actor_target = (
        PlainMLP.of(algorithm.policy.network),
        PlainMLP.of(algorithm.policy.network),
    )
    critics, critic_targets = PlainCritics(algorithm.critics), PlainCritics(algorithm.critics)
    critic_adam = torch.optim.Adam(critics.parameters, lr=1e-3)
    actor_adam = torch.optim.Adam(actor.parameters, lr=2e-3)

    for iteration, batch in enumerate(random_batches(6), 1):
        s, a, r, s2, d = batch
        with torch.no_grad():
            noise = (0.2 * normals(a, generator)).clamp(-0.5, 0.5)
            a2 = (torch.tanh(actor_target(s2)) + noise).clamp(-1, 1)
            q1, q2 = critic_targets(s2, a2)
            y = r + 0.99 * (1 - d) * torch.minimum(q1, q2)
        q1, q2 = critics(s, a)
        step(critic_adam, ((q1 - y) ** 2).mean() + ((q2 - y) ** 2).mean())
        metrics = algorithm.update(batch)
        if iteration % 2 == 0:
            pi = torch.tanh(actor(s))
            q = critics(s, pi)[0]
            weight = 2.5 / q.abs().mean().item()
            step(actor_adam, -weight * q.mean() + ((pi - a) ** 2).mean())
            critic_targets.move_towards(critics, 0.1)
            move(actor_target.parameters, actor.parameters, 0.1)
            assert abs(metrics["lambda"].item() - weight) < 1e-9 * weight
        else:
            assert "lambda" not in metrics
        assert_equal_networks(critics.parameters, PlainCritics(algorithm.critics).parameters)
        assert_equal_networks(critic_targets.parameters, PlainCritics(algorithm.targets).parameters)
        assert_equal_networks(actor.parameters, PlainMLP.of(algorithm.policy.network).parameters)
        fast = PlainMLP.of(algorithm.target_policy.network)
        assert_equal_networks(actor_target.parameters, fast.parameters)


def test_rewards_ten_times_as_large_leave_the_policy_update_alone() -> None:
    """What lambda is for: only the direction of Q counts, not its size."""
    batch = random_batches(1)[0]
    policies = []
    for scale in (1.0, 10.0):
        algorithm = TD3BC(TD3BCConfig(hidden=(8, 8), policy_freq=1), 3, 2, seed=0)
        in_double(algorithm)
        with torch.no_grad():  # Q ten times as large as well
            algorithm.critics.main.head_weight.mul_(scale)
            algorithm.critics.main.head_bias.mul_(scale)
        for group in algorithm.critics_optimizer.param_groups:
            group["lr"] = 0.0
        algorithm.update(batch)
        policies.append(algorithm.act(batch.observations))
    torch.testing.assert_close(policies[0], policies[1], rtol=1e-8, atol=1e-10)
