"""How often FQE's 95 % interval covers the exact value of a tabular policy, over 100 logs.

    python results/trust/measure_coverage.py            # writes results/trust/coverage.json

Five states, three actions, one-hot encoded; 60 episodes of uniformly random actions a log, noisy
rewards, episodes cut off after 20 steps; discount 0.9; ten members of 32 hidden units.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "evaluation"))
from tabular import TabularMDP, table_policy  # noqa: E402

from pbrl.evaluation.ope import FQEConfig, fitted_q_evaluation  # noqa: E402


def main(seeds: int = 100) -> None:
    """Run all seeds and write the share of covering intervals."""
    torch.set_num_threads(1)
    mdp = TabularMDP.random()
    rows = []
    for seed in range(seeds):
        table = np.random.default_rng(1000 + seed).integers(3, size=5)
        log = mdp.log(episodes=60, horizon=20, seed=seed)
        config = FQEConfig(
            gamma=0.9,
            hidden=(32,),
            steps=500,
            tau=0.05,
            learning_rate=3e-3,
            batch_size=64,
            seed=seed,
        )
        estimate = fitted_q_evaluation(table_policy(table, 3), log, config)
        truth = mdp.value(table, 0.9)
        rows.append(
            {"seed": seed, "truth": truth, "value": estimate.value, "low": estimate.low,
             "high": estimate.high, "covers": bool(estimate.low <= truth <= estimate.high)}
        )  # fmt: skip
        print(seed, rows[-1]["covers"], flush=True)
    covered = float(np.mean([row["covers"] for row in rows]))
    error = np.array([row["value"] - row["truth"] for row in rows])
    result = {
        "seeds": seeds,
        "level": 0.95,
        "coverage": covered,
        "mean_error": float(error.mean()),
        "rmse": float(np.sqrt(np.square(error).mean())),
        "mean_half_width": float(np.mean([(r["high"] - r["low"]) / 2 for r in rows])),
        "rows": rows,
    }
    (HERE / "coverage.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"coverage {covered:.2f} of {seeds}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
