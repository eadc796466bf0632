"""``pbrl export``: a run as one ONNX file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.table import Table

from pbrl.cli.parse import parse
from pbrl.console import plain_console
from pbrl.deploy.episodes import ALPHA, WINDOW, check_alpha, check_window
from pbrl.errors import PbrlError

if TYPE_CHECKING:
    from pbrl.deploy.agent import Agent


@dataclass(frozen=True)
class ExportArguments:
    """Write a run's policy, critics and warning light as one ONNX file that needs no torch.

    The file is compared with the run's own networks in onnxruntime before it is written.

    Attributes:
        run: the run directory.
        file: where to write; with --hub-layout a directory.
        hub_layout: write a directory for a model hub: model.safetensors, config.json, README.md
            with the results as model-index, and policy.onnx.
        step: a kept checkpoint; the newest when omitted.
        dataset: the run's training data, where they are no longer where they were.
        guard: put the warning light in (needs the training data once).
        alpha: at most this share of episodes like the log raises an alarm.
        window: such an alarm takes K of N steps in a row.
        calibrate_on: episodes that nothing was learned from, to calibrate the alarm on: a later
            part of the log, or a trial of this policy.
    """

    run: Annotated[Path, tyro.conf.Positional]
    file: Annotated[Path, tyro.conf.Positional] = Path("policy.onnx")
    step: int | None = None
    dataset: str | None = None
    guard: bool = True
    alpha: float = ALPHA
    window: tuple[int, int] = WINDOW
    calibrate_on: str | None = None
    hub_layout: bool = False


def main(argv: list[str]) -> int:
    """Run ``pbrl export`` with these words; returns the exit code."""
    arguments = parse(ExportArguments, argv, "pbrl export")

    check_alpha(arguments.alpha)
    check_window(arguments.window)
    from pbrl.deploy.export import export_onnx
    from pbrl.training.run import Run

    run = Run.open(arguments.run)
    agent = run.agent(arguments.step)
    console = plain_console()
    if arguments.guard:
        with console.status("Fitting the warning light on the training data …"):
            _fit(agent, arguments)
    if arguments.hub_layout:
        if arguments.file.suffix == ".onnx":
            raise PbrlError("--hub-layout writes a directory; name one after the run.")
        from pbrl.training.hub import write_hub_layout

        report = write_hub_layout(
            run, agent, arguments.file, guard=arguments.guard, alpha=arguments.alpha
        )
    else:
        report = export_onnx(agent, arguments.file, guard=arguments.guard, alpha=arguments.alpha)
    table = Table("what", "value", title=str(arguments.file))
    table.add_row("size", f"{report.size / 1e6:.2f} MB")
    table.add_row("outputs", ", ".join(report.outputs))
    table.add_row("actions differ from the run's by", f"{report.action_error:.1e}")
    if report.value_error is not None:
        table.add_row("values differ by (relative)", f"{report.value_error:.1e}")
    table.add_row("warning light", "inside" if report.guarded else "left out")
    console.print(table)
    for note in report.notes:
        console.print(note)
    return 0


def _fit(agent: Agent, arguments: ExportArguments) -> None:
    """The guard these arguments ask for; the run's own where they ask for nothing else."""
    from pbrl.training.guard_of_run import training_dataset
    from pbrl.training.run import Run

    config = Run.open(arguments.run).config  # other data are read as the run reads its own
    if arguments.dataset is not None or arguments.window != WINDOW:
        named = arguments.dataset
        data = training_dataset(agent.info) if named is None else config.load_dataset(named)
        agent.fit_guard(data, window=arguments.window)
    if arguments.calibrate_on is not None:
        agent.calibrate_guard(config.load_dataset(arguments.calibrate_on), window=arguments.window)
    agent.require_guard()
