"""One variant, one process: heap and thread state of another would change the timings."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pbrl.algorithms import algorithm_class
from pbrl.algorithms.pbrl import PBRLConfig
from pbrl.bench import pbrl_single_file
from pbrl.bench.flops import pbrl_gflop
from pbrl.bench.variants import ROWS, SIZES, Variant, by_name
from pbrl.data.dataset import DatasetInfo, TransitionDataset
from pbrl.data.training_data import TrainingData
from pbrl.training.machine import keep_freed_memory, pick_device, use_wide_products

GEMM_SHAPE = (1408, 256, 256)
EVERY, INTERVAL = 50, 1000  # steps between records when measuring the loop, and as charged


def clock_of(threads: int, device: str) -> Callable[[], float]:
    """Seconds: of the processor for one thread, which other programs change little; else all."""
    return time.process_time if threads == 1 and device == "cpu" else time.perf_counter


def gemm_rate(
    calls: int, device: str = "cpu", clock: Callable[[], float] = time.perf_counter
) -> float:
    """GFLOP/s of ``mm`` at 1408x256x256 on the current threads."""
    m, k, n = GEMM_SHAPE
    left, right = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
    torch.mm(left, right)
    _wait(device)
    start = clock()
    for _ in range(calls):
        torch.mm(left, right)
    _wait(device)
    return calls * 2 * m * k * n / (clock() - start) / 1e9


def made_up_data(observation_dim: int, action_dim: int, rows: int = ROWS) -> TransitionDataset:
    """Random transitions of the shape of a Gym dataset."""
    rng = np.random.default_rng(0)
    ends = np.arange(rows) % 1000 == 999
    return TransitionDataset(
        rng.standard_normal((rows, observation_dim), np.float32),
        rng.uniform(-1, 1, (rows, action_dim)).astype(np.float32),
        rng.standard_normal(rows, np.float32) + 1,
        rng.standard_normal((rows, observation_dim), np.float32),
        np.zeros(rows, np.bool_),
        ends,
        DatasetInfo("hopper-bench", env_id=None),
    )


def plain_pbrl(config: Any, device: str = "cpu") -> pbrl_single_file.PBRL:
    """The yardstick with the sizes of ``config``."""
    sizes = ("ensemble_size", "hidden", "policy_hidden", "batch_size", "n_ood")
    settings = pbrl_single_file.Settings(**{name: getattr(config, name) for name in sizes})
    with torch.device(device):
        plain = pbrl_single_file.PBRL(settings, *SIZES, steps=1_000_000, floor=0.0)
    plain.generator = torch.Generator(device)
    return plain


def measure(variant: Variant, threads: int, seconds: float, device: str) -> dict[str, Any]:
    """Median milliseconds a step, the GEMM rate around it, peak memory and size."""
    torch.set_num_threads(threads)
    s, a = SIZES
    data = TrainingData(made_up_data(s, a), device=device)
    generator = torch.Generator(device).manual_seed(0)
    performed = None
    if variant.yardstick:
        plain = plain_pbrl(variant.config, device)
        update: Any = plain.update
        trained = (*plain.critics.parameters(), *plain.policy.parameters())
        parameters = sum(p.numel() for p in trained)
    else:
        if device == "cpu":
            keep_freed_memory()
            use_wide_products()
        algorithm = algorithm_class(variant.algorithm)(variant.config, s, a, device=device)
        algorithm.prepare(data)
        update = algorithm.update
        parameters = sum(
            p.numel()
            for name, network in algorithm.networks().items()
            if not name.startswith("target")
            for p in network.parameters()
        )
        for _ in range(2):
            update(data.sample(variant.config.batch_size, generator))
        if not variant.counted_by_hand:
            performed = _performed_gflop(update, data, variant, generator)
    clock = clock_of(threads, device)
    times: list[float] = []
    rates: list[float] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(times) < 5:
        rates.append(gemm_rate(10, device, clock))
        batch = data.sample(variant.config.batch_size, generator)
        _wait(device)
        start = clock()
        update(batch)
        _wait(device)
        times.append(clock() - start)
    if isinstance(variant.config, PBRLConfig) and variant.counted_by_hand:
        performed = pbrl_gflop(variant.config, s, a)
    return {
        "variant": variant.name,
        "ms_per_step": 1000 * float(np.median(times[1:])),
        "gemm_gflops": float(np.median(rates[1:])),
        "gflop": performed,
        "gflop_counted": "analytically" if variant.counted_by_hand else "as run",
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "parameters": parameters,
        "threads": threads,
        "steps": len(times),
    }


def measure_loop(variant: Variant, threads: int, seconds: float) -> dict[str, Any]:
    """What ``pbrl train`` spends around the update: sampling, progress, records, checkpoints.

    The time between the end of one update and the start of the next is taken inside one training,
    so that a machine that changes its speed does not change the ratio. Records and checkpoints are
    written every 50 steps here and charged as if every ``INTERVAL`` steps, which is more than the
    default intervals of a run of 100,000 steps and longer ask for.
    """
    import io
    from unittest.mock import patch

    from rich.console import Console

    from pbrl.training.config import make_config
    from pbrl.training.loop import run_training

    starts: list[float] = []
    ends: list[float] = []
    cls = algorithm_class(variant.algorithm)
    update = cls.update

    def timed(self: Any, batch: Any) -> Any:
        starts.append(time.perf_counter())
        metrics = update(self, batch)
        ends.append(time.perf_counter())
        return metrics

    per_step = measure(variant, threads, 1.0, "cpu")["ms_per_step"] / 1000
    steps = max(4 * EVERY, int(seconds / per_step) // EVERY * EVERY)
    with tempfile.TemporaryDirectory() as directory, patch.object(cls, "update", timed):
        config = make_config(
            variant.algorithm,
            "paper",
            **vars(variant.config),
            steps=steps,
            run_dir=Path(directory) / "run",
            threads=threads,
            eval=False,
            log_every=EVERY,
            checkpoint_every=EVERY,
        )
        console = Console(file=io.StringIO(), force_terminal=True)
        run_training(config, made_up_data(*SIZES), console=console)
    inside = np.array(ends) - np.array(starts)
    gaps = np.array(starts[1:]) - np.array(ends[:-1])
    special = np.arange(1, steps) % EVERY == 0
    around = gaps[~special].mean() + gaps[special].mean() / INTERVAL
    return {
        "variant": variant.name + " in pbrl train",
        "ms_per_step": 1000 * float(inside.mean() + around),
        "bare_ms_per_step": 1000 * float(inside.mean()),
        "record_and_checkpoint_ms": 1000 * float(gaps[special].mean()),
        "overhead": float(around / inside.mean()),
        "steps": steps,
        "threads": threads,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _performed_gflop(update: Any, data: TrainingData, variant: Variant, generator: Any) -> float:
    """What one update really does, counted by torch."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        update(data.sample(variant.config.batch_size, generator))
    return float(counter.get_total_flops()) / 1e9


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Measure what the arguments name and print one JSON object."""
    name, threads, seconds, device, kind = sys.argv[1:]
    variant = by_name(name)
    chosen = pick_device(device)
    if kind == "loop":
        result = measure_loop(variant, int(threads), float(seconds))
    elif kind == "decision":
        from pbrl.bench.decision import measure_decision

        result = measure_decision(variant, made_up_data(*SIZES, rows=5000))
    else:
        result = measure(variant, int(threads), float(seconds), chosen)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
