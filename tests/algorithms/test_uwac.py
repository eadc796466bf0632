"""UWAC against plain transcriptions of its equations in float64."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from algorithm_tester import ACTION_DIM, OBSERVATION_DIM, AlgorithmCase, AlgorithmTester
from torch import Tensor

from pbrl.algorithms.uwac import (
    UWAC,
    UWACConfig,
    certainty_weight,
    keep_mask,
    mc_moments,
    mc_passes,
)
from pbrl.data.training_data import Batch
from pbrl.nn.ensemble import EnsembleMLP

SMALL: dict[str, Any] = {
    "hidden": (32, 32),
    "policy_hidden": (32, 32),
    "vae_hidden": (32, 32),
    "mc_passes": 5,
    "act_samples": 10,
}


class TestUWAC(AlgorithmTester):
    case = AlgorithmCase(
        UWAC,
        {
            **SMALL,
            "hidden": (64, 64),
            "target_samples": 2,
            "spectral_norm": False,  # Q of norm 1 is too flat for a task of 250 steps
            "critic_lr": 3e-3,
            "actor_lr": 3e-3,
            "vae_lr": 3e-3,
            "multiplier_lr": 1e-2,
            "mmd_threshold": 0.2,
            "kernel": "laplacian",
        },
        max_regret=0.12,
        updates=250,
        bad_settings=(
            ({"dropout": 0.0}, "dropout"),
            ({"mc_passes": 1}, "mc_passes"),
            ({"beta": -1.0}, "beta"),
            ({"mmd_sigma": 0.0}, "mmd_sigma"),
        ),
    )


def make(**overrides: Any) -> UWAC:
    algorithm = UWAC(UWACConfig(**{**SMALL, **overrides}), OBSERVATION_DIM, ACTION_DIM, seed=0)
    for network in algorithm.networks().values():
        network.double()
    with torch.no_grad():  # values of some size, and targets that differ from the critics
        for seed, critics in enumerate((algorithm.critics, algorithm.targets)):
            g = torch.Generator().manual_seed(seed)
            critics.main.head_weight.normal_(generator=g)
    return algorithm


def batch(rows: int = 8) -> Batch:
    g = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=g)

    return Batch(
        uniform(rows, OBSERVATION_DIM),
        uniform(rows, ACTION_DIM),
        uniform(rows),
        uniform(rows, OBSERVATION_DIM),
        (uniform(rows) > 0).double(),
    )


def generator_like(other: torch.Generator) -> torch.Generator:
    generator = torch.Generator()
    generator.set_state(other.get_state())
    return generator


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_masks_keep_units_with_the_stated_probability(dropout: float) -> None:
    kept = keep_mask((500, 401), dropout, torch.Generator().manual_seed(0))
    assert kept.shape == (500, 401)
    share, n = float(kept.double().mean()), kept.numel()
    assert abs(share - (1 - dropout)) < 4 * math.sqrt(dropout * (1 - dropout) / n)
    # Neighbours come from the same 64-bit word and must not know of one another.
    both = float((kept[:, 1:] & kept[:, :-1]).double().mean())
    assert abs(both - (1 - dropout) ** 2) < 5 * math.sqrt(dropout * (1 - dropout) / n)


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("spectral", [(), (-1, -2, -3)])
def test_passes_are_plain_networks_with_masks(same: bool, spectral: tuple[int, ...]) -> None:
    g = torch.Generator().manual_seed(0)
    network = EnsembleMLP(
        2, 5, (6, 7), dropout=0.3, spectral_norm=spectral, head_bound=None, generator=g
    ).double()
    x = torch.randn(4, 5, dtype=torch.float64, generator=g)
    out = mc_passes(network, x, 3, torch.Generator().manual_seed(9), same_masks=same)
    masks_of = torch.Generator().manual_seed(9)
    rows = 1 if same else 4
    masks = [keep_mask((2, 3, rows, width), 0.3, masks_of).double() / 0.7 for width in (6, 7)]
    for k in range(2):
        layers = [network.weights[0][k], network.weights[1][k], network.head_weight[k].T]
        if spectral:
            # One power step from the stored vector estimates the spectral norm.
            estimates = []
            for i, w in enumerate(layers):
                raw = w if i < 2 else w.T
                u = getattr(network, f"u{i}")[k]
                estimates.append(w / (raw.T @ u).norm())
            layers = estimates
        for m in range(3):
            for n in range(4):
                h = x[n]
                for i in range(2):
                    h = torch.relu(h @ layers[i] + network.biases[i][k, 0])
                    h = h * masks[i][k, m, 0 if same else n]
                q = h @ layers[2] + network.head_bias[k, 0]
                assert float(out[m, k, n].detach()) == pytest.approx(float(q.detach()), rel=1e-9)


def test_moments_are_mean_and_population_variance() -> None:
    network = make().critics.main
    x = torch.randn(900, 5, dtype=torch.float64)
    mean, variance = mc_moments(network, x, 40, torch.Generator().manual_seed(0))
    assert mean.shape == variance.shape == (2, 900)
    # Many passes of the ordinary call agree within the noise of 40 passes.
    network.dropout_generator = torch.Generator().manual_seed(1)
    calls = torch.stack([network(x).detach() for _ in range(400)])
    error = (mean.detach() - calls.mean(0)) / (calls.var(0) / 40).sqrt()
    assert abs(float(error.square().mean()) - 1.1) < 0.15
    assert float((variance / calls.var(0)).mean()) == pytest.approx(39 / 40, abs=0.03)
    few = mc_passes(network, x[:3], 4, torch.Generator().manual_seed(0)).detach()
    one, other = mc_moments(network, x[:3], 4, torch.Generator().manual_seed(0))
    torch.testing.assert_close(one, few.sum(0) / 4)
    torch.testing.assert_close(other, (few - one).square().sum(0) / 4)


def test_weight_is_the_exponential_of_the_variance() -> None:
    variance = torch.tensor([0.0, 0.4, 100.0], dtype=torch.float64, requires_grad=True)
    weight = certainty_weight(variance, 0.5)
    expected = [1.0, math.exp(-0.2), math.exp(-50)]
    assert weight.tolist() == pytest.approx(expected, rel=1e-12)
    assert not weight.requires_grad


def test_target_errors_are_weighted_inside_the_square() -> None:
    algorithm = make(target_samples=3, beta=20.0)
    b = batch()
    twin, g = copy.deepcopy(algorithm), generator_like(algorithm.generator)
    twin.actor.build_optimizers()
    twin.actor.fit_behaviour(b.observations, b.actions, g)
    s2, a2 = twin.actor.candidates(b.next_observations, 3, g)
    passes = mc_passes(twin.targets.main, torch.cat([s2, a2], 1), 5, g).detach()  # [5, 2, 24]
    twin.critics.main.dropout_generator = g
    q = twin.critics(b.observations, b.actions).detach()
    total, weights = 0.0, []
    for row in range(8):
        values, variances = [], []
        for j in range(3):
            both = [passes[:, k, j * 8 + row].tolist() for k in range(2)]
            means = [sum(x) / 5 for x in both]
            spread = [sum((v - m) ** 2 for v in x) / 5 for x, m in zip(both, means, strict=True)]
            values.append(0.75 * min(means) + 0.25 * max(means))
            variances.append(sum(spread))
        y = float(b.rewards[row] + 0.99 * (1 - b.terminals[row]) * max(values))
        weights.append(min(1.0, math.exp(-20.0 * max(variances))))
        total += sum((weights[-1] * (float(q[k, row]) - y)) ** 2 for k in range(2))
    assert min(weights) < 0.9  # the weights matter here
    metrics = algorithm.update(b)
    assert float(metrics["td_loss"]) == pytest.approx(total / 16, rel=1e-9)
    assert float(metrics["target_weight"]) == pytest.approx(sum(weights) / 8, rel=1e-9)


@pytest.mark.parametrize("weighted", [True, False])
def test_policy_value_is_weighted_without_a_gradient_of_the_weight(weighted: bool) -> None:
    algorithm = make(beta=20.0, weight_policy=weighted)
    b = batch()
    actions = b.actions.clone().requires_grad_()
    g = generator_like(algorithm.generator)
    value = algorithm._policy_value(b.observations, actions)
    (gradient,) = torch.autograd.grad(value.sum(), actions)
    plain = b.actions.clone().requires_grad_()
    x = torch.cat([b.observations, plain], 1)
    passes = mc_passes(algorithm.critics.main, x, 5, g)
    lowest = passes.mean(0).min(0).values
    weight = torch.ones(8, dtype=torch.float64)
    if weighted:
        weight = torch.exp(-20.0 * passes.detach().var(0, correction=0).sum(0))
        assert weight.min() < 0.9
    (expected,) = torch.autograd.grad(lowest.sum(), plain)
    torch.testing.assert_close(value.detach(), (weight * lowest).detach())
    torch.testing.assert_close(gradient, weight[:, None] * expected)
    assert all(p.grad is None for p in algorithm.critics.parameters())


def test_every_layer_of_critics_and_targets_keeps_spectral_norm_one() -> None:
    algorithm = make(critic_lr=1e-3)
    b = batch()
    for _ in range(80):
        algorithm.update(b)
    for critics in (algorithm.critics, algorithm.targets):
        weights = critics.main._effective_weights()
        assert len(weights) == 3
        for weight in weights:
            norms = torch.linalg.matrix_norm(weight.detach(), ord=2)
            # Top singular values lie close together, so the power iteration lags a little.
            assert (norms - 1).abs().max() < 0.15


def test_judgement_of_a_row_is_its_own() -> None:
    algorithm = make()
    g = torch.Generator().manual_seed(0)
    s = torch.rand(1000, OBSERVATION_DIM, generator=g).double()
    a = torch.rand(1000, ACTION_DIM, generator=g).double()
    before = algorithm.generator.get_state()
    u, q, act = algorithm.uncertainty(s, a), algorithm.q_values(s, a), algorithm.act(s)
    torch.testing.assert_close(algorithm.uncertainty(s[700:702], a[700:702]), u[700:702])
    torch.testing.assert_close(algorithm.q_values(s[700:702], a[700:702]), q[:, 700:702])
    torch.testing.assert_close(algorithm.act(s[700:702]), act[700:702])
    assert torch.equal(algorithm.generator.get_state(), before)
    assert algorithm.critics.main.dropout == 0.1


def test_uncertainty_is_the_root_of_the_summed_variances() -> None:
    algorithm = make()
    b = batch()
    x = torch.cat([b.observations, b.actions], 1)
    g = torch.Generator().manual_seed(0)
    passes = mc_passes(algorithm.critics.main, x, 5, g, same_masks=True).detach()
    expected = passes.var(0, correction=0).sum(0).sqrt()
    torch.testing.assert_close(algorithm.uncertainty(b.observations, b.actions), expected)
