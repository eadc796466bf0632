"""``pbrl decide``: deploy or not, judged from logged data alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.table import Table

from pbrl.cli.parse import parse, run_and_step
from pbrl.console import plain_console
from pbrl.errors import PbrlError

if TYPE_CHECKING:
    from pbrl.evaluation.decision import Decision

NOT_SHOWN = 4


@dataclass(frozen=True)
class DecideArguments:
    """Say whether a run's policy is better than what wrote the log, without trying it.

    Judges by episodes that were held out of training (pbrl train --hold-out 0.3). Exit code 0:
    deploy; 4: not shown to be better; 2: a mistake. Writes decision.json and decision.html.

    Attributes:
        run: the run directory; RUN@STEP names a kept checkpoint.
        dataset: data to judge by; the run's own when omitted.
        baseline: log, or the directory of another run.
        level: of every one-sided bound.
        held_out: share of the episodes that judge, where the run was trained on all of them.
        gamma: discount; the run's own when omitted.
        steps: gradient steps of a fit.
        ensemble_size: bootstrap members of a fit.
        hidden: hidden units of each member.
        seed: of bootstraps, weights and minibatches.
        threads: CPU threads; 0 decides by the machine's free cores.
        out: directory for decision.json and decision.html; the run's when omitted.
    """

    run: Annotated[str, tyro.conf.Positional]
    dataset: str | None = None
    baseline: str = "log"
    level: float = 0.95
    held_out: float = 0.3
    gamma: float | None = None
    steps: int = 20_000
    ensemble_size: int = 10
    hidden: tuple[int, ...] = field(default=(64, 64))
    seed: int = 0
    threads: int = 0
    out: Path | None = None


def main(argv: list[str]) -> int:
    """Run ``pbrl decide`` with these words; returns the exit code."""
    arguments = parse(DecideArguments, argv, "pbrl decide")

    from pbrl.evaluation.fqe import FQEConfig
    from pbrl.reports.decision_page import write_decision
    from pbrl.training.decision_of_run import decide_run, discount_of
    from pbrl.training.machine import use_threads
    from pbrl.training.run import Run

    use_threads(arguments.threads)
    console = plain_console()
    path, step = run_and_step(arguments.run)
    config = FQEConfig(
        gamma=discount_of(Run.open(path)) if arguments.gamma is None else arguments.gamma,
        ensemble_size=arguments.ensemble_size,
        hidden=arguments.hidden,
        steps=arguments.steps,
        seed=arguments.seed,
    )
    with console.status("Judging (some minutes) …"):
        decision = decide_run(
            path,
            step=step,
            dataset=arguments.dataset,
            baseline=arguments.baseline,
            level=arguments.level,
            held_out=arguments.held_out,
            config=config,
        )
    show_decision(decision, arguments.run, console)
    out = arguments.out or path
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PbrlError(f"Cannot make the directory {out} ({error.strerror}).") from error
    written = write_decision(decision, arguments.run, out)
    console.print(f"Written: {', '.join(map(str, written))}", soft_wrap=True)
    return 0 if decision.deploy else NOT_SHOWN


def show_decision(decision: Decision, name: str, console: Console) -> None:
    """One page on the terminal."""
    console.print(f"{name}: {decision.verdict.upper()}", style="bold", soft_wrap=True)
    for reason in decision.reasons:
        console.print(f"- {reason}")
    level = f"{decision.level:.0%}"
    table = Table(title=f"Discounted value (gamma {decision.gamma:g})", title_justify="left")
    heads = ("opinion", "policy", decision.baseline, "difference", f"at least ({level})",
             "effective episodes")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="left" if head == "opinion" else "right")
    for method, o in decision.opinions.items():
        bound = o.bound(decision.level)
        least = f"{bound:+.4g}" if math.isfinite(bound) else "no bound"
        table.add_row(
            method, f"{o.value:.4g}", f"{o.baseline:.4g}", f"{o.difference:+.4g}", least,
            f"{o.effective:.1f} of {decision.episodes}",
        )  # fmt: skip
    console.print(table)
    console.print(decision.overlap)
    sections = {
        "Opinions that exclude one another": decision.disagreements,
        "Before you believe it": decision.warnings,
    }
    from pbrl.evaluation.decision import CANNOT_SEE

    for title, sentences in (sections | {"What no method here can see": CANNOT_SEE}).items():
        if sentences:
            console.print(f"\n{title}")
            for sentence in sentences:
                console.print(f"- {sentence}")
