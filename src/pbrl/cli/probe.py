"""``pbrl probe``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from pbrl.cli.parse import parse
from pbrl.console import plain_console
from pbrl.evaluation.probe import DESCRIPTIONS, probe
from pbrl.training.files import write_figure, write_json
from pbrl.training.run import Run


@dataclass(frozen=True)
class ProbeArguments:
    """U and Q of five kinds of actions, as table, probe.json and probe.png in the run.

    Attributes:
        run: the run directory.
        dataset: states to ask about; the run's training data when omitted.
        rows: how many states.
        seed: of their choice and of the noise.
        step: a kept checkpoint; the newest when omitted.
    """

    run: Annotated[Path, tyro.conf.Positional]
    dataset: str | None = None
    rows: int = 4096
    seed: int = 0
    step: int | None = None


def main(argv: list[str]) -> int:
    """Run ``pbrl probe`` with these words; returns the exit code."""
    arguments = parse(ProbeArguments, argv, "pbrl probe")
    run = Run.open(arguments.run)
    dataset = run.config.load_whole(arguments.dataset)
    result = probe(run.agent(arguments.step), dataset, rows=arguments.rows, seed=arguments.seed)
    write_json(run.path / "probe.json", {"dataset": dataset.info.name, **result})
    draw_probe(result, run.path / "probe.png")
    console = plain_console()
    table = Table("actions", "what", "U mean", "U median", "U 95 %", "Q mean")
    for kind, values in result["kinds"].items():
        quantiles = values["u_quantiles"]
        numbers = (values["u_mean"], quantiles[2], quantiles[4], values["q_mean"])
        table.add_row(kind, DESCRIPTIONS[kind], *(f"{x:.4g}" for x in numbers))
    console.print(table)
    if result["beta_0"] is not None:
        console.print(
            f"min over the ensemble = mean - beta_0 * U with beta_0 = {result['beta_0']:.2f}",
        )
    console.print(f"Written: {run.path / 'probe.json'}, {run.path / 'probe.png'}")
    return 0


def draw_probe(result: dict[str, Any], path: Path) -> None:
    """Quantiles of U and means of Q by kind of action."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    kinds = list(result["kinds"])
    for i, kind in enumerate(kinds):
        low, q1, middle, q3, high = result["kinds"][kind]["u_quantiles"]
        left.plot([low, high], [i, i], color="0.6")
        left.plot([q1, q3], [i, i], color="tab:blue", linewidth=6, solid_capstyle="butt")
        left.plot(middle, i, "o", color="white", markeredgecolor="black")
        right.barh(i, result["kinds"][kind]["q_mean"], color="tab:orange")
    left.set(title="uncertainty U (5, 25, 50, 75, 95 %)", yticks=range(len(kinds)))
    left.set_yticklabels(kinds)
    right.set(title="mean Q", yticks=range(len(kinds)), yticklabels=[])
    left.invert_yaxis()
    right.invert_yaxis()
    write_figure(path, figure, dpi=120)
