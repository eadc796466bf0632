"""Two logs as one: whole episodes of each, drawn at random, up to its share of the rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl.data.dataset import Bools
from pbrl.data.formats import stem_of
from pbrl.data.loading import open_source
from pbrl.data.resolve import describe
from pbrl.data.rows import BLOCK, Metadata, Rows, RowSource
from pbrl.data.view import StepCounter, choose_view
from pbrl.data.writers import writing
from pbrl.errors import PbrlError

TOLERANCE = 0.05
"""How far a share may be from the one asked for: episodes stay whole, so it is seldom exact."""


@dataclass(frozen=True)
class Part:
    """What one source gave.

    Attributes:
        name: of the source.
        rows: its rows in the mixture.
        episodes: its episodes in the mixture.
        return_mean: their mean return.
        episodes_in_all: the episodes it has.
    """

    name: str
    rows: int
    episodes: int
    return_mean: float
    episodes_in_all: int


@dataclass(frozen=True)
class Mixture:
    """Two sources as one, chosen and not yet written.

    Attributes:
        source: its rows and what is known about them.
        parts: of the two sources, in their order.
        notes: sentences on what only one of the sources has.
    """

    source: RowSource
    parts: tuple[Part, Part]
    notes: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Rows of the mixture."""
        return sum(part.rows for part in self.parts)

    @property
    def shares(self) -> tuple[float, float]:
        """The share of the rows that each source has, ``1`` in all."""
        first, second = self.parts
        return first.rows / self.rows, second.rows / self.rows


