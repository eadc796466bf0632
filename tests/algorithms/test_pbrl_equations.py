"""PBRL's update against the paper's equations written plainly.

``PlainPBRL`` is Algorithm 1 in float64 with a Python loop over members, ordinary autograd and one
Adam for each member. It shares no code with the fast update but the random draws, which it
repeats from the same generator in the same order.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pbrl.algorithms.pbrl import PBRL, PBRLConfig
from pbrl.data.training_data import Batch
from pbrl.nn.policy import TanhGaussianPolicy

S, A, B, STEPS = 3, 2, 16, 4


def batches(count: int) -> list[Batch]:
    g = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return [
        Batch(
            normal(B, S),
            normal(B, A).tanh(),
            normal(B) + 1,
            normal(B, S),
            (normal(B) > 0.5).double(),
        )
        for _ in range(count)
    ]


def policy_layers(policy: TanhGaussianPolicy) -> list[Tensor]:
    linear = [*policy.network.layers, policy.network.head]
    return [t for m in linear for t in (m.weight, m.bias)]


class PlainPBRL:
    """Algorithm 1 and Eqs. 3 to 8, for any value of the documented settings."""

    def __init__(self, fast: PBRL) -> None:
        self.c, self.total = fast.config, fast.total_steps
        self.floor = fast.floor
        self.generator = torch.Generator()
        self.generator.set_state(fast.generator.get_state())

        def layers(net: Any, k: int) -> list[Tensor]:
            flat = []
            for w, b in zip(net.weights, net.biases, strict=True):
                flat += [w[k], b[k, 0]]
            flat += [net.head_weight[k].T, net.head_bias[k, 0]]
            return [t.detach().clone().double().requires_grad_() for t in flat]

        members = range(self.c.ensemble_size)
        self.critics = [layers(fast.critics.main, k) for k in members]
        self.targets = [layers(fast.targets.main, k) for k in members]
        self.priors = None
        if fast.critics.prior is not None:
            self.priors = [layers(fast.critics.prior, k) for k in members]
        self.policy = [
            t.detach().clone().double().requires_grad_() for t in policy_layers(fast.actor)
        ]
        self.acting = [t.detach().clone().double() for t in policy_layers(fast.policy)]
        self.log_alpha = fast.log_alpha.detach().clone().double().requires_grad_()
        assert self.c.value_scale != "auto"
        head_lr = self.c.critic_lr * self.c.value_scale
        self.critic_adams = [torch.optim.Adam(q[:-2], lr=self.c.critic_lr) for q in self.critics]
        self.critic_adams += [torch.optim.Adam(q[-2:], lr=head_lr) for q in self.critics]
        self.policy_adam = torch.optim.Adam(self.policy, lr=self.c.actor_lr)
        self.full_rates = [
            (adam, adam.param_groups[0]["lr"]) for adam in [*self.critic_adams, self.policy_adam]
        ]
        self.alpha_adam = torch.optim.Adam([self.log_alpha], lr=self.c.alpha_lr)
        self.step = 0
        self.u_vectors = {
            layer: getattr(fast.critics.main, f"u{layer}").clone().double()
            for layer in fast.critics.main.spectral_layers
        }
        self.target_u = {k: v.clone() for k, v in self.u_vectors.items()}

    # ------------------------------------------------------------ networks

    def q(self, nets: list[list[Tensor]], s: Tensor, a: Tensor, u: dict[int, Tensor]) -> Tensor:
        rows = []
        for k, net in enumerate(nets):
            x = torch.cat([s, a], 1)
            value = self.mlp(net, x, {i: v[k] for i, v in u.items()})
            if self.priors is not None:
                assert self.c.prior_scale is not None
                with_prior = self.mlp(self.priors[k], x, {}).squeeze(1) * self.c.prior_scale
                value = value + with_prior[:, None]  # Eq. 8
            rows.append(value.squeeze(1))
        return torch.stack(rows)  # [K, B]

    def mlp(self, net: list[Tensor], x: Tensor, u: dict[int, Tensor]) -> Tensor:
        depth = len(net) // 2
        for i in range(depth):
            w, b = net[2 * i], net[2 * i + 1]
            if i in u:
                # The fast code stores the head transposed, [1, H], and normalises that.
                m = w.T if i == depth - 1 else w
                with torch.no_grad():
                    v = m.T @ u[i]
                    v = v / v.norm()
                w = w / (u[i].T @ m @ v)
            x = x @ w + b
            if i < depth - 1:
                if self.c.layer_norm:
                    x = (x - x.mean(1, keepdim=True)) / (
                        x.var(1, keepdim=True, correction=0) + 1e-5
                    ).sqrt()
                x = torch.relu(x)
        return x

    def pi(self, s: Tensor) -> tuple[Tensor, Tensor]:
        x = s
        for i in range(0, len(self.policy), 2):
            x = x @ self.policy[i].T + self.policy[i + 1]
            if i < len(self.policy) - 2:
                x = torch.relu(x)
        mean, log_std = x[:, :A], x[:, A:]
        if self.c.policy_noise:  # stored as a float32
            log_std = torch.full_like(mean, torch.tensor(self.c.policy_noise).log().item())
        return mean, torch.clamp(log_std, -5, 2)

    def draw(self, mean: Tensor, log_std: Tensor) -> Tensor:
        noise = torch.empty_like(mean).normal_(generator=self.generator)
        return mean + torch.exp(log_std) * noise

    def action(self, mean: Tensor, std: Tensor) -> Tensor:
        if not self.c.policy_noise:
            return torch.tanh(self.draw(mean, torch.log(std)))
        noise = torch.empty_like(mean).normal_(generator=self.generator) * std
        noise = torch.minimum(torch.maximum(noise, -2.5 * std), 2.5 * std)
        return torch.clamp(torch.tanh(mean) + noise, -1, 1)

    def std(self, q: Tensor) -> Tensor:
        mean = q.mean(0)
        return ((q - mean).square().sum(0) / (len(q) - self.c.std_correction)).sqrt()  # Eq. 3

    def beta_ood(self) -> float:
        c, t, linear = self.c, self.step, round(0.05 * self.total)
        if c.beta_ood_schedule == "constant":
            return c.beta_ood
        if t < linear:
            return 5.0 + (1.0 - 5.0) * t / linear
        if c.beta_ood_schedule == "adaptive":
            return 1.0  # no record is far enough back in these few steps to change it
        return math.exp(
            math.log(1.0) + (math.log(0.2) - math.log(1.0)) * (t - linear) / (self.total - linear)
        )

    # ------------------------------------------------------------ Algorithm 1

    def update(self, batch: Batch) -> None:
        c = self.c
        for adam, rate in self.full_rates:
            done = self.step / self.total
            later = c.lr_steps / (c.lr_steps + self.step) if c.lr_steps else 1.0
            adam.param_groups[0]["lr"] = ((1 - done) * rate + done * c.lr_end * rate) * later
        s, a, r, s2, d = batch
        mean, log_std = self.pi(s)
        if c.policy_noise:  # deterministic: no draw, no entropy
            a_pi, log_pi = torch.tanh(mean), torch.zeros(B)
        else:
            pre = self.draw(mean, log_std)
            a_pi = torch.tanh(pre)
            density = torch.distributions.Normal(mean, log_std.exp())
            log_pi = (density.log_prob(pre) - torch.log(1 - a_pi.square())).sum(1)
        with torch.no_grad():
            mean2, log_std2 = self.pi(s2)
            a2 = self.action(mean2, log_std2.exp())

        if not c.policy_noise:
            entropy = -A if c.target_entropy is None else c.target_entropy
            alpha_loss = -(self.log_alpha * (log_pi.detach() + entropy)).mean()
            self.alpha_adam.zero_grad()
            alpha_loss.backward()
            self.alpha_adam.step()
        alpha = self.log_alpha.detach().exp()

        with torch.no_grad():
            q2 = self.q(self.targets, s2, a2, self.target_u)
            u2 = self.std(q2)
            penalised = q2 - c.beta_in * u2 if c.in_penalty in ("next_q", "both") else q2
            if c.in_penalty in ("reward", "both"):
                r = r - c.reward_penalty * self.std(self.q(self.critics, s, a, self.u_vectors))
            y = r + c.gamma * (1 - d) * penalised  # Eq. 4

        groups = []
        if c.n_ood:
            groups.append((s, mean.detach(), log_std.detach(), self.beta_ood()))
            if c.ood_next_states:
                groups.append((s2, mean2, log_std2, c.ood_next_weight))
        s_ood, a_ood, weight = [], [], []
        for states, m, ls, w in groups:
            for_all = m.repeat(c.n_ood, 1)
            if c.ood_actions == "uniform":
                actions = torch.empty_like(for_all).uniform_(-1, 1, generator=self.generator)
            else:
                actions = self.action(for_all, ls.exp().repeat(c.n_ood, 1))
            s_ood.append(states.repeat(c.n_ood, 1))
            a_ood.append(actions)
            weight.append(torch.full((len(actions),), w, dtype=torch.float64))

        q_acted = self.q(self.critics, s, torch.tanh(mean).detach(), self.u_vectors).detach()

        q = self.q(self.critics, s, a, self.u_vectors)
        loss = torch.stack([(q[k] - y[k]).square().mean() for k in range(len(q))]).sum()
        if groups:
            q_ood = self.q(self.critics, torch.cat(s_ood), torch.cat(a_ood), self.u_vectors)
            fixed = q_ood.detach()
            target = fixed - torch.cat(weight) * self.std(fixed)  # Eq. 5
            if c.ood_margin is not None:  # not for what is low enough beside the logged action
                gap = torch.cat([q.detach()] * c.n_ood, dim=1) - fixed
                target = torch.where(gap < c.ood_margin * self.std(fixed), target, fixed)
            if self.floor is not None:
                target = torch.where(
                    target > self.floor, target, torch.full_like(target, self.floor)
                )
            if c.ood_target == "zero":
                target = torch.zeros_like(target)
            for k in range(len(q)):
                loss = loss + (q_ood[k] - target[k]).square().mean()  # Eq. 6
        if c.l2:
            matrices = [net[i] for net in self.critics for i in range(0, len(net), 2)]
            loss = loss + c.l2 * torch.stack([m.square().sum() for m in matrices]).sum()
        for adam in self.critic_adams:
            adam.zero_grad()
        loss.backward()
        for adam in self.critic_adams:
            adam.step()
        for layer, u in self.u_vectors.items():
            for k, net in enumerate(self.critics):
                matrix = net[2 * layer].detach()
                matrix = matrix.T if layer == len(net) // 2 - 1 else matrix
                new = matrix @ (matrix.T @ u[k])
                u[k] = new / new.norm()

        q_pi = self.q(self.critics, s, a_pi, self.u_vectors)
        if c.actor_objective == "min":
            objective = q_pi.min(0).values  # Eq. 7
        elif c.actor_objective == "max":
            objective = q_pi.max(0).values
        else:
            objective = q_pi.mean(0)
        distance = (torch.tanh(mean) - a).square().mean()
        size = objective.detach().abs().mean()
        if c.cloning_unit == "gain":
            gain = q_acted - q.detach()
            noise, signal = self.std(gain).mean(), gain.mean(0).abs().mean()
            size = noise * torch.clamp(noise / signal, max=1)
        cloning = c.cloning + (c.cloning_end - c.cloning) * self.step / self.total
        actor_loss = (alpha * log_pi - objective).mean() + cloning * size * distance
        self.policy_adam.zero_grad()
        actor_loss.backward()
        self.policy_adam.step()

        with torch.no_grad():
            # Over so many steps the acting policy is averaged, at first over all there were.
            steps = min(c.policy_average * self.total, self.step + 1)
            for i, new in enumerate(self.policy):
                self.acting[i] = self.acting[i] + (new - self.acting[i]) / steps if steps else new
            for target_net, net in zip(self.targets, self.critics, strict=True):
                for old, new in zip(target_net, net, strict=True):
                    old.mul_(1 - c.tau).add_(new, alpha=c.tau)
        self.target_u = {k: v.clone() for k, v in self.u_vectors.items()}
        self.step += 1


VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "prior": {"prior_scale": 1.0},
    "prior, authors' initialiser": {"prior_scale": 2.0, "prior_init": "critic"},
    "K = 2": {"ensemble_size": 2},
    "K = 7": {"ensemble_size": 7},
    "penalty on the reward": {"in_penalty": "reward"},
    "penalty on both": {"in_penalty": "both", "reward_penalty": 0.5},
    "beta_in": {"beta_in": 0.1},
    "beta_ood constant": {"beta_ood_schedule": "constant", "beta_ood": 0.1},
    "beta_ood adaptive": {"beta_ood_schedule": "adaptive"},
    "actor mean": {"actor_objective": "mean"},
    "actor max": {"actor_objective": "max"},
    "no OOD": {"n_ood": 0},
    "N_ood = 5": {"n_ood": 5},
    "uniform OOD actions": {"ood_actions": "uniform"},
    "OOD target zero": {"ood_target": "zero"},
    "OOD actions lowered to a margin": {"ood_margin": 0.5, "n_ood": 3, "ood_floor": "none"},
    "no floor": {"ood_floor": "none"},
    "floor of one's own": {"ood_floor": 0.5},
    "authors' second group": {"ood_next_states": True},
    "authors' deviation": {"std_correction": 1},
    "authors' targets": {"target_init": "separate"},
    "authors' targets with priors": {"target_init": "separate", "prior_scale": 1.0},
    "L2": {"l2": 1e-2, "n_ood": 0},
    "spectral norm, head": {"spectral_norm": 1, "n_ood": 0},
    "spectral norm, two layers": {"spectral_norm": 2},
    "pessimistic init, small": {"pessimistic_init": "small"},
    "pessimistic init, all layers": {
        "pessimistic_init": "large",
        "pessimistic_init_layers": "all",
    },
    "layer norm": {"layer_norm": True},
    "target entropy": {"target_entropy": -5.0},
    "cloning": {"cloning": 0.5, "cloning_end": 0.1},
    "cloning, in units of the doubt about gains": {"cloning": 50, "cloning_unit": "gain"},
    "cloning, at the end only": {"cloning_end": 0.5},
    "values in units of 5": {"value_scale": 5.0},
    "falling rates": {"lr_end": 0.1},
    "rates that fall with steps": {"lr_steps": 2},
    "rates that fall with steps and with the run": {"lr_steps": 3, "lr_end": 0.2},
    "falling rates, values in units of 5": {"lr_end": 0.0, "value_scale": 5.0},
    "deterministic policy": {"policy_noise": 0.6},
    "averaged policy": {"policy_average": 0.1},
    "policy averaged over two steps": {"policy_average": 0.05},
    "everything of the authors": {
        "ood_next_states": True,
        "std_correction": 1,
        "beta_ood_schedule": "adaptive",
        "prior_scale": 1.0,
        "prior_init": "critic",
        "target_init": "separate",
    },
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("chunk", [5, 10_000])
def test_update_is_the_papers(name: str, chunk: int) -> None:
    config = PBRLConfig(
        **{
            "ensemble_size": 4,
            "hidden": (16, 16, 16),
            "policy_hidden": (16, 16),
            "n_ood": 2,
            "critic_lr": 1e-2,
            "actor_lr": 1e-2,
            "alpha_lr": 1e-2,
            "tau": 0.1,
            **VARIANTS[name],
        }
    )
    fast = PBRL(config, S, A, seed=1, total_steps=40)
    with torch.no_grad():  # a policy that differs between states, and members that differ
        fast.actor.network.head.weight.mul_(300)
        fast.critics.main.head_weight.mul_(100)
        fast.targets.main.head_weight.mul_(100)
    for network in fast.networks().values():
        network.double()
    fast.log_alpha.data = fast.log_alpha.data.double()
    fast._build_optimizers()
    fast.critics.main.chunk_rows = chunk
    plain = PlainPBRL(fast)
    for batch in batches(STEPS):
        fast.update(batch)
        plain.update(batch)

    torch.testing.assert_close(fast.log_alpha.detach(), plain.log_alpha.detach())
    for network, weights in ((fast.actor, plain.policy), (fast.policy, plain.acting)):
        for ours, theirs in zip(policy_layers(network), weights, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
    for net, plain_net in ((fast.critics, plain.critics), (fast.targets, plain.targets)):
        for k, theirs_k in enumerate(plain_net):
            ours_k = []
            for w, b in zip(net.main.weights, net.main.biases, strict=True):
                ours_k += [w[k], b[k, 0]]
            ours_k += [net.main.head_weight[k].T, net.main.head_bias[k, 0]]
            for one, other in zip(ours_k, theirs_k, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


def test_float32_stays_close_to_the_equations() -> None:
    config = PBRLConfig(ensemble_size=4, hidden=(32, 32), policy_hidden=(32, 32), n_ood=2)
    fast, exact = PBRL(config, S, A, seed=2), PBRL(config, S, A, seed=2)
    for network in exact.networks().values():
        network.double()
    exact._build_optimizers()
    # The same noise in both: drawn in float64 and rounded.
    real = torch.Tensor.normal_

    def drawn(like: Tensor, *args: Any, generator: torch.Generator, **kwargs: Any) -> Tensor:
        exact_noise = real(torch.empty(like.shape, dtype=torch.float64), generator=generator)
        return like.copy_(exact_noise)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "normal_", drawn)
        for batch in batches(3):
            exact.update(batch)
            fast.update(Batch(*(t.float() for t in batch)))
    for one, other in zip(fast.critics.parameters(), exact.critics.parameters(), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=2e-5)


def test_uncertainty_by_hand() -> None:
    algorithm = PBRL(PBRLConfig(ensemble_size=2, hidden=(4,), policy_hidden=(4,)), 1, 1)
    q = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    assert algorithm.std(q).tolist() == [1.0, 0.0]  # 1/K: deviations of +-1 from the mean 2
    authors = PBRL(
        PBRLConfig(ensemble_size=2, hidden=(4,), policy_hidden=(4,), std_correction=1), 1, 1
    )
    assert authors.std(q)[0] == pytest.approx(2**0.5)
