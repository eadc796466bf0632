"""The loop that steps environments: batched, cut where asked, always the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from pbrl.envs.player import Player, Step
from pbrl.errors import PbrlError


class Counter(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Counts from a start that its seed tells; ends for good at 10, is cut after 6 steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.steps = float(seed or 0), 0
        return np.array([self.count], np.float32), {}

    def step(self, action: Any) -> Any:
        self.count, self.steps = self.count + 1, self.steps + 1
        after = np.array([self.count], np.float32)
        return after, float(action[0]), self.count == 10, self.steps == 6, {}


@pytest.fixture
def player() -> Iterator[Player]:
    gymnasium.register("test/Counter-v0", entry_point=lambda **_: Counter())
    made = Player("test/Counter-v0")
    yield made
    made.close()
    del gymnasium.registry["test/Counter-v0"]


def halves(observations: NDArray[Any]) -> NDArray[Any]:
    """Half the observation: beyond the bounds of the actions from 2 on."""
    return (observations / 2).astype(np.float32)


def played(player: Player, seeds: list[int], longest: int | None = None) -> list[Step]:
    return list(player.play(halves, seeds, longest))


def test_episodes_side_by_side_are_the_episodes_alone(player: Player) -> None:
    together = played(player, [8, 0, 4])
    # From 8: two steps; from 4: terminal and cut on the sixth; from 0: cut on the sixth.
    assert [step.episodes.tolist() for step in together] == [[0, 1, 2]] * 2 + [[1, 2]] * 4
    for episode, seed in enumerate((8, 0, 4)):
        alone = played(player, [seed])
        mine = [step for step in together if episode in step.episodes]
        assert len(alone) == len(mine)
        for one, many in zip(alone, mine, strict=True):
            i = many.episodes.tolist().index(episode)
            for name in ("observations", "actions", "rewards", "next_observations"):
                np.testing.assert_array_equal(getattr(one, name)[0], getattr(many, name)[i])


def test_a_step_is_what_the_environment_gave_and_got(player: Player) -> None:
    steps = played(player, [1])
    assert [float(step.observations[0, 0]) for step in steps] == [1, 2, 3, 4, 5, 6]
    assert [float(step.next_observations[0, 0]) for step in steps] == [2, 3, 4, 5, 6, 7]
    # Actions are clipped before the environment, which pays the action, sees them.
    assert [float(step.rewards[0]) for step in steps] == [0.5, 1, 1, 1, 1, 1]
    assert [float(step.actions[0, 0]) for step in steps] == [0.5, 1, 1, 1, 1, 1]


def test_ends_and_cuts_are_different_things(player: Player) -> None:
    def ends(seed: int, longest: int | None = None) -> list[tuple[bool, bool]]:
        steps = played(player, [seed], longest)
        return [(bool(step.terminals[0]), bool(step.timeouts[0])) for step in steps]

    assert ends(0) == [(False, False)] * 5 + [(False, True)]
    assert ends(8) == [(False, False), (True, False)]
    assert ends(4) == [(False, False)] * 5 + [(True, False)], "an end wins where both fall together"
    assert ends(0, longest=2) == [(False, False), (False, True)]
    assert ends(8, longest=2) == [(False, False), (True, False)]


def test_an_abandoned_episode_leaves_nothing_behind(player: Player) -> None:
    whole = played(player, [3])
    for step in player.play(halves, [3, 5]):
        if step.observations[0, 0] == 4:
            break
    again = played(player, [3])
    assert [s.rewards.tolist() for s in again] == [s.rewards.tolist() for s in whole]


def test_tells_its_sizes_and_refuses_other_data(player: Player) -> None:
    assert (player.observation_dim, player.action_dim, player.horizon) == (1, 1, None)
    assert Player("InvertedPendulum-v5").horizon == 1000
    player.require_spaces(1, 1)
    with pytest.raises(PbrlError, match="the data have 2 and 1"):
        player.require_spaces(2, 1)
