"""The short table and the picture a person sees at the end of a training."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pbrl.training.files import write_figure
from pbrl.training.run import Run


def show_run(run: Run, console: Console) -> None:
    """Print what the run reached and draw its learning curve."""
    summary = run.summary or {}
    picture = draw_run(run, run.path / "learning_curve.png")
    table = Table("what", "value", title=f"{run.info['data']['name']}: {summary['algorithm']}")
    table.add_row("behaviour's mean return", f"{summary['behaviour_return_mean']:.1f}")
    last = summary.get("last_evaluation")
    if last:
        episodes = int(last["episodes"])
        table.add_row(
            f"learned policy's return ({episodes} episodes)",
            f"{last['return_mean']:.1f} ± {last['return_std']:.1f}",
        )
        if "score_mean" in last:
            source = run.info["data"]["score_source"] or "dataset"
            table.add_row(
                f"normalised score ({source})",
                f"{last['score_mean']:.1f} ± {last['score_std']:.1f}",
            )
    training: dict[str, Any] = summary.get("last_training") or {}
    for kind in ("data", "policy", "random"):
        if f"u_{kind}" in training:
            table.add_row(f"uncertainty of {kind} actions", f"{training[f'u_{kind}']:.4g}")
    console.print(table)
    console.print(f"Run: {run.path}", soft_wrap=True)
    if picture is not None:
        console.print(f"Picture: {picture}", soft_wrap=True)
    if not last:
        console.print(_without_simulator(run.path), soft_wrap=True, markup=False)


def _without_simulator(path: Path) -> str:
    """The next steps where no environment can tell what the policy is worth."""
    place = shlex.quote(str(path))
    return (
        "Nothing was played. What the log says of this policy:\n"
        f"  pbrl ope {place}                  its value beside the log's, with an interval\n"
        f"  pbrl decide {place}               deploy or not, judged by episodes held out\n"
        f"  pbrl export {place} policy.onnx   the policy as a file, with a light where it is unsure"
    )


def draw_run(run: Run, path: Path) -> Path | None:
    """Score, U and Q against the step; None when there is nothing to draw."""
    records = run.metrics()
    evaluations = [r for r in records if r["kind"] == "eval"]
    training = [r for r in records if r["kind"] == "train" and "u_data" in r]
    if not evaluations and not training:
        return None
    from matplotlib.figure import Figure

    panels = 2 * bool(training) + bool(evaluations)
    figure = Figure(figsize=(4 * panels, 3.6), layout="constrained")
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    if evaluations:
        score = axes.pop(0)
        measure = "score" if "score_mean" in evaluations[0] else "return"
        steps = [r["step"] for r in evaluations]
        mean = [r[f"{measure}_mean"] for r in evaluations]
        std = [r[f"{measure}_std"] for r in evaluations]
        score.plot(steps, mean)
        lower = [m - s for m, s in zip(mean, std, strict=True)]
        upper = [m + s for m, s in zip(mean, std, strict=True)]
        score.fill_between(steps, lower, upper, alpha=0.2)
        level = run.info["data"]["behaviour_return_mean"]
        if measure == "score" and run.reference_scores is not None:
            low, high = run.reference_scores
            level = 100 * (level - low) / (high - low)
        score.axhline(level, color="0.5", linestyle="--", label="data")
        score.set(title=f"{measure} (mean and deviation of episodes)", xlabel="step")
        score.legend()
    if training:
        uncertainty, value = axes
        steps = [r["step"] for r in training]
        for kind in ("data", "policy", "random"):
            uncertainty.plot(steps, [r[f"u_{kind}"] for r in training], label=kind)
            value.plot(steps, [r[f"q_{kind}"] for r in training], label=kind)
        uncertainty.set(title="uncertainty U", xlabel="step", yscale="log")
        uncertainty.legend()
        value.set(title="Q", xlabel="step")
    write_figure(path, figure, dpi=110)
    return path
