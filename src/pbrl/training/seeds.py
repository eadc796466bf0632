"""Several seeds of one config in one command: a process each, as many at a time as cores allow."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from pbrl.console import plain_console
from pbrl.errors import PbrlError
from pbrl.training.config import TrainConfig, to_json
from pbrl.training.files import write_json
from pbrl.training.lock import only_one
from pbrl.training.loop import Interrupted
from pbrl.training.machine import cores, stops_as_interrupts
from pbrl.training.metrics import latest_metrics
from pbrl.training.run import CONFIG, SEEDS_CONFIG, Run
from pbrl.training.session import claim_directory


def seed_threads(config: TrainConfig) -> int:
    """Threads of each seed: several runs share a machine best with one each."""
    return config.threads or 1


def seeds_directory(config: TrainConfig) -> Path:
    """Where the seeds' directories are."""
    if config.run_dir is not None:
        return config.run_dir
    one = replace(config, seed=0).resolved().run_dir
    assert one is not None
    return one.with_name(one.name.removesuffix("-seed0"))


def claim_directories(config: TrainConfig, seeds: list[int], resume: bool) -> dict[int, Path]:
    """Each seed's directory; refuses to overwrite any run."""
    base = seeds_directory(config)
    if (base / CONFIG).exists():
        raise PbrlError(f"{base} holds a single run; give another --run-dir for several seeds.")
    directories = {seed: base / f"seed_{seed}" for seed in seeds}
    for directory in directories.values():
        claim_directory(directory, resume)
    return directories


def train_seeds(
    config: TrainConfig, seeds: list[int], *, resume: bool = False, console: Console | None = None
) -> dict[str, Any]:
    """Train ``config`` once a seed under ``run_dir/seed_<n>``; returns the summary over seeds.

    A seed that fails does not stop the others; the first failure's message is raised at the end.
    """
    base = seeds_directory(config)
    with only_one(base):
        return _train_alone(config, seeds, base, resume, console or plain_console(stderr=True))


def _train_alone(
    config: TrainConfig, seeds: list[int], base: Path, resume: bool, console: Console
) -> dict[str, Any]:
    """What ``train_seeds`` does while nobody else can."""
    # Before the others' settings are written over.
    directories = claim_directories(config, seeds, resume)
    threads = seed_threads(config)
    at_once = max(1, cores() // threads)
    config_file = base / SEEDS_CONFIG
    write_json(config_file, to_json(replace(config, run_dir=None)))

    # No pool: each seed is `pbrl train` as a user would start it, and saves itself when it is told
    # to stop. A sweep's processes are Ray's; what only measures is begun by bench/measuring.py.
    def start(seed: int) -> subprocess.Popen[str]:
        command = [
            sys.executable, "-m", "pbrl", "train", "--config", str(config_file),
            "--run-dir", str(directories[seed]), "--seed", str(seed), "--threads", str(threads),
            "--quiet",  # nobody reads the pipe before the end, and a full one holds the seed up
        ]  # fmt: skip
        if config.env_id is not None:  # in the words, because a file is not trusted to name code
            command += ["--env-id", config.env_id]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        return subprocess.Popen(
            [*command, "--resume"] if resume else command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            process_group=0,  # Ctrl-C is for us: a second signal would stop a seed that is saving
        )

    waiting = list(seeds)
    running: dict[int, subprocess.Popen[str]] = {}
    errors: dict[int, str] = {}
    try:
        with (
            stops_as_interrupts(),
            Live(console=console, refresh_per_second=2, transient=True) as live,
        ):
            while waiting or running:
                while waiting and len(running) < at_once:
                    seed = waiting.pop(0)
                    running[seed] = start(seed)
                for seed, process in list(running.items()):
                    if process.poll() is not None:
                        _, text = process.communicate()
                        del running[seed]
                        if process.returncode:
                            errors[seed] = text.strip().splitlines()[-1] if text else "no message"
                        if not console.is_terminal:
                            end = f"failed ({errors[seed]})" if seed in errors else "done"
                            console.print(f"seed {seed}: {end}", soft_wrap=True, markup=False)
                if console.is_terminal:
                    live.update(_table(directories, config.steps, set(running), errors))
                time.sleep(0.2)
    except BaseException as stop:  # a stop, or a terminal that is gone and cannot be written to
        for process in running.values():
            process.terminate()  # each saves itself
        for process in running.values():
            process.wait()
        if not isinstance(stop, KeyboardInterrupt):
            raise
        raise Interrupted(
            f"Stopped and saved the seeds in {base}; the same command with --resume goes on."
        ) from stop
    if errors:
        listed = "; ".join(f"seed {seed}: {message}" for seed, message in sorted(errors.items()))
        raise PbrlError(f"{len(errors)} of {len(seeds)} seeds failed ({listed})")
    return _summarise(base, directories)


def _summarise(base: Path, directories: dict[int, Path]) -> dict[str, Any]:
    summaries = {seed: Run.open(path).summary or {} for seed, path in directories.items()}
    out: dict[str, Any] = {"seeds": list(directories)}
    for measure in ("return_mean", "score_mean"):
        values = [
            summary["last_evaluation"][measure]
            for summary in summaries.values()
            if measure in summary.get("last_evaluation", {})
        ]
        if values:
            out[measure] = {
                "by_seed": values,
                "mean": float(np.mean(values)),
                "std": float(np.std(values)),
            }
    write_json(base / "summary.json", out)
    return out


def _table(
    directories: dict[int, Path], steps: int, running: set[int], errors: dict[int, str]
) -> Table:
    table = Table("seed", "state", "step", "steps/s", "score", "U")
    for seed, path in directories.items():
        last = latest_metrics(path)
        state = "failed" if seed in errors else "running" if seed in running else "waiting"
        if last.get("step") == steps and seed not in running:
            state = "done"
        score = last.get("score_mean", last.get("return_mean"))
        table.add_row(
            str(seed),
            state,
            f"{last.get('step', 0):,}/{steps:,}",
            f"{last.get('steps_per_second', 0):.1f}",
            "" if score is None else f"{score:.1f}",
            f"{last['u_data']:.3g}" if "u_data" in last else "",
        )
    return table
