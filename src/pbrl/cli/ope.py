"""``pbrl ope``: what runs are worth, judged from logged data alone."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from pbrl.cli.parse import parse, run_and_step
from pbrl.console import plain_console
from pbrl.errors import PbrlError
from pbrl.training.progress import duration

if TYPE_CHECKING:
    from pbrl.evaluation.estimate import Opinion
    from pbrl.evaluation.ope import ValueEstimate
    from pbrl.evaluation.ranking import Accuracy, Ranking


@dataclass(frozen=True)
class OpeArguments:
    """Estimate the discounted value of learned policies from logged data, without a simulator.

    Prints the value at the log's initial states with an interval, beside the value of the policy
    that wrote the log, and ranks several runs. Writes ope.json and ope.png into --out.

    Methods: fqe (fitted Q evaluation), wis, pdis and dr (importance sampling: weighted, per
    decision, doubly robust; they need a log whose actions vary), model (imagined episodes).

    Attributes:
        runs: run directories; RUN@STEP names one kept checkpoint.
        dataset: logged data; the first run's own when omitted.
        methods: some of fqe,wis,pdis,dr,model.
        returns: a JSON file with true discounted values by run, e.g. {"runs/a": 12.5}, to measure
            the methods by.
        milestones: take every kept checkpoint of each run, not only the newest.
        gamma: discount; the first run's own when omitted.
        steps: gradient steps of an evaluation.
        ensemble_size: bootstrap members.
        hidden: hidden units of each member.
        level: of the interval.
        seed: of bootstrap, weights and minibatches.
        threads: CPU threads; 0 decides by the machine's free cores.
        out: directory for ope.json and ope.png; the first run's when omitted.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]
    dataset: str | None = None
    methods: str = "fqe"
    returns: Path | None = None
    milestones: bool = False
    gamma: float | None = None
    steps: int = 20_000
    ensemble_size: int = 10
    hidden: tuple[int, ...] = field(default=(64, 64))
    level: float = 0.95
    seed: int = 0
    threads: int = 0
    out: Path | None = None


