"""SAC-N against its paper."""

from __future__ import annotations

import pytest
import torch
from algorithm_tester import AlgorithmCase, AlgorithmTester
from plain_networks import (
    PlainCritics,
    PlainGaussian,
    assert_equal_networks,
    in_double,
    normals,
    random_batches,
    same_generator,
    step,
)

from pbrl.algorithms.sac_n import SACN, SACNConfig


class TestSACN(AlgorithmTester):
    case = AlgorithmCase(
        SACN,
        {
            "ensemble_size": 4,
            "hidden": (32, 32),
            "policy_hidden": (32, 32),
            "critic_lr": 3e-3,
            "actor_lr": 1e-3,
            "alpha_lr": 3e-3,
            "initial_log_alpha": -3.0,
        },
        max_regret=0.08,
        bad_settings=(
            ({"ensemble_size": 1}, "ensemble_size"),
            ({"gamma": 0.0}, "gamma"),
            ({"tau": 0.0}, "tau"),
            ({"policy_hidden": ()}, "policy_hidden"),
            ({"alpha_lr": -1.0}, "alpha_lr"),
        ),
    )


@pytest.mark.parametrize("backup", ["entropy", "plain", "max"])
def test_updates_match_a_plain_transcription(backup: str) -> None:
    config = SACNConfig(
        ensemble_size=3,
        hidden=(12, 10),
        policy_hidden=(9, 11),
        tau=0.1,
        critic_lr=1e-3,
        actor_lr=2e-3,
        alpha_lr=3e-3,
        entropy_backup=backup == "entropy",
        max_q_backup=backup == "max",
    )
    algorithm = SACN(config, 3, 2, seed=5)
    in_double(algorithm)
    generator = same_generator(algorithm)
    policy = PlainGaussian(algorithm.policy.network)
    critics, targets = PlainCritics(algorithm.critics), PlainCritics(algorithm.critics)
    log_alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
    critic_adam = torch.optim.Adam(critics.parameters, lr=1e-3)
    policy_adam = torch.optim.Adam(policy.net.parameters, lr=2e-3)
    alpha_adam = torch.optim.Adam([log_alpha], lr=3e-3)

    for batch in random_batches(5):
        s, a, r, s2, d = batch
        mean, std = policy(s)
        u = mean + std * normals(mean, generator)
        log_pi = policy.log_prob(mean, std, u)
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            mean2, std2 = policy(s2)
            if backup == "max":
                noise = normals(mean2.repeat(10, 1), generator).view(10, *mean2.shape)
                q2 = torch.stack([targets(s2, torch.tanh(mean2 + std2 * n)) for n in noise])
                value = q2.max(0).values.min(0).values
            else:
                u2 = mean2 + std2 * normals(mean2, generator)
                value = targets(s2, torch.tanh(u2)).min(0).values
                if backup == "entropy":
                    value = value - alpha * policy.log_prob(mean2, std2, u2)
            y = r + 0.99 * (1 - d) * value  # one target for all critics
        policy_loss = (alpha * log_pi - critics(s, torch.tanh(u)).min(0).values).mean()
        critic_loss = ((critics(s, a) - y) ** 2).mean(1).sum()
        step(alpha_adam, -(log_alpha * (log_pi.detach() - 2)).mean())
        step(policy_adam, policy_loss)
        step(critic_adam, critic_loss)
        targets.move_towards(critics, 0.1)

        metrics = algorithm.update(batch)
        torch.testing.assert_close(3 * metrics["td_loss"], critic_loss.detach())
        torch.testing.assert_close(algorithm.alpha.log_alpha.detach(), log_alpha.detach())
        assert_equal_networks(critics.parameters, PlainCritics(algorithm.critics).parameters)
        assert_equal_networks(targets.parameters, PlainCritics(algorithm.targets).parameters)
        fast = PlainGaussian(algorithm.policy.network).net
        assert_equal_networks(policy.net.parameters, fast.parameters)


def test_every_critic_regresses_on_the_same_minimum() -> None:
    """By hand: three target critics that answer 1, 5 and 3 everywhere, and a terminal row."""
    config = SACNConfig(ensemble_size=3, hidden=(4,), policy_hidden=(4,), entropy_backup=False)
    algorithm = SACN(config, 3, 2)
    in_double(algorithm)
    with torch.no_grad():
        algorithm.targets.main.head_weight.zero_()
        algorithm.targets.main.head_bias[:, 0, 0] = torch.tensor([1.0, 5.0, 3.0])
    s2 = torch.zeros(2, 3, dtype=torch.float64)
    r, d = torch.tensor([10.0, 20.0]).double(), torch.tensor([0.0, 1.0]).double()
    expected = torch.tensor([10 + 0.99 * 1, 20.0]).double()
    torch.testing.assert_close(algorithm._target(r, s2, d), expected)


def test_ensemble_sizes_of_the_paper_by_dataset() -> None:
    sizes = {
        "hopper-medium-v2": 500,
        "hopper-medium-replay-v2": 200,
        "hopper-medium-expert-v2": 200,
        "halfcheetah-random-v2": 10,
        "walker2d-medium-v2": 20,
        "pen-human-v1": 100,
    }
    for name, size in sizes.items():
        assert SACN.Config(**SACN.dataset_overrides(name)).ensemble_size == size
    assert SACN.dataset_overrides("my-robot") == {}
