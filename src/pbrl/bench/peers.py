"""Our steps a second beside d3rlpy's: same rows, batch, network sizes and threads.

Both libraries train in a process of their own, and take turns of a second or so: whatever else the
machine does hits both alike, and the ratio of two neighbouring turns says what a figure of either
alone cannot. A step is what a training makes of it: drawing a minibatch and one update. Where other
programs take the cores, the CPU time of a step says more than the clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.progress import Progress

from pbrl import __version__
from pbrl.algorithms import algorithm_class
from pbrl.bench import peer_worker
from pbrl.bench.variants import ROWS, SIZES
from pbrl.bench.worker import made_up_data
from pbrl.data.dataset import TransitionDataset
from pbrl.data.training_data import TrainingData
from pbrl.errors import PbrlError
from pbrl.training.machine import keep_freed_memory, use_wide_products

COLUMNS = (
    "observations", "actions", "rewards", "next_observations", "terminals", "episode_ends",
)  # fmt: skip

# Sizes at which both sides are measured: each algorithm's own, SAC with its two critics.
SETTINGS: dict[str, dict[str, Any]] = {
    "bc": {},
    "td3bc": {},
    "iql": {},
    "rebrac": {},
    "sac-n": {"ensemble_size": 2},
    "cql": {},
}
INSTALL = (
    "make an environment for it (`python -m venv peers`, then in it `pip install d3rlpy`) and name "
    "its Python with --peers-python peers/bin/python"
)


class Turn(NamedTuple):
    """What one side did in one turn."""

    steps_per_second: float
    cpu_ms: float  # of all its threads, a step


class Trainer:
    """A process that trains when told to.

    Args:
        command: starts it.
        spec: what it shall build.
        threads: CPU threads.
    """

    def __init__(self, command: list[str], spec: dict[str, Any], threads: int) -> None:
        self.name = f"{spec['algorithm']} by {Path(command[0]).name} {command[-1]}"
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        try:
            self.versions: dict[str, str] = self._ask(json.dumps(spec))["versions"]
        except BaseException:
            self.close()
            raise

    def turn(self, seconds: float) -> Turn:
        """Train for so long."""
        answer = self._ask(str(seconds))
        steps = answer["steps"]
        return Turn(steps / answer["seconds"], 1000 * answer["cpu_seconds"] / steps)

    def _ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            while answer := self.process.stdout.readline():
                if answer.startswith("{"):  # a library may greet its user before
                    found: dict[str, Any] = json.loads(answer)
                    return found
        except BrokenPipeError:
            pass
        assert self.process.stderr is not None
        words = self.process.stderr.read().strip().splitlines()
        raise PbrlError(f"Measuring {self.name} failed: {words[-1] if words else 'no message'}.")

    def close(self) -> None:
        """End the process."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self.process.kill()
        self.process.wait()


def check_python(python: Path) -> None:
    """Refuse a Python that is missing or has no d3rlpy."""
    try:
        found = subprocess.run(
            [str(python), "-c", "import importlib.util as u; print(u.find_spec('d3rlpy'))"],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise PbrlError(f"{python} is no Python that runs ({error}); {INSTALL}.") from error
    if found.stdout.strip() == "None":
        raise PbrlError(f"d3rlpy is not installed in {python}: {INSTALL}.")


def compare(
    names: list[str], python: Path, *, threads: int, rounds: int, seconds: float, progress: Progress
) -> list[dict[str, Any]]:
    """Steps a second of both sides for each algorithm, and the ratio of each pair of turns."""
    check_python(python)
    out = []
    with tempfile.TemporaryDirectory() as directory:
        rows = Path(directory) / "rows.npz"
        write_rows(rows)
        task = progress.add_task("measuring", total=len(names) * rounds)
        for name in names:
            progress.update(task, description=name)
            out.append(_compare_one(name, python, rows, threads, rounds, seconds))
            progress.advance(task, rounds)
    return out


def _compare_one(
    name: str, python: Path, rows: Path, threads: int, rounds: int, seconds: float
) -> dict[str, Any]:
    config: Any = algorithm_class(name).Config(**SETTINGS[name])
    spec = {
        "algorithm": name,
        "settings": SETTINGS[name],
        "hidden": list(config.hidden),
        "batch_size": config.batch_size,
        "threads": threads,
        "rows": str(rows),
    }
    with ExitStack() as stack:
        ours = Trainer([sys.executable, "-m", "pbrl.bench.peers"], spec, threads)
        stack.callback(ours.close)
        theirs = Trainer([str(python), str(peer_worker.__file__)], spec, threads)
        stack.callback(theirs.close)
        turns = np.array([(ours.turn(seconds), theirs.turn(seconds)) for _ in range(rounds)])
    mine, other = turns[:, :, 0].T
    mine_cpu, other_cpu = turns[:, :, 1].T
    return {
        "algorithm": name,
        "hidden": spec["hidden"],
        "batch_size": spec["batch_size"],
        "threads": threads,
        "pbrl_steps_per_second": float(np.median(mine)),
        "d3rlpy_steps_per_second": float(np.median(other)),
        "ratio": float(np.median(mine / other)),
        "ratios": [float(x) for x in mine / other],
        "pbrl_cpu_ms": float(np.median(mine_cpu)),
        "d3rlpy_cpu_ms": float(np.median(other_cpu)),
        "cpu_ratio": float(np.median(other_cpu / mine_cpu)),
        "versions": {"pbrl's": ours.versions, "d3rlpy's": theirs.versions},
    }


def write_rows(path: Path, rows: int = ROWS) -> None:
    """The same made-up transitions for both sides."""
    data = made_up_data(*SIZES, rows=rows)
    np.savez(path, **{name: getattr(data, name) for name in COLUMNS})


def main() -> None:
    """Train our algorithm when told to; see ``peer_worker``."""
    spec = json.loads(sys.stdin.readline())
    torch.set_num_threads(spec["threads"])
    keep_freed_memory()
    wide = use_wide_products()
    with np.load(spec["rows"], allow_pickle=False) as rows:
        data = TrainingData(TransitionDataset(*(rows[name] for name in COLUMNS)))
    cls = algorithm_class(spec["algorithm"])
    algorithm = cls(cls.Config(**spec["settings"]))
    algorithm.prepare(data)
    generator = torch.Generator().manual_seed(0)
    peer_worker.serve(
        lambda: algorithm.update(data.sample(spec["batch_size"], generator)),
        {"pbrl": __version__, "torch": torch.__version__, "numpy": np.__version__,
         "products": "oneDNN" if wide else "as torch chooses"},
    )  # fmt: skip


if __name__ == "__main__":
    main()
