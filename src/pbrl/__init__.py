"""Offline reinforcement learning that knows what it does not know.

The public interface; what is not listed here is private. Everything is imported on first use, so
``import pbrl`` is light and changes neither threads nor allocator.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pbrl.algorithms.pbrl import PBRL, PBRLConfig, PBRLPrior, PBRLPriorConfig
    from pbrl.data import (
        Batch,
        DatasetInfo,
        Preprocessing,
        TrainingData,
        TransitionDataset,
        load_dataset,
    )
    from pbrl.deploy.agent import Agent
    from pbrl.envs.environments import make_env, register_environments
    from pbrl.errors import DivergenceError, PbrlError
    from pbrl.evaluation.rollout import Evaluator
    from pbrl.training.config import TrainConfig
    from pbrl.training.loop import train
    from pbrl.training.run import Run, load_agent

_HOMES = {
    "Agent": "pbrl.deploy.agent",
    "PBRL": "pbrl.algorithms.pbrl",
    "PBRLConfig": "pbrl.algorithms.pbrl",
    "PBRLPrior": "pbrl.algorithms.pbrl",
    "PBRLPriorConfig": "pbrl.algorithms.pbrl",
    "Batch": "pbrl.data",
    "DatasetInfo": "pbrl.data",
    "Preprocessing": "pbrl.data",
    "TrainingData": "pbrl.data",
    "TransitionDataset": "pbrl.data",
    "load_dataset": "pbrl.data",
    "DivergenceError": "pbrl.errors",
    "PbrlError": "pbrl.errors",
    "make_env": "pbrl.envs.environments",
    "register_environments": "pbrl.envs.environments",
    "Evaluator": "pbrl.evaluation.rollout",
    "TrainConfig": "pbrl.training.config",
    "train": "pbrl.training.loop",
    "Run": "pbrl.training.run",
    "load_agent": "pbrl.training.run",
}

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 - by room
    "Agent",
    "PBRL",
    "PBRLConfig",
    "PBRLPrior",
    "PBRLPriorConfig",
    "Batch",
    "DatasetInfo",
    "Preprocessing",
    "TrainingData",
    "TransitionDataset",
    "load_dataset",
    "DivergenceError",
    "PbrlError",
    "make_env",
    "register_environments",
    "Evaluator",
    "TrainConfig",
    "train",
    "Run",
    "load_agent",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pbrl' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
