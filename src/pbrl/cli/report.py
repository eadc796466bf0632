"""``pbrl report``: one HTML page from runs, that opens without a network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pbrl.cli.parse import parse
from pbrl.console import plain_console
from pbrl.errors import PbrlError


@dataclass(frozen=True)
class Options:
    """Write one self-contained HTML page about runs: curves, scores, uncertainty, statistics, cost.

    Runs with the same settings but other seeds make one curve with a band.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run directories, or directories with runs below them."""
    out: Path = Path("report.html")
    """Where to write the page."""
    title: str = "pbrl report"
    """Title of the page."""


def main(argv: list[str]) -> int:
    """Entry point of ``pbrl report``."""
    options = parse(Options, argv, "pbrl report")
    if not options.runs:
        raise PbrlError("Give at least one run directory, for example: pbrl report runs")
    from pbrl.reports.page import write_report  # after parsing, so that --help stays quick

    count = write_report(options.runs, options.out, options.title)
    size = options.out.stat().st_size / 1e6
    plain_console().print(f"{options.out}: {count} runs, {size:.1f} MB.")
    return 0
