"""``pbrl train``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from pbrl.cli.parse import parse
from pbrl.console import plain_console
from pbrl.data.catalogue import catalogue
from pbrl.data.loading import EMBEDDED
from pbrl.envs.environments import named_by_file
from pbrl.errors import PbrlError
from pbrl.training.config import (
    TrainConfig,
    from_json,
    homes_of,
    make_config,
    read_config,
    usual_algorithm,
)
from pbrl.training.machine import pick_device
from pbrl.training.progress import clock_time
from pbrl.training.run import CONFIG, SEEDS_CONFIG
from pbrl.training.run_info import read_info

FOR_A_CPU = (
    "Your own data, no GPU, and no --preset: pbrl-anchored with preset {}, for an hour unless "
    "--hours or --steps says otherwise. The paper's own is --algorithm pbrl --preset paper."
)


@dataclass(frozen=True)
class TrainArguments:
    """Train an agent from logged data.

    Attributes:
        run: settings of the run and of the algorithm.
        config: a JSON file of settings (or a run's config.json); flags given beside it win.
        resume: go on with the run in --run-dir; the settings are its own.
        seeds: several seeds, e.g. 0,1,2: a process each under --run-dir/seed_N.
        hours: fix --steps so that training (each seed's) takes about this long, by measuring
            the speed for up to a minute first, and again on the way. Without a GPU, your own data
            take 1 hour of pbrl-anchored unless you choose a preset, algorithm or length.
        quiet: print nothing but errors.
    """

    run: Annotated[TrainConfig, tyro.conf.OmitArgPrefixes]
    config: Path | None = None
    resume: bool = False
    seeds: str | None = None
    hours: float | None = None
    quiet: bool = False


def main(argv: list[str]) -> int:
    """Run ``pbrl train`` with these words; returns the exit code."""
    for_a_cpu = _suits_a_cpu(argv)
    defaults = _defaults(argv, for_a_cpu)
    length = 1.0 if for_a_cpu and not _words(argv, ("steps",)) else None
    try:
        arguments = parse(
            TrainArguments,
            argv,
            "pbrl train",
            default=TrainArguments(defaults, hours=length),
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands),
        )
    except PbrlError as error:
        raise PbrlError(_settings_elsewhere(argv, defaults.algorithm) + str(error)) from error
    config = arguments.run
    if not _words(argv, ("env-id",)):
        named_by_file(config.env_id, "The file of settings")
    console = plain_console(stderr=True, quiet=arguments.quiet)
    if for_a_cpu:
        console.print(FOR_A_CPU.format(defaults.preset), soft_wrap=True)
    from pbrl.training.budget import TWO_LENGTHS, Budget
    from pbrl.training.loop import run_training
    from pbrl.training.seeds import claim_directories, seed_threads, seeds_directory, train_seeds
    from pbrl.training.session import claim_directory

    seeds, begun = None if arguments.seeds is None else _seeds(arguments.seeds), None
    if arguments.hours is not None:
        if _words(argv, ("steps",)):
            raise PbrlError(TWO_LENGTHS)
        place = config.resolved().run_dir if seeds is None else seeds_directory(config)
        # What is there already is refused before time goes into measuring.
        if seeds is not None:
            claim_directories(config, seeds, arguments.resume)
        elif place is not None:
            claim_directory(place, arguments.resume)
        begun = _stored(place, several=seeds is not None) if arguments.resume else None
        threads = config.threads if seeds is None else seed_threads(config)
        steps = begun.steps if begun is not None else _measured(config, threads, arguments)
        config = dataclasses.replace(config, steps=steps)
    if seeds is not None:
        summary = train_seeds(config, seeds, resume=arguments.resume, console=console)
        if not arguments.quiet:
            _print_seeds(summary)
        return 0
    # A run that is resumed keeps its length.
    budget = None if arguments.hours is None or begun is not None else Budget(arguments.hours)
    run = run_training(
        config, resume=arguments.resume, quiet=arguments.quiet, console=console, budget=budget
    )
    if not arguments.quiet:
        from pbrl.cli.show import show_run

        show_run(run, plain_console())
    return 0


def _measured(config: TrainConfig, threads: int, arguments: TrainArguments) -> int:
    """The steps that fit into --hours with so many threads."""
    from pbrl.training.budget import steps_for_hours

    assert arguments.hours is not None
    console = plain_console(stderr=True, quiet=arguments.quiet)
    console.print(
        f"{config.algorithm}, preset {config.preset}, for {arguments.hours:g} hours: measuring how "
        "quick training is here, for a minute at most.",
        soft_wrap=True,
    )
    steps = steps_for_hours(dataclasses.replace(config, threads=threads), arguments.hours)
    each = "" if arguments.seeds is None else " a seed"
    console.print(
        f"{arguments.hours:g} hours{each} here are about {steps:,} steps, until about "
        f"{clock_time(3600 * arguments.hours)}.",
        soft_wrap=True,
    )
    return steps


def _settings_elsewhere(argv: list[str], algorithm: str) -> str:
    """Of flags that are settings of other algorithms: whose."""
    flags = [word.partition("=")[0] for word in argv if word.startswith("--")]
    homes = {flag: homes_of(flag[2:].replace("-", "_")) for flag in flags}
    return "".join(
        f"{algorithm} has no {flag}; it is a setting of {', '.join(names)}. "
        for flag, names in homes.items()
        if names and algorithm not in names
    )


def _suits_a_cpu(argv: list[str]) -> bool:
    """Whether these are somebody's own data on a machine without a GPU, and nothing else chosen."""
    words = _words(argv, ("dataset", "preset", "algorithm", "config", "device"))
    if set(words) - {"device"} != {"dataset"} or "--resume" in argv:
        return False
    if words["dataset"] in EMBEDDED or words["dataset"] in catalogue():
        return False
    return pick_device(words.get("device", "auto")) == "cpu"


def _defaults(argv: list[str], for_a_cpu: bool) -> TrainConfig:
    """What flags that are not given stand at: the stored run, the config file, or the preset."""
    words = _words(argv, ("algorithm", "preset", "dataset", "config", "run-dir", "seeds"))
    named = {k: v for k, v in words.items() if k in ("algorithm", "preset", "dataset")}
    if "--resume" in argv:
        stored = _stored(words.get("run-dir"), several="seeds" in words)
        if stored is not None:
            return stored
    if "config" in words:
        values = read_config(Path(words["config"]))
        whole = "config" in values  # a run's config.json keeps its settings inside
        values = values["config"] if whole else values
        if isinstance(values, dict):
            values = {**values, **named}
        return from_json(values, words["config"], complete=whole)
    if for_a_cpu:
        return make_config("pbrl-anchored", "fast", words["dataset"])
    algorithm = words.get("algorithm") or usual_algorithm("dataset" in words or "preset" in words)
    preset = words.get("preset", None if "dataset" in words else "demo")
    return make_config(algorithm, preset, words.get("dataset", "demo"))


def _stored(run_dir: str | Path | None, *, several: bool) -> TrainConfig | None:
    """The config of the run, or of the ``several`` seeds, that ``run_dir`` holds, if any."""
    if run_dir is None:
        return None
    file = Path(run_dir) / (SEEDS_CONFIG if several else CONFIG)
    if not file.is_file():
        return None
    values = read_config(file) if several else read_info(file)["config"]
    config = from_json(values, str(file), complete=True)
    # A single run knows its own threads; seeds are told theirs.
    threads = config.threads if several else 0
    return dataclasses.replace(config, run_dir=Path(run_dir), threads=threads)


def _words(argv: list[str], names: tuple[str, ...]) -> dict[str, str]:
    """Values of these flags, read before the full parser knows which settings exist."""
    found: dict[str, str] = {}
    for i, word in enumerate(argv):
        for name in names:
            flags = (f"--{name}", f"--{name.replace('-', '_')}")
            if word in flags and i + 1 < len(argv):
                found[name] = argv[i + 1]
            elif word.startswith(tuple(f"{flag}=" for flag in flags)):
                found[name] = word.split("=", 1)[1]
    return found


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(word) for word in text.replace(" ", "").split(",")]
    except ValueError as error:
        raise PbrlError(f"--seeds takes whole numbers like 0,1,2; got '{text}'.") from error
    if len(set(seeds)) != len(seeds) or not 0 <= min(seeds) <= max(seeds) < 2**31:
        raise PbrlError(f"--seeds takes different numbers in [0, 2^31); got '{text}'.")
    return seeds


def _print_seeds(summary: dict[str, Any]) -> None:
    console = plain_console()
    for measure, label in (("return_mean", "return"), ("score_mean", "normalised score")):
        if measure in summary:
            values = summary[measure]
            listed = ", ".join(f"{x:.1f}" for x in values["by_seed"])
            console.print(
                f"{label} over {len(values['by_seed'])} seeds: {values['mean']:.1f} "
                f"± {values['std']:.1f} ({listed})",
            )
