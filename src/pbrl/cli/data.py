"""``pbrl data``: inspect, convert, list, download and collect datasets."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from pbrl.cli.parse import parse
from pbrl.console import plain_console
from pbrl.errors import unknown_name

COMMANDS = {
    "inspect": "what a dataset holds: episodes, returns, ranges, duplicates, NaN, coverage",
    "convert": "rewrite a dataset in another format, by suffix",
    "mix": "whole episodes of two datasets as one, half and half or otherwise",
    "list": "the datasets known by name",
    "download": "fetch a D4RL or Minari dataset, resumable and verified",
    "collect": "make datasets by running policies in an environment",
    "suite": "make D4RL's fifteen Gym sets again: three tasks, five tiers",
}

NextObservations = Literal["auto", "file", "shift"]


@dataclass(frozen=True)
class Reading:
    """How to read the dataset."""

    columns: tuple[str, ...] = ()
    """For CSV and Parquet, other names of columns: ROLE=NAME, ROLE=NAME,NAME or ROLE=PREFIX*; roles
    are observations, actions, rewards, terminals, timeouts, next_observations, episode."""
    next_observations: NextObservations = "auto"
    """file: the log's own; shift: the following row's; auto: decide, and say so."""
    missing: Literal["refuse", "split", "drop-episode", "forward-fill"] = "refuse"
    """Cells without a number: split (their rows are left out, and no transition reaches across),
    drop-episode (their episodes are) or forward-fill (the last reading holds)."""
    env_id: str | None = None
    """The environment the data are from, where they do not tell."""


@dataclass(frozen=True)
class Inspect:
    """Show what a dataset holds."""

    dataset: Annotated[str, tyro.conf.Positional]
    """Embedded, D4RL or Minari name, or a path."""
    html: Path | None = None
    """Also write a page with pictures."""
    json: Path | None = None
    """Also write the numbers as JSON."""
    reading: Annotated[Reading, tyro.conf.arg(name="")] = field(default_factory=Reading)


@dataclass(frozen=True)
class Convert:
    """Rewrite a dataset; the destination's suffix says the format."""

    source: Annotated[str, tyro.conf.Positional]
    """Embedded, D4RL or Minari name, or a path."""
    destination: Annotated[Path, tyro.conf.Positional]
    """A file that ends in .hdf5, .h5, .npz, .csv, .parquet or the suffix of an added format, or a
    directory for a .store (data larger than memory), or minari:NAME/my-set-v0 for a dataset that
    Minari loads by this id."""
    overwrite: bool = False
    """Replace the destination if it exists."""
    clip_actions: bool = False
    """Clip actions to their bounds."""
    action_low: tuple[float, ...] | None = None
    """Lower bounds of the actions: one number, or one a dimension."""
    action_high: tuple[float, ...] | None = None
    """Upper bounds of the actions."""
    reading: Annotated[Reading, tyro.conf.arg(name="")] = field(default_factory=Reading)


@dataclass(frozen=True)
class List:
    """Show the datasets known by name."""

    pattern: Annotated[str, tyro.conf.Positional] = ""
    """Only names that contain this."""


@dataclass(frozen=True)
class Download:
    """Fetch a dataset: resumable, verified, complete or not at all."""

    name: Annotated[str, tyro.conf.Positional]
    """A D4RL name (pbrl data list) or a Minari id such as D4RL/door/human-v2."""
    mirror: str | None = None
    """Base URL of a copy of D4RL's offline_rl directory; also PBRL_D4RL_MIRROR."""
    directory: Path | None = None
    """Where to put it; default: PBRL_DATA_DIR or the platform's cache directory."""
    attempts: int = 4
    """Connections to try in a row without any progress; ten times as many in all."""
    timeout: float = 30.0
    """Seconds without a byte, or with less than 1 KB/s, after which a connection is broken."""


