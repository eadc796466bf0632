"""Our own method, not the paper's: its update against the same written plainly.

It is the paper's but for a margin in Eq. 5, a deterministic policy that is cloned and averaged,
critics in units of the data, normalised hidden layers, and rates that fall.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plain_pbrl import PlainPBRL, assert_equal, follow, layers, small_in_double
from torch import Tensor, nn

from pbrl.algorithms.pbrl import PBRL
from pbrl.algorithms.pbrl_anchored import PBRLAnchored
from pbrl.bench import pbrl_single_file as single_file


class Normalised(nn.Module):
    """Critics whose hidden layers are normalised before the ReLU."""

    def __init__(self, critics: Any) -> None:
        super().__init__()
        self.weights, self.biases = critics.weights, critics.biases

    def forward(self, s: Tensor, a: Tensor) -> Tensor:
        x = torch.cat([s, a], 1)[None]  # [1, B, S + A]
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if layer:
                centred = x - x.mean(2, keepdim=True)
                x = torch.relu(centred / (centred.square().mean(2, keepdim=True) + 1e-5).sqrt())
            x = x @ weight + bias
        return x.squeeze(2)


class PlainAnchored(PlainPBRL):
    """The paper's update with all that is ours."""

    def __init__(self, fast: PBRL) -> None:
        super().__init__(fast)
        o: Any = self.options
        self.acting = [weight.detach().clone() for weight in layers(fast.policy)]
        critics: Any = Normalised(self.critics)
        targets: Any = Normalised(self.targets)
        self.critics, self.targets = critics, targets
        heads = [self.critics.weights[-1], self.critics.biases[-1]]
        hidden = [*self.critics.weights[:-1], *self.critics.biases[:-1]]
        groups: list[dict[str, Any]] = [
            {"params": heads, "lr": o.critic_lr * o.value_scale},
            {"params": hidden},
        ]
        self.critic_adam = torch.optim.Adam(groups, o.critic_lr)
        adams = (self.critic_adam, self.actor_adam)
        self.rates = [(group, group["lr"]) for adam in adams for group in adam.param_groups]

    # ------------------------------------------------------------ a policy with noise on its draws

    def draw(self, s: Tensor) -> Tensor:
        """An action for Eqs. 4 and 5."""
        std = torch.tensor(self.options.policy_noise).log().double().exp()  # stored as a float32
        mean = self.policy(s)[0]
        noise = torch.empty_like(mean).normal_(generator=self.generator) * std
        noise = torch.minimum(torch.maximum(noise, -2.5 * std), 2.5 * std)
        return torch.clamp(torch.tanh(mean) + noise, -1, 1)

    @torch.no_grad()
    def next_value(self, s2: Tensor) -> Tensor:
        q2 = self.q(self.targets, s2, self.draw(s2))
        return q2 - self.c.beta_in * self.u(q2)

    @torch.no_grad()
    def ood_rows(self, s: Tensor, s2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.cat([s] * self.c.n_ood)
        return rows, self.draw(rows), torch.full_like(rows[:, 0], self.beta_ood())

    # ------------------------------------------------------------ a margin

    def critic_losses(self, s: Tensor, a: Tensor, s2: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.q_logged = self.q(self.critics, s, a).detach()
        return super().critic_losses(s, a, s2, y)

    def ood_target(self, q: Tensor, beta: Tensor) -> Tensor:
        """Eq. 5, but not for what is low enough beside the logged action of the same state."""
        target = q - beta * self.u(q)
        gap = torch.cat([self.q_logged] * self.c.n_ood, dim=1) - q
        target = torch.where(gap < self.options.ood_margin * self.u(q), target, q)
        return torch.maximum(target, torch.full_like(target, self.floor))

    # ------------------------------------------------------------ the update

    def update(self, batch: Any) -> dict[str, Tensor]:
        o, (s, a, r, s2, terminal) = self.options, batch
        done = self.step / self.total_steps
        later = o.lr_steps / (o.lr_steps + self.step) if o.lr_steps else 1.0
        for group, rate in self.rates:
            group["lr"] = ((1 - done) * rate + done * o.lr_end * rate) * later
        a_pi = torch.tanh(self.policy(s)[0])  # deterministic: no draw, no entropy
        y = r + self.c.gamma * (1 - terminal) * self.next_value(s2)
        mode = torch.tanh(self.policy(s)[0])
        q_acted = self.q(self.critics, s, mode.detach()).detach()
        td_loss, ood_loss = self.critic_losses(s, a, s2, y)
        single_file.descend(self.critic_adam, td_loss + ood_loss)
        value = self.q(self.critics, s, a_pi).min(0).values
        gain = q_acted - self.q_logged
        noise, signal = self.u(gain).mean(), gain.mean(0).abs().mean()
        size = noise * torch.clamp(noise / signal, max=1)
        weight = (o.cloning + (o.cloning_end - o.cloning) * done) * size
        distance = (mode - a).square().mean()
        single_file.descend(self.actor_adam, weight * distance - value.mean())
        self._move()
        return {}

    @torch.no_grad()
    def _move(self) -> None:
        for old, new in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
            old.mul_(1 - self.c.tau).add_(new, alpha=self.c.tau)
        # Over so many steps the acting policy is averaged, at first over all there were.
        steps = min(self.options.policy_average * self.total_steps, self.step + 1)
        for acting, new in zip(self.acting, self.policy.parameters(), strict=True):
            acting += (new - acting) / (steps or 1)
        self.step += 1


# What is ours and can be told apart, next to nothing of each.
PLAIN: dict[str, Any] = {
    "ood_margin": 1e6,
    "cloning": 0.0,
    "cloning_end": 0.0,
    "value_scale": 1.0,
    "lr_end": 1.0,
    "lr_steps": 0,
    "policy_average": 0.0,
}
OURS: dict[str, dict[str, Any]] = {
    "next to nothing of ours": PLAIN,
    "priors": {**PLAIN, "prior_scale": 2.0},
    "OOD actions lowered to a margin": {
        **PLAIN,
        "ood_margin": 0.5,
        "n_ood": 3,
        "ood_floor": "none",
    },
    "cloning": {**PLAIN, "cloning": 50.0, "cloning_end": 10.0},
    "cloning, at the end only": {**PLAIN, "cloning_end": 50.0},
    "values in units of 5": {**PLAIN, "value_scale": 5.0},
    "falling rates": {**PLAIN, "lr_end": 0.1},
    "rates that fall with steps": {**PLAIN, "lr_steps": 2},
    "rates that fall with steps and with the run": {**PLAIN, "lr_steps": 3, "lr_end": 0.2},
    "falling rates, values in units of 5": {**PLAIN, "lr_end": 0.0, "value_scale": 5.0},
    "wide noise": {**PLAIN, "policy_noise": 0.6},
    "averaged policy": {**PLAIN, "policy_average": 0.1},
    "policy averaged over two steps": {**PLAIN, "policy_average": 0.05},
    "all at once": {"value_scale": 5.0, "lr_steps": 50},
    "as the preset has it": {"value_scale": 1.0},
}


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("chunk", [5, 10_000])
def test_update_is_what_it_says(name: str, chunk: int) -> None:
    fast = small_in_double(PBRLAnchored, **OURS[name])
    fast.critics.main.chunk_rows = chunk
    plain = PlainAnchored(fast)
    follow(fast, plain)
    assert_equal(layers(fast.policy), plain.acting)
