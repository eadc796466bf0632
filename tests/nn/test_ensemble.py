"""The fast kernel against members written one by one and differentiated by plain autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pbrl.nn.critics import Critics
from pbrl.nn.ensemble import EnsembleMLP

SHAPES = [(3, 4, (8,)), (2, 5, (16, 16)), (5, 3, (8, 12, 6)), (10, 23, (32, 32, 32))]


def make(
    members: int = 3, in_dim: int = 4, hidden: tuple[int, ...] = (8, 8), **options: Any
) -> EnsembleMLP:
    generator = torch.Generator().manual_seed(0)
    return EnsembleMLP(members, in_dim, hidden, generator=generator, **options)


def plain(net: EnsembleMLP, x: Tensor, sigma: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Each member by itself, ``[N, in] -> [K, N]``, layer norm and spectral norm included."""
    rows = []
    for k in range(net.members):
        h = x
        layers = [*net.weights, net.head_weight]
        used = []
        for i, weight in enumerate(layers):
            w = weight[k]
            if i in net.spectral_layers:
                w = w / sigma(w, getattr(net, f"u{i}")[k])
            used.append(w)
        for w, bias in zip(used[:-1], net.biases, strict=True):
            z = h @ w + bias[k]
            if net.layer_norm:
                z = (z - z.mean(1, keepdim=True)) / (
                    z.var(1, keepdim=True, correction=0) + 1e-5
                ).sqrt()
            h = torch.relu(z) if net.activation == "relu" else z * torch.sigmoid(z)
        rows.append(h @ used[-1][0] + net.head_bias[k, 0, 0])
    return torch.stack(rows)


def power_sigma(weight: Tensor, u: Tensor) -> Tensor:
    """Spectral norm by one power iteration from u, which itself carries no gradient."""
    with torch.no_grad():
        v = weight.T @ u
        v = v / v.norm()
    sigma: Tensor = (u.T @ weight @ v).squeeze()
    return sigma


def gradients(net: nn.Module) -> list[Tensor]:
    return [p.grad.detach().clone() for p in net.parameters() if p.grad is not None]


def assert_close(fast: list[Tensor], slow: list[Tensor], tolerance: float = 1e-5) -> None:
    assert len(fast) == len(slow)
    for f, s in zip(fast, slow, strict=True):
        scale = s.abs().max().clamp_min(1e-12)
        assert float((f.double() - s).abs().max() / scale) < tolerance


