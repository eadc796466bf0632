"""The ablations of PBRL's appendices C and D: the paper's update with one step changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plain_pbrl import PlainPBRL, follow, small_in_double
from torch import Tensor, nn

from pbrl.algorithms.pbrl import PBRL
from pbrl.algorithms.pbrl_ablations import PBRLAblations


class PlainAblations(PlainPBRL):
    """Every ablation that replaces one step of the update."""

    def next_value(self, s2: Tensor) -> Tensor:
        value = super().next_value(s2)
        if self.options.in_penalty != "reward":
            return value
        # Without a penalty, Q alone is left: the same draw, U added again.
        u_of_target = (value - value.mean(0)).square().mean(0).sqrt()
        return value + self.c.beta_in * u_of_target

    def critic_losses(self, s: Tensor, a: Tensor, s2: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        o = self.options
        if o.in_penalty != "next_q":  # r - c * U(s, a)
            y = y - o.reward_penalty * self.u(self.q(self.critics, s, a)).detach()
        td_loss, ood_loss = super().critic_losses(s, a, s2, y)
        squares = [weight.square().sum() for weight in self.critics.weights]
        return td_loss + o.l2 * torch.stack(squares).sum(), ood_loss

    def ood_rows(self, s: Tensor, s2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.options.ood_actions == "policy":
            return super().ood_rows(s, s2)
        s_ood = torch.cat([s] * self.c.n_ood)
        a_ood = torch.empty(len(s_ood), 2, dtype=s.dtype)
        a_ood.uniform_(-1, 1, generator=self.generator)
        return s_ood, a_ood, torch.full_like(s_ood[:, 0], self.beta_ood())

    def ood_target(self, q: Tensor, beta: Tensor) -> Tensor:
        target = super().ood_target(q, beta)
        return target if self.options.ood_target == "pessimistic" else 0 * target

    def value_of_policy(self, q: Tensor) -> Tensor:
        if self.options.actor_objective == "mean":
            return q.mean(0)
        ordered = q.sort(0).values
        return ordered[-1] if self.options.actor_objective == "max" else ordered[0]


ABLATIONS: dict[str, dict[str, Any]] = {
    "penalty on the reward": {"in_penalty": "reward"},
    "penalty on both": {"in_penalty": "both", "reward_penalty": 0.5},
    "actor mean": {"actor_objective": "mean"},
    "actor max": {"actor_objective": "max"},
    "no OOD actions": {"n_ood": 0},
    "uniform OOD actions": {"ood_actions": "uniform"},
    "OOD target zero": {"ood_target": "zero"},
    "L2": {"l2": 1e-2, "n_ood": 0},
    "pessimistic init, small": {"pessimistic_init": "small"},
    "pessimistic init, all layers": {
        "pessimistic_init": "large",
        "pessimistic_init_layers": "all",
    },
}


@pytest.mark.parametrize("name", ABLATIONS)
@pytest.mark.parametrize("chunk", [5, 10_000])
def test_update_is_the_papers_but_for_the_ablation(name: str, chunk: int) -> None:
    fast = small_in_double(PBRLAblations, **ABLATIONS[name])
    fast.critics.main.chunk_rows = chunk
    follow(fast, PlainAblations(fast))


class SpectralCritics(nn.Module):
    """Critics whose last layers are divided by their largest singular value.

    The value is estimated by a power iteration that takes one step a training step.
    """

    def __init__(self, plain: Any, fast: Any) -> None:
        super().__init__()
        self.weights, self.biases = plain.weights, plain.biases
        self.u = {layer: getattr(fast, f"u{layer}").clone() for layer in fast.spectral_layers}

    def forward(self, s: Tensor, a: Tensor) -> Tensor:
        members = []
        for k in range(len(self.weights[0])):
            x = torch.cat([s, a], 1)
            for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
                w, x = weight[k], torch.relu(x) if layer else x
                if layer in self.u:
                    u, last = self.u[layer][k].squeeze(1), layer == len(self.weights) - 1
                    m = w.T if last else w  # the fast code stores the head transposed
                    with torch.no_grad():
                        v = m.T @ u
                        v = v / v.norm()
                    w = w / (u @ m @ v)
                x = x @ w + bias[k]
            members.append(x.squeeze(1))
        return torch.stack(members)

    @torch.no_grad()
    def power_step(self, *_: Any) -> None:
        for layer, u in self.u.items():
            weight = self.weights[layer]
            m = weight.mT if layer == len(self.weights) - 1 else weight
            new = m @ (m.mT @ u)
            self.u[layer] = new / new.norm(dim=1, keepdim=True)


class PlainSpectral(PlainPBRL):
    """Spectral normalisation of the critics."""

    def __init__(self, fast: PBRL) -> None:
        super().__init__(fast)
        critics: Any = SpectralCritics(self.critics, fast.critics.main)
        targets: Any = SpectralCritics(self.targets, fast.targets.main)
        self.critics, self.targets = critics, targets
        self.spectral = critics, targets
        self.critic_adam.register_step_post_hook(critics.power_step)

    def update(self, batch: Any) -> dict[str, Tensor]:
        metrics = super().update(batch)
        critics, targets = self.spectral
        targets.u = dict(critics.u)  # the targets take it over whole
        return metrics


@pytest.mark.parametrize("settings", [{"spectral_norm": 1, "n_ood": 0}, {"spectral_norm": 2}])
@pytest.mark.parametrize("chunk", [5, 10_000])
def test_spectral_norm_divides_by_the_largest_singular_value(
    settings: dict[str, Any], chunk: int
) -> None:
    fast = small_in_double(PBRLAblations, **settings)
    fast.critics.main.chunk_rows = chunk
    follow(fast, PlainSpectral(fast))
