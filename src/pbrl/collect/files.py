"""The files that collecting leaves: where they go, what they say, and whether they are there."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pbrl.collect.rollouts import longest_episode
from pbrl.console import plain_console
from pbrl.data.formats import stem_of, suffix_of, suffixes
from pbrl.data.loading import open_source
from pbrl.data.minari_writer import is_minari, minari_destination
from pbrl.data.recorder import Recorder
from pbrl.data.rows import BLOCK, Metadata, Rows
from pbrl.data.store import is_store
from pbrl.envs.player import Player
from pbrl.errors import PbrlError, unknown_name
from pbrl.training.progress import TrainingProgress
from pbrl.training.run import versions


@dataclass(frozen=True)
class Collected:
    """A dataset that was made.

    Attributes:
        tier: its name, ``policy`` where a given policy was played.
        path: the file or store.
        rows: its rows.
        episodes: its episodes, a cut one at the end included.
        return_mean: mean return of its episodes.
        fresh: whether it was made now, not found complete.
    """

    tier: str
    path: Path
    rows: int
    episodes: int
    return_mean: float
    fresh: bool = True


def places(
    env_id: str, tiers: list[str], out: Path, file_format: str, *, prefix: bool = True
) -> tuple[Path, dict[str, Path]]:
    """Where the training and each dataset go."""
    suffix = f".{file_format}"
    if suffix not in suffixes():
        raise unknown_name("format", file_format, [known[1:] for known in suffixes()])
    short = env_id.split("/")[-1].split(":")[-1]
    minari = minari_destination(out)
    if minari is not None or suffix_of(out):
        if len(tiers) > 1:
            raise PbrlError(
                f"--out {out} names one {'file' if minari is None else 'dataset'}, but "
                f"{len(tiers)} datasets are asked for; give a directory, or one tier."
            )
        if minari is not None:  # the training is no dataset of Minari's
            return Path("collected") / f"{short}-sac", {tiers[0]: out}
        return out.parent / f"{short}-sac", {tiers[0]: out}
    if out.exists() and not out.is_dir():
        raise PbrlError(f"--out {out} is a file; give a directory.")
    names = {tier: f"{short}-{tier}" if prefix else tier for tier in tiers}
    return out / f"{short}-sac", {tier: out / (name + suffix) for tier, name in names.items()}


def describe(
    player: Player,
    path: Path,
    recipe: dict[str, Any],
    scores: tuple[float, float] | None = None,
) -> Metadata:
    """What a file says besides its rows.

    Args:
        player: of the environment.
        path: the file.
        recipe: how it is made; ``steps`` are its rows.
        scores: measured returns that count as 0 and 100.
    """
    horizon = longest_episode(player)
    return Metadata(
        name=stem_of(path),
        source=str(path),
        env_id=player.env_id,
        reference_scores=scores,
        score_source=None if scores is None else "pbrl data collect",
        action_low=player.low,
        action_high=player.high,
        horizon=horizon if horizon > 1 else None,
        recipe=recipe | {"versions": versions()},
    )


def record(
    tier: str,
    path: Path,
    player: Player,
    metadata: Metadata,
    rows: Iterable[Rows],
    overwrite: bool,
    quiet: bool,
) -> Collected:
    """Write a dataset, or find it complete."""
    minari = minari_destination(path)
    there = path.is_file() or is_store(path) if minari is None else is_minari(minari)
    if there and not overwrite:
        return _found(tier, path, metadata)
    totals = Totals()
    recorder = Recorder(
        path, player.observation_dim, player.action_dim, metadata=metadata, overwrite=overwrite
    )
    progress = TrainingProgress(metadata.recipe["steps"], 0, plain_console(stderr=True), quiet)
    with closing(progress), recorder:
        for block in rows:
            recorder.append(block)
            totals.add(block)
            progress.update(totals.rows)
    return Collected(tier, path, totals.rows, len(totals.returns), totals.mean)


def _found(tier: str, path: Path, metadata: Metadata) -> Collected:
    """A dataset that is there already, if it was made with the same settings."""
    if _without_versions(open_source(path).metadata.recipe) != _without_versions(metadata.recipe):
        raise PbrlError(
            f"'{path}' was made with other settings; give --overwrite to replace it, or "
            "another --out."
        )
    return existing(tier, path)


def existing(tier: str, path: Path) -> Collected:
    """A dataset that is there already, counted again."""
    totals = Totals()
    for block in open_source(path).blocks(BLOCK):
        totals.add(block)
    return Collected(tier, path, totals.rows, len(totals.returns), totals.mean, fresh=False)


def _without_versions(recipe: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in recipe.items() if key != "versions"}


class Totals:
    """Rows, and returns of the episodes, of blocks as they come."""

    def __init__(self) -> None:
        self.rows, self.running = 0, 0.0
        self.returns: list[float] = []

    def add(self, rows: Rows) -> None:
        """Count the next block."""
        ends = rows.terminals if rows.timeouts is None else rows.terminals | rows.timeouts
        start = 0
        for end in np.flatnonzero(ends).tolist():
            self.returns.append(self.running + float(rows.rewards[start : end + 1].sum()))
            self.running, start = 0.0, end + 1
        self.running += float(rows.rewards[start:].sum())
        self.rows += len(rows)

    @property
    def mean(self) -> float:
        """Mean return of the episodes that ended."""
        return float(np.mean(self.returns)) if self.returns else self.running