OPTIONS: list[dict[str, Any]] = [
    {},
    {"layer_norm": True},
    {"activation": "silu"},
    {"spectral_norm": (-1,)},
    {"spectral_norm": (-1, -2)},
    {"head_bound": None},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_every_way_through_the_weights_matches_plain_autograd(
    shape: tuple[int, int, tuple[int, ...]], options: dict[str, Any], chunk: int
) -> None:
    net = make(*shape, **options)
    net.chunk_rows = chunk
    reference = copy.deepcopy(net).double()
    torch.manual_seed(1)
    x, y = torch.randn(20, shape[1]), torch.randn(shape[0], 20)

    expected = plain(reference, x.double(), power_sigma)
    (expected - y).square().sum().backward()
    slow = gradients(reference)

    torch.testing.assert_close(net(x).double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(net.values(x).double(), expected, rtol=1e-5, atol=1e-6)
    (net(x) - y).square().sum().backward()
    assert_close(gradients(net), slow)

    net.zero_grad()
    loss = net.regress(x, lambda q, rows: (q - y[:, rows]).square().sum())
    assert_close(gradients(net), slow)
    torch.testing.assert_close(loss.double(), (expected - y).square().sum(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_regress_adds_to_gradients_that_are_there(
    shape: tuple[int, int, tuple[int, ...]],
) -> None:
    net = make(*shape)
    x = torch.randn(9, shape[1])
    net.regress(x, lambda q, rows: q.square().sum())
    once = gradients(net)
    net.regress(x, lambda q, rows: q.square().sum())
    assert_close(gradients(net), [2 * g.double() for g in once])


@pytest.mark.parametrize("prior_scale", [None, 1.5])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_extreme_member_and_its_action_gradient(
    prior_scale: float | None, largest: bool, layer_norm: bool
) -> None:
    generator = torch.Generator().manual_seed(3)
    critics = Critics(
        5, 3, 2, (16, 16), prior_scale=prior_scale, layer_norm=layer_norm, generator=generator
    )
    with torch.no_grad():
        critics.main.head_weight.mul_(100)  # members that differ visibly
    reference = copy.deepcopy(critics).double()
    s, a = torch.randn(30, 3), torch.randn(30, 2)

    slow_a = a.double().requires_grad_()
    x = torch.cat([s.double(), slow_a], 1)
    q = plain(reference.main, x, power_sigma)
    if reference.prior is not None:
        q = q + 1.5 * plain(reference.prior, x, power_sigma)
    expected = q.max(0).values if largest else q.min(0).values
    expected.sum().backward()

    fast_a = a.clone().requires_grad_()
    value = critics.extreme(s, fast_a, largest)
    value.sum().backward()
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
    assert fast_a.grad is not None
    assert slow_a.grad is not None
    torch.testing.assert_close(fast_a.grad.double(), slow_a.grad, rtol=1e-4, atol=1e-6)
    assert all(p.grad is None for p in critics.parameters()), "the critics are frozen"


def test_frozen_critics_pass_gradients_to_the_actions_only() -> None:
    generator = torch.Generator().manual_seed(3)
    critics = Critics(5, 3, 2, (16, 16), prior_scale=1.5, generator=generator)
    reference = copy.deepcopy(critics).double()
    s, a = torch.randn(30, 3), torch.randn(30, 2)
    fast, slow = a.clone().requires_grad_(), a.double().requires_grad_()
    critics(s, fast, frozen=True).mean(0).sum().backward()
    x = torch.cat([s.double(), slow], 1)
    assert reference.prior is not None
    q = plain(reference.main, x, power_sigma) + 1.5 * plain(reference.prior, x, power_sigma)
    q.mean(0).sum().backward()
    assert fast.grad is not None
    assert slow.grad is not None
    torch.testing.assert_close(fast.grad.double(), slow.grad, rtol=1e-4, atol=1e-6)
    assert all(p.grad is None for p in critics.parameters())


def test_members_may_see_rows_of_their_own() -> None:
    net = make(3, 4, (8, 8))
    x = torch.randn(3, 6, 4)
    together = net(x)
    for k in range(3):
        torch.testing.assert_close(together[k], net(x[k])[k])


def test_spectral_norm_holds_the_norm_at_one() -> None:
    net = make(2, 4, (16, 16), spectral_norm=(-1, -2))
    with torch.no_grad():
        net.weights[1].mul_(20)
    for _ in range(100):
        net.update_spectral_norm()
    used = net._effective_weights()
    for layer in (1, 2):
        norms = torch.linalg.matrix_norm(used[layer], ord=2)
        torch.testing.assert_close(norms, torch.ones(2), rtol=1e-3, atol=1e-3)


def test_dropout_is_a_fresh_draw_every_time_and_seeded() -> None:
    net = make(2, 4, (64, 64), dropout=0.5)
    x = torch.randn(5, 4)
    net.dropout_generator = torch.Generator().manual_seed(0)
    first, second = net(x), net(x)
    net.dropout_generator.manual_seed(0)
    assert not torch.equal(first, second)
    assert torch.equal(net(x), first)


def test_target_update_moves_by_tau_and_leaves_priors() -> None:
    generator = torch.Generator().manual_seed(0)
    online = Critics(3, 2, 1, (8,), prior_scale=1.0, generator=generator)
    target = copy.deepcopy(online)
    with torch.no_grad():
        for p in online.trained_parameters():
            p.add_(1.0)
    before = [p.clone() for p in target.main.parameters()]
    assert target.prior is not None
    prior = [p.clone() for p in target.prior.parameters()]
    target.move_towards(online, 0.25)
    for b, after in zip(before, target.main.parameters(), strict=True):
        torch.testing.assert_close(after, b + 0.25)
    for b, after in zip(prior, target.prior.parameters(), strict=True):
        assert torch.equal(b, after)


def test_initialisation_is_rlkits() -> None:
    net = make(4, 20, (256, 256))
    for weight, bias in zip(net.weights, net.biases, strict=True):
        assert float(weight.detach().abs().max()) <= 1 / 16
        assert float(weight.detach().abs().max()) > 0.99 / 16
        assert torch.all(bias == 0.1)
    assert float(net.head_weight.detach().abs().max()) <= 3e-3
    assert not torch.equal(net.weights[0][0], net.weights[0][1]), "members differ"
