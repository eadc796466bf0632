"""``pbrl data mix``: two datasets as one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from pbrl.cli.parse import parse
from pbrl.console import plain_console


@dataclass(frozen=True)
class Options:
    """Write whole episodes of two datasets into one, by default half and half.

    Episodes are drawn at random; those of the first source stand before those of the second. The
    new file says what it is made of.
    """

    first: Annotated[str, tyro.conf.Positional]
    """Embedded, D4RL or Minari name, or a path."""
    second: Annotated[str, tyro.conf.Positional]
    """Likewise."""
    destination: Annotated[Path, tyro.conf.Positional]
    """The new file or store; its suffix says the format."""
    share: float = 0.5
    """Of the rows that come from the first source."""
    rows: int | None = None
    """Of the mixture, to the nearest whole episode; as many as the sources allow when omitted."""
    seed: int = 0
    """Of the draw of episodes."""
    overwrite: bool = False
    """Replace the destination if it exists."""


def main(argv: list[str]) -> int:
    """Entry point of ``pbrl data mix``."""
    options = parse(Options, argv, "pbrl data mix")
    from pbrl.data.mix import mix  # after parsing, so that --help stays quick

    mixed = mix(
        options.first,
        options.second,
        options.destination,
        share=options.share,
        rows=options.rows,
        seed=options.seed,
        overwrite=options.overwrite,
    )
    table = Table("source", "rows", "share", "episodes", "mean return")
    for part, share in zip(mixed.parts, mixed.shares, strict=True):
        table.add_row(
            part.name,
            f"{part.rows:,}",
            f"{share:.1%}",
            f"{part.episodes:,} of {part.episodes_in_all:,}",
            f"{part.return_mean:,.1f}",
        )
    console = plain_console()
    console.print(table)
    for note in mixed.notes:
        console.print(f"• {note}")
    console.print(f"{mixed.rows:,} rows written to {options.destination}", soft_wrap=True)
    return 0
