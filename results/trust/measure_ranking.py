"""Does FQE rank six milestones of a run as their real returns do? Five seeds on the embedded data.

    python results/trust/measure_ranking.py --work DIR    # writes ranking.json and ranking.png

Each seed trains its own run of the demo preset (6,000 steps, a checkpoint every 1,000), evaluates
every checkpoint by FQE on the log alone, and plays 30 episodes of each in the environment. Runs are
kept in DIR, so that an interrupted measurement goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from pbrl import Evaluator, load_agent, load_dataset, train
from pbrl.evaluation.ope import FQEConfig, behaviour_value, fitted_q_evaluation
from pbrl.evaluation.ranking import rank_policies, spearman

HERE = Path(__file__).resolve().parent
MILESTONES = (1000, 2000, 3000, 4000, 5000, 6000)


def measure(seed: int, work: Path, steps: int) -> dict[str, object]:
    """One seed: train, evaluate offline, play."""
    run = work / f"demo-seed{seed}"
    train(
        "demo",
        preset="demo",
        run_dir=run,
        steps=MILESTONES[-1],
        seed=seed,
        threads=1,
        eval=False,
        keep_every=1000,
        tensorboard=False,
        quiet=True,
        resume=True,
    )
    dataset = load_dataset("demo")
    gamma = float(load_agent(run).algorithm.config.gamma)
    config = FQEConfig(gamma=gamma, steps=steps, seed=seed)
    assert dataset.info.env_id is not None
    evaluator = Evaluator(dataset.info.env_id)
    estimates, returns = {}, []
    for step in MILESTONES:
        agent = load_agent(run, step)
        estimates[str(step)] = fitted_q_evaluation(agent.act, dataset, config)
        returns.append(float(evaluator.evaluate(agent.act, 30, seed=77).returns.mean()))
        print(seed, step, round(estimates[str(step)].value, 1), round(returns[-1], 1), flush=True)
    evaluator.close()
    values = [estimate.value for estimate in estimates.values()]
    ranking = rank_policies(estimates)
    return {
        "seed": seed,
        "gamma": gamma,
        "milestones": list(MILESTONES),
        "values": values,
        "low": [e.low for e in estimates.values()],
        "high": [e.high for e in estimates.values()],
        "converged": [e.converged for e in estimates.values()],
        "returns": returns,
        "behaviour_value": behaviour_value(dataset, gamma).value,
        "spearman": spearman(values, returns),
        "rank_agreement": ranking.agreement,
        "verdict": ranking.verdict,
    }


def main() -> None:
    """All seeds, one JSON file, one picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in range(arguments.seeds):
        kept = arguments.work / f"ranking-seed{seed}.json"
        if not kept.exists():
            arguments.work.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(measure(seed, arguments.work, arguments.steps)))
        rows.append(json.loads(kept.read_text()))
        print(f"seed {seed}: Spearman {rows[-1]['spearman']:.2f}", flush=True)
    mean = float(np.mean([row["spearman"] for row in rows]))
    result = {"mean_spearman": mean, "fqe_steps": arguments.steps, "seeds": rows}
    (HERE / "ranking.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"mean Spearman {mean:.2f}")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        label = f"seed {row['seed']}: {row['spearman']:.2f}"
        axes.plot(row["returns"], row["values"], "o", label=label)
    axes.set(xlabel="real return (30 episodes)", ylabel="FQE value from the log", xscale="log")
    axes.legend(title="Spearman", fontsize="small")
    figure.savefig(HERE / "ranking.png", dpi=90)


if __name__ == "__main__":
    main()
