"""``pbrl finetune``: continue an offline run online."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from pbrl.cli.parse import parse
from pbrl.console import plain_console


@dataclass(frozen=True)
class FinetuneArguments:
    """Continue an offline run in its environment; half of each minibatch stays logged data.

    Attributes:
        run: the offline run's directory.
        env_id: the environment to act in; the run's own when omitted.
        steps: environment steps, and as many gradient steps.
        run_dir: where the new run lives; RUN-finetuned when omitted.
        from_step: a kept checkpoint to start from; the newest when omitted.
        dataset: the run's data, where they are no longer where they were.
        offline_share: share of every minibatch that comes from the log.
        relax: PBRL's beta_ood falls to this fraction of its last offline value; 1 keeps it.
        capacity: rows of the online replay.
        seed: of everything random; the run's own when omitted.
        threads: CPU threads; 0 decides by the machine.
        device: auto takes CUDA where there is one; what the run asked for when omitted.
        eval_every: steps between evaluations.
        eval_episodes: episodes of an evaluation.
        resume: go on with the fine-tuning in --run-dir.
        quiet: print nothing but errors.
    """

    run: Annotated[Path, tyro.conf.Positional]
    env_id: str | None = None
    steps: int = 10_000
    run_dir: Path | None = None
    from_step: int | None = None
    dataset: str | None = None
    offline_share: float = 0.5
    relax: float = 0.1
    capacity: int = 100_000
    seed: int | None = None
    threads: int = 0
    device: Literal["auto", "cpu", "cuda"] | None = None
    eval_every: int = 1000
    eval_episodes: int = 10
    resume: bool = False
    quiet: bool = False


def main(argv: list[str]) -> int:
    """Run ``pbrl finetune`` with these words; returns the exit code."""
    arguments = parse(FinetuneArguments, argv, "pbrl finetune")

    from pbrl.training.finetune import finetune
    from pbrl.training.run import Run

    settings = dict(vars(arguments))
    parent = Run.open(settings.pop("run"))
    if arguments.dataset is not None:
        settings["dataset"] = parent.config.load_dataset(arguments.dataset)
    run = finetune(parent.path, **settings)
    if arguments.quiet:
        return 0
    evaluations = [r for r in run.metrics() if r["kind"] == "eval"]
    console = plain_console()
    if evaluations:
        returns = {int(r["step"]): float(r["return_mean"]) for r in evaluations}
        early = {step: value for step, value in returns.items() if step <= 5000}
        worst = min(early, key=early.__getitem__)
        last = max(returns)
        console.print(
            f"Return {returns[min(returns)]:.1f} before, {returns[last]:.1f} after {last:,} steps; "
            f"lowest in the first 5,000 steps: {early[worst]:.1f} at step {worst:,}.",
        )
    console.print(f"Run: {run.path}", soft_wrap=True)
    return 0
