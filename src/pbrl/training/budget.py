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
from pbrl.training.timing import seconds_per_step

WARM_UP, LEAST_STEPS = 5, 20
# Seconds spent on measuring: on a shared machine five can be far from what an hour will be like.
LEAST_SECONDS, MOST_SECONDS, SHARE_OF_TIME = 5.0, 60.0, 0.01
# Share of the time left for updates after evaluations, checkpoints and logging.
USABLE = 0.9
# Share of the rest that is used where evaluations and checkpoints are in the speed already.
USABLE_LATER = 0.95
TWO_LENGTHS = "steps (--steps) and hours (--hours) both fix the run's length; give one of them."


class Budget:
    """Hours that a run may take, kept by measuring again while it is going.

    A machine that others use as well is not as quick all day as in its first minute.

    Args:
        hours: from now on.
    """

    checks = (0.05, 0.2, 0.5, 0.8)
    """Shares of the time after which the steps are counted anew."""

    def __init__(self, hours: float) -> None:
        self.seconds = 3600 * hours
        self._began = self._last = time.monotonic()
        self._last_step = 0
        self._checks = list(self.checks)

    def steps(self, step: int, planned: int) -> int | None:
        """The length the run should have, if that is far from ``planned``; mostly None."""
        now = time.monotonic()
        elapsed = now - self._began
        if not self._checks or elapsed < self._checks[0] * self.seconds:
            return None
        self._checks = [share for share in self._checks if elapsed < share * self.seconds]
        rate = (step - self._last_step) / (now - self._last)
        self._last, self._last_step = now, step
        rest = USABLE_LATER * (self.seconds - elapsed)
        wanted = step + max(1, math.floor(rate * rest))
        # A little early does no harm; late is what was not asked for.
        return None if 0.95 * planned <= wanted <= 1.2 * planned else wanted


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
    seconds = seconds_per_step(
        lambda: algorithm.update(data.sample(config.settings.batch_size, generator)),
        time.monotonic,
        measured,
        warm_up=WARM_UP,
        least=LEAST_STEPS,
    )
    return max(100, round(USABLE * hours * 3600 / seconds / 100) * 100)
