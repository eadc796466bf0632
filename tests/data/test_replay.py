"""The replay buffer: a ring, in memory or in a table of the owner's, that can go on from a copy."""

from __future__ import annotations

import torch

from pbrl.data.replay import ReplayBuffer
from pbrl.data.training_data import Batch


def steps(*numbers: float) -> Batch:
    """Transitions n -> n + 1 with action -n and reward 10 n; every fourth state is terminal."""
    x = torch.tensor(numbers)
    return Batch(x[:, None], -x[:, None], 10 * x, x[:, None] + 1, (x % 4 == 3).float())


def test_the_oldest_rows_go_first_and_a_copy_goes_on_alike() -> None:
    buffer = ReplayBuffer(5, 1, 1)
    buffer.add(steps(0, 1, 2))
    assert (buffer.size, buffer.total, buffer.newest) == (3, 3, 2)
    drawn = buffer.sample(100, torch.Generator().manual_seed(0))
    assert set(drawn.rewards.tolist()) == {0, 10, 20}
    buffer.add(steps(3, 4, 5, 6))
    assert (buffer.size, buffer.total, buffer.newest) == (5, 7, 1)
    assert buffer.rows[:, 0].tolist() == [5, 6, 2, 3, 4]
    copied = ReplayBuffer(5, 1, 1)
    copied.restore(buffer.held(), buffer.total)
    for each in (buffer, copied):
        each.add(steps(7))
    assert copied.rows[:, 0].tolist() == buffer.rows[:, 0].tolist() == [5, 6, 7, 3, 4]
    buffer.add(steps(*range(20, 29)))  # more than there is room for
    assert sorted(buffer.rows[:, 0].tolist()) == [24, 25, 26, 27, 28]


def test_parts_of_a_row_stay_together() -> None:
    buffer = ReplayBuffer(8, 2, 3)
    g = torch.Generator().manual_seed(1)
    s, a, s2 = (torch.randn(6, width, generator=g) for width in (2, 3, 2))
    r, terminals = torch.randn(6, generator=g), torch.tensor([0.0, 1, 0, 0, 1, 0])
    buffer.add(Batch(s, a, r, s2, terminals))
    order = torch.tensor([4, 0, 4, 2])
    for got, wanted in zip(buffer.gather(order), (s, a, r, s2, terminals), strict=True):
        assert torch.equal(got, wanted[order])


def test_next_actions_follow_the_ring_and_end_with_the_newest_row() -> None:
    buffer = ReplayBuffer(4, 1, 1)
    buffer.add(steps(0, 1, 2))
    buffer.add(steps(3, 4))  # the first is gone; places hold 4, 1, 2, 3
    follow = buffer.gather(torch.tensor([1, 2, 3, 0])).next_actions[:, 0]
    assert follow[:3].tolist() == [-2, -3, -4]
    assert bool(follow[3].isnan()), "nothing follows the newest row"
    buffer.add(steps(9))  # another episode: 9 does not follow 4
    assert bool(buffer.next_actions(torch.tensor([0])).isnan())
    still = ReplayBuffer(2, 1, 1)  # a state that never changes: the oldest row looks like the next
    nought = torch.zeros(2)
    still.add(Batch(nought[:, None], nought[:, None], nought, nought[:, None], nought))
    assert still.next_actions(torch.tensor([0, 1])).isnan().flatten().tolist() == [False, True]


def test_a_table_of_the_owner_may_have_more_columns() -> None:
    table = torch.full((4, 6), -1.0)
    buffer = ReplayBuffer(4, 1, 1, rows=table)
    buffer.add(steps(1, 2))
    assert table[:2, :5].tolist() == [[1, -1, 10, 2, 0], [2, -2, 20, 3, 0]]
    assert table[:, 5].tolist() == [-1] * 4
    assert buffer.gather(torch.tensor([1])).terminals.tolist() == [0]
    assert buffer.next_actions(torch.tensor([0])).tolist() == [[-2]]
