"""BEAR against plain transcriptions of its equations in float64."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from algorithm_tester import ACTION_DIM, OBSERVATION_DIM, AlgorithmCase, AlgorithmTester
from torch import Tensor

from pbrl.algorithms.bear import BEAR, BEARConfig, Kernel, mmd, soft_clipped
from pbrl.data.training_data import Batch
from pbrl.nn.behaviour_vae import BehaviourVAE

SMALL: dict[str, Any] = {
    "hidden": (32, 32),
    "policy_hidden": (32, 32),
    "vae_hidden": (32, 32),
    "act_samples": 10,
}


class TestBEAR(AlgorithmTester):
    case = AlgorithmCase(
        BEAR,
        {
            **SMALL,
            "critic_lr": 3e-3,
            "actor_lr": 3e-3,
            "vae_lr": 3e-3,
            "multiplier_lr": 1e-2,
            "mmd_threshold": 0.2,
        },
        max_regret=0.12,
        updates=400,
        bad_settings=(
            ({"ensemble_size": 1}, "ensemble_size"),
            ({"vae_hidden": ()}, "vae_hidden"),
            ({"gamma": 1.0}, "gamma"),
            ({"mmd_sigma": 0.0}, "mmd_sigma"),
            ({"mmd_threshold": -0.1}, "mmd_threshold"),
            ({"kernel": "cubic"}, "kernel"),
            ({"mode": "manual"}, "mode"),
            ({"mmd_samples": 0}, "mmd_samples"),
            ({"warmup": 2.0}, "warmup"),
            ({"target_min_weight": -0.1}, "target_min_weight"),
        ),
    )


def double(algorithm: BEAR) -> BEAR:
    for network in algorithm.networks().values():
        network.double()
    return algorithm


def batch(rows: int = 8, seed: int = 0) -> Batch:
    g = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=g)

    terminals = (uniform(rows) > 0.5).double()
    return Batch(
        uniform(rows, OBSERVATION_DIM),
        uniform(rows, ACTION_DIM),
        uniform(rows),
        uniform(rows, OBSERVATION_DIM),
        terminals,
    )


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian"])
def test_mmd_is_the_double_sum_over_pairs(kernel: Kernel) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 2, generator=g, dtype=torch.float64)
    y = torch.randn(3, 5, 2, generator=g, dtype=torch.float64) + 0.3
    sigma = 1.7

    def k(one: Tensor, other: Tensor) -> float:
        total = 0.0
        for p, q in zip(one.tolist(), other.tolist(), strict=True):
            total += abs(p - q) if kernel == "laplacian" else (p - q) ** 2
        return math.exp(-total / (2 * sigma))

    for row in range(3):
        parts = 0.0
        for left, right, sign in ((x, x, 1), (y, y, 1), (x, y, -2)):
            pairs = [k(p, q) for p in left[row] for q in right[row]]
            parts += sign * sum(pairs) / len(pairs)
        expected = math.sqrt(parts + 1e-6)
        assert float(mmd(x, y, sigma, kernel)[row]) == pytest.approx(expected, rel=1e-10)


def test_mmd_of_equal_samples_is_the_root_of_its_epsilon() -> None:
    x = torch.randn(6, 4, 3, dtype=torch.float64)
    for kernel in ("laplacian", "gaussian"):
        assert torch.allclose(mmd(x, x, 20.0, kernel), torch.full((6,), 1e-3).double())


def test_mmd_stays_finite_in_float32() -> None:
    x = (torch.randn(4096, 4, 6) * 1e-4).requires_grad_()
    value = mmd(x, x.detach() + 1e-5, 20.0, "gaussian").mean()
    value.backward()
    assert torch.isfinite(value)
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_target_is_soft_clipped_and_the_best_of_its_candidates() -> None:
    q = torch.tensor([[1.0, 5.0], [3.0, 2.0]])
    assert soft_clipped(q, 0.75).tolist() == [0.75 * 1 + 0.25 * 3, 0.75 * 2 + 0.25 * 5]

    config = BEARConfig(**SMALL, target_samples=3, warmup=1.0)
    algorithm = double(BEAR(config, OBSERVATION_DIM, ACTION_DIM, seed=0))
    with torch.no_grad():  # make the two target critics differ visibly
        algorithm.targets.main.head_weight.normal_(generator=torch.Generator().manual_seed(1))
    b = batch()
    twin, generator = copy.deepcopy(algorithm), torch.Generator()
    # The VAE's step draws first; the candidates at s' come next from the same generator.
    generator.set_state(algorithm.generator.get_state())
    twin.actor.build_optimizers()
    twin.actor.fit_behaviour(b.observations, b.actions, generator)
    mean, log_std = twin.actor.policy(b.next_observations)
    noise = torch.empty(3, len(b.rewards), ACTION_DIM).double().normal_(generator=generator)
    expected = []
    for row in range(len(b.rewards)):
        best = -math.inf
        for j in range(3):
            action = torch.tanh(mean[row] + log_std[row].exp() * noise[j, row])
            q1, q2 = twin.targets(b.next_observations[row : row + 1], action[None])[:, 0].tolist()
            best = max(best, 0.75 * min(q1, q2) + 0.25 * max(q1, q2))
        expected.append(float(b.rewards[row] + 0.99 * (1 - b.terminals[row]) * best))
    y = torch.tensor(expected, dtype=torch.float64)
    q = twin.critics(b.observations, b.actions)
    loss = (q - y).square().mean().detach()
    metrics = algorithm.update(b)
    assert float(metrics["td_loss"]) == pytest.approx(float(loss), rel=1e-9)


def test_vae_loss_is_reconstruction_plus_half_the_kl() -> None:
    vae = BehaviourVAE(3, 2, (16,), generator=torch.Generator().manual_seed(0)).double()
    b = batch(5)
    g = torch.Generator().manual_seed(3)
    value = vae.loss(b.observations, b.actions, 0.5, g)
    g.manual_seed(3)
    noise = torch.empty(5, 4, dtype=torch.float64).normal_(generator=g)
    reconstruction, kl = 0.0, 0.0
    for i in range(5):
        h = torch.cat([b.observations[i], b.actions[i]])
        h = torch.relu(vae.encoder.layers[0](h))
        mean, log_std = vae.encoder.head(h).split(4)
        std = log_std.clamp(-4, 15).exp()
        h = torch.cat([b.observations[i], mean + std * noise[i]])
        out = torch.tanh(vae.decoder.head(torch.relu(vae.decoder.layers[0](h))))
        reconstruction += float((out - b.actions[i]).detach().square().sum())
        # KL of N(mean, std) from N(0, 1), by torch's own formula.
        normal = torch.distributions.Normal
        divergence = torch.distributions.kl_divergence(normal(mean, std), normal(0.0, 1.0))
        kl += float(divergence.detach().sum())
    assert float(value.detach()) == pytest.approx(reconstruction / 10 + 0.5 * kl / 20, rel=1e-9)


def test_vae_draws_from_a_clamped_latent() -> None:
    vae = BehaviourVAE(3, 2, (16,), generator=torch.Generator().manual_seed(0))
    s = torch.rand(5, 3)
    drawn = vae.draw(s, 7, torch.Generator().manual_seed(3))
    latent = torch.empty(5, 7, 4).normal_(generator=torch.Generator().manual_seed(3))
    assert latent.abs().max() > 0.5
    for j in range(7):
        expected = vae.decode(s, latent[:, j].clamp(-0.5, 0.5))
        torch.testing.assert_close(drawn[:, j], expected)


@pytest.mark.parametrize(("threshold", "direction"), [(0.0, 1), (100.0, -1)])
def test_multiplier_rises_above_the_threshold_and_falls_below_it(
    threshold: float, direction: int
) -> None:
    config = BEARConfig(**SMALL, mmd_threshold=threshold, multiplier_lr=0.1)
    algorithm = BEAR(config, OBSERVATION_DIM, ACTION_DIM, seed=0)
    b = Batch(*(x.float() for x in batch()))
    algorithm.update(b)
    # Adam's first step is its rate, whatever the size of the gradient.
    assert float(algorithm.actor.log_multiplier.detach()) == pytest.approx(0.1 * direction)
    bound = {1: 10.0, -1: -5.0}[direction]
    with torch.no_grad():
        algorithm.actor.log_multiplier.fill_(bound - 0.01 * direction)
    algorithm.update(b)
    assert float(algorithm.actor.log_multiplier.detach()) == bound


def test_dual_gradient_is_minus_multiplier_times_violation() -> None:
    config = BEARConfig(**SMALL, mmd_threshold=0.05)
    actor = double(BEAR(config, OBSERVATION_DIM, ACTION_DIM)).actor
    with torch.no_grad():
        actor.log_multiplier.fill_(0.7)
    distance = torch.tensor([0.3, 0.1], dtype=torch.float64)
    actor._dual_step(distance)
    assert actor.log_multiplier.grad is not None
    expected = -math.exp(0.7) * (0.2 - 0.05)
    assert float(actor.log_multiplier.grad) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("mode", ["auto", "fixed"])
def test_actor_loss_is_written_as_in_the_paper(mode: Any) -> None:
    config = BEARConfig(**SMALL, mode=mode, multiplier=7.0)
    actor = double(BEAR(config, OBSERVATION_DIM, ACTION_DIM)).actor
    s, g = batch().observations, torch.Generator().manual_seed(5)
    with torch.no_grad():
        actor.log_multiplier.fill_(0.4)
    mean, log_std = actor.policy(s)
    noise = torch.empty(8, 4, ACTION_DIM, dtype=torch.float64).normal_(generator=g)
    u = mean[:, None] + log_std[:, None].exp() * noise
    behaviour = actor.vae.draw(s, 4, g)
    distance = mmd(behaviour, u, 20.0, "laplacian")
    q = torch.tanh(u[:, 0]).sum(1)
    if mode == "auto":
        expected = (-q + math.exp(0.4) * (distance - 0.05)).mean()
    else:
        expected = (-q + 7.0 * distance).mean()
    gradient = torch.autograd.grad(expected, actor.policy.network.head.weight)[0]
    metrics = actor.improve(s, lambda a: a.sum(1), torch.Generator().manual_seed(5))
    assert float(metrics["actor_loss"]) == pytest.approx(float(expected.detach()), rel=1e-9)
    assert actor.policy.network.head.weight.grad is not None
    torch.testing.assert_close(actor.policy.network.head.weight.grad, gradient)
    assert actor.vae.decoder.head.weight.grad is None


def test_warmup_follows_the_mmd_alone() -> None:
    config = BEARConfig(**SMALL, warmup=0.5)
    algorithm = BEAR(config, OBSERVATION_DIM, ACTION_DIM, total_steps=4)
    b = Batch(*(x.float() for x in batch()))
    with_q = ["actor_q" in algorithm.update(b) for _ in range(4)]
    assert with_q == [False, False, True, True]


def test_deployed_policy_takes_the_best_draw_by_the_first_critic() -> None:
    algorithm = BEAR(BEARConfig(**SMALL), OBSERVATION_DIM, ACTION_DIM)
    with torch.no_grad():
        algorithm.critics.main.head_weight.normal_(generator=torch.Generator().manual_seed(0))
    s = torch.rand(300, OBSERVATION_DIM)  # more than one piece of rows
    action = algorithm.act(s)
    mean, log_std = algorithm.actor.policy(s)
    drawn = torch.tanh(mean + log_std.exp() * algorithm.actor.act_noise)
    q = torch.stack([algorithm.critics.values(s, a)[0] for a in drawn])
    torch.testing.assert_close(algorithm.critics.values(s, action)[0], q.amax(0))
    torch.testing.assert_close(algorithm.act(s[5:6]), action[5:6])


def test_kernel_by_dataset() -> None:
    assert BEAR.dataset_overrides("halfcheetah-medium-v2") == {"kernel": "gaussian"}
    assert BEAR.dataset_overrides("hopper-medium-v2") == {}  # laplacian
