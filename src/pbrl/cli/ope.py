"""``pbrl ope``: what runs are worth, judged from logged data alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from pbrl.cli.parse import parse
from pbrl.console import plain_console
from pbrl.errors import PbrlError

if TYPE_CHECKING:
    from pbrl.evaluation.ope import ValueEstimate
    from pbrl.evaluation.ranking import Ranking


@dataclass(frozen=True)
class OpeArguments:
    """Estimate the discounted value of learned policies from logged data, without a simulator.

    Prints the value at the log's initial states with an interval, beside the value of the policy
    that wrote the log, and ranks several runs. Writes ope.json and ope.png into --out.

    Attributes:
        runs: run directories; RUN@STEP names one kept checkpoint.
        dataset: logged data; the first run's own when omitted.
        method: fitted Q evaluation is the one there is.
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
    method: Literal["fqe"] = "fqe"
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

    from pbrl.data import load_dataset
    from pbrl.evaluation.ope import FQEConfig, behaviour_value, fitted_q_evaluation
    from pbrl.evaluation.ranking import rank_policies
    from pbrl.training.files import write_json
    from pbrl.training.machine import use_threads
    from pbrl.training.run import Run

    use_threads(arguments.threads)
    console = plain_console()
    candidates = _candidates(arguments)
    first = Run.open(candidates[0][1])
    gamma = arguments.gamma
    if gamma is None:
        gamma = float(getattr(first.config.settings, "gamma", 0.99))
    dataset = load_dataset(arguments.dataset or first.config.dataset)
    config = FQEConfig(
        gamma=gamma,
        ensemble_size=arguments.ensemble_size,
        hidden=arguments.hidden,
        steps=arguments.steps,
        level=arguments.level,
        seed=arguments.seed,
    )
    behaviour = behaviour_value(
        dataset, gamma, level=arguments.level, seed=arguments.seed, config=config
    )
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

            estimates[name] = fitted_q_evaluation(agent.act, dataset, config, on_step=show)
    ranking = rank_policies(estimates) if len(estimates) > 1 else None
    console.print(_table(estimates, behaviour, ranking))
    _say(console, estimates, behaviour, ranking)
    out = arguments.out or first.path
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PbrlError(f"Cannot make the directory {out} ({error.strerror}).") from error
    values = {
        "method": arguments.method,
        "dataset": dataset.info.name,
        "data_fingerprint": dataset.fingerprint,
        "behaviour": behaviour.to_json() | {"samples": []},
        "policies": {name: estimate.to_json() for name, estimate in estimates.items()},
        "ranking": None if ranking is None else ranking.to_json(),
    }
    write_json(out / "ope.json", values)
    _draw(estimates, behaviour, out / "ope.png")
    console.print(f"Written: {out / 'ope.json'}, {out / 'ope.png'}")
    return 0


def _candidates(arguments: OpeArguments) -> list[tuple[str, Path, int | None]]:
    """Name, run directory and step (None: the newest) of every policy to evaluate."""
    from pbrl.training.checkpoint import list_checkpoints
    from pbrl.training.run import Run

    found: list[tuple[str, Path, int | None]] = []
    for word in arguments.runs:
        path, _, step = word.partition("@") if not Path(word).exists() else (word, "", "")
        run = Run.open(path)
        if step:
            if not step.isdecimal():
                raise PbrlError(f"'{word}': after @ comes the step of a kept checkpoint.")
            found.append((word, run.path, int(step)))
        elif arguments.milestones:
            steps = [int(p.name.removeprefix("step_")) for p in list_checkpoints(run.checkpoints)]
            found += [(f"{run.path.name}@{at}", run.path, at) for at in steps]
        else:
            found.append((word, run.path, None))
    if not found:
        raise PbrlError("None of these runs has a checkpoint yet; train first.")
    return found


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
