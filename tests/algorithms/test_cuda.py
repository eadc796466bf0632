"""On a GPU a step must not wait for the host; without one these tests say so and skip."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pbrl.algorithms import algorithm_class
from pbrl.bench.worker import made_up_data
from pbrl.data.training_data import TrainingData

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("name", ["pbrl", "pbrl-prior"])
@pytest.mark.parametrize("options", [{}, {"ood_next_states": True}, {"actor_objective": "mean"}])
def test_a_step_does_not_synchronise(name: str, options: dict[str, Any]) -> None:
    cls: Any = algorithm_class(name)
    algorithm = cls(cls.Config(n_ood=2, **options), 5, 2, device="cuda")
    data = TrainingData(made_up_data(5, 2, rows=2000), device="cuda")
    algorithm.prepare(data)
    generator = torch.Generator("cuda").manual_seed(0)
    for _ in range(3):  # the first steps create optimiser state and buffers
        algorithm.update(data.sample(64, generator))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            algorithm.update(data.sample(64, generator))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
