"""Playing a policy and keeping every step: the rows of a dataset, episode after episode."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pbrl.collect.policies import Behaviour
from pbrl.data.rows import Rows
from pbrl.envs.player import Player, Step
from pbrl.errors import PbrlError

# Episodes played side by side, with one batched action for every time step.
WAVE = 10
# Environments that never end an episode are cut here.
DEFAULT_HORIZON = 1000


def bounded_player(env_id: str) -> Player:
    """A player of an environment whose actions can be drawn uniformly."""
    player = Player(env_id)
    if not (np.isfinite(player.low).all() and np.isfinite(player.high).all()):
        player.close()
        raise PbrlError(
            f"Environment '{env_id}' has actions without finite bounds; wrap it so that they "
            "have some."
        )
    return player


def longest_episode(player: Player) -> int:
    """Steps after which an episode is cut."""
    return player.horizon or DEFAULT_HORIZON


def play_rows(
    player: Player, policy: Behaviour, steps: int, seed: tuple[int, ...]
) -> Iterator[Rows]:
    """``steps`` rows in order of the episodes, a few episodes at a time; the last is cut.

    Episode i of a seed is always the same episode.
    """
    wave = 0
    while steps > 0:
        longest = min(longest_episode(player), steps)
        for episode in _wave(player, policy, longest, (*seed, wave), WAVE):
            part = episode[:steps]
            assert part.timeouts is not None
            part.timeouts[-1] = not part.terminals[-1]
            yield part
            steps -= len(part)
            if steps == 0:
                break
        wave += 1


def play_returns(
    player: Player, policy: Behaviour, episodes: int, seed: tuple[int, ...]
) -> NDArray[np.float64]:
    """Undiscounted returns of ``episodes`` whole episodes, ``[E]``."""
    found: list[float] = []
    wave = 0
    while len(found) < episodes:
        size = min(WAVE, episodes - len(found))
        played = _wave(player, policy, longest_episode(player), (*seed, wave), size)
        found += [float(episode.rewards.sum(dtype=np.float64)) for episode in played]
        wave += 1
    return np.array(found)


def _wave(
    player: Player, policy: Behaviour, longest: int, seed: tuple[int, ...], size: int
) -> list[Rows]:
    """Episodes played side by side, each at most ``longest`` steps."""
    sequence = np.random.SeedSequence(seed)
    rng = np.random.default_rng(sequence)
    starts = sequence.generate_state(size).tolist()
    logs: list[list[tuple[Step, int]]] = [[] for _ in range(size)]
    for step in player.play(lambda observations: policy(observations, rng), starts, longest):
        for place, episode in enumerate(step.episodes):
            logs[episode].append((step, place))
    return [_rows(log) for log in logs]


def _rows(log: list[tuple[Step, int]]) -> Rows:
    """One episode, from its time steps and its place in each of them."""
    return Rows(
        np.stack([step.observations[i] for step, i in log]),
        np.stack([step.actions[i] for step, i in log]).astype(np.float32),
        np.array([step.rewards[i] for step, i in log], np.float32),
        np.array([step.terminals[i] for step, i in log], np.bool_),
        np.array([step.timeouts[i] for step, i in log], np.bool_),
        np.stack([step.next_observations[i] for step, i in log]),
    )
