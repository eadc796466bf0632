"""Table 3: what a step costs. Each system is measured in a process of its own, on one thread."""

from __future__ import annotations

import sys
from typing import Any

from pbrl.bench.measuring import answer_of, begin

# Walker2d and HalfCheetah, which give the paper's parameter counts.
OBSERVATION_DIM, ACTION_DIM = 17, 6

_CHILD = """
import json, sys
from pbrl.experiments.cost import measure_here
print(json.dumps(measure_here(sys.argv[1], int(sys.argv[2]))))
"""


def measure_cost(algorithm: str, updates: int) -> dict[str, Any]:
    """Cost of an algorithm at the paper's size, measured in a fresh process."""
    return answer_of(begin(["-c", _CHILD, algorithm, str(updates)], threads=1), algorithm)


def measure_here(algorithm: str, updates: int) -> dict[str, Any]:
    """CPU seconds per 1000 steps, peak memory and number of trained parameters, in this process."""
    import resource
    from itertools import islice

    import torch

    from pbrl.algorithms import algorithm_class
    from pbrl.training.machine import keep_freed_memory, use_wide_products
    from pbrl.training.timing import update_times

    torch.set_num_threads(1)
    keep_freed_memory()
    use_wide_products()
    learner = algorithm_class(algorithm)(None, OBSERVATION_DIM, ACTION_DIM)
    times = list(islice(update_times(learner, OBSERVATION_DIM, ACTION_DIM), updates))
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        kilobytes //= 1024  # bytes there
    return {
        "seconds_per_1000_steps": 1000 * sorted(times)[len(times) // 2],
        "memory_gb": kilobytes * 1024 / 1e9,
        "parameters_millions": trained_parameters(learner) / 1e6,
        "updates": updates,
    }


def trained_parameters(algorithm: Any) -> int:
    """Numbers the optimisers move; target copies and fixed priors do not count, as in the paper."""
    return sum(
        parameter.numel()
        for optimizer in algorithm.optimizers().values()
        for group in optimizer.param_groups
        for parameter in group["params"]
    )
