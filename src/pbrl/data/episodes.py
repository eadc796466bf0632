"""Whole episodes as the unit of a log: picking some of them, and holding some out.

Rows of an episode hang together; episodes nearly do not. Whatever is measured on rows that nothing
was fitted to must therefore leave out whole episodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pbrl.data.dataset import Cuts, TransitionDataset
from pbrl.errors import PbrlError


def pick_episodes(
    dataset: TransitionDataset, numbers: Sequence[int] | NDArray[np.int64]
) -> TransitionDataset:
    """The episodes of these numbers (0 is the first of the file), in the order of the file."""
    ranges = list(dataset.episodes())
    wanted = np.unique(np.asarray(numbers, np.int64))
    if len(wanted) and not 0 <= wanted[0] <= wanted[-1] < len(ranges):
        raise PbrlError(
            f"The data have {len(ranges)} episodes, numbered from 0; there is no number "
            f"{int(wanted[-1] if wanted[0] >= 0 else wanted[0])}."
        )
    pieces = [np.arange(ranges[i].start, ranges[i].stop) for i in wanted]
    index = np.concatenate([np.zeros(0, np.int64), *pieces])
    picked = dataset.rows(index)
    if dataset.logged_returns is not None:
        picked = replace(picked, logged_returns=dataset.logged_returns[wanted])
    if dataset.cuts is None:
        return picked
    kept = np.isin(dataset.cuts.rows, index)
    rows = np.searchsorted(index, dataset.cuts.rows[kept])
    return replace(picked, cuts=Cuts(rows, dataset.cuts.actions[kept]))


def choose_episodes(episodes: int, share: float, seed: int) -> NDArray[np.int64]:
    """Numbers of the episodes to hold out, drawn at random, ``[h]`` ascending; at least one.

    The share is rounded up, and at least one episode stays on the other side.
    """
    if not 0 < share < 1:
        raise PbrlError(f"The share of episodes held out must lie between 0 and 1, got {share:g}.")
    if episodes < 2:
        raise PbrlError(
            f"Holding out whole episodes needs at least two of them; these data have {episodes}. "
            "Log more episodes, or mark where they end."
        )
    count = min(episodes - 1, math.ceil(share * episodes - 1e-9))
    drawn = np.random.default_rng([seed, 7919]).permutation(episodes)[:count]
    return np.sort(drawn)


def split_episodes(
    dataset: TransitionDataset, held_out: NDArray[np.int64]
) -> tuple[TransitionDataset, TransitionDataset]:
    """The other episodes, whose ``info.held_out`` says which are missing, and the ones held out."""
    if dataset.memory_mapped:
        raise PbrlError(
            "Holding out episodes picks rows in memory, and these data are a store that is read "
            "from its files; write the episodes to judge by into a file of their own."
        )
    total = sum(1 for _ in dataset.episodes())
    others = np.setdiff1d(np.arange(total), held_out)
    kept = pick_episodes(dataset, others)
    info = replace(kept.info, held_out=tuple(int(i) for i in held_out))
    return replace(kept, info=info), pick_episodes(dataset, held_out)
