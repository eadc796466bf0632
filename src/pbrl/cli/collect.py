"""``pbrl data collect``: make datasets by running policies in an environment."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.table import Table

from pbrl.cli.parse import parse
from pbrl.console import plain_console
from pbrl.errors import PbrlError

if TYPE_CHECKING:
    from pbrl.collect import Collected


@dataclass(frozen=True)
class Options:
    """Make D4RL-style datasets in any continuous environment.

    Trains SAC online and records random, medium, medium-replay, medium-expert and expert data; or,
    with --policy, plays a given policy. Killed and started again with the same settings, it goes on
    where it was.
    """

    env: Annotated[str | None, tyro.conf.Positional] = None
    """The environment's id; may be left out with --policy, which knows its own."""
    tiers: str = "random,medium,medium-replay,medium-expert,expert"
    """Which datasets to make, with commas between."""
    steps: int = 100_000
    """Rows of each dataset (medium-replay: what SAC had seen by then)."""
    train_steps: int | None = None
    """Environment steps of SAC's training; as many as --steps when left out."""
    start_steps: int = 1000
    """Uniform actions before SAC's policy takes over."""
    seed: int = 0
    """Of everything random."""
    out: Path = Path("collected")
    """A directory; for a single dataset also a file (.hdf5, .npz, .csv, .parquet or .store), or
    minari:NAME/my-set-v0 for one that Minari loads by this id."""
    format: str = "hdf5"
    """Of the files in the directory, by suffix: hdf5 (D4RL's layout), npz, csv, parquet, store (for
    data beyond memory), or another that is installed."""
    policy: Path | None = None
    """Play this policy instead: a run directory, or a D4RL HDF5 file with a stored policy."""
    deterministic: bool = False
    """With --policy: mean actions instead of sampled ones."""
    hidden: tuple[int, ...] = (256, 256)
    """Hidden units of SAC's networks."""
    learning_rate: float = 3e-4
    """Of SAC's networks."""
    batch_size: int = 256
    """Of SAC's updates."""
    threads: int = 0
    """CPU threads; 0 takes what is free."""
    overwrite: bool = False
    """Replace datasets that were made with other settings."""


def main(argv: list[str]) -> int:
    """Entry point of ``pbrl data collect``."""
    options = parse(Options, argv, "pbrl data collect")
    if options.threads < 0:
        raise PbrlError(f"--threads must not be negative, got {options.threads}.")
    if options.policy is None and options.env is None:
        raise PbrlError("Name an environment (pbrl data collect Hopper-v5 …), or give --policy.")

    from pbrl.collect import collect, collect_policy  # after parsing, so that --help stays quick

    try:
        if options.policy is not None:
            made = [
                collect_policy(
                    options.policy,
                    options.env,
                    steps=options.steps,
                    seed=options.seed,
                    out=options.out,
                    file_format=options.format,
                    deterministic=options.deterministic,
                    threads=options.threads,
                    overwrite=options.overwrite,
                )
            ]
        else:
            assert options.env is not None
            made = collect(
                options.env,
                [tier.strip() for tier in options.tiers.split(",") if tier.strip()],
                steps=options.steps,
                train_steps=options.train_steps,
                start_steps=options.start_steps,
                seed=options.seed,
                out=options.out,
                file_format=options.format,
                hidden=options.hidden,
                learning_rate=options.learning_rate,
                batch_size=options.batch_size,
                threads=options.threads,
                overwrite=options.overwrite,
            )
    except KeyboardInterrupt:
        print("pbrl: interrupted; the same command goes on from here.", file=sys.stderr)
        return 130
    plain_console().print(render(made))
    return 0


def render(made: list[Collected]) -> Table:
    """What was made, as a table."""
    table = Table()
    table.add_column("dataset")
    for name in ("rows", "episodes", "mean return"):
        table.add_column(name, justify="right")
    table.add_column("file", overflow="fold")
    for item in made:
        table.add_row(
            item.tier + ("" if item.fresh else " (there already)"),
            f"{item.rows:,}",
            f"{item.episodes:,}",
            f"{item.return_mean:,.1f}",
            str(item.path),
        )
    return table
