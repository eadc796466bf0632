"""A learned model of the environment: an ensemble of Gaussian networks (MBPO's and MOPO's).

Every member maps (s, a) to the mean and the log-variance of (reward, s' - s). All members are one
stacked MLP; each learns from its own bootstrap sample, keeps its best weights by an error on
held-out rows, and the best members, the elites, imagine rollouts.

Shapes: K members, N rows, S observation and A action dimensions, D = 1 + S outputs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from pbrl.algorithms.base import adam, descend
from pbrl.data.dataset import TransitionDataset
from pbrl.data.training_data import Batch, TrainingData
from pbrl.errors import PbrlError
from pbrl.nn.ensemble import EnsembleMLP

# Rows imagined at once: seven members' activations then stay near the cache.
CHUNK = 2_000
# Weight of the bounds of the log-variance in the loss, from the authors' code.
BOUND_WEIGHT = 0.01


class DynamicsModel(nn.Module):
    """K Gaussian models of (reward, s' - s) given (s, a).

    Args:
        members: K.
        elites: how many of the best members imagine rollouts.
        observation_dim: S.
        action_dim: A.
        hidden: units of the hidden layers.
        generator: source of the initial weights.
    """

    def __init__(
        self,
        members: int,
        elites: int,
        observation_dim: int,
        action_dim: int,
        hidden: tuple[int, ...] = (200, 200, 200, 200),
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        in_dim, out_dim = observation_dim + action_dim, 1 + observation_dim
        self.members = members
        self.network = EnsembleMLP(
            members, in_dim, hidden, 2 * out_dim, activation="silu", generator=generator
        )
        # The authors' initialiser: normal, cut off at two deviations of 1 / (2 sqrt(inputs)).
        net = self.network
        widths = [in_dim, *hidden]
        for weight, fan_in in zip([*net.weights, net.head_weight], widths, strict=True):
            std = 1 / (2 * math.sqrt(fan_in))
            nn.init.trunc_normal_(weight, 0.0, std, -2 * std, 2 * std, generator=generator)
        for bias in (*net.biases, net.head_bias):
            nn.init.zeros_(bias)
        self.max_log_var = nn.Parameter(torch.full((out_dim,), 0.5))
        self.min_log_var = nn.Parameter(torch.full((out_dim,), -10.0))
        self.input_mean: Tensor
        self.input_std: Tensor
        self.elites: Tensor
        self.register_buffer("input_mean", torch.zeros(in_dim))
        self.register_buffer("input_std", torch.ones(in_dim))
        self.register_buffer("elites", torch.arange(elites))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance, ``[N, S + A]`` or ``[K, N, S + A]`` -> ``[K, N, D]`` twice.

        The log-variance is bounded softly from both sides by learned bounds.
        """
        out = self.network((x - self.input_mean) / self.input_std)
        mean, log_var = out.chunk(2, -1)
        log_var = self.max_log_var - functional.softplus(self.max_log_var - log_var)
        log_var = self.min_log_var + functional.softplus(log_var - self.min_log_var)
        return mean, log_var

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Gaussian negative log-likelihood (twice it, without constants), summed over members.

        Averaged over rows and outputs, plus a pull that draws the bounds together.
        """
        mean, log_var = self.forward(x)
        likelihood = ((mean - y).square() * (-log_var).exp() + log_var).mean((1, 2)).sum()
        bounds = (self.max_log_var - self.min_log_var).sum()
        return likelihood + BOUND_WEIGHT * bounds

    @torch.no_grad()
    def errors(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean squared error of every member's mean, ``[K]``."""
        return (self.forward(x)[0] - y).square().mean((1, 2))

    @torch.no_grad()
    def imagine(
        self, s: Tensor, a: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Next states ``[N, S]``, rewards ``[N]`` and penalties ``[N]``.

        Every row is drawn from an elite of its own. The penalty u(s, a) is the largest norm of the
        predicted deviations of (reward, s'), over *all* members, as in the authors' code.
        """
        pieces = []
        for part_s, part_a in zip(s.split(CHUNK), a.split(CHUNK), strict=True):
            mean, log_var = self(torch.cat([part_s, part_a], 1))  # [K, n, D]
            std = (0.5 * log_var).exp()
            rows = torch.arange(len(part_s), device=s.device)
            choice = torch.randint(
                len(self.elites), (len(rows),), generator=generator, device=s.device
            )
            member = self.elites[choice]
            noise = torch.empty_like(mean[0]).normal_(generator=generator)
            drawn = mean[member, rows] + std[member, rows] * noise  # [n, D]
            pieces.append((part_s + drawn[:, 1:], drawn[:, 0], std.norm(dim=2).amax(0)))
        s2, r, penalty = zip(*pieces, strict=True)
        return torch.cat(s2), torch.cat(r), torch.cat(penalty)

    @torch.no_grad()
    def penalty(self, s: Tensor, a: Tensor) -> Tensor:
        """u(s, a) alone, ``[N, S], [N, A] -> [N]``."""
        x = torch.cat([s, a], 1)
        return torch.cat(
            [(0.5 * self(part)[1]).exp().norm(dim=2).amax(0) for part in x.split(CHUNK)]
        )


def sound_rows(dataset: TransitionDataset) -> NDArray[np.int64]:
    """Rows whose next observation really follows, ``[n]``.

    D4RL's rule takes the next observation from the following row, also at a terminal one, where
    it is the next episode's first; other logs repeat the terminal state. Where most terminal rows
    look like that, none of them is fit to learn dynamics from. The authors' code uses them all.
    """
    terminal = np.flatnonzero(dataset.terminals)
    if len(terminal) == 0:
        return np.arange(len(dataset))
    following = np.minimum(terminal + 1, len(dataset) - 1)
    after = dataset.next_observations[terminal]
    shifted = (after == dataset.observations[following]).all(1)
    repeated = (after == dataset.observations[terminal]).all(1)
    if np.mean(shifted | repeated) > 0.5:
        return np.flatnonzero(~np.asarray(dataset.terminals))
    return np.arange(len(dataset))


@dataclass(frozen=True)
class TrainerSettings:
    """How the model is trained.

    Attributes:
        batch_size: rows of every member's minibatch.
        lr: Adam's rate.
        weight_decay: of the layers, first to last; the last value serves all layers beyond.
        holdout_fraction: share of the rows held out, up to ``holdout_rows``.
        holdout_rows: the most rows held out.
        patience: epochs without an improvement of 1 % in any member before training ends.
        max_updates: the most updates.
    """

    batch_size: int
    lr: float
    weight_decay: tuple[float, ...]
    holdout_fraction: float
    holdout_rows: int
    patience: int
    max_updates: int


class DynamicsTrainer:
    """Trains a ``DynamicsModel`` one update at a time, so that it can stop and go on anywhere.

    Args:
        model: on its device.
        settings: how.
        generator: of the minibatches.
        seed: of the split and the bootstrap samples.
    """

    def __init__(
        self,
        model: DynamicsModel,
        settings: TrainerSettings,
        generator: torch.Generator,
        seed: int,
    ) -> None:
        self.model, self.settings, self.generator = model, settings, generator
        # Every member's best weights so far.
        self.best = copy.deepcopy(model.network).requires_grad_(False)
        self.finished = False
        self.updates = self.epoch = self.stale_epochs = 0
        # A large finite number, not infinity: checkpoints refuse values that are not finite.
        device = model.max_log_var.device
        self.best_error = torch.full((model.members,), torch.finfo(torch.float32).max).to(device)
        self.seed = seed
        self.data: TrainingData | None = None

    def build_optimizer(self) -> None:
        """Once the weights are on their device."""
        net, decay = self.model.network, self.settings.weight_decay
        matrices = [*net.weights, net.head_weight]
        groups: list[dict[str, object]] = [
            {"params": [matrix], "weight_decay": decay[min(i, len(decay) - 1)]}
            for i, matrix in enumerate(matrices)
        ]
        rest = [*net.biases, net.head_bias, self.model.max_log_var, self.model.min_log_var]
        self.optimizer = adam([*groups, {"params": rest}], self.settings.lr)

    def attach(self, data: TrainingData) -> None:
        """Split the rows and draw the bootstrap samples; the same for the same data and seed."""
        self.data = data
        generator = torch.Generator().manual_seed(self.seed)
        rows = torch.from_numpy(sound_rows(data.dataset))
        held_out = min(int(len(rows) * self.settings.holdout_fraction), self.settings.holdout_rows)
        if held_out < 1:
            raise PbrlError(
                f"Only {len(rows)} of {len(data)} rows can teach the dynamics model, too few to "
                "hold some out; log more data, or next observations of terminal rows."
            )
        rows = rows[torch.randperm(len(rows), generator=generator)]
        device = data.device
        self.rows = rows[held_out:].to(device)
        count = len(self.rows)
        bootstrap = torch.randint(
            count, (self.model.members, count), generator=generator, dtype=torch.int32
        )
        self.bootstrap = bootstrap.to(device)
        self.holdout = pairs(data.gather(rows[:held_out].to(device)))
        # One pass over the data, or less in a run too short for twenty passes.
        one_pass = -(-count // self.settings.batch_size)
        self.epoch_updates = max(1, min(one_pass, self.settings.max_updates // 20))
        self._fit_inputs()

    @torch.no_grad()
    def _fit_inputs(self) -> None:
        """Standardise the inputs by the training rows."""
        assert self.data is not None
        total = square = torch.zeros((), dtype=torch.float64)
        for part in self.rows.split(1 << 17):
            x = pairs(self.data.gather(part))[0].double()
            total, square = total + x.sum(0), square + x.square().sum(0)
        mean = total / len(self.rows)
        std = (square / len(self.rows) - mean.square()).clamp_min(0).sqrt()
        self.model.input_mean.copy_(mean)
        self.model.input_std.copy_(torch.where(std < 1e-6, torch.ones_like(std), std))

    def step(self) -> dict[str, Tensor]:
        """One minibatch for every member; at the end of an epoch also the held-out rows."""
        assert self.data is not None
        members, size = self.model.members, self.settings.batch_size
        pick = torch.randint(
            len(self.rows), (members, size), generator=self.generator, device=self.rows.device
        )
        rows = self.rows[self.bootstrap.gather(1, pick).long()]  # [K, n]
        x, y = pairs(self.data.gather(rows.flatten()))
        x, y = x.view(members, size, -1), y.view(members, size, -1)
        loss = self.model.loss(x, y)
        descend(self.optimizer, loss)
        self.updates += 1
        last = self.updates >= self.settings.max_updates
        if self.updates % self.epoch_updates == 0 or last:
            self._end_epoch(self.model.errors(*self.holdout), last)
        metrics = {
            "model_loss": loss.detach(),
            "model_epoch": torch.tensor(float(self.epoch)),
        }
        if self.epoch:  # before its first end there is no error to speak of
            metrics["model_error"] = self.best_error.mean()
        return metrics

    @torch.no_grad()
    def _end_epoch(self, errors: Tensor, last: bool) -> None:
        """Keep the weights of members that improved by 1 %; stop when none has for long."""
        self.epoch += 1
        improved = (self.best_error - errors) / self.best_error > 0.01  # [K]
        for mine, now in zip(self.best.parameters(), self.model.network.parameters(), strict=True):
            mine[improved] = now[improved]
        self.best_error = torch.where(improved, errors, self.best_error)
        self.stale_epochs = 0 if bool(improved.any()) else self.stale_epochs + 1
        if last or self.stale_epochs > self.settings.patience:
            self.model.network.load_state_dict(self.best.state_dict())
            order = self.best_error.argsort()
            self.model.elites.copy_(order[: len(self.model.elites)])
            self.finished = True

    def state(self) -> dict[str, Tensor]:
        """Everything besides weights, optimiser and generator."""
        counters = [self.finished, self.updates, self.epoch, self.stale_epochs, self.seed]
        return {
            "model_progress": torch.tensor([int(x) for x in counters]),
            "model_best_error": self.best_error,
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of ``state``; the split follows the saved seed."""
        finished, updates, epoch, stale, seed = state["model_progress"].tolist()
        self.finished, self.updates, self.epoch, self.stale_epochs = (
            bool(finished),
            updates,
            epoch,
            stale,
        )
        self.best_error = state["model_best_error"].to(self.best_error.device).clone()
        if seed != self.seed:
            self.seed = seed
            if self.data is not None:
                self.attach(self.data)


def pairs(batch: Batch) -> tuple[Tensor, Tensor]:
    """Inputs (s, a) and targets (reward, s' - s), ``[n, S + A], [n, D]``."""
    s, a, r, s2, _ = batch
    return torch.cat([s, a], 1), torch.cat([r.unsqueeze(1), s2 - s], 1)
