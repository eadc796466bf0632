"""What a policy is worth before it touches the world: fitted Q evaluation with a bootstrap.

Fitted Q evaluation (FQE) learns Q of a fixed policy from logged transitions,

    Q(s, a) <- r + gamma * (1 - terminal) * Q_target(s', pi(s')),

and reads the value off at the initial states of the log. Every member of the ensemble sees its own
bootstrap sample of *episodes* (rows of an episode are not independent; whole episodes nearly are),
both in its loss and in its initial states. The spread of the members' values gives the interval.

What the interval covers: the luck of which episodes were logged, and of the initial weights. What
it does not cover: actions of the policy that the log has nothing like, where every member
extrapolates alike. ``pbrl.deploy.guard`` says how often that happens.

Shapes: N transitions, E episodes, K members, B rows of a minibatch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbrl.data.dataset import Floats, TransitionDataset
from pbrl.data.preprocessing import Preprocessing
from pbrl.data.training_data import TrainingData
from pbrl.errors import PbrlError
from pbrl.nn.ensemble import EnsembleMLP

# Raw observations [B, S] -> raw actions [B, A].
Policy = Callable[[NDArray[Any]], NDArray[Any]]
Doubles = NDArray[np.float64]

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
class ValueEstimate:
    """An estimated discounted value at the initial states, with its interval.

    Attributes:
        value: the estimate, in raw reward units.
        low: lower end of the interval.
        high: upper end of the interval.
        level: of the interval.
        gamma: the discount.
        samples: bootstrap values, ``[K]``; their spread made the interval.
        curve_steps: gradient steps of the curve's points, ``[T]``.
        curve: value of every member as learning went on, ``[T, K]``.
        notes: sentences a reader of the number should see.
    """

    value: float
    low: float
    high: float
    level: float
    gamma: float
    samples: Doubles
    curve_steps: NDArray[np.int64]
    curve: Doubles
    notes: tuple[str, ...] = ()

    @property
    def drift(self) -> float:
        """Change of the mean value over the last fifth of learning."""
        if len(self.curve) < 10:
            return 0.0
        tenth = len(self.curve) // 10
        late, before = self.curve[-tenth:], self.curve[-3 * tenth : -2 * tenth]
        return float(late.mean() - before.mean())

    @property
    def converged(self) -> bool:
        """Whether that change is small beside the interval, or beside the value itself."""
        half_width = (self.high - self.low) / 2
        return abs(self.drift) <= max(0.1 * half_width, 0.01 * abs(self.value))

    def to_json(self) -> dict[str, Any]:
        """Everything as a JSON object."""
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "level": self.level,
            "gamma": self.gamma,
            "samples": self.samples.tolist(),
            "drift": self.drift,
            "converged": self.converged,
            "curve": {
                "steps": self.curve_steps.tolist(),
                "mean": self.curve.mean(1).tolist() if len(self.curve) else [],
                "std": self.curve.std(1).tolist() if len(self.curve) else [],
            },
            "notes": list(self.notes),
        }


def fitted_q_evaluation(
    policy: Policy,
    dataset: TransitionDataset,
    config: FQEConfig | None = None,
    *,
    device: str = "cpu",
    on_step: Callable[[int], None] | None = None,
) -> ValueEstimate:
    """Estimate the discounted value of ``policy`` at the initial states of ``dataset``.

    Args:
        policy: raw observations ``[B, S]`` to raw actions ``[B, A]``: ``agent.act``, any function.
        dataset: logged transitions of any behaviour.
        config: settings.
        device: where the networks live.
        on_step: called with the number of steps done, for a progress display.

    Returns:
        Estimate, interval and learning curve, in raw reward units.
    """
    config = config or FQEConfig()
    problem = _Problem(policy, dataset, config, device)
    curve_steps, curve = _learn(problem, config, on_step)
    tail = max(1, len(curve) // 10)
    samples = curve[-tail:].mean(0)
    value, low, high = _interval(samples, config.level)
    estimate = ValueEstimate(
        value,
        low,
        high,
        config.level,
        config.gamma,
        samples,
        curve_steps,
        curve,
    )
    if not estimate.converged:
        problem.notes.append(
            f"The estimate still moved by {estimate.drift:+.3g} over the last fifth of its "
            "steps: take more steps before trusting it."
        )
    elif config.steps * config.tau < 5:
        problem.notes.append(
            f"{config.steps} steps at tau = {config.tau:g} hardly moved the target networks: take "
            "more steps before trusting the estimate."
        )
    return replace(estimate, notes=tuple(problem.notes))


def behaviour_value(
    dataset: TransitionDataset,
    gamma: float = 0.99,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> ValueEstimate:
    """Discounted value of the policy that wrote the log: the mean discounted return of episodes.

    The interval is a bootstrap over episodes. Episodes that were cut off rather than terminated
    miss what would have come after; the notes say how much that can be.
    """
    returns, missing = [], 0.0
    for rows in dataset.episodes():
        length = rows.stop - rows.start
        weights = gamma ** np.arange(length)
        returns.append(float(weights @ dataset.rewards[rows].astype(np.float64)))
        if not dataset.terminals[rows.stop - 1]:
            missing += gamma**length
    if not returns:
        raise PbrlError("The dataset has no episodes, so there is no behaviour value.")
    values, rng = np.array(returns), np.random.default_rng(seed)
    draws = rng.integers(len(values), size=(resamples, len(values)))
    samples = values[draws].mean(1)
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    notes = []
    if missing / len(values) > 0.01:
        notes.append(
            f"Episodes of the log were cut off while {missing / len(values):.0%} of the discounted "
            "weight (on average) was still to come: the behaviour's value is a partial sum."
        )
    empty: Doubles = np.zeros((0, resamples))
    steps = np.zeros(0, np.int64)
    return ValueEstimate(
        float(values.mean()),
        float(low),
        float(high),
        level,
        gamma,
        samples,
        steps,
        empty,
        tuple(notes),
    )


# ------------------------------------------------------------------------------- inside


class _Problem:
    """Data, policy actions and bootstrap weights of one evaluation."""

    def __init__(
        self, policy: Policy, dataset: TransitionDataset, config: FQEConfig, device: str
    ) -> None:
        if len(dataset) == 0:
            raise PbrlError("The dataset is empty; fitted Q evaluation needs logged transitions.")
        self.notes: list[str] = []
        maps = Preprocessing.fit(dataset, normalize_observations=True)
        rewards = dataset.rewards
        # Scaled so that values are of order one; never shifted, because a shift would change what
        # terminal states are worth.
        size = float(np.sqrt(np.square(rewards, dtype=np.float64).mean())) or 1.0
        self.scale = size / (1 - config.gamma)
        self.data = TrainingData(dataset, maps, device)
        self.maps, self.policy, self.device = maps, policy, device
        # No policy can earn more for ever than the best logged reward at every step (0 where it
        # ends). Extrapolated values beyond that are cut.
        possible = [float(rewards.min()), float(rewards.max())]
        if bool(dataset.terminals.any()):
            possible.append(0.0)
        self.lowest, self.highest = min(possible) / size, max(possible) / size

        self.next_actions = torch.stack(
            [self._actions(dataset.next_observations) for _ in range(config.action_samples)]
        )  # [M, N, A]
        starts = np.array([rows.start for rows in dataset.episodes()])
        initial = dataset.observations[starts]
        self.initial_observations = self._tensor(maps.observations(initial))
        self.initial_actions = torch.stack(
            [self._actions(initial) for _ in range(config.action_samples)]
        )  # [M, E, A]
        episodes = len(starts)
        lengths = np.diff([*starts, len(dataset)])
        owner = np.repeat(np.arange(episodes), lengths)
        self.episode = torch.from_numpy(owner).to(device)  # [N]
        rng = np.random.default_rng(config.seed)
        counts = rng.multinomial(episodes, np.full(episodes, 1 / episodes), config.ensemble_size)
        self.weights = self._tensor(counts)  # [K, E]
        if episodes < 20:
            self.notes.append(
                f"Only {episodes} episodes: a bootstrap over so few says little, and the interval "
                "is likely too narrow."
            )

    def _actions(self, observations: Floats) -> Tensor:
        pieces = []
        for start in range(0, len(observations), POLICY_CHUNK):
            chunk = np.asarray(observations[start : start + POLICY_CHUNK])
            actions = np.asarray(self.policy(chunk), np.float32)
            if actions.shape != (len(chunk), self.data.dataset.action_dim):
                raise PbrlError(
                    f"The policy gave actions of shape {list(actions.shape)} for {len(chunk)} "
                    f"observations; the data have {self.data.dataset.action_dim} action dimensions."
                )
            pieces.append(actions)
        actions = np.concatenate(pieces)
        if not np.isfinite(actions).all():
            raise PbrlError("The policy gave NaN or infinite actions; it cannot be evaluated.")
        return self._tensor(self.maps.actions(actions))

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(self.device)

    def value(self, networks: EnsembleMLP) -> Doubles:
        """Every member's value over its own bootstrap sample of initial states, ``[K]``."""
        draws = []
        for actions in self.initial_actions:
            draws.append(networks.values(_inputs(self.initial_observations, actions)))
        q = torch.stack(draws).mean(0).double()  # [K, E]
        weights = self.weights.double()
        mean = (weights * q).sum(1) / weights.sum(1)
        return np.asarray(mean.cpu().numpy() * self.scale, np.float64)


