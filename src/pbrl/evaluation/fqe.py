"""Fitted Q evaluation: what a policy is worth, learned from logged transitions, with a bootstrap.

Fitted Q evaluation (FQE) learns Q of a fixed policy,

    Q(s, a) <- r + gamma * (1 - terminal) * Q_target(s', pi(s')),

and reads the value off at the initial states of the log. Every member of the ensemble sees its own
bootstrap sample of *episodes* (rows of an episode are not independent; whole episodes nearly are),
both in its loss and in its initial states: each is a refit, so the spread of the members' values
holds the luck of the log and of the fit.

What it does not hold: actions of the policy that the log has nothing like, where every member
extrapolates alike. ``pbrl.deploy.guard`` says how often that happens.

A time limit is no end: the value goes on beyond it, as in training. Without a policy, the same
machine learns the value of the policy that wrote the log, V(s) <- r + gamma * V(s'), which is how
the log's own value goes on beyond its cuts, too.

Shapes: N transitions, E episodes, K members, B rows of a minibatch, M draws of the policy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbrl.data.dataset import TransitionDataset
from pbrl.data.preprocessing import Preprocessing
from pbrl.data.training_data import TrainingData
from pbrl.errors import PbrlError
from pbrl.evaluation.estimate import Doubles, bootstrap_counts
from pbrl.nn.ensemble import EnsembleMLP

# Raw observations [B, S] -> raw actions [B, A].
Policy = Callable[[NDArray[Any]], NDArray[Any]]

# Standardised observations are held in this range: a column that hardly varies in the log would
# otherwise throw a slightly different next state far out of everything the networks have seen.
OBSERVATION_LIMIT = 10.0
POLICY_CHUNK = 8192


@dataclass(frozen=True)
class FQEConfig:
    """Settings of fitted Q evaluation.

    Attributes:
        gamma: discount of the value that is estimated.
        ensemble_size: K, the number of bootstrap members.
        hidden: hidden units of each member.
        steps: gradient steps.
        batch_size: rows of a minibatch.
        learning_rate: Adam's rate at the start; falls linearly to a tenth.
        tau: rate of the target networks.
        action_samples: draws of pi(s') kept for every row; 1 is enough for a deterministic policy.
        level: of the interval.
        seed: of bootstrap, weights and minibatches. Estimates with equal seeds on equal data share
            their bootstrap samples, so that differences between policies are paired.
    """

    gamma: float = 0.99
    ensemble_size: int = 10
    hidden: tuple[int, ...] = (64, 64)
    steps: int = 20_000
    batch_size: int = 256
    learning_rate: float = 1e-3
    tau: float = 0.02
    action_samples: int = 1
    level: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        rules = {
            "gamma must lie in [0, 1)": 0 <= self.gamma < 1,
            "ensemble_size must be at least 3 for an interval": self.ensemble_size >= 3,
            "hidden needs positive layer sizes": bool(self.hidden) and min(self.hidden) > 0,
            "steps must be at least 10": self.steps >= 10,
            "batch_size must be at least 1": self.batch_size >= 1,
            "learning_rate must be positive": self.learning_rate > 0,
            "tau must lie in (0, 1]": 0 < self.tau <= 1,
            "action_samples must be at least 1": self.action_samples >= 1,
            "level must lie between 0 and 1": 0 < self.level < 1,
            "seed must not be negative": self.seed >= 0,
        }
        for rule, holds in rules.items():
            if not holds:
                raise PbrlError(f"Fitted Q evaluation: {rule}.")


@dataclass(frozen=True)
class FittedQ:
    """Q of one policy as K refits see it, in raw units.

    Attributes:
        config: how it was fitted.
        counts: how often each episode is in each member's bootstrap sample, ``[K, E]``.
        curve_steps: gradient steps of the curve's points, ``[T]``.
        curve: every member's value over its own initial states as learning went on, ``[T, K]``.
    """

    config: FQEConfig
    counts: Doubles
    curve_steps: NDArray[np.int64]
    curve: Doubles
    _units: _Units
    _networks: EnsembleMLP

    @property
    def samples(self) -> Doubles:
        """Every member's value, averaged over the last tenth of learning, ``[K]``."""
        tail = max(1, len(self.curve) // 10)
        return np.asarray(self.curve[-tail:].mean(0), np.float64)

    def q_values(self, observations: NDArray[Any], actions: NDArray[Any]) -> Doubles:
        """Q of given actions, ``[B, S], [B, A] -> [K, B]``."""
        units = self._units
        inputs = _inputs(units.states(observations), units.tensor(units.maps.actions(actions)))
        return self._scaled(self._networks.values(inputs))

    def values(self, observations: NDArray[Any]) -> Doubles:
        """Value of the policy, averaged over its draws, ``[B, S] -> [K, B]``."""
        states = self._units.states(observations)
        draws = [
            self._networks.values(_inputs(states, self._units.policy_actions(observations)))
            for _ in range(self._units.draws)
        ]
        return self._scaled(torch.stack(draws).mean(0))

    def _scaled(self, q: Tensor) -> Doubles:
        limited = q.clamp(self._units.lowest, self._units.highest)
        return np.asarray(limited.double().cpu().numpy() * self._units.scale, np.float64)


def fit_q(
    policy: Policy | None,
    dataset: TransitionDataset,
    config: FQEConfig | None = None,
    *,
    device: str = "cpu",
    on_step: Callable[[int], None] | None = None,
) -> FittedQ:
    """Fit Q of ``policy``, or with None the value of the policy that wrote the log.

    Args:
        policy: raw observations ``[B, S]`` to raw actions ``[B, A]``: ``agent.act``, any function.
        dataset: logged transitions of any behaviour.
        config: settings.
        device: where the networks live.
        on_step: called with the number of steps done, for a progress display.
    """
    config = config or FQEConfig()
    if len(dataset) == 0:
        raise PbrlError("The dataset is empty; fitted Q evaluation needs logged transitions.")
    units = _Units(policy, dataset, config, device)
    starts = np.array([rows.start for rows in dataset.episodes()])
    counts = bootstrap_counts(len(starts), config.ensemble_size, config.seed)
    generator = torch.Generator().manual_seed(config.seed)
    in_dim = dataset.observation_dim + dataset.action_dim
    networks = EnsembleMLP(
        config.ensemble_size, in_dim, config.hidden, init="fan-in", generator=generator
    ).to(device)
    target = copy.deepcopy(networks).requires_grad_(False)
    learner = _Learner(units, dataset, config, networks, target, counts, starts)
    steps, curve = learner.learn(generator, on_step)
    return FittedQ(config, counts, steps, curve, units, target)


class _Units:
    """The maps between the log's units and the networks', and the policy behind them."""

    def __init__(
        self, policy: Policy | None, dataset: TransitionDataset, config: FQEConfig, device: str
    ) -> None:
        self.policy, self.device, self.action_dim = policy, device, dataset.action_dim
        self.draws = config.action_samples if policy is not None else 1
        self.maps = Preprocessing.fit(dataset, normalize_observations=True)
        rewards = dataset.rewards
        # Scaled so that values are of order one; never shifted, because a shift would change what
        # terminal states are worth.
        size = float(np.sqrt(np.square(rewards, dtype=np.float64).mean())) or 1.0
        self.scale = size / (1 - config.gamma)
        # No policy can earn more for ever than the best logged reward at every step (0 where it
        # ends). Extrapolated values beyond that are cut.
        possible = [float(rewards.min()), float(rewards.max())]
        if bool(dataset.terminals.any()):
            possible.append(0.0)
        self.lowest, self.highest = min(possible) / size, max(possible) / size

    def states(self, observations: NDArray[Any]) -> Tensor:
        """Raw observations as the networks see them."""
        limited = self.maps.observations(observations).clip(-OBSERVATION_LIMIT, OBSERVATION_LIMIT)
        return self.tensor(limited)

    def policy_actions(self, observations: NDArray[Any]) -> Tensor:
        """A draw of the policy's actions in network units; zeros for the log's own policy."""
        if self.policy is None:
            return torch.zeros(len(observations), self.action_dim, device=self.device)
        return self.tensor(self.maps.actions(ask(self.policy, observations, self.action_dim)))

    def tensor(self, values: NDArray[Any]) -> Tensor:
        """As float32 on the device."""
        return torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(self.device)


def ask(policy: Policy, observations: NDArray[Any], action_dim: int) -> NDArray[np.float32]:
    """The policy's raw actions at raw observations, ``[N, S] -> [N, A]``, checked."""
    pieces = [np.zeros((0, action_dim), np.float32)]
    for start in range(0, len(observations), POLICY_CHUNK):
        chunk = np.asarray(observations[start : start + POLICY_CHUNK])
        actions = np.asarray(policy(chunk), np.float32)
        if actions.shape != (len(chunk), action_dim):
            raise PbrlError(
                f"The policy gave actions of shape {list(actions.shape)} for {len(chunk)} "
                f"observations; the data have {action_dim} action dimensions."
            )
        pieces.append(actions)
    answers: NDArray[np.float32] = np.concatenate(pieces)
    if not np.isfinite(answers).all():
        raise PbrlError("The policy gave NaN or infinite actions; it cannot be evaluated.")
    return answers


def _inputs(states: Tensor, actions: Tensor) -> Tensor:
    limited = states.clamp(-OBSERVATION_LIMIT, OBSERVATION_LIMIT)
    return torch.cat([limited, actions], dim=1)


class _Learner:
    """The regression of one fit: minibatches, targets and what is recorded on the way."""

    def __init__(
        self,
        units: _Units,
        dataset: TransitionDataset,
        config: FQEConfig,
        online: EnsembleMLP,
        target: EnsembleMLP,
        counts: Doubles,
        starts: NDArray[np.int64],
    ) -> None:
        self.units, self.config, self.online, self.target = units, config, online, target
        device = units.device
        self.data = TrainingData(dataset, units.maps, device)
        self.next_actions = torch.stack(
            [units.policy_actions(dataset.next_observations) for _ in range(units.draws)]
        )  # [M, N, A]
        initial = dataset.observations[starts]
        self.initial = [
            _inputs(units.states(initial), units.policy_actions(initial))
            for _ in range(units.draws)
        ]
        lengths = np.diff([*starts, len(dataset)])
        owner = np.repeat(np.arange(len(starts)), lengths)
        self.episode = torch.from_numpy(owner).to(device)  # [N]
        self.weights = units.tensor(counts)  # [K, E]

    def learn(
        self, generator: torch.Generator, on_step: Callable[[int], None] | None
    ) -> tuple[NDArray[np.int64], Doubles]:
        """All steps; the curve's places ``[T]`` and values ``[T, K]``."""
        config = self.config
        mine: list[Tensor] = list(self.target.parameters())
        theirs: list[Tensor] = list(self.online.parameters())
        optimizer = torch.optim.Adam(self.online.parameters(), lr=config.learning_rate, fused=True)
        record_every = max(1, config.steps // 100)
        steps, curve = [], []
        for step in range(1, config.steps + 1):
            optimizer.param_groups[0]["lr"] = config.learning_rate * (1 - 0.9 * step / config.steps)
            self._step(optimizer, generator, (step - 1) % self.units.draws)
            with torch.no_grad():
                torch._foreach_lerp_(mine, theirs, config.tau)
            if step % record_every == 0 or step == config.steps:
                steps.append(step)
                curve.append(self._value())
                if not np.isfinite(curve[-1]).all():
                    raise PbrlError(
                        f"Fitted Q evaluation diverged at step {step}; lower its learning_rate."
                    )
                if on_step is not None:
                    on_step(step)
        return np.array(steps, np.int64), np.array(curve)

    def _step(self, optimizer: torch.optim.Adam, generator: torch.Generator, draw: int) -> None:
        config, units, size = self.config, self.units, self.config.batch_size
        index = torch.randint(len(self.data), (size,), generator=generator)
        mapped = self.data.dataset.memory_mapped
        batch = self.data.gather(index if mapped else index.to(units.device))
        index = index.to(units.device)
        # The successor's state and the policy's action there: s' and pi(s'), never s.
        q2 = self.target.values(_inputs(batch.next_observations, self.next_actions[draw, index]))
        q2 = q2.clamp(units.lowest, units.highest)
        r = batch.rewards / units.scale
        y = r + config.gamma * (1 - batch.terminals) * q2  # [K, B]
        weights = self.weights[:, self.episode[index]]  # [K, B]

        def error(q: Tensor, rows: slice) -> Tensor:
            return (weights[:, rows] * (q - y[:, rows]).square()).sum() / size

        actions = batch.actions if units.policy is not None else torch.zeros_like(batch.actions)
        optimizer.zero_grad()
        self.online.regress(_inputs(batch.observations, actions), error)
        optimizer.step()

    def _value(self) -> Doubles:
        """Every member's value over its own bootstrap sample of initial states, ``[K]``."""
        q = torch.stack([self.target.values(x) for x in self.initial]).mean(0).double()  # [K, E]
        weights = self.weights.double()
        mean = (weights * q).sum(1) / weights.sum(1)
        return np.asarray(mean.cpu().numpy() * self.units.scale, np.float64)
