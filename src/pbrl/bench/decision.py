"""One decision of an exported policy: onnxruntime, one thread, one observation at a time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from pbrl.algorithms import algorithm_class
from pbrl.bench.variants import SIZES, Variant
from pbrl.data.dataset import TransitionDataset
from pbrl.data.preprocessing import Preprocessing
from pbrl.deploy.agent import Agent
from pbrl.deploy.export import build_model
from pbrl.deploy.guard_fit import fit_guard
from pbrl.deploy.onnx_policy import OnnxPolicy

DECISIONS = 1000


def measure_decision(variant: Variant, dataset: TransitionDataset) -> dict[str, Any]:
    """Median milliseconds of action, uncertainty and warning light, and the file's size.

    The networks are untrained: time and size do not depend on the weights.
    """
    maps = Preprocessing.fit(dataset, normalize_observations=False)
    algorithm = algorithm_class(variant.algorithm)(variant.config, *SIZES)
    agent = Agent(algorithm, maps)
    model = build_model(agent, fit_guard(algorithm, maps, dataset, steps=20))[0]
    policy = OnnxPolicy(model, threads=1)
    times = []
    for observation in dataset.observations[: DECISIONS + 50]:
        start = time.perf_counter()
        policy.decide(observation)
        times.append(time.perf_counter() - start)
    return {
        "variant": variant.name,
        "decision_ms": 1000 * float(np.median(times[50:])),
        "onnx_mb": len(model) / 1e6,
    }
