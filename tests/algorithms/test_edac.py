"""EDAC against its paper."""

from __future__ import annotations

import itertools
from typing import Literal

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
from torch import Tensor

from pbrl.algorithms.edac import EDAC, EDACConfig, similarity
from pbrl.algorithms.sac_n import SACN, SACNConfig


class TestEDAC(AlgorithmTester):
    case = AlgorithmCase(
        EDAC,
        {
            "ensemble_size": 4,
            "hidden": (32, 32),
            "policy_hidden": (32, 32),
            "critic_lr": 3e-3,
            "actor_lr": 1e-3,
            "alpha_lr": 3e-3,
            "initial_log_alpha": -3.0,
            "eta": 0.1,
        },
        max_regret=0.08,
        bad_settings=(
            ({"ensemble_size": 1}, "ensemble_size"),
            ({"eta": -1.0}, "eta"),
            ({"gamma": 1.0}, "gamma"),
        ),
    )


def plain_diversity(critics: PlainCritics, s: Tensor, a: Tensor, members: list[int]) -> Tensor:
    """The paper's term, pair by pair, with second derivatives by autograd."""
    slopes = []
    for k in members:
        action = a.clone().requires_grad_()
        q = critics.members[k](torch.cat([s, action], 1))
        slopes.append(torch.autograd.grad(q.sum(), action, create_graph=True)[0])
    total = torch.zeros(len(s), dtype=s.dtype)
    for i, j in itertools.permutations(range(len(members)), 2):
        total = total + torch.cosine_similarity(slopes[i], slopes[j], dim=1)
    return total.mean() / (len(members) - 1)


@pytest.mark.parametrize("chosen", ["all", "action_dim"])
def test_updates_match_a_plain_transcription(chosen: Literal["all", "action_dim"]) -> None:
    config = EDACConfig(
        ensemble_size=4,
        hidden=(12, 10, 8),
        policy_hidden=(9, 11),
        eta=2.0,
        diversity_members=chosen,
        critic_lr=1e-3,
    )
    algorithm = EDAC(config, 3, 2, seed=5)
    in_double(algorithm)
    # The head starts at +-3e-3, with slopes so small that EDAC's 1e-10 in the norm shows.
    with torch.no_grad():
        algorithm.critics.main.head_weight.mul_(100)
        algorithm.targets.main.head_weight.mul_(100)
    generator = same_generator(algorithm)
    critics, targets = PlainCritics(algorithm.critics), PlainCritics(algorithm.targets)
    critic_adam = torch.optim.Adam(critics.parameters, lr=1e-3)

    for batch in random_batches(4):
        s, a, r, s2, d = batch
        policy = PlainGaussian(algorithm.policy.network)  # SAC-N's test checks its updates
        alpha = algorithm.alpha.log_alpha.detach().exp()
        normals(a, generator)  # the actor's draw
        with torch.no_grad():
            mean2, std2 = policy(s2)
            u2 = mean2 + std2 * normals(mean2, generator)
            value = targets(s2, torch.tanh(u2)).min(0).values
            y = r + 0.99 * (1 - d) * (value - alpha * policy.log_prob(mean2, std2, u2))
        members = [0, 1, 2, 3]
        if chosen == "action_dim":
            members = torch.randperm(4, generator=generator)[:2].tolist()
        diversity = plain_diversity(critics, s, a, members)
        step(critic_adam, ((critics(s, a) - y) ** 2).mean(1).sum() + 2.0 * diversity)
        targets.move_towards(critics, 0.005)

        metrics = algorithm.update(batch)
        torch.testing.assert_close(metrics["diversity_loss"], diversity.detach())
        assert_equal_networks(critics.parameters, PlainCritics(algorithm.critics).parameters, 1e-7)


def test_similarity_by_hand() -> None:
    """Two equal slopes and one orthogonal to them: 2 of 6 ordered pairs have cosine 1."""
    slopes = torch.tensor([[[2.0, 0.0]], [[5.0, 0.0]], [[0.0, -3.0]]])
    torch.testing.assert_close(similarity(slopes), torch.tensor(2 / 2.0))
    opposite = torch.tensor([[[1.0, 0.0]], [[-7.0, 0.0]]])
    torch.testing.assert_close(similarity(opposite), torch.tensor(-2.0))


def test_without_eta_it_is_sac_n() -> None:
    one = EDAC(EDACConfig(ensemble_size=3, hidden=(8, 8), policy_hidden=(8,), eta=0.0), 3, 2)
    other = SACN(SACNConfig(ensemble_size=3, hidden=(8, 8), policy_hidden=(8,)), 3, 2)
    for algorithm in (one, other):
        in_double(algorithm)
        for batch in random_batches(3):
            algorithm.update(batch)
    AlgorithmTester.assert_same(one.state_dict(), other.state_dict())


def test_the_term_spreads_the_action_gradients() -> None:
    similar = {}
    for eta in (0.0, 10.0):
        config = EDACConfig(
            ensemble_size=5, hidden=(16, 16), policy_hidden=(8,), eta=eta, critic_lr=3e-3
        )
        algorithm = EDAC(config, 3, 2, seed=0)
        in_double(algorithm)
        batches = random_batches(60)
        for batch in batches:
            algorithm.update(batch)
        s, a = batches[0].observations, batches[0].actions
        diversity = plain_diversity(PlainCritics(algorithm.critics), s, a, [0, 1, 2, 3, 4])
        similar[eta] = diversity.item()
    assert similar[10.0] < similar[0.0] - 1


def test_settings_of_the_paper_by_dataset() -> None:
    expected = {
        "hopper-medium-v2": (50, 1.0),
        "hopper-random-v2": (50, 0.0),
        "walker2d-medium-expert-v2": (10, 5.0),
        "halfcheetah-medium-v2": (10, 1.0),
        "pen-human-v1": (20, 1000.0),
        "door-cloned-v1": (50, 200.0),
    }
    for name, (size, eta) in expected.items():
        config = EDACConfig(**EDAC.dataset_overrides(name))
        assert (config.ensemble_size, config.eta) == (size, eta)