def _inputs(observations: Tensor, actions: Tensor) -> Tensor:
    limited = observations.clamp(-OBSERVATION_LIMIT, OBSERVATION_LIMIT)
    return torch.cat([limited, actions], dim=1)


def _learn(
    problem: _Problem, config: FQEConfig, on_step: Callable[[int], None] | None
) -> tuple[NDArray[np.int64], Doubles]:
    generator = torch.Generator().manual_seed(config.seed)
    data, size, device = problem.data, config.batch_size, problem.device
    in_dim = data.dataset.observation_dim + data.dataset.action_dim
    online = EnsembleMLP(
        config.ensemble_size, in_dim, config.hidden, init="fan-in", generator=generator
    ).to(device)
    target = copy.deepcopy(online).requires_grad_(False)
    mine: list[Tensor] = list(target.parameters())
    theirs: list[Tensor] = list(online.parameters())
    optimizer = torch.optim.Adam(online.parameters(), lr=config.learning_rate, fused=True)
    record_every = max(1, config.steps // 100)
    steps, curve = [], []
    for step in range(1, config.steps + 1):
        optimizer.param_groups[0]["lr"] = config.learning_rate * (1 - 0.9 * step / config.steps)
        index = torch.randint(len(data), (size,), generator=generator)
        batch = data.gather(index if data.dataset.memory_mapped else index.to(device))
        index = index.to(device)
        draw = (step - 1) % config.action_samples
        # The successor's state and the policy's action there: s' and pi(s'), never s.
        q2 = target.values(_inputs(batch.next_observations, problem.next_actions[draw, index]))
        q2 = q2.clamp(problem.lowest, problem.highest)
        r = batch.rewards / problem.scale
        y = r + config.gamma * (1 - batch.terminals) * q2  # [K, B]
        weights = problem.weights[:, problem.episode[index]]  # [K, B]

        def error(q: Tensor, rows: slice, y: Tensor = y, weights: Tensor = weights) -> Tensor:
            return (weights[:, rows] * (q - y[:, rows]).square()).sum() / size

        optimizer.zero_grad()
        online.regress(_inputs(batch.observations, batch.actions), error)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(mine, theirs, config.tau)
        if step % record_every == 0 or step == config.steps:
            steps.append(step)
            curve.append(problem.value(target))
            if not np.isfinite(curve[-1]).all():
                raise PbrlError(
                    f"Fitted Q evaluation diverged at step {step}; lower its learning_rate."
                )
            if on_step is not None:
                on_step(step)
    return np.array(steps, np.int64), np.array(curve)


def _interval(samples: Doubles, level: float) -> tuple[float, float, float]:
    """Mean and a t-interval from the spread of a few bootstrap values."""
    count = len(samples)
    mean, spread = float(samples.mean()), float(samples.std(ddof=1))
    half = t_quantile((1 + level) / 2, count - 1) * spread * math.sqrt(1 + 1 / count)
    return mean, mean - half, mean + half


def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t by its expansion in 1/degrees; three digits from 4 degrees on."""
    z, n = NormalDist().inv_cdf(probability), degrees
    terms = (
        z,
        (z**3 + z) / (4 * n),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3),
    )
    return sum(terms)
