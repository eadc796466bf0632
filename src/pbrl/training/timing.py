"""What a step takes: for estimates of a run's length, speeds and costs, each by its own clock.

``pbrl bench`` (``bench/worker.py``) times its steps itself: it takes turns with the machine's own
rate and stands still for the GPU. Its peers do (``bench/peer_worker.py``), which run without pbrl.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pbrl.data.training_data import Batch


def seconds_per_step(
    step: Callable[[], object],
    clock: Callable[[], float],
    seconds: float,
    *,
    warm_up: int = 0,
    least: int = 1,
) -> float:
    """Mean seconds of ``step``.

    Args:
        step: called again and again.
        clock: ``time.process_time`` where others' work shall not count, or another.
        seconds: how long to measure.
        warm_up: calls before that do not count.
        least: calls that count, however long they take.
    """
    for _ in range(warm_up):
        step()
    steps, start = 0, clock()
    while steps < least or clock() - start < seconds:
        step()
        steps += 1
    return (clock() - start) / steps


def update_times(algorithm: Any, observation_dim: int, action_dim: int) -> Iterator[float]:
    """CPU seconds of one update after another on random rows, for as long as somebody asks.

    The first update, in which buffers are made, is left out.
    """
    rows = algorithm.config.batch_size
    generator = torch.Generator().manual_seed(0)
    batch = Batch(
        torch.randn(rows, observation_dim, generator=generator),
        torch.rand(rows, action_dim, generator=generator) * 2 - 1,
        torch.rand(rows, generator=generator),
        torch.randn(rows, observation_dim, generator=generator),
        torch.zeros(rows),
    )
    algorithm.update(batch)
    while True:
        start = time.process_time()
        algorithm.update(batch)
        yield time.process_time() - start