def main(argv: list[str]) -> int:
    """Entry point of ``pbrl data``."""
    if not argv or argv[0] in ("-h", "--help"):
        _print_help()
        return 0
    command, rest = argv[0], argv[1:]
    if command not in COMMANDS:
        raise unknown_name("command 'pbrl data'", command, COMMANDS)
    if command == "collect":
        from pbrl.cli.collect import main as collect

        return collect(rest)
    if command == "mix":
        from pbrl.cli.mix import main as mix

        return mix(rest)
    if command == "suite":
        from pbrl.cli.suite import main as suite

        return suite(rest)
    options: dict[str, tuple[type, Callable[[Any], int]]] = {
        "inspect": (Inspect, _inspect),
        "convert": (Convert, _convert),
        "list": (List, _list),
        "download": (Download, _download),
    }
    kind, run = options[command]
    return run(parse(kind, rest, f"pbrl data {command}"))


def _print_help() -> None:
    console = plain_console()
    console.print("usage: pbrl data COMMAND [OPTIONS]\n")
    table = Table(box=None, show_header=False)
    for name, text in COMMANDS.items():
        table.add_row(f"  {name}", text)
    console.print(table)
    console.print("\nEach command has --help.")


def _inspect(options: Inspect) -> int:
    from pbrl.data.loading import open_source, parse_columns
    from pbrl.data.summary import summarize

    reading = options.reading
    # NaN are shown here rather than refused; a store's checksums are always compared.
    opened = open_source(options.dataset, parse_columns(reading.columns), strict=False, verify=True)
    summary = summarize(opened, next_observations=reading.next_observations, env_id=reading.env_id)
    _print_summary(summary)
    if reading.missing != "refuse":
        _print_reading(options)
    if options.json is not None:
        _write(options.json, json.dumps(summary.to_json(), indent=1) + "\n")
    if options.html is not None:
        from pbrl.data.summary_html import summary_page

        _write(options.html, summary_page(summary))
        plain_console().print(f"Pictures: {options.html}", soft_wrap=True)
    return 0


def _print_reading(options: Inspect) -> None:
    """What --missing leaves of the data, in the words that training uses."""
    from pbrl.data.loading import load_dataset, parse_columns

    reading = options.reading
    loaded = load_dataset(
        options.dataset,
        next_observations=reading.next_observations,
        columns=parse_columns(reading.columns),
        env_id=reading.env_id,
        missing=reading.missing,
    )
    mean = loaded.behaviour_return_mean()
    console = plain_console()
    console.print(f"• {loaded.info.notes[-1]} Their mean is {mean:.4g}.")


def _write(path: Path, text: str) -> None:
    from pbrl.training.files import cannot_write, write_text

    if path.is_file() or not path.exists():
        write_text(path, text)
        return
    try:  # /dev/stdout is not replaced
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot_write(path, error) from error


def _print_summary(summary: Any) -> None:
    from pbrl.data.column_stats import quantiles

    console = plain_console()
    metadata = summary.metadata
    about = Table(title=metadata.name, title_justify="left", show_header=False)
    about.add_column(style="bold")
    about.add_column(overflow="fold")
    timeouts = "not recorded" if summary.timeouts is None else f"{summary.timeouts:,}"
    for name, value in (
        ("source", metadata.source),
        ("transitions", f"{summary.transitions:,} of {summary.rows:,} raw rows"),
        ("episodes", f"{len(summary.lengths):,}"),
        ("terminals", f"{summary.terminals:,}"),
        ("timeouts", timeouts),
        ("environment", metadata.env_id or "unknown (--env-id names it)"),
        ("reference scores", _scores(metadata)),
        ("dimensions", f"{len(summary.observations.names)} / {len(summary.actions.names)}"),
        ("duplicates", f"{summary.duplicates:,} of {summary.hashed:,}"),
        ("coverage", _coverage(summary)),
    ):
        about.add_row(name, value)
    console.print(about)
    episodes = Table()
    columns = list(quantiles(summary.lengths))
    for column in ("", *columns):
        episodes.add_column(column, justify="right")
    for name, values in (("return", summary.returns), ("length", summary.lengths)):
        episodes.add_row(name, *(_short(value) for value in quantiles(values).values()))
    console.print(episodes)
    ranges = Table()
    for column in ("column", "min", "max", "mean", "std", "NaN/Inf"):
        ranges.add_column(column, justify="left" if column == "column" else "right")
    for stats in (summary.observations, summary.actions, summary.rewards):
        for entry in stats.to_json():
            bad = Text(f"{entry['bad']:,}", style="red" if entry["bad"] else "")
            numbers = (_short(entry[key]) for key in ("min", "max", "mean", "std"))
            ranges.add_row(entry["name"], *numbers, bad)
        ranges.add_section()
    console.print(ranges)
    for sentence in (*metadata.notes, *summary.findings()):
        console.print(f"• {sentence}")