def mix(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    share: float = 0.5,
    rows: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> Mixture:
    """Write a mixture of two sources; ``mixture`` says how it is drawn.

    Args:
        first: as in ``load_dataset``.
        second: as in ``load_dataset``.
        destination: its suffix says the format.
        share: of the rows that come from ``first``.
        rows: of the mixture.
        seed: of the draw of episodes.
        overwrite: replace what is there.
    """
    path = Path(destination).expanduser()
    mixed = mixture(first, second, share=share, rows=rows, seed=seed)
    metadata = replace(mixed.source.metadata, name=stem_of(path), source=str(path))
    shape = replace(mixed.source, metadata=metadata)
    with writing(path, shape, overwrite=overwrite) as writer:
        for block in shape.blocks(BLOCK):
            writer.append(block)
    return replace(mixed, source=shape)


def mixture(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    share: float = 0.5,
    rows: int | None = None,
    seed: int = 0,
    tolerance: float = TOLERANCE,
) -> Mixture:
    """Whole episodes drawn from two sources: those of the first, then those of the second.

    Args:
        first: as in ``load_dataset``.
        second: as in ``load_dataset``.
        share: of the rows that come from ``first``; the rest comes from ``second``.
        rows: of the mixture, to the nearest whole episode of each source; as many as the sources
            have at this share when omitted.
        seed: of the draw of episodes.
        tolerance: refuse a mixture whose share is off by more; whole episodes may not allow it.
    """
    if not 0 < share < 1:
        raise PbrlError(f"The first source's share must lie between 0 and 1, got {share:g}.")
    if rows is not None and rows < 2:
        raise PbrlError(f"A mixture needs at least 2 rows, got --rows {rows}.")
    if seed < 0:
        raise PbrlError(f"--seed must not be negative, got {seed}.")
    logs = [_Log(source) for source in (first, second)]
    metadata, notes = _common(logs[0].opened, logs[1].opened)
    shares = (share, 1 - share)
    total = rows
    if total is None:
        total = int(min(log.rows / part for log, part in zip(logs, shares, strict=True)) + 1e-6)
    for log, part, rng in zip(logs, shares, np.random.default_rng(seed).spawn(2), strict=True):
        log.pick(total * part, rng)
    parts = (logs[0].part(), logs[1].part())
    has_next = all(log.opened.has_next for log in logs)
    recipe = _recipe(logs, parts, {"share": share, "asked_rows": rows, "seed": seed})
    source = replace(
        logs[0].opened,
        metadata=replace(metadata, recipe=recipe),
        has_timeouts=True,
        has_next=has_next,
        blocks=lambda size: _blocks(logs, has_next, size),
        length=sum(part.rows for part in parts),
        store=None,
    )
    choice = choose_view(source.metadata, next(source.blocks(BLOCK)))
    mixed = Mixture(replace(source, choice=choice), parts, notes)
    if abs(mixed.shares[0] - share) > tolerance:
        raise PbrlError(
            f"Whole episodes give {parts[0].rows:,} rows of '{parts[0].name}' and "
            f"{parts[1].rows:,} of '{parts[1].name}', {mixed.shares[0]:.0%} and "
            f"{mixed.shares[1]:.0%} instead of {share:.0%} and {1 - share:.0%}; give other --rows, "
            "or sources with more and shorter episodes."
        )
    return mixed


class _Log:
    """One source: its episodes, and the picked ones among them."""

    def __init__(self, source: str | os.PathLike[str]) -> None:
        self.opened = describe(open_source(source, verify=True))
        stops, returns, self.rows, total = [], [], 0, 0.0
        for block, ends in self._marked(BLOCK):
            sums = np.cumsum(block.rewards, dtype=np.float64)
            for end in np.flatnonzero(ends).tolist():
                stops.append(self.rows + end + 1)
                returns.append(total + float(sums[end]))
                total = -float(sums[end])
            total += float(sums[-1])
            self.rows += len(block)
        if self.rows == 0:
            raise PbrlError(f"'{self.name}' has no rows.")
        if not stops or stops[-1] < self.rows:  # cut where the log stops
            stops.append(self.rows)
            returns.append(total)
        self.lengths = np.diff(stops, prepend=0)
        self.returns = np.array(returns)
        self.picked: NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def name(self) -> str:
        return self.opened.metadata.source or self.opened.metadata.name

    def pick(self, wanted: float, rng: np.random.Generator) -> None:
        """Draw episodes until their rows are as near to ``wanted`` as whole episodes come."""
        if wanted > self.rows + 0.5:
            raise PbrlError(
                f"'{self.name}' has {self.rows:,} rows, {wanted:,.0f} are asked of it; give fewer "
                "--rows, or leave them out."
            )
        order = rng.permutation(len(self.lengths))
        count = int(np.abs(np.cumsum(self.lengths[order]) - wanted).argmin()) + 1
        self.picked = np.sort(order[:count])

    def part(self) -> Part:
        """What was picked."""
        return Part(
            self.opened.metadata.name,
            int(self.lengths[self.picked].sum()),
            len(self.picked),
            float(self.returns[self.picked].mean()),
            len(self.lengths),
        )

    def _marked(self, size: int) -> Iterator[tuple[Rows, Bools]]:
        """The rows with the ends of their episodes, ``[N]`` each."""
        horizon = self.opened.metadata.horizon
        counter = None
        if not self.opened.has_timeouts and horizon is not None:
            counter = StepCounter(horizon)  # as D4RL does where nothing is recorded
        for block in self.opened.blocks(size):
            timeouts = counter.timeouts(block.terminals) if counter else block.timeouts
            yield block, block.terminals if timeouts is None else block.terminals | timeouts

    def blocks(self, has_next: bool, size: int) -> Iterator[Rows]:
        """The rows of the picked episodes, each with a marked end."""
        stops = np.cumsum(self.lengths)
        keep, ends = np.zeros(self.rows, np.bool_), np.zeros(self.rows, np.bool_)
        ends[stops - 1] = True
        for i in self.picked:
            keep[stops[i] - self.lengths[i] : stops[i]] = True
        start = 0
        for block in self.opened.blocks(size):
            place = slice(start, start + len(block))
            # Every episode ends: for good, or because it was cut.
            timeouts = ends[place] & ~block.terminals
            following = block.next_observations if has_next else None
            marked = replace(block, timeouts=timeouts, next_observations=following)
            if keep[place].any():
                yield marked[keep[place]]
            start += len(block)


def _blocks(logs: Sequence[_Log], has_next: bool, size: int) -> Iterator[Rows]:
    for log in logs:
        yield from log.blocks(has_next, size)


def _common(first: RowSource, second: RowSource) -> tuple[Metadata, tuple[str, ...]]:
    """What both sources say; a contradiction about the task is refused, the rest left out."""
    names = first.metadata.source, second.metadata.source
    sizes = [(s.observation_dim, s.action_dim) for s in (first, second)]
    if sizes[0] != sizes[1]:
        raise PbrlError(
            f"'{names[0]}' has {sizes[0][0]} observation and {sizes[0][1]} action dimensions, "
            f"'{names[1]}' {sizes[1][0]} and {sizes[1][1]}; only logs of one task can be mixed."
        )
    one, two = first.metadata, second.metadata
    for key in ("env_id", "action_low", "action_high", "observation_names", "action_names"):
        mine, its = getattr(one, key), getattr(two, key)
        known = mine is not None and its is not None and len(mine) and len(its)
        if known and not np.array_equal(mine, its):
            raise PbrlError(
                f"'{names[0]}' and '{names[1]}' have different {key.replace('_', ' ')} "
                f"({_short(mine)} and {_short(its)}); only logs of one task can be mixed."
            )
    notes = []
    if first.has_next != second.has_next:
        bare = names[1] if first.has_next else names[0]
        notes.append(
            f"'{bare}' has no next observations of its own, so the mixture has none: they are the "
            "following row's."
        )
    scores, source = one.reference_scores or two.reference_scores, one.score_source
    if one.reference_scores is None:
        source = two.score_source
    elif two.reference_scores not in (None, one.reference_scores):
        scores = source = None
        notes.append("The sources count returns differently (0 and 100), so the mixture says none.")
    return Metadata(
        "",
        env_id=one.env_id or two.env_id,
        reference_scores=scores,
        score_source=source,
        action_low=two.action_low if one.action_low is None else one.action_low,
        action_high=two.action_high if one.action_high is None else one.action_high,
        horizon=one.horizon if one.horizon == two.horizon else None,
        shift="d4rl" if one.shift == two.shift == "d4rl" else "episode",
        prefer_file=one.prefer_file and two.prefer_file,
        observation_names=one.observation_names or two.observation_names,
        action_names=one.action_names or two.action_names,
    ), tuple(notes)


def _short(value: object) -> str:
    return str(value)[:60]


def _recipe(logs: Sequence[_Log], parts: Sequence[Part], asked: dict[str, Any]) -> dict[str, Any]:
    sources = [
        {
            "name": part.name,
            "rows": part.rows,
            "episodes": part.episodes,
            "of_episodes": part.episodes_in_all,
            "return_mean": part.return_mean,
            "recipe": log.opened.metadata.recipe,
        }
        for log, part in zip(logs, parts, strict=True)
    ]
    origins = [str(log.opened.metadata.recipe.get("provenance", "")) for log in logs]
    told = " and ".join(f"{part.rows:,} rows of {part.name}" for part in parts)
    kind = "regenerated, mixed" if any("regenerated" in origin for origin in origins) else "mixed"
    return {
        "made_by": "pbrl data mix",
        **asked,
        "sources": sources,
        "provenance": f"{kind} by pbrl: {told}, whole episodes",
    }
