"""How many steps fit into an hour, measured on this machine with this config."""

from __future__ import annotations

import math
import time

import torch

from pbrl.algorithms import algorithm_class
from pbrl.data.dataset import TransitionDataset
from pbrl.data.training_data import TrainingData
from pbrl.errors import PbrlError
from pbrl.training.config import TrainConfig
from pbrl.training.machine import keep_freed_memory, pick_device, use_threads, use_wide_products

WARM_UP, LEAST_STEPS = 5, 20
# Seconds spent on measuring: on a shared machine five can be far from what an hour will be like.
LEAST_SECONDS, MOST_SECONDS, SHARE_OF_TIME = 5.0, 60.0, 0.01
# Share of the time left for updates after evaluations, checkpoints and logging.
USABLE = 0.9
TWO_LENGTHS = "steps (--steps) and hours (--hours) both fix the run's length; give one of them."


def steps_for_hours(
    config: TrainConfig, hours: float, dataset: TransitionDataset | None = None
) -> int:
    """Gradient steps of ``config`` that take about ``hours`` here, in whole hundreds."""
    if not 0 < hours < math.inf:
        raise PbrlError(f"hours (--hours) must be a positive number, got {hours:g}.")
    use_threads(config.threads)
    device = pick_device(config.device)
    if device == "cpu":
        use_wide_products()
        if config.tune_allocator:
            keep_freed_memory()
    dataset = config.load_dataset() if dataset is None else dataset
    data = TrainingData(dataset, device=device)
    algorithm = algorithm_class(config.algorithm)(config.settings, device=device)
    algorithm.prepare(data)
    generator = torch.Generator(device if not dataset.memory_mapped else "cpu").manual_seed(0)
    measured = min(max(LEAST_SECONDS, SHARE_OF_TIME * 3600 * hours), MOST_SECONDS)
    start, steps = 0.0, -WARM_UP
    while steps < LEAST_STEPS or time.monotonic() - start < measured:
        if steps == 0:
            start = time.monotonic()
        algorithm.update(data.sample(config.settings.batch_size, generator))
        steps += 1
    seconds = (time.monotonic() - start) / steps
    return max(100, round(USABLE * hours * 3600 / seconds / 100) * 100)
