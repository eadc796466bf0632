"""PBRL and PBRL-Prior in one file, from logged data to an evaluated policy, in plain PyTorch.

Bai et al., "Pessimistic Bootstrapping for Uncertainty-Driven Offline Reinforcement Learning", ICLR
2022, https://arxiv.org/abs/2202.11566. Equation numbers are the paper's, and ``PBRL.update`` is its
Algorithm 1. Without arguments it trains on the embedded demo, in minutes; for the paper's own data
add ``--dataset hopper-medium-v2``, for PBRL-Prior ``--prior``.

This is the file to learn the method from. The package does the same arithmetic with faster kernels:
its tests hold it to this file in float64, and ``pbrl bench`` measures it against this file.

Shapes: B rows of a minibatch, S observation and A action dimensions, K critics, N OOD actions.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor, nn

import pbrl  # for the data and the simulator, nothing else


@dataclasses.dataclass(frozen=True)
class Settings:
    """The paper's, for Gym's tasks; on Adroit beta_in is 1e-4 and beta_ood 0.01 throughout."""

    ensemble_size: int = 10  # K
    hidden: tuple[int, ...] = (256, 256, 256)  # of each critic
    policy_hidden: tuple[int, ...] = (256, 256, 256)
    batch_size: int = 256  # B
    gamma: float = 0.99  # discount
    tau: float = 0.005  # rate of the target critics
    critic_lr: float = 3e-4  # Adam's rates
    actor_lr: float = 1e-4
    alpha_lr: float = 1e-4
    beta_in: float = 0.01  # weight of U for the next action (Eq. 4)
    beta_ood: tuple[float, float, float] = (5.0, 1.0, 0.2)  # for OOD actions (Eq. 5): first,
    beta_ood_linear: float = 0.05  # after this share of the run, and last
    n_ood: int = 10  # N, OOD actions for every state
    target_entropy: float | None = None  # alpha is tuned to it; None: -A
    prior_scale: float = 0.0  # weight of the random priors (Eq. 8); PBRL-Prior: 1


# Enough for the demo.
SMALL = Settings(hidden=(64, 64), policy_hidden=(64, 64), batch_size=128, gamma=0.98, tau=0.01,
                 critic_lr=3e-3, actor_lr=3e-4, alpha_lr=1e-3, n_ood=2)  # fmt: skip


def rlkit_(weights: Sequence[Tensor], biases: Sequence[Tensor], head_bound: float) -> None:
    """The initial values of rlkit; by the number of outputs, a slip the paper's numbers rest on."""
    for weight, bias in zip(weights, biases, strict=True):
        nn.init.uniform_(weight, -(bias.shape[-1] ** -0.5), bias.shape[-1] ** -0.5)
        nn.init.constant_(bias, 0.1)
    for head in (weights[-1], biases[-1]):
        nn.init.uniform_(head, -head_bound, head_bound)


class Critics(nn.Module):
    """K value functions as one stack of matrices, ``[B, S], [B, A] -> [K, B]``."""

    def __init__(self, members: int, widths: Sequence[int], head_bound: float) -> None:
        super().__init__()
        shapes = list(pairwise(widths))
        self.weights = nn.ParameterList(torch.empty(members, i, o) for i, o in shapes)
        self.biases = nn.ParameterList(torch.empty(members, 1, o) for _, o in shapes)
        rlkit_(list(self.weights), list(self.biases), head_bound)

    def forward(self, s: Tensor, a: Tensor) -> Tensor:  # noqa: D102
        x = torch.cat([s, a], dim=1).expand(len(self.weights[0]), -1, -1)  # [K, B, S + A]
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, torch.relu(x) if layer else x, weight)
        return x.squeeze(2)


