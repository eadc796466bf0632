"""``pbrl sweep``: a grid of runs on this machine or on a Ray cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from pbrl.cli.parse import parse
from pbrl.console import plain_console
from pbrl.errors import PbrlError

if TYPE_CHECKING:
    from pbrl.sweep.jobs import Job
    from pbrl.sweep.runner import Outcome, Resources


@dataclass(frozen=True)
class Options:
    """Train every combination of datasets, algorithms, seeds and settings in a YAML file.

    What is finished is reused, what is half done goes on, lost workers are started again; Ctrl-C
    stops, and the same command continues. Exit code 0 when every run is done, 1 otherwise.
    """

    spec: Annotated[Path, tyro.conf.Positional]
    """YAML file with some of: datasets, algorithms, seeds, preset, settings, grid, variants."""
    out: Path = Path("runs")
    """Directory of the runs; on a cluster one that all machines see."""
    env_id: str | None = None
    """Environment of every run; module:Id-v0 is taken from here, not from the file."""
    address: str | None = None
    """Ray cluster to use (auto, or ray://HOST:10001); a Ray of its own when omitted."""
    workers: int = 0
    """Runs at a time on this machine; 0: one a core."""
    threads: int = 1
    """CPU threads of a run: more runs are worth more than more threads."""
    memory_gb: float = 1.0
    """Memory a run asks the cluster for."""
    gpus: float = 0.0
    """GPUs a run asks the cluster for."""
    retries: int = 3
    """Times a run is started again after its worker was lost."""
    retry_failed: bool = False
    """Also run again what diverged before."""
    rank_by: Literal["nothing", "decide"] = "nothing"
    """decide: judge the finished runs without a simulator and order them by the lower bound of
    their difference to the log; best with hold_out among the settings. Writes ranking.json.
    """
    rank_steps: int = 20_000
    """Gradient steps of a fit of that judgement."""
    dry_run: bool = False
    """Only print what would run, and the hours it takes at this machine's speed."""


def main(argv: list[str]) -> int:
    """Entry point of ``pbrl sweep``."""
    options = parse(Options, argv, "pbrl sweep")
    from pbrl.sweep.jobs import expand, make_jobs, read_spec
    from pbrl.sweep.runner import run_sweep  # after parsing, so that --help stays quick

    check_resources(options.workers, options.threads, options.memory_gb, options.retries)
    console = plain_console()
    planned = expand(read_spec(options.spec))
    if options.env_id is not None:
        planned = [(label, replace(config, env_id=options.env_id)) for label, config in planned]
    jobs = make_jobs(planned, options.out, options.threads, download=not options.dry_run)
    if options.dry_run:
        print_plan(jobs, options.workers, console)
        return 0
    resources = resources_of(
        options.workers, options.address, options.memory_gb, options.gpus, options.retries
    )
    outcomes = run_sweep(jobs, resources, retry_failed=options.retry_failed)
    code = print_outcomes(outcomes, console)
    done = [outcome.job.run_dir for outcome in outcomes if outcome.result == "done"]
    if options.rank_by == "decide" and done:
        rank(done, options.rank_steps, options.threads, options.out, console)
    return code


def rank(runs: Sequence[Path], steps: int, threads: int, out: Path, console: Console) -> None:
    """Order finished runs by what can be shown of them from their data alone."""
    from pbrl.evaluation.fqe import FQEConfig
    from pbrl.sweep.ranking import rank_runs
    from pbrl.training.files import write_json
    from pbrl.training.machine import use_threads

    use_threads(threads)
    with console.status("Judging the runs …") as status:
        ranked = rank_runs(
            runs,
            FQEConfig(steps=steps),
            on_run=lambda path: status.update(f"Judging {path.name} …"),
        )
    title = "By the lower bound of the difference to the log (95 % for all runs of a dataset)"
    table = Table(title=title, title_justify="left")
    for column in ("data", "run", "at least", "fqe", "dr", "model", "unlike the log", "verdict"):
        table.add_column(
            column, justify="left" if column in ("data", "run", "verdict") else "right"
        )
    for each in ranked:
        decision = each.decision
        differences = [decision.opinions[m].difference for m in ("fqe", "dr", "model")]
        least = decision.lower_bound
        table.add_row(
            each.dataset,
            each.path.name,
            f"{least:+.4g}" if math.isfinite(least) else "no bound",
            *(f"{difference:+.4g}" for difference in differences),
            f"{decision.unlike:.0%}",
            decision.verdict,
        )
    console.print(table)
    for warning in dict.fromkeys(w for each in ranked for w in each.decision.warnings[:2]):
        console.print(warning)
    write_json(out / "ranking.json", [each.to_json() for each in ranked])
    console.print(f"Written: {out / 'ranking.json'}", soft_wrap=True)


def check_resources(workers: int, threads: int, memory_gb: float, retries: int) -> None:
    """Refuse numbers that make no sense."""
    if workers < 0 or threads < 1 or retries < 0 or memory_gb < 0:
        raise PbrlError(
            "--workers and --retries must not be negative, --threads at least 1 and --memory-gb "
            "not negative."
        )


def resources_of(
    workers: int, address: str | None, memory_gb: float, gpus: float, retries: int
) -> Resources:
    """The command line's flags as ``Resources``."""
    from pbrl.sweep.runner import Resources

    return Resources(workers or None, address, memory_gb, gpus, retries)


def print_plan(jobs: Sequence[Job], workers: int, console: Console) -> None:
    """What a sweep would do, and an estimate of its hours."""
    from pbrl.sweep.cost import estimate

    with console.status("Timing a few updates of every kind of run …"):
        plan = estimate(jobs)
    table = Table(title=f"{len(jobs)} runs", title_justify="left")
    for column in ("data", "settings", "seeds", "state", "steps left", "ms/step", "hours"):
        table.add_column(column, justify="left" if column in ("data", "settings") else "right")
    groups: dict[tuple[str, str, str], list[int]] = {}
    for index, left in enumerate(plan):
        name = Path(left.job.config.dataset).name
        groups.setdefault((name, left.job.label, left.state), []).append(index)
    for (name, label, state), members in groups.items():
        rows = [plan[index] for index in members]
        hours = [row.hours for row in rows]
        speed = rows[0].seconds_per_step
        table.add_row(
            name,
            label,
            str(len(rows)),
            state,
            f"{sum(row.steps for row in rows):,}",
            "" if speed is None else f"{1000 * speed:.1f}",
            "?" if None in hours else f"{sum(h or 0.0 for h in hours):.2f}",
        )
    console.print(table)
    known = [row.hours for row in plan if row.hours is not None and row.state != "finished"]
    total, longest = sum(known), max(known, default=0.0)
    console.print(
        f"About {total:.1f} core-hours at this machine's speed, evaluations not counted; with N "
        f"cores about {total:.1f}/N hours, and not less than the longest run, {longest:.1f}.",
        soft_wrap=True,
    )
    if workers:
        console.print(f"With {workers} workers: about {max(total / workers, longest):.1f} hours.")


def print_outcomes(outcomes: Sequence[Outcome], console: Console) -> int:
    """The end of a sweep; 0 when every run is done, else 1."""
    bad = [outcome for outcome in outcomes if outcome.result != "done"]
    reused = sum(outcome.attempts == 0 for outcome in outcomes if outcome.result == "done")
    done = len(outcomes) - len(bad)
    console.print(f"{done} of {len(outcomes)} runs done ({reused} were already there).")
    for outcome in bad:
        console.print(
            f"{outcome.result}: {outcome.job.run_dir}: {outcome.message}",
            style="red",
            soft_wrap=True,
        )
    return 1 if bad else 0
