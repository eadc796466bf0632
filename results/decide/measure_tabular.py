"""Bias of the estimators and coverage of their bounds where every value is known exactly.

    OMP_NUM_THREADS=1 python results/decide/measure_tabular.py [SEEDS]   # writes tabular.json

Five states, three actions, one-hot encoded; each seed draws a log of 100 episodes of uniformly
random actions with noisy rewards, cut after 20 steps, and a random policy (a distribution over the
actions in every state); discount 0.9. The chances of the logged actions are known here, so this is
about the estimators and their bounds alone. Bounds are one-sided at 95 %, of the difference to the
log's behaviour.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "helpers"))
from tabular import TabularMDP  # noqa: E402

from pbrl.evaluation.estimate import Opinion, bootstrap_counts  # noqa: E402
from pbrl.evaluation.fqe import fit_q  # noqa: E402
from pbrl.evaluation.importance import (  # noqa: E402
    WeightedEpisodes,
    doubly_robust,
    per_decision,
    weighted_importance_sampling,
)
from pbrl.evaluation.ope import FQEConfig, log_value, summarise  # noqa: E402

GAMMA, LEVEL = 0.9, 0.95
WEIGHTED = {"wis": weighted_importance_sampling, "pdis": per_decision, "dr": doubly_robust}


def opinions(mdp: TabularMDP, chances: np.ndarray, seed: int) -> dict[str, Opinion]:
    """Every method's on the log of a seed."""
    log = mdp.log(episodes=100, horizon=20, seed=seed)
    rng = np.random.default_rng(seed)
    eye = np.eye(3, dtype=np.float32)

    def draw(observations: np.ndarray) -> np.ndarray:
        cumulated = chances[observations.argmax(1)].cumsum(1)
        return eye[(rng.random((len(cumulated), 1)) > cumulated[:, :2]).sum(1)]

    config = FQEConfig(gamma=GAMMA, hidden=(32,), steps=600, tau=0.05, learning_rate=3e-3,
                       batch_size=64, action_samples=10, seed=seed)  # fmt: skip
    fit, log_worth = fit_q(draw, log, config), log_value(log, config)
    weights = fit.counts / fit.counts.sum(1, keepdims=True)
    base = (weights * log_worth.by_member).sum(1)
    found = {"fqe": Opinion("fqe", summarise(fit).value, float(base.mean()), fit.samples, base,
                            refitted=True, effective=100.0)}  # fmt: skip
    s, a = log.observations.argmax(1), log.actions.argmax(1)
    table = np.stack([fit.q_values(np.eye(5, dtype="f4"), np.tile(eye[i], (5, 1))).mean(0)
                      for i in range(3)], 1)  # fmt: skip
    value = (chances * table).sum(1)
    last = np.array([rows.stop - 1 for rows in log.episodes()])
    after = value[log.next_observations[last].argmax(1)]
    episodes = WeightedEpisodes.of(log, GAMMA, np.log(3 * chances[s, a]), after, table[s, a],
                                   value[s])  # fmt: skip
    counts = bootstrap_counts(100, 1000, seed)
    returns = log_worth.by_episode
    for name, estimator in WEIGHTED.items():
        got = estimator(episodes, counts)
        found[name] = Opinion(name, got.value, float(returns.mean()), got.draws,
                              counts @ returns / 100, refitted=False,
                              effective=float(got.effective.min()))  # fmt: skip
    return found


def main(seeds: int = 100) -> None:
    """Bias, root mean squared error and coverage by method."""
    torch.set_num_threads(1)
    mdp, start = TabularMDP.random(), time.process_time()
    uniform = mdp.value(np.full((5, 3), 1 / 3), GAMMA)
    rows = []
    for seed in range(seeds):
        chances = np.random.default_rng(1000 + seed).dirichlet(np.ones(3), 5)
        truth = mdp.value(chances, GAMMA)
        for name, found in opinions(mdp, chances, seed).items():
            low, high = found.interval(LEVEL)
            rows.append({
                "seed": seed, "method": name, "truth": truth, "value": found.value,
                "covers": bool(low <= truth <= high),
                "lower_holds": bool(found.bound(LEVEL) <= truth - uniform),
                "width": high - low, "bound_gap": truth - uniform - found.bound(LEVEL),
            })  # fmt: skip
    table = {}
    for name in ("fqe", *WEIGHTED):
        mine = [row for row in rows if row["method"] == name]
        error = np.array([row["value"] - row["truth"] for row in mine])
        table[name] = {
            "bias": float(error.mean()),
            "bias_standard_error": float(error.std(ddof=1) / np.sqrt(seeds)),
            "rmse": float(np.sqrt(np.square(error).mean())),
            "interval_covers": float(np.mean([row["covers"] for row in mine])),
            "lower_bound_holds": float(np.mean([row["lower_holds"] for row in mine])),
            "median_distance_of_lower_bound": float(np.median([r["bound_gap"] for r in mine])),
        }
        print(name, {k: round(v, 4) for k, v in table[name].items()}, flush=True)
    result = {"seeds": seeds, "level": LEVEL, "value_of_the_log": uniform, "table": table,
              "cpu_seconds": time.process_time() - start, "rows": rows}  # fmt: skip
    (HERE / "tabular.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