class Policy(nn.Module):
    """pi(a|s): tanh of a diagonal Gaussian, whose mean and log-deviation one network computes."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        layers = [nn.Linear(i, o) for i, o in pairwise(widths)]
        rlkit_([layer.weight for layer in layers], [layer.bias for layer in layers], 1e-3)
        self.layers = nn.ModuleList(layers)

    def forward(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation before the tanh, ``[B, S] -> [B, A] [B, A]``."""
        for layer in self.layers[:-1]:
            s = torch.relu(layer(s))
        mean, log_std = self.layers[-1](s).chunk(2, dim=1)
        return mean, log_std.clamp(-5, 2).exp()

    def sample(self, s: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Actions and their log-densities, with gradients, ``[B, S] -> [B, A] [B]``."""
        mean, std = self(s)
        u = mean + std * torch.empty_like(mean).normal_(generator=generator)
        log_slope = 2 * (math.log(2) - u - nn.functional.softplus(-2 * u))  # log(1 - tanh(u)^2)
        gaussian = torch.distributions.Normal(mean, std).log_prob(u)
        return torch.tanh(u), (gaussian - log_slope).sum(1)


class PBRL:
    """The networks, and Algorithm 1 for one minibatch."""

    def __init__(self, c: Settings, s: int, a: int, steps: int, floor: float, seed: int = 0):
        self.c, self.total_steps, self.floor, self.step = c, steps, floor, 0
        self.generator = torch.manual_seed(seed)  # torch's own, which also draws initial weights
        widths = [s + a, *c.hidden, 1]
        self.critics = Critics(c.ensemble_size, widths, head_bound=3e-3)
        self.targets = copy.deepcopy(self.critics)
        priors = Critics(c.ensemble_size, widths, head_bound=widths[-2] ** -0.5)  # fixed (Eq. 8)
        self.priors = priors.requires_grad_(False) if c.prior_scale else None
        self.policy = Policy([s, *c.policy_hidden, 2 * a])
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.target_entropy = -a if c.target_entropy is None else c.target_entropy
        self.critic_adam = torch.optim.Adam(self.critics.parameters(), c.critic_lr)
        self.actor_adam = torch.optim.Adam(self.policy.parameters(), c.actor_lr)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], c.alpha_lr)

    def update(self, batch: Sequence[Tensor]) -> dict[str, Tensor]:
        """One gradient step each of the entropy weight, the critics and the policy."""
        s, a, r, s2, terminal = batch  # [B, S] [B, A] [B] [B, S] [B]

        a_pi, log_pi = self.policy.sample(s, self.generator)  # [B, A] [B]
        alpha_loss = -(self.log_alpha * (log_pi + self.target_entropy).detach()).mean()
        descend(self.alpha_adam, alpha_loss)

        y = r + self.c.gamma * (1 - terminal) * self.next_value(s2)  # Eq. 4, [K, B]
        td_loss, ood_loss = self.critic_losses(s, a, s2, y)
        descend(self.critic_adam, td_loss + ood_loss)  # Eq. 6

        value = self.value_of_policy(self.q(self.critics, s, a_pi))  # [B]
        actor_loss = (self.log_alpha.exp().detach() * log_pi - value).mean()  # Eq. 7
        descend(self.actor_adam, actor_loss)

        with torch.no_grad():
            for old, new in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                old.lerp_(new, self.c.tau)
        self.step += 1
        return {"td_loss": td_loss, "ood_loss": ood_loss, "Q of policy": value.mean()}

    def q(self, critics: Critics, s: Tensor, a: Tensor) -> Tensor:
        """Every member with its prior (Eq. 8), ``[K, B]``."""
        return critics(s, a) + (self.c.prior_scale * self.priors(s, a) if self.priors else 0)

    def u(self, q: Tensor) -> Tensor:
        """The members' disagreement (Eq. 3), ``[K, B] -> [B]``."""
        return q.std(dim=0, correction=0)

    @torch.no_grad()
    def next_value(self, s2: Tensor) -> Tensor:
        """What Eq. 4 bootstraps from: each member's own target network, less U, ``[K, B]``."""
        a2, _ = self.policy.sample(s2, self.generator)  # the paper prints pi(.|s), a slip
        q2 = self.q(self.targets, s2, a2)
        return q2 - self.c.beta_in * self.u(q2)

    def critic_losses(self, s: Tensor, a: Tensor, s2: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Both squared errors of Eq. 6: means over rows, summed over members."""
        s_ood, a_ood, beta = self.ood_rows(s, s2)
        q = self.q(self.critics, torch.cat([s, s_ood]), torch.cat([a, a_ood]))
        q_data, q_ood = q[:, : len(s)], q[:, len(s) :]  # [K, B] [K, N * B]
        ood_error = q_ood - self.ood_target(q_ood.detach(), beta)
        td_loss = (q_data - y).square().mean(dim=1).sum()
        return td_loss, ood_error.square().sum() / max(1, len(beta))

    @torch.no_grad()
    def ood_rows(self, s: Tensor, s2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """N draws of the policy for every state, ``[N * B, S] [N * B, A]``, with beta_ood."""
        s_ood = s.repeat(self.c.n_ood, 1)
        a_ood, _ = self.policy.sample(s_ood, self.generator)
        return s_ood, a_ood, s_ood.new_full((len(s_ood),), self.beta_ood())

    def ood_target(self, q: Tensor, beta: Tensor) -> Tensor:
        """Eq. 5: every member lowers its own value by beta_ood U, no further than the floor."""
        return (q - beta * self.u(q)).clamp_min(self.floor)

    def beta_ood(self) -> float:
        """Falls linearly at first, then exponentially to the end of the run (appendix B)."""
        first, middle, last = self.c.beta_ood
        linear = round(self.c.beta_ood_linear * self.total_steps)
        if self.step < linear:
            return first + (middle - first) * self.step / linear
        return middle * (last / middle) ** ((self.step - linear) / (self.total_steps - linear))

    def value_of_policy(self, q: Tensor) -> Tensor:
        """What the policy maximises (Eq. 7): the lowest member, ``[K, B] -> [B]``."""
        return q.amin(dim=0)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step down ``loss``."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@torch.no_grad()
def play(policy: Policy, env: Any, seed: int) -> float:
    """The return of one episode of the policy's mode."""
    low, high = env.action_space.low, env.action_space.high
    s, over, total = env.reset(seed=seed)[0], False, 0.0
    while not over:
        unit = torch.tanh(policy(torch.as_tensor(s, dtype=torch.float32)[None])[0])[0].numpy()
        s, reward, terminated, truncated, _ = env.step(low + (unit + 1) / 2 * (high - low))
        total, over = total + float(reward), terminated or truncated
    return total


def main(dataset: str = "demo", prior: bool = False, steps: int = 0, seed: int = 0) -> float:
    """Train PBRL on logged data and play the policy; returns its mean return.

    Args:
        dataset: a D4RL name or a file that knows its environment.
        prior: PBRL-Prior.
        steps: gradient steps; 0: 10,000 for the demo, else the paper's million.
        seed: of everything random.
    """
    data, demo = pbrl.load_dataset(dataset), dataset == "demo"
    if data.info.env_id is None:
        raise SystemExit(f"{dataset} names no environment to play its policy in.")
    env: Any = pbrl.make_env(data.info.env_id)
    low, high = env.action_space.low, env.action_space.high
    actions = 2 * (data.actions - low) / (high - low) - 1  # in [-1, 1], as the policy's
    arrays = data.observations, actions, data.rewards, data.next_observations, data.terminals
    columns = [torch.as_tensor(np.asarray(array), dtype=torch.float32) for array in arrays]

    c = dataclasses.replace(SMALL if demo else Settings(), prior_scale=float(prior))
    steps = steps or (10_000 if demo else 1_000_000)
    floor = min(0.0, float(data.rewards.min())) / (1 - c.gamma)  # the paper's 0, unless rewards < 0
    agent = PBRL(c, data.observation_dim, data.action_dim, steps, floor, seed)
    for step in range(1, steps + 1):
        rows = torch.randint(len(data), (c.batch_size,), generator=agent.generator)
        metrics = agent.update([column[rows] for column in columns])
        if step % max(1, steps // 10) == 0:
            print(step, *(f"{name} {value.item():.3g}" for name, value in metrics.items()))
    returns = np.array([play(agent.policy, env, 1000 * seed + i) for i in range(10)])
    print(f"return {returns.mean():.1f} +- {returns.std():.1f} over {len(returns)} episodes")
    if known := data.info.reference_scores:
        print(f"normalised score {100 * (returns.mean() - known[0]) / (known[1] - known[0]):.1f}")
    return float(returns.mean())


if __name__ == "__main__":
    tyro.cli(main)
