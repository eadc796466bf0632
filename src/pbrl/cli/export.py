"""``pbrl export``: a run as one ONNX file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from pbrl.cli.parse import parse
from pbrl.console import plain_console


@dataclass(frozen=True)
class ExportArguments:
    """Write a run's policy, critics and warning light as one ONNX file that needs no torch.

    The file is compared with the run's own networks in onnxruntime before it is written.

    Attributes:
        run: the run directory.
        file: where to write.
        step: a kept checkpoint; the newest when omitted.
        dataset: the run's training data, where they are no longer where they were.
        guard: put the warning light in (needs the training data once).
    """

    run: Annotated[Path, tyro.conf.Positional]
    file: Annotated[Path, tyro.conf.Positional] = Path("policy.onnx")
    step: int | None = None
    dataset: str | None = None
    guard: bool = True


def main(argv: list[str]) -> int:
    """Run ``pbrl export`` with these words; returns the exit code."""
    arguments = parse(ExportArguments, argv, "pbrl export")

    from pbrl.data import load_dataset
    from pbrl.deploy.export import export_onnx
    from pbrl.training.run import Run

    agent = Run.open(arguments.run).agent(arguments.step)
    console = plain_console()
    if arguments.guard:
        with console.status("Fitting the warning light on the training data …"):
            if arguments.dataset is not None:
                agent.fit_guard(load_dataset(arguments.dataset))
            agent.require_guard()
    report = export_onnx(agent, arguments.file, guard=arguments.guard)
    table = Table("what", "value", title=str(report.path))
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
