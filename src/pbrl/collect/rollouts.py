"""Playing a policy and keeping every step: the rows of a dataset, episode after episode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl.collect.policies import Behaviour
from pbrl.data.rows import Rows
from pbrl.envs.environments import make_env
from pbrl.errors import PbrlError

# Episodes played side by side, with one batched action for every time step.
WAVE = 10
# Environments that never end an episode are cut here.
DEFAULT_HORIZON = 1000


class Player:
    """Plays policies in one environment; episode i of a seed is always the same episode.

    Args:
        env_id: the environment.

    Attributes:
        observation_dim: S.
        action_dim: A.
        low: lowest actions, ``[A]``.
        high: highest actions, ``[A]``.
        horizon: longest episode.
    """

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id
        self._envs = [make_env(env_id)]
        env: Any = self._envs[0]
        self.observation_dim = int(env.observation_space.shape[0])
        self.action_dim = int(env.action_space.shape[0])
        self.low = env.action_space.low.astype(np.float32)
        self.high = env.action_space.high.astype(np.float32)
        if not (np.isfinite(self.low).all() and np.isfinite(self.high).all()):
            raise PbrlError(
                f"Environment '{env_id}' has actions without finite bounds; wrap it so that they "
                "have some."
            )
        limit = None if env.spec is None else env.spec.max_episode_steps
        self.horizon = int(limit) if limit else DEFAULT_HORIZON

    @property
    def env(self) -> Any:
        """The first of the environments, for playing one's own loop."""
        return self._envs[0]

    def rows(self, policy: Behaviour, steps: int, seed: tuple[int, ...]) -> Iterator[Rows]:
        """``steps`` rows in order of the episodes, a few episodes at a time; the last is cut."""
        wave = 0
        while steps > 0:
            for episode in self._wave(policy, min(self.horizon, steps), (*seed, wave)):
                part = episode[:steps]
                if not part.terminals[-1]:
                    assert part.timeouts is not None
                    part.timeouts[-1] = True
                yield part
                steps -= len(part)
                if steps == 0:
                    break
            wave += 1

    def returns(
        self, policy: Behaviour, episodes: int, seed: tuple[int, ...]
    ) -> NDArray[np.float64]:
        """Undiscounted returns of ``episodes`` whole episodes, ``[E]``."""
        found: list[float] = []
        wave = 0
        while len(found) < episodes:
            size = min(WAVE, episodes - len(found))
            played = self._wave(policy, self.horizon, (*seed, wave), size)
            found += [float(episode.rewards.sum(dtype=np.float64)) for episode in played]
            wave += 1
        return np.array(found)

    def _wave(
        self, policy: Behaviour, longest: int, seed: tuple[int, ...], size: int = WAVE
    ) -> list[Rows]:
        """Episodes played side by side, each at most ``longest`` steps."""
        while len(self._envs) < size:
            self._envs.append(make_env(self.env_id))
        sequence = np.random.SeedSequence(seed)
        rng = np.random.default_rng(sequence)
        starts = sequence.generate_state(size)
        logs: list[list[tuple[Any, ...]]] = [[] for _ in range(size)]
        observations = [
            np.asarray(self._envs[i].reset(seed=int(starts[i]))[0], np.float32) for i in range(size)
        ]
        running = list(range(size))
        while running:
            actions = policy(np.stack([observations[i] for i in running]), rng)
            actions = np.clip(actions, self.low, self.high)
            still = []
            for i, action in zip(running, actions, strict=True):
                after, reward, terminated, truncated, _ = self._envs[i].step(action)
                after = np.asarray(after, np.float32)
                logs[i].append(
                    (observations[i], action, reward, terminated, truncated, after),
                )
                observations[i] = after
                if not (terminated or truncated or len(logs[i]) >= longest):
                    still.append(i)
            running = still
        return [_rows(log) for log in logs]

    def close(self) -> None:
        """Release the simulators."""
        for env in self._envs:
            env.close()


def _rows(log: list[tuple[Any, ...]]) -> Rows:
    observations, actions, rewards, terminals, timeouts, after = zip(*log, strict=True)
    return Rows(
        np.stack(observations).astype(np.float32),
        np.stack(actions).astype(np.float32),
        np.array(rewards, np.float32),
        np.array(terminals, np.bool_),
        # Terminal wins where the step limit falls on the same step.
        np.array(timeouts, np.bool_) & ~np.array(terminals, np.bool_),
        np.stack(after).astype(np.float32),
    )
