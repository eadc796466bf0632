"""Playing episodes: all of them at once, with one batched action for every time step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl.envs.environments import make_env
from pbrl.errors import PbrlError
from pbrl.evaluation.scores import normalized_score

# Raw observations [B, S] -> raw actions [B, A].
Policy = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True)
class Evaluation:
    """What a policy earned.

    Attributes:
        returns: undiscounted return of every episode, ``[E]``.
        lengths: steps of every episode, ``[E]``.
        scores: normalised returns ``[E]``, where reference scores are known.
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    scores: NDArray[np.float64] | None = None

    def summary(self) -> dict[str, float]:
        """Means and deviations over the episodes, for metrics and tables."""
        out = {
            "return_mean": float(self.returns.mean()),
            "return_std": float(self.returns.std()),
            "length_mean": float(self.lengths.mean()),
        }
        if self.scores is not None:
            out["score_mean"] = float(self.scores.mean())
            out["score_std"] = float(self.scores.std())
        return out


class Evaluator:
    """Scores policies in one environment; keeps the simulators between calls.

    Episode i of a call with seed s always starts from the same state, whatever was played before:
    that keeps evaluations of a resumed run equal to those of an uninterrupted one.

    Args:
        env_id: a Gymnasium id, D4RL's restored environments included.
        reference_scores: returns that count as 0 and 100.
    """

    def __init__(self, env_id: str, reference_scores: tuple[float, float] | None = None) -> None:
        self.env_id = env_id
        self.reference_scores = reference_scores
        self._envs = [make_env(env_id)]

    @property
    def action_bounds(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The environment's lowest and highest actions, ``[A]`` each."""
        space: Any = self._envs[0].action_space
        return space.low.astype(np.float32), space.high.astype(np.float32)

    def require_spaces(self, observation_dim: int, action_dim: int) -> None:
        """Refuse data that do not fit the environment."""
        env: Any = self._envs[0]
        sizes = (env.observation_space.shape[0], env.action_space.shape[0])
        if sizes != (observation_dim, action_dim):
            raise PbrlError(
                f"The environment {self.env_id} has {sizes[0]} observation and {sizes[1]} action "
                f"dimensions, the data have {observation_dim} and {action_dim}. Give the matching "
                "--env-id, or --no-eval to train without a simulator."
            )

    def evaluate(self, policy: Policy, episodes: int = 10, seed: int = 0) -> Evaluation:
        """Play ``episodes`` episodes of ``policy`` from seeds derived from ``seed``."""
        if episodes < 1:
            raise PbrlError(f"episodes must be at least 1, got {episodes}.")
        while len(self._envs) < episodes:
            self._envs.append(make_env(self.env_id))
        seeds = np.random.SeedSequence(seed).generate_state(episodes)
        low, high = self.action_bounds
        returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
        running = list(range(episodes))
        observations = [self._envs[i].reset(seed=int(seeds[i]))[0] for i in running]
        while running:
            actions = policy(np.stack(observations).astype(np.float32))
            # Rounding may carry an action a hair over its bound, which some simulators refuse.
            actions = np.clip(actions, low, high)
            still, next_observations = [], []
            for i, action in zip(running, actions, strict=True):
                observation, reward, terminated, truncated, _ = self._envs[i].step(action)
                returns[i] += float(reward)
                lengths[i] += 1
                if not (terminated or truncated):
                    still.append(i)
                    next_observations.append(observation)
            running, observations = still, next_observations
        scores = None
        if self.reference_scores is not None:
            scores = normalized_score(returns, self.reference_scores)
        return Evaluation(returns, lengths, scores)

    def close(self) -> None:
        """Release the simulators."""
        for env in self._envs:
            env.close()
