"""A value by imagination: episodes played in a model of the dynamics that was learned from the log.

The model is MOPO's (``pbrl.algorithms.dynamics``): members that each learned from a bootstrap
sample of their own. Every member plays whole episodes by itself from the log's initial states; the
spread of their values is the spread of the estimate. The log is valued in the same model, by the
density of its actions and with the same noise, so that what the model gets wrong for both cancels.

Imagined observations and rewards are held in the range of the logged ones. The chance that an
episode ends is learned from the log, too, and taken off as a weight.

Shapes: K members, E initial states, S observation and A action dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pbrl.algorithms.dynamics import DynamicsModel, DynamicsTrainer, TrainerSettings, sound_rows
from pbrl.data.dataset import TransitionDataset
from pbrl.data.preprocessing import Preprocessing
from pbrl.data.training_data import TrainingData
from pbrl.evaluation.behaviour import BehaviourDensity
from pbrl.evaluation.estimate import Doubles, bootstrap_counts
from pbrl.evaluation.fqe import Policy, ask
from pbrl.nn.policy import MLP

MEMBERS = 5
HIDDEN = (64, 64, 64)
BATCH = 256
PATIENCE = 200  # updates without improvement; passes over a small log are short
STARTS = 200  # initial states are drawn from the log's, so many at most
REMAINDER = 0.01  # imagination ends when this share of the discounted weight is left
LONGEST = 1000


@dataclass(frozen=True)
class Imagined:
    """Values by member, ``[K]``, and how many steps were imagined."""

    values: Doubles
    steps: int


class WorldModel:
    """Dynamics, rewards and ends of episodes as the log shows them.

    Args:
        dataset: the log.
        gamma: the discount.
        updates: at most so many train the dynamics.
        seed: of everything random.
    """

    def __init__(
        self, dataset: TransitionDataset, gamma: float, *, updates: int = 3000, seed: int = 0
    ) -> None:
        self.gamma, self.seed = gamma, seed
        self.maps = Preprocessing.fit(
            dataset, normalize_observations=True, normalize_rewards="standardize"
        )
        data = TrainingData(dataset, self.maps)
        generator = torch.Generator().manual_seed(seed)
        s, a = dataset.observation_dim, dataset.action_dim
        self.model = DynamicsModel(MEMBERS, MEMBERS, s, a, HIDDEN, generator=generator)
        one_pass = max(1, len(dataset) // BATCH)
        settings = TrainerSettings(
            batch_size=BATCH,
            lr=1e-3,
            weight_decay=(2.5e-5, 5e-5, 7.5e-5, 1e-4),
            holdout_fraction=0.1,
            holdout_rows=1000,
            patience=max(5, PATIENCE // one_pass),
            max_updates=updates,
        )
        trainer = DynamicsTrainer(self.model, settings, generator, seed)
        trainer.build_optimizer()
        trainer.attach(data)
        while not trainer.finished:
            trainer.step()
        seen = self.maps.observations(np.asarray(dataset.observations))
        self.lowest, self.highest = (torch.from_numpy(x) for x in (seen.min(0), seen.max(0)))
        rewards = self.maps.rewards(np.asarray(dataset.rewards))
        self.least, self.most = float(rewards.min()), float(rewards.max())
        self.ends: MLP | None = None
        self.last_reward: float | None = None
        terminals = np.asarray(dataset.terminals)
        if terminals.any():
            self.ends = _learn_ends(data, generator)
            if len(sound_rows(dataset)) < len(dataset):  # no terminal row taught the dynamics
                self.last_reward = float(rewards[terminals].mean())
        starts = np.array([rows.start for rows in dataset.episodes()])
        counts = bootstrap_counts(len(starts), MEMBERS, seed)
        picked = np.random.default_rng([seed, 3])
        count = min(STARTS, max(50, len(starts)))
        # Each member starts from its own bootstrap sample of the log's initial states.
        chosen = [picked.choice(starts, count, p=member / member.sum()) for member in counts]
        self.initial = np.asarray(dataset.observations)[np.stack(chosen)]  # [K, n, S]

    @torch.no_grad()
    def value(self, policy: Policy | BehaviourDensity) -> Imagined:
        """What a policy, or the log's own behaviour, earns in imagination."""
        action_dim = len(self.maps.action_low)
        members, count, _ = self.initial.shape
        s = torch.from_numpy(self.maps.observations(self.initial))  # [K, n, S]
        generator = torch.Generator().manual_seed(self.seed)
        rng = np.random.default_rng([self.seed, 5])
        steps = LONGEST
        if self.gamma < 1:
            steps = min(LONGEST, math.ceil(math.log(REMAINDER) / math.log(max(self.gamma, 1e-9))))
        total, alive = torch.zeros(members, count, dtype=torch.float64), torch.ones(members, count)
        for step in range(max(1, steps)):
            raw = self._raw(s).reshape(members * count, -1)
            if isinstance(policy, BehaviourDensity):
                actions = policy.draw(raw, rng)
            else:
                actions = ask(policy, raw, action_dim)
            a = torch.from_numpy(self.maps.actions(actions)).view(members, count, -1)
            x = torch.cat([s, a], -1)
            mean, log_var = self.model(x)  # [K, n, 1 + S]
            noise = torch.empty_like(mean).normal_(generator=generator)
            drawn = mean + (0.5 * log_var).exp() * noise
            rewards = drawn[..., 0].clamp(self.least, self.most)
            ending = torch.zeros(members, count)
            if self.ends is not None:
                ending = torch.sigmoid(self.ends(x)[..., 0])
                if self.last_reward is not None:
                    rewards = rewards + ending * (self.last_reward - rewards)
            earned = rewards * self.maps.reward_scale + self.maps.reward_shift
            total += (self.gamma**step * alive * earned).double()
            alive = alive * (1 - ending)
            s = (s + drawn[..., 1:]).clamp(self.lowest, self.highest)
        return Imagined(np.asarray(total.mean(1).numpy(), np.float64), max(1, steps))

    def _raw(self, s: Tensor) -> NDArray[np.float32]:
        maps = self.maps
        return s.numpy() * maps.observation_scale + maps.observation_shift


def _learn_ends(data: TrainingData, generator: torch.Generator, steps: int = 1500) -> MLP:
    """The chance that an episode ends with (s, a), as a logit."""
    s, a = data.dataset.observation_dim, data.dataset.action_dim
    network = MLP(s + a, (64, 64), 1, init="torch", generator=generator)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-5, fused=True)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 - 0.9 * step / steps)
        batch = data.sample(BATCH, generator)
        x = torch.cat([batch.observations, batch.actions], 1)
        loss = functional.binary_cross_entropy_with_logits(network(x)[:, 0], batch.terminals)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network
