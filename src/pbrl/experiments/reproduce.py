"""One table or figure, from nothing to files: train what is missing, gather, draw, write."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pbrl.errors import PbrlError
from pbrl.experiments import drawings
from pbrl.experiments.budgets import Plan, make_plan
from pbrl.experiments.collect_results import RunResult, read_result
from pbrl.experiments.definitions import Experiment, experiment
from pbrl.experiments.hour import HOUR, HOUR_TABLE, MINUTES, make_hour_plan, observed
from pbrl.experiments.hour_table import page
from pbrl.experiments.observe import probe_curves, trajectory_curves
from pbrl.sweep.jobs import Job, make_jobs
from pbrl.sweep.runner import Outcome, Resources, run_sweep
from pbrl.training.files import write_figure, write_json, write_text
from pbrl.training.run import Run, git_revision, versions

RUNS = "runs"
TRAJECTORY = ("trajectory_q", "trajectory_u")


@dataclass(frozen=True)
class Reproduction:
    """What came out.

    Attributes:
        name: of the experiment.
        directory: with ``results.json``, ``figure.png`` and ``table.md``.
        table: the numbers as Markdown.
        outcomes: of the runs behind it; empty where none are needed.
        missing: systems of the paper that are not in this package.
        results: the contents of ``results.json``.
    """

    name: str
    directory: Path
    table: str
    outcomes: tuple[Outcome, ...] = ()
    missing: tuple[str, ...] = ()
    results: dict[str, Any] = field(default_factory=dict)


def experiment_on(name: str, budget: str) -> Experiment:
    """What ``name`` is on a budget: the hour has a table1 of its own."""
    if budget != HOUR.name:
        return experiment(name)
    if name != HOUR_TABLE.name:
        raise PbrlError(f"The hour budget is for table1; {name} has paper, small and smoke.")
    return HOUR_TABLE


def plan_of(
    chosen: Experiment,
    budget: str,
    datasets: Sequence[str] = (),
    seeds: int = 0,
    minutes: float = MINUTES,
    download: bool = True,
) -> Plan:
    """The runs of ``experiment_on``'s answer on a budget."""
    if budget == HOUR.name:
        return make_hour_plan(datasets, seeds, minutes, download)
    return make_plan(chosen, budget, datasets, seeds)


def plan_jobs(plan: Plan, out: Path, threads: int = 1, download: bool = True) -> list[Job]:
    """The jobs of a plan, one for each of ``plan.planned``, in ``out/runs``."""
    return make_jobs(plan.planned, out / RUNS, threads, download)


def reproduce(
    name: str,
    budget: str = "small",
    *,
    datasets: Sequence[str] = (),
    seeds: int = 0,
    minutes: float = MINUTES,
    out: Path = Path("reproduce"),
    resources: Resources | None = None,
    threads: int = 1,
    quiet: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
) -> Reproduction:
    """Make one of the paper's tables or figures.

    Args:
        name: of the experiment, see ``pbrl reproduce list``.
        budget: ``paper``, ``small`` or ``smoke``; for table1 also ``hour``.
        datasets: other data than the budget's.
        seeds: another number of seeds.
        minutes: of one quiet core, for the updates of each run of the budget ``hour``.
        out: directory of runs and results; what is finished there is reused.
        resources: where the runs may run.
        threads: CPU threads of a run.
        quiet: show no live table.
        say: takes sentences for the user.
    """
    chosen = experiment_on(name, budget)
    directory = out / f"{name}-{budget}"
    directory.mkdir(parents=True, exist_ok=True)
    if chosen.drawing == "toy":
        return _write(chosen, budget, directory, (), drawings.toy())
    if chosen.drawing == "cost":
        return _write(chosen, budget, directory, (), drawings.costs(chosen, budget))

    plan = plan_of(chosen, budget, datasets, seeds, minutes)
    for label in plan.missing:
        say(f"{label} is not in this package; its column shows the paper's numbers alone.")
    jobs = plan_jobs(plan, out, threads)
    outcomes = run_sweep(jobs, resources, quiet=quiet)
    done = [outcome.job for outcome in outcomes if outcome.result == "done"]
    if not done:
        raise PbrlError(f"No run of {name} was finished: {outcomes[0].message}")
    say(f"Gathering {len(done)} runs …")
    results = [gather(chosen, job) for job in done]
    if budget == HOUR.name:
        results = [observed(result) for result in results]
    lost = len(outcomes) - len(done)
    footer = [*plan.reductions]
    if lost:
        bad = {f"{o.job.label} ({o.result})" for o in outcomes if o.result != "done"}
        footer.append(f"{lost} of {len(outcomes)} runs left out: {', '.join(sorted(bad))}")
    draw = chosen.drawing if callable(chosen.drawing) else drawings.DRAW[chosen.drawing]
    drawn = draw(chosen, plan, results, footer)
    made = _write(chosen, budget, directory, footer, drawn, tuple(outcomes), plan.missing)
    if budget == HOUR.name:
        picture = (directory / "figure.png").read_bytes()
        write_text(directory / "page.html", page(chosen.title, drawn.table, footer, picture))
    return made


def gather(chosen: Experiment, job: Job) -> RunResult:
    """A finished job's numbers, with what must be looked up in its checkpoints."""
    run = Run.open(job.run_dir)
    result = read_result(job.label, job.config.dataset, run, chosen.quantities)
    quantities = dict(result.quantities)
    if chosen.drawing == "uncertainty":
        for record in probe_curves(run):
            for kind, values in record["kinds"].items():
                for what in ("u_mean", "q_mean"):
                    place = quantities.setdefault(f"{what}/{kind}", [])
                    place.append((int(record["step"]), float(values[what])))
    if any(quantity in TRAJECTORY for quantity in chosen.quantities):
        for name in TRAJECTORY:
            quantities[name] = [
                (int(record["step"]), float(record[name])) for record in trajectory_curves(run)
            ]
    if chosen.name == "ablation-actor":
        last = probe_curves(run)[-1]
        if last["beta_0"] is not None:
            quantities["beta_0"] = [(int(last["step"]), float(last["beta_0"]))]
    return dataclasses.replace(result, quantities=quantities)


def _write(
    chosen: Experiment,
    budget: str,
    directory: Path,
    footer: Sequence[str],
    drawn: drawings.Drawn,
    outcomes: tuple[Outcome, ...] = (),
    missing: tuple[str, ...] = (),
) -> Reproduction:
    results = {
        "experiment": chosen.name,
        "title": chosen.title,
        "place": chosen.place,
        "claim": chosen.claim,
        "budget": budget,
        "reductions": list(footer),
        "missing": list(missing),
        **drawn.numbers,
        "versions": versions(),
        "git_revision": git_revision(),
    }
    write_json(directory / "results.json", results)
    write_text(directory / "table.md", drawn.table)
    write_figure(directory / "figure.png", drawn.figure, drawings.DPI)
    return Reproduction(chosen.name, directory, drawn.table, outcomes, missing, results)
