"""``pbrl data suite``: the fifteen Gym sets of D4RL, made again."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from pbrl.cli.parse import parse
from pbrl.console import plain_console
from pbrl.errors import PbrlError


@dataclass(frozen=True)
class Options:
    """Make the sets of a suite: d4rl-gym has hopper, halfcheetah and walker2d, each random, medium,
    medium-replay, medium-expert and expert.

    All in D4RL's physics, each labelled "regenerated" with its recipe and its mean return beside
    that of D4RL's set. What is finished is reused, and what was stopped goes on.
    """

    name: Annotated[str, tyro.conf.Positional]
    """The suite: d4rl-gym."""
    out: Path = Path("d4rl-gym")
    """Its directory."""
    rows: int = 200_000
    """Rows of each set; medium-replay has as many as SAC needed."""
    policies: tuple[Path, ...] = ()
    """Directories with D4RL HDF5 files that store the medium and expert policies
    (hopper_medium-v2.hdf5, hopper-expert.hdf5, …); without any, SAC trains them."""
    tasks: str = "hopper,halfcheetah,walker2d"
    """Only these, with commas between."""
    tiers: str = "random,medium,medium-replay,medium-expert,expert"
    """Only these, with commas between; medium-expert brings medium and expert along."""
    seed: int = 0
    """Of everything random."""
    train_steps: int = 1_000_000
    """At most so many steps of a task's SAC; it stops when no set needs more."""
    start_steps: int = 1000
    """Uniform actions before SAC's policy takes over."""
    replay_until: float = 1.0
    """How good SAC's policy must become for medium-replay to end: 1 is the mean return of D4RL's
    medium set, 0.5 half the way there from a random policy; 0 does not wait, for trying out."""
    hidden: tuple[int, ...] = (256, 256)
    """Hidden units of SAC's networks."""
    learning_rate: float = 3e-4
    """Of SAC's networks."""
    batch_size: int = 256
    """Of SAC's updates."""
    threads: int = 1
    """CPU threads; 0 takes what is free."""


def main(argv: list[str]) -> int:
    """Entry point of ``pbrl data suite``."""
    options = parse(Options, argv, "pbrl data suite")
    if options.threads < 0:
        raise PbrlError(f"--threads must not be negative, got {options.threads}.")

    from pbrl.collect.suite import SuiteConfig, make_suite  # so that --help stays quick
    from pbrl.training.machine import use_threads

    use_threads(options.threads)
    console = plain_console(stderr=True)
    try:
        made = make_suite(
            options.name,
            options.out,
            SuiteConfig(
                options.rows,
                options.seed,
                options.train_steps,
                options.start_steps,
                options.replay_until,
                options.hidden,
                options.learning_rate,
                options.batch_size,
            ),
            tasks=_words(options.tasks),
            tiers=_words(options.tiers),
            policies=options.policies,
            say=lambda sentence: console.print(sentence, soft_wrap=True),
        )
    except KeyboardInterrupt:
        print("pbrl: interrupted; the same command goes on from here.", file=sys.stderr)
        return 130
    table = Table(box=None, pad_edge=False)
    table.add_column("set (regenerated)", no_wrap=True)
    for name in ("rows", "episodes", "return (D4RL)", "score (D4RL)"):
        table.add_column(name, justify="right", no_wrap=True)
    for item in made:
        mine, theirs = item.scores
        table.add_row(
            item.name + ("" if item.made.fresh else " *"),
            f"{item.made.rows:,}",
            f"{item.made.episodes:,}",
            f"{item.made.return_mean:,.0f} ({item.d4rl:,.0f})",
            f"{mine:.1f} ({theirs:.1f})",
        )
    plain_console().print(table)
    if not all(item.made.fresh for item in made):
        plain_console().print("* there already")
    plain_console().print(f"Written: {options.out}", soft_wrap=True)
    return 0


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
