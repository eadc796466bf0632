"""``pbrl theory``: run the paper's theory and print claim, prediction, measurement and verdict."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.table import Table
from rich.text import Text

from pbrl.cli.parse import parse
from pbrl.console import plain_console
from pbrl.errors import PbrlError

if TYPE_CHECKING:
    from pbrl.theory.experiments import Experiment

Name = Literal["all", "lemma1", "lemma2", "ood", "theorem1", "corollary1"]


@dataclass(frozen=True)
class Options:
    """Run the paper's theory (section 3.3, appendix A) on linear MDPs, in about a minute.

    Prints a table of claims, predictions, measurements and verdicts, and writes a picture for each
    experiment and results.json. Exit code 0 when every verdict is as predicted (a misprint that is
    refuted counts as predicted), 1 otherwise.
    """

    experiment: Annotated[Name, tyro.conf.Positional] = "all"
    """Which experiment to run."""
    seed: int = 0
    """Seed of all randomness; the same seed gives the same table."""
    out: Path = Path("theory-results")
    """Directory for pictures and results.json."""


def main(argv: list[str]) -> int:
    """Entry point of ``pbrl theory``."""
    options = parse(Options, argv, "pbrl theory")
    if options.seed < 0:
        raise PbrlError(f"--seed must not be negative, got {options.seed}.")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PbrlError(
            f"Cannot make the directory '{options.out}' ({error.strerror}); choose another --out."
        ) from error

    from pbrl.theory.experiments import EXPERIMENTS  # after parsing, so that --help stays quick

    console = plain_console()
    names = list(EXPERIMENTS) if options.experiment == "all" else [options.experiment]
    experiments = []
    for name in names:
        run, draw = EXPERIMENTS[name]
        with console.status(f"Running {name} …"):
            experiment = run(options.seed)
            draw(experiment).savefig(options.out / f"{name}.png", dpi=80)
        console.print(render(experiment))
        experiments.append(experiment)

    results = {"seed": options.seed, "experiments": [item.as_json() for item in experiments]}
    (options.out / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    claims = [claim for experiment in experiments for claim in experiment.claims]
    surprises = sum(not claim.as_predicted for claim in claims)
    console.print(
        f"{len(claims) - surprises} of {len(claims)} verdicts as predicted. "
        f"Pictures and results.json: {options.out}"
    )
    return 1 if surprises else 0


def render(experiment: Experiment) -> Table:
    """The table of one experiment."""
    table = Table(title=f"{experiment.name}: {experiment.title}", title_justify="left")
    for column in ("claim", "prediction", "measurement", "verdict"):
        table.add_column(column, overflow="fold", ratio=2 if column == "verdict" else 4)
    for claim in experiment.claims:
        colour = "green" if claim.as_predicted else "bold red"
        table.add_row(
            claim.statement,
            claim.prediction,
            claim.measurement,
            Text(claim.verdict, style=colour),
            end_section=True,
        )
    return table
