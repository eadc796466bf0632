"""``pbrl reproduce``: one of the paper's tables or figures, on any budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from pbrl.cli.parse import parse
from pbrl.cli.sweep import check_resources, print_plan, resources_of
from pbrl.console import plain_console
from pbrl.errors import PbrlError


@dataclass(frozen=True)
class Options:
    """Make a table or figure of the paper: train what is missing, reuse what is there, draw.

    'pbrl reproduce list' names and describes all of them. Writes results.json, table.md and
    figure.png with the paper's numbers beside ours; runs go to OUT/runs and are known again by the
    content of their settings and data. Exit code 0 when every run is done, 1 otherwise.
    """

    name: Annotated[str, tyro.conf.Positional] = "list"
    """Which table or figure, or list."""
    budget: Literal["paper", "small", "smoke", "hour"] = "small"
    """paper: the paper's protocol; small: small networks, short runs, named on the figure; smoke: a
    minute, proves the plumbing; hour, for table1: systems at an equal time of one core."""
    suite: Path | None = None
    """With the hour budget: directory of the fifteen sets, from 'pbrl data suite d4rl-gym'."""
    minutes: float = 30.0
    """With the hour budget: of updates of each run, on a quiet core; turned into steps by the
    speeds that the package has."""
    datasets: tuple[str, ...] = ()
    """Other data than the budget's: names or paths."""
    seeds: int = 0
    """Another number of seeds; 0: the budget's."""
    address: str | None = None
    """Ray cluster to use (auto, or ray://HOST:10001); this machine when omitted."""
    out: Path = Path("reproduce")
    """Directory of runs and results; on a cluster one that all machines see."""
    workers: int = 1
    """Runs at a time on this machine; more than one uses Ray; 0: one a core."""
    threads: int = 1
    """CPU threads of a run."""
    memory_gb: float = 1.0
    """Memory a run asks the cluster for."""
    gpus: float = 0.0
    """GPUs a run asks the cluster for."""
    retries: int = 3
    """Times a run is started again after its worker was lost."""
    dry_run: bool = False
    """Only print what would run, and the hours it takes at this machine's speed."""


def main(argv: list[str]) -> int:
    """Entry point of ``pbrl reproduce``."""
    options = parse(Options, argv, "pbrl reproduce")
    # After parsing, so that --help stays quick.
    from pbrl.experiments.hour import HOUR, suite_datasets
    from pbrl.experiments.reproduce import experiment_on, plan_jobs, plan_of, reproduce

    console = plain_console()
    if options.name == "list":
        _list(console)
        return 0
    check_resources(options.workers, options.threads, options.memory_gb, options.retries)
    if options.suite is not None and options.budget != HOUR.name:
        raise PbrlError("--suite is of the hour budget; name data with --datasets.")
    chosen = experiment_on(options.name, options.budget)
    datasets = suite_datasets(options.suite, options.datasets)
    if options.dry_run:
        plan = plan_of(
            chosen, options.budget, datasets, options.seeds, options.minutes, download=False
        )
        for sentence in plan.reductions:
            console.print(f"- {sentence}", soft_wrap=True)
        if plan.planned:
            jobs = plan_jobs(plan, options.out, options.threads, download=False)
            print_plan(jobs, options.workers, console)
        else:
            console.print(f"{chosen.name} needs no training runs; it takes seconds.")
        return 0
    made = reproduce(
        options.name,
        options.budget,
        datasets=datasets,
        seeds=options.seeds,
        minutes=options.minutes,
        out=options.out,
        resources=resources_of(
            options.workers, options.address, options.memory_gb, options.gpus, options.retries
        ),
        threads=options.threads,
        say=lambda sentence: console.print(sentence, soft_wrap=True),
    )
    console.print(f"{chosen.title} ({chosen.place}), budget {options.budget}", style="bold")
    console.print(Markdown(made.table))
    if chosen.claim:
        console.print(f"The paper says: {chosen.claim}.", soft_wrap=True)
    for sentence in made.results["reductions"]:
        console.print(f"- {sentence}", soft_wrap=True, style="dim")
    files = "figure.png, table.md, results.json" + ", page.html" * (options.budget == HOUR.name)
    console.print(f"Written: {made.directory}/{files}", soft_wrap=True)
    bad = [outcome for outcome in made.outcomes if outcome.result != "done"]
    for outcome in bad:
        console.print(
            f"{outcome.result}: {outcome.job.run_dir.name}: {outcome.message}",
            soft_wrap=True,
            style="red",
        )
    return 1 if bad else 0


def _list(console: Console) -> None:
    from pbrl.experiments.budgets import BUDGETS
    from pbrl.experiments.definitions import experiments
    from pbrl.experiments.hour import HOUR

    table = Table(title="pbrl reproduce NAME", title_justify="left")
    for column in ("name", "what", "where", "the paper says"):
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for item in experiments().values():
        table.add_row(item.name, item.title, item.place, item.claim)
    console.print(table)
    for budget in (*BUDGETS.values(), HOUR):
        console.print(f"--budget {budget.name}: {budget.purpose}")