def _scores(metadata: Any) -> str:
    if metadata.reference_scores is None:
        return "unknown"
    low, high = metadata.reference_scores
    return f"{low:g} -> 0, {high:g} -> 100 ({metadata.score_source})"


def _coverage(summary: Any) -> str:
    share = 100 * summary.coverage.mean()
    dims = f"{summary.effective_dims} of {len(summary.observations.names)}"
    return (
        f"actions visit {share:.0f} % of their range; observations vary in {dims} directions "
        "(95 % of the variance)"
    )


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"


def _convert(options: Convert) -> int:
    from pbrl.data.convert import convert
    from pbrl.data.loading import parse_columns

    console = plain_console()
    reading = options.reading
    with Progress(disable=not sys.stderr.isatty(), console=plain_console(stderr=True)) as bar:
        task = bar.add_task("Converting", total=None)
        done = convert(
            options.source,
            options.destination,
            overwrite=options.overwrite,
            next_observations=reading.next_observations,
            clip_actions=options.clip_actions,
            action_low=options.action_low,
            action_high=options.action_high,
            columns=parse_columns(reading.columns),
            env_id=reading.env_id,
            missing=reading.missing,
            progress=lambda rows, total: bar.update(task, completed=rows, total=total),
        )
    for note in done.notes:
        console.print(f"• {note}")
    console.print(f"{done.rows:,} rows written to {done.path}", soft_wrap=True)
    return 0


def _list(options: List) -> int:
    from pbrl.data.catalogue import catalogue
    from pbrl.data.download import cache_directory, cached_file
    from pbrl.data.loading import EMBEDDED
    from pbrl.data.minari import local_ids

    # A pipe has no width; nothing is cut there.
    console = plain_console() if sys.stdout.isatty() else plain_console(width=120)
    table = Table(title="Datasets by name", title_justify="left")
    for column, side in (
        ("name", "left"),
        ("kind", "left"),
        ("environment", "left"),
        ("0 / 100 at return", "right"),
        ("MB", "right"),
        ("here", "left"),
    ):
        table.add_column(column, justify=side, no_wrap=column == "name")  # type: ignore[arg-type]
    shown = 0
    for name in EMBEDDED:
        if options.pattern in name:
            table.add_row(name, "embedded", "", "", "", "yes")
            shown += 1
    for entry in catalogue().values():
        if options.pattern not in entry.name:
            continue
        low, high = entry.environment.reference_scores
        here = "yes" if cached_file(entry).exists() else ""
        size = f"{entry.size / 1e6:.1f}"
        scores = f"{low:.1f} / {high:.1f}"
        table.add_row(entry.name, "D4RL", entry.environment.env_id, scores, size, here)
        shown += 1
    for name in local_ids():
        if options.pattern in name:
            table.add_row(name, "Minari", "", "", "", "yes")
            shown += 1
    if not shown:
        known = [*EMBEDDED, *catalogue(), *local_ids()]
        raise unknown_name("dataset", options.pattern, known)
    console.print(table)
    console.print(f"Downloads are kept in {cache_directory()}", soft_wrap=True)
    return 0


def _download(options: Download) -> int:
    from pbrl.data.catalogue import catalogue
    from pbrl.data.download import download
    from pbrl.data.minari import download_minari

    console = plain_console()
    entry = catalogue().get(options.name)
    if entry is None:
        if "/" not in options.name:
            raise unknown_name("dataset", options.name, catalogue())
        path = download_minari(options.name)
        console.print(f"{options.name}: {path}", soft_wrap=True)
        return 0
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    rates = (TransferSpeedColumn(), TimeRemainingColumn())
    quiet = not sys.stderr.isatty()
    with Progress(*columns, *rates, disable=quiet, console=plain_console(stderr=True)) as bar:
        task = bar.add_task(entry.name, total=entry.size)
        path = download(
            entry,
            directory=options.directory,
            mirror=options.mirror,
            attempts=options.attempts,
            timeout=options.timeout,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    console.print(f"{entry.name}: {path} (size and SHA-256 verified)", soft_wrap=True)
    return 0