def main(argv: list[str]) -> int:
    """Run ``pbrl ope`` with these words; returns the exit code."""
    arguments = parse(OpeArguments, argv, "pbrl ope")
    if not arguments.runs:
        raise PbrlError("Name at least one run directory.")

    from pbrl.evaluation.fqe import fit_q
    from pbrl.evaluation.ope import FQEConfig, behaviour_value, summarise
    from pbrl.evaluation.opinions import Evidence
    from pbrl.evaluation.ranking import rank_policies
    from pbrl.training.files import write_json
    from pbrl.training.machine import use_threads
    from pbrl.training.run import Run

    use_threads(arguments.threads)
    console = plain_console()
    candidates = _candidates(arguments)
    truth = _truth(arguments.returns, [name for name, _, _ in candidates])
    methods = tuple(word.strip() for word in arguments.methods.split(",") if word.strip())
    first = Run.open(candidates[0][1])
    gamma = arguments.gamma
    if gamma is None:
        gamma = float(getattr(first.config.settings, "gamma", 0.99))
    dataset = first.config.load_dataset(arguments.dataset)  # read as the run reads its own
    config = FQEConfig(
        gamma=gamma,
        ensemble_size=arguments.ensemble_size,
        hidden=arguments.hidden,
        steps=arguments.steps,
        level=arguments.level,
        seed=arguments.seed,
    )
    with console.status("Looking at the log …"):
        evidence = Evidence(dataset, config, methods)
        behaviour = behaviour_value(
            dataset, gamma, level=config.level, seed=config.seed, value=evidence.log
        )
    opinions: dict[str, dict[str, Opinion]] = {}
    estimates: dict[str, ValueEstimate] = {}
    for name, path, step in candidates:
        agent = Run.open(path).agent(step)
        sizes = (agent.observation_dim, agent.action_dim)
        if sizes != (dataset.observation_dim, dataset.action_dim):
            raise PbrlError(
                f"{name} has {sizes[0]} observation and {sizes[1]} action dimensions, the data "
                f"have {dataset.observation_dim} and {dataset.action_dim}; name its --dataset."
            )
        with console.status(f"Evaluating {name} …") as status:

            def show(done: int, name: str = name, status: Any = status) -> None:
                status.update(f"Evaluating {name}: {done:,} of {config.steps:,} steps")

            began = time.monotonic()
            fit = fit_q(agent.act, dataset, config, on_step=show)
            estimates[name] = summarise(fit)
            seconds = time.monotonic() - began
            opinions[name] = evidence.opinions(agent.act, fit)
        if not estimates[name].converged:
            console.print(_how_long(name, config.steps, seconds), soft_wrap=True)
    ranking = rank_policies(estimates) if len(estimates) > 1 else None
    console.print(_table(estimates, behaviour, ranking))
    _say(console, estimates, behaviour, ranking)
    if evidence.methods != ("fqe",):
        console.print(_methods_table(opinions, arguments.level))
        for name, found in opinions.items():
            for note in dict.fromkeys(
                n for o in found.values() if o.method != "fqe" for n in o.notes
            ):
                console.print(f"{name}: {note}")
    measured = _accuracies(opinions, truth)
    if measured:
        console.print(_accuracy_table(measured, len(truth)))
    out = arguments.out or first.path
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PbrlError(f"Cannot make the directory {out} ({error.strerror}).") from error
    values = {
        "methods": list(evidence.methods),
        "dataset": dataset.info.name,
        "data_fingerprint": dataset.fingerprint,
        "behaviour": behaviour.to_json() | {"samples": []},
        "policies": {name: estimate.to_json() for name, estimate in estimates.items()},
        "ranking": None if ranking is None else ranking.to_json(),
        "opinions": {
            name: {method: o.to_json(arguments.level) for method, o in found.items()}
            for name, found in opinions.items()
        },
        "accuracy": {method: vars(found) for method, found in measured.items()},
    }
    write_json(out / "ope.json", values)
    _draw(estimates, behaviour, out / "ope.png")
    console.print(f"Written: {out / 'ope.json'}, {out / 'ope.png'}")
    return 0


def _how_long(name: str, steps: int, seconds: float) -> str:
    """What more steps would take, at the speed of those that were not enough."""
    return (
        f"{name} has not settled in {steps:,} steps, which took {duration(seconds)} here: "
        f"--steps {4 * steps} takes about {duration(4 * seconds)}."
    )


def _candidates(arguments: OpeArguments) -> list[tuple[str, Path, int | None]]:
    """Name, run directory and step (None: the newest) of every policy to evaluate."""
    from pbrl.training.checkpoint import list_checkpoints
    from pbrl.training.run import Run

    found: list[tuple[str, Path, int | None]] = []
    for word in arguments.runs:
        path, step = run_and_step(word)
        run = Run.open(path)
        if step is not None:
            found.append((word, run.path, step))
        elif arguments.milestones:
            steps = [int(p.name.removeprefix("step_")) for p in list_checkpoints(run.checkpoints)]
            found += [(f"{run.path.name}@{at}", run.path, at) for at in steps]
        else:
            found.append((word, run.path, None))
    if not found:
        raise PbrlError("None of these runs has a checkpoint yet; train first.")
    return found


def _truth(path: Path | None, names: list[str]) -> dict[str, float]:
    """True values by the names of the candidates, from a JSON file."""
    if path is None:
        return {}
    from pbrl.training.config import read_config

    values = read_config(path)
    missing = [name for name in names if name not in values]
    if missing:
        raise PbrlError(
            f"{path} has no value for {missing[0]}; give every run's discounted value by the name "
            f"it has here: {', '.join(names)}."
        )
    for name in names:
        value = values[name]
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise PbrlError(
                f"{path}: the value of {name} must be a number, got {json.dumps(value)}."
            )
    if len({float(values[name]) for name in names}) < 2:
        raise PbrlError(
            f"--returns measures methods over runs of different values; {path} has one."
        )
    return {name: float(values[name]) for name in names}


