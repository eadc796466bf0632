"""Which method tells good policies from bad ones? Twelve policies, logs of three qualities.

    OMP_NUM_THREADS=1 python results/decide/measure_estimators.py

The point task (``point_task.py``), discount 0.95, logs of 100 episodes of 40 steps; three seeds a
quality. True values: 2,000 episodes of 200 steps of every policy, played without noise.
Writes estimators.json and estimators.png beside this file.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import torch
from point_task import GAMMA, POLICIES, Point, regulator

from pbrl.evaluation.ope import FQEConfig
from pbrl.evaluation.opinions import METHODS, Evidence
from pbrl.evaluation.ranking import accuracy

HERE = Path(__file__).resolve().parent

LOGS = {
    "poor": (regulator(0.2, 0.1), 0.4),
    "medium": (regulator(0.5, 0.3), 0.3),
    "good": (regulator(1.2, 0.7), 0.2),
}


def main(seeds: int = 3, episodes: int = 100) -> None:
    """All logs and policies; rows are kept so that every number can be looked up."""
    torch.set_num_threads(1)
    task, start = Point(), time.process_time()
    truth = {name: task.value(act) for name, act in POLICIES.items()}
    true = list(truth.values())
    rows, table = [], {}
    for quality, (behaviour, noise) in LOGS.items():
        measured: dict[str, list[tuple[float, float, float]]] = {m: [] for m in METHODS}
        for seed in range(seeds):
            log = task.log(behaviour, episodes, seed, noise)
            config = FQEConfig(gamma=GAMMA, steps=3000, tau=0.05, ensemble_size=5, seed=seed)
            evidence = Evidence(log, config)
            found = {name: evidence.opinions(act) for name, act in POLICIES.items()}
            for method in METHODS:
                values = [found[name][method].value for name in POLICIES]
                got = accuracy(values, true)
                measured[method].append((got.regret, got.error, got.rank_correlation))
                effective = [found[name][method].effective for name in POLICIES]
                rows.append(
                    {
                        "log": quality,
                        "seed": seed,
                        "method": method,
                        "values": values,
                        "effective": effective,
                    }
                )
            print(quality, seed, {m: np.round(v[-1], 2).tolist() for m, v in measured.items()},
                  f"{time.process_time() - start:.0f} s", flush=True)  # fmt: skip
        table[quality] = {
            m: dict(zip(("regret", "error", "spearman"), np.mean(v, 0).tolist(), strict=True))
            for m, v in measured.items()
        }
        table[quality]["value of the log's behaviour"] = task.value(behaviour, noise)
    result = {
        "seeds": seeds, "episodes": episodes, "truth": truth, "table": table, "rows": rows,
        "cpu_seconds": time.process_time() - start,
    }  # fmt: skip
    (HERE / "estimators.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(result)


def draw(result: dict) -> None:
    """Estimates against true values, a panel a log, seed 0."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8), layout="constrained")
    true = list(result["truth"].values())
    for axes, quality in zip(figure.subplots(1, 3, sharey=True), LOGS, strict=True):
        for method in METHODS:
            (row,) = (r for r in result["rows"]
                      if (r["log"], r["seed"], r["method"]) == (quality, 0, method))  # fmt: skip
            axes.plot(true, row["values"], "o", ms=4, alpha=0.7, label=method)
        axes.plot([min(true), max(true)], [min(true), max(true)], color="0.6", lw=1)
        axes.set(title=f"{quality} log", xlabel="true value", xlim=(-40, 20), ylim=(-40, 25))
    figure.axes[0].set_ylabel("estimate")
    figure.axes[0].legend(fontsize="small")
    figure.savefig(HERE / "estimators.png", dpi=100)


if __name__ == "__main__":
    main()
