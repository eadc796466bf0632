"""Steps a second of the systems that are compared at an equal time, measured once and committed.

Budgets in minutes are turned into steps by these, and by nothing that is measured when a run
starts: a busy machine takes longer for the same run, and its result stays the same.

``python -m pbrl.experiments.speeds`` measures them on this machine and prints the file.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from functools import cache
from importlib import resources
from typing import Any

import torch

from pbrl.algorithms import algorithm_class
from pbrl.bench.worker import made_up_data
from pbrl.data.training_data import TrainingData
from pbrl.errors import PbrlError
from pbrl.training.config import make_config
from pbrl.training.machine import keep_freed_memory, use_wide_products
from pbrl.training.run import versions
from pbrl.training.timing import seconds_per_step

FILE = "speeds.json"
# Observations and actions of the Gym tasks, with a set whose name brings the authors' settings.
SHAPES = {"hopper-medium": (11, 3), "walker2d-medium": (17, 6)}
ROUNDS, SECONDS = 3, 2.0


@cache
def speeds() -> dict[str, dict[str, float]]:
    """Steps a second on one core, algorithm -> ``SxA`` -> speed, of the committed bench."""
    text = (resources.files("pbrl.experiments") / "data" / FILE).read_text()
    found: dict[str, dict[str, float]] = json.loads(text)["steps_per_second"]
    return found


def speed_of(algorithm: str, observation_dim: int, action_dim: int) -> float:
    """Steps a second of one system on data of this shape."""
    shape = f"{observation_dim}x{action_dim}"
    try:
        return speeds()[algorithm][shape]
    except KeyError:
        raise PbrlError(
            f"The bench of speeds has no '{algorithm}' on data of {observation_dim} observations "
            f"and {action_dim} actions, so an equal time cannot be counted in steps; it has "
            f"{', '.join(speeds())} on {', '.join(next(iter(speeds().values())))}."
        ) from None


def measure(algorithm: str, rounds: int = ROUNDS, seconds: float = SECONDS) -> dict[str, float]:
    """Steps a CPU second with one thread, by shape, of the preset ``fast``.

    The best of several rounds counts: what else the machine does can only slow a step down.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    use_wide_products()
    return {
        f"{s}x{a}": float(f"{_best(algorithm, name, (s, a), rounds, seconds):.3g}")
        for name, (s, a) in SHAPES.items()
    }


def _best(algorithm: str, name: str, sizes: tuple[int, int], rounds: int, seconds: float) -> float:
    config = make_config(algorithm, "fast", name)
    data = TrainingData(made_up_data(*sizes))
    learner = algorithm_class(algorithm)(config.settings, *sizes, total_steps=1_000_000)
    learner.prepare(data)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        learner.update(data.sample(config.settings.batch_size, generator))

    return max(1 / seconds_per_step(step, time.process_time, seconds) for _ in range(rounds))


def main(names: list[str]) -> None:
    """Measure ``names`` and print the file."""
    measured = {name: measure(name) for name in names}
    found: dict[str, Any] = {
        "what": f"steps a CPU second, one thread, preset fast, best of {ROUNDS} rounds of "
        f"{SECONDS:g} s, random data",
        "command": "python -m pbrl.experiments.speeds " + " ".join(names),
        "machine": platform.machine(),
        "versions": versions(),
        "steps_per_second": measured,
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
