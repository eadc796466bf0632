"""d3rlpy's side of ``pbrl bench --peers``, run by the Python that has d3rlpy.

A file of its own that imports nothing of pbrl. The first line of standard input says what to build,
as JSON; every further line is a number of seconds to train for. Each line gets one JSON object as
its answer.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

# Our name -> d3rlpy's, what else its config needs, and whether its critics have LayerNorm.
ALGORITHMS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "bc": ("BC", {"policy_type": "deterministic"}, False),
    "td3bc": ("TD3PlusBC", {}, False),
    "iql": ("IQL", {}, False),
    "rebrac": ("ReBRAC", {}, True),
    "sac-n": ("SAC", {"n_critics": 2}, False),
    "cql": ("CQL", {"n_action_samples": 10}, False),
}


def build(spec: dict[str, Any]) -> tuple[Any, Any]:
    """The algorithm and its replay buffer."""
    import d3rlpy
    import numpy as np
    import torch

    torch.set_num_threads(spec["threads"])
    name, settings, layer_norm = ALGORITHMS[spec["algorithm"]]

    def encoder(normed: bool = False) -> Any:
        return d3rlpy.models.encoders.VectorEncoderFactory(
            hidden_units=list(spec["hidden"]), use_layer_norm=normed
        )

    encoders: dict[str, Any] = {}
    if name == "BC":
        encoders["encoder_factory"] = encoder()
    else:
        encoders["actor_encoder_factory"] = encoder()
        encoders["critic_encoder_factory"] = encoder(layer_norm)
        if name == "IQL":
            encoders["value_encoder_factory"] = encoder()
    config = getattr(d3rlpy.algos, f"{name}Config")(
        batch_size=spec["batch_size"], **settings, **encoders
    )
    with np.load(spec["rows"], allow_pickle=False) as rows:
        dataset = d3rlpy.dataset.MDPDataset(
            rows["observations"],
            rows["actions"],
            rows["rewards"],
            rows["terminals"].astype(np.float32),
            timeouts=(rows["episode_ends"] & ~rows["terminals"]).astype(np.float32),
        )
    algorithm = config.create(device="cpu:0")
    algorithm.build_with_dataset(dataset)
    return algorithm, dataset


def serve(step: Callable[[], object], versions: dict[str, str]) -> None:
    """Warm up, say who is here, then take steps for as long as each line of standard input says."""
    for _ in range(4):
        step()
    print(json.dumps({"versions": versions}), flush=True)
    for line in sys.stdin:
        steps, start, cpu_start = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - start < float(line) or steps < 5:
            step()
            steps += 1
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
        print(json.dumps({"steps": steps, "seconds": seconds, "cpu_seconds": cpu}), flush=True)


def main() -> None:
    """Train d3rlpy's algorithm as its own fit loop does, without its logging."""
    import d3rlpy
    import numpy
    import torch

    spec = json.loads(sys.stdin.readline())
    algorithm, dataset = build(spec)
    serve(
        lambda: algorithm.update(dataset.sample_transition_batch(spec["batch_size"])),
        {"d3rlpy": d3rlpy.__version__, "torch": torch.__version__, "numpy": numpy.__version__},
    )


if __name__ == "__main__":
    main()
