"""A small pendulum log and small settings for tests of whole runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

SMALL: dict[str, Any] = {
    "hidden": (16, 16),
    "policy_hidden": (16, 16),
    "ensemble_size": 3,
    "n_ood": 2,
    "batch_size": 32,
    "threads": 1,
    "device": "cpu",
    "tensorboard": False,
}
ENV = "InvertedPendulum-v5"  # observations 4, actions 1 in [-3, 3]

# ``pbrl`` as a process that heeds SIGHUP, also where the suite was started with nohup.
_HEEDFUL = """
import signal
from pbrl.cli.main import main

signal.signal(signal.SIGHUP, signal.SIG_DFL)
raise SystemExit(main())
"""
PBRL = [sys.executable, "-c", _HEEDFUL]


def write_log(path: Path, rows: int = 400, seed: int = 0, **changes: Any) -> Path:
    """A made-up log of InvertedPendulum's shape: episodes of 20 steps, every second one fails."""
    rng = np.random.default_rng(seed)
    number = np.arange(rows)
    ends = number % 20 == 19
    arrays = {
        "observations": rng.normal(0, 0.1, (rows, 4)).astype(np.float32),
        "actions": rng.uniform(-3, 3, (rows, 1)).astype(np.float32),
        "rewards": np.ones(rows, np.float32),
        "next_observations": rng.normal(0, 0.1, (rows, 4)).astype(np.float32),
        "terminals": ends & (number // 20 % 2 == 0),
        "timeouts": ends & (number // 20 % 2 == 1),
        **changes,
    }
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return path