def _accuracies(
    opinions: dict[str, dict[str, Opinion]], truth: dict[str, float]
) -> dict[str, Accuracy]:
    """How well every method did, where true values are given."""
    from pbrl.evaluation.ranking import accuracy

    if not truth:
        return {}
    true = [truth[name] for name in opinions]
    methods = next(iter(opinions.values()))
    return {m: accuracy([found[m].value for found in opinions.values()], true) for m in methods}


def _methods_table(opinions: dict[str, dict[str, Opinion]], level: float) -> Table:
    table = Table(
        title=f"Value by method, and the lower bound ({level:.0%}) of the difference to the log"
    )
    table.add_column("policy")
    for method in next(iter(opinions.values())):
        table.add_column(method, justify="right")
    for name, found in opinions.items():
        cells = [
            f"{o.value:.2f} ({o.bound(level):+.2f})"
            if math.isfinite(o.bound(level))
            else f"{o.value:.2f} (none)"
            for o in found.values()
        ]
        table.add_row(name, *cells)
    return table


def _accuracy_table(measured: dict[str, Accuracy], policies: int) -> Table:
    table = Table(title=f"Against the true values of {policies} policies (in units of their range)")
    for column in ("method", "regret@1", "absolute error", "Spearman"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for method, found in measured.items():
        numbers = (found.regret, found.error, found.rank_correlation)
        table.add_row(method, *(f"{number:.2f}" for number in numbers))
    return table


def _table(
    estimates: dict[str, ValueEstimate], behaviour: ValueEstimate, ranking: Ranking | None
) -> Table:
    level = f"{behaviour.level:.0%} interval"
    table = Table(title=f"Discounted value at initial states (gamma {behaviour.gamma:g})")
    for column in ("policy", "value", level, "best in", "settled"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    names = list(ranking.names) if ranking else list(estimates)
    for place, name in enumerate(names):
        e = estimates[name]
        share = f"{ranking.best[place]:.0%}" if ranking else "-"
        interval = f"{e.low:.2f} to {e.high:.2f}"
        table.add_row(name, f"{e.value:.2f}", interval, share, "yes" if e.converged else "no")
    table.add_section()
    interval = f"{behaviour.low:.2f} to {behaviour.high:.2f}"
    table.add_row("behaviour (from the log)", f"{behaviour.value:.2f}", interval, "-", "-")
    return table


def _say(
    console: Console,
    estimates: dict[str, ValueEstimate],
    behaviour: ValueEstimate,
    ranking: Ranking | None,
) -> None:
    for note in behaviour.notes:
        console.print(note)
    for name, estimate in estimates.items():
        for note in estimate.notes:
            console.print(f"{name}: {note}")
    if ranking is not None:
        console.print(ranking.verdict)


def _draw(estimates: dict[str, ValueEstimate], behaviour: ValueEstimate, path: Path) -> None:
    """How the estimates settled, and the behaviour's value beside them."""
    from matplotlib.figure import Figure

    from pbrl.training.files import write_figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, estimate in estimates.items():
        mean, std = estimate.curve.mean(1), estimate.curve.std(1)
        (line,) = axes.plot(estimate.curve_steps, mean, label=name)
        axes.fill_between(
            estimate.curve_steps, mean - std, mean + std, alpha=0.2, color=line.get_color()
        )
    axes.axhline(behaviour.value, color="0.5", linestyle="--", label="behaviour")
    axes.set(xlabel="step of the evaluation", ylabel="discounted value")
    axes.legend(fontsize="small")
    write_figure(path, figure, dpi=100)
