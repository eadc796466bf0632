"""The one loop that steps environments: evaluation, collecting and fine-tuning all play with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl.envs.environments import make_env
from pbrl.errors import PbrlError

Floats = NDArray[np.float32]
# Raw observations [B, S] -> raw actions [B, A].
Policy = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Step:
    """One time step of the B episodes that are still going on, in raw units.

    Attributes:
        episodes: their numbers, ``[B]``, in rising order.
        observations: ``[B, S]``.
        actions: as the environments got them, ``[B, A]``.
        rewards: ``[B]`` float64.
        next_observations: ``[B, S]``.
        terminals: ``[B]``, the episode ended for good.
        timeouts: ``[B]``, the episode was cut here and did not end for good.
    """

    episodes: NDArray[np.int64]
    observations: Floats
    actions: Floats
    rewards: NDArray[np.float64]
    next_observations: Floats
    terminals: NDArray[np.bool_]
    timeouts: NDArray[np.bool_]


class Player:
    """Plays policies in one environment; keeps its simulators between calls.

    Args:
        env_id: a Gymnasium id, D4RL's restored environments included.

    Attributes:
        observation_dim: S.
        action_dim: A.
        low: lowest actions, ``[A]``.
        high: highest actions, ``[A]``.
        horizon: steps after which the environment cuts an episode; None where it never does.
    """

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id
        self._envs = [make_env(env_id)]
        env: Any = self._envs[0]
        self.observation_dim = int(env.observation_space.shape[0])
        self.action_dim = int(env.action_space.shape[0])
        self.low = env.action_space.low.astype(np.float32)
        self.high = env.action_space.high.astype(np.float32)
        limit = None if env.spec is None else env.spec.max_episode_steps
        self.horizon = int(limit) if limit else None

    def require_spaces(self, observation_dim: int, action_dim: int) -> None:
        """Refuse data that do not fit the environment."""
        if (self.observation_dim, self.action_dim) != (observation_dim, action_dim):
            raise PbrlError(
                f"The environment {self.env_id} has {self.observation_dim} observation and "
                f"{self.action_dim} action dimensions, the data have {observation_dim} and "
                f"{action_dim}. Give the matching --env-id, or --no-eval to train without a "
                "simulator."
            )

    def play(
        self, policy: Policy, seeds: Sequence[int], longest: int | None = None
    ) -> Iterator[Step]:
        """Play episodes side by side, with one batched action for every time step.

        An episode depends on its seed and the policy alone, whatever was played before.

        Args:
            policy: asked once a time step, for the episodes that are still going on.
            seeds: of the episodes' starts, one each.
            longest: cut episodes after so many steps.
        """
        while len(self._envs) < len(seeds):
            self._envs.append(make_env(self.env_id))
        running = np.arange(len(seeds))
        starts = [self._envs[i].reset(seed=int(seed))[0] for i, seed in enumerate(seeds)]
        observations = np.stack(starts).astype(np.float32)
        length = 0
        while len(running):
            # Rounding may carry an action a hair over its bound, which some simulators refuse.
            actions = np.clip(policy(observations), self.low, self.high)
            outcomes = [self._envs[i].step(a) for i, a in zip(running, actions, strict=True)]
            after, rewards, terminated, truncated, _ = zip(*outcomes, strict=True)
            length += 1
            terminals = np.array(terminated, np.bool_)
            timeouts = (np.array(truncated, np.bool_) | (length == longest)) & ~terminals
            next_observations = np.stack(after).astype(np.float32)
            rewards64 = np.array(rewards, np.float64)
            yield Step(
                running, observations, actions, rewards64, next_observations, terminals, timeouts
            )
            goes_on = ~(terminals | timeouts)
            running, observations = running[goes_on], next_observations[goes_on]

    def close(self) -> None:
        """Release the simulators."""
        for env in self._envs:
            env.close()
