"""How often is the decision wrong? Many logs of the point task, three policies each.

    OMP_NUM_THREADS=1 python results/decide/measure_decisions.py --work DIR --logs 40 --first 100

Every log is written by a random regulator with random noise: 150 episodes of 40 steps. Candidates:

    trained    PBRL, TD3+BC or BC in turn (small networks, 100, 400 or 1,500 steps in turn), which
               never see the 45 episodes that are held out
    near       the regulator of the log with random gain, damping and turn: about as good as the log
    hesitant   the regulator of the log at 5 to 60 % of its gain, pulling askew: mostly worse

The held-out episodes alone judge, at level 0.95. True values: 2,000 episodes of 200 steps. Writes
decisions.json and decisions.png beside this file.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from point_task import GAMMA, Point, regulator

from pbrl import train
from pbrl.data.episodes import pick_episodes
from pbrl.evaluation.decision import decide
from pbrl.evaluation.ope import FQEConfig
from pbrl.evaluation.opinions import Evidence

HERE = Path(__file__).resolve().parent
EPISODES, HELD_OUT, LEVEL = 150, 0.3, 0.95
SMALL: dict[str, Any] = {"hidden": (32, 32), "batch_size": 128}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "pbrl": {**SMALL, "policy_hidden": (32, 32), "ensemble_size": 4, "n_ood": 4, "gamma": GAMMA},
    "td3bc": {**SMALL, "gamma": GAMMA},
    "bc": SMALL,
}
STEPS = (100, 400, 1500)


def one_log(number: int, work: Path) -> list[dict[str, Any]]:
    """Three candidates judged by one log."""
    rng = np.random.default_rng([number, 17])
    task = Point()
    gain, damping = rng.uniform(0.2, 1.2), rng.uniform(0.0, 0.7)
    noise, turn = rng.uniform(0.2, 0.4), rng.uniform(-0.3, 0.3)
    behaviour = regulator(gain, damping, turn)
    log = task.log(behaviour, EPISODES, number, noise)
    name = list(ALGORITHMS)[number % 3]
    steps = STEPS[number // 3 % 3]
    run = train(
        log, algorithm=name, preset="demo", run_dir=work / f"log{number}", steps=steps,
        seed=number, hold_out=HELD_OUT, eval=False, threads=1, quiet=True, resume=True,
        tensorboard=False, **ALGORITHMS[name],
    )  # fmt: skip
    judges = pick_episodes(log, run.info["data"]["held_out_episodes"])
    near = regulator(
        gain * rng.uniform(0.6, 1.5), damping * rng.uniform(0.3, 1.5), turn + rng.normal(0, 0.4)
    )
    candidates = {
        f"trained: {name}, {steps} steps": run.agent().act,
        "near": near,
        "hesitant": regulator(
            gain * rng.uniform(0.05, 0.6), damping * rng.uniform(0, 1), turn + rng.normal(0, 0.5)
        ),
    }
    config = FQEConfig(gamma=GAMMA, steps=2000, tau=0.05, ensemble_size=5, seed=number)
    evidence = Evidence(judges, config)
    worth = task.value(behaviour, noise)
    rows = []
    for kind, act in candidates.items():
        found = decide(act, judges, evidence=evidence, level=LEVEL)
        rows.append({
            "log": number, "kind": kind, "deploy": found.deploy, "truth": task.value(act) - worth,
            "log_value": worth, "lower_bound": found.lower_bound, "unlike": found.unlike,
            "reasons": list(found.reasons),
            "bounds": {m: [o.difference, o.bound(LEVEL), o.bound(LEVEL, upper=True), o.effective]
                       for m, o in found.opinions.items()},
        })  # fmt: skip
    return rows


def clopper_pearson(hits: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Exact binomial interval."""
    from scipy.stats import beta

    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta.ppf(1 - tail, hits + 1, trials - hits))
    return low, high


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Error rates with their intervals."""

    def rate(part: list[dict[str, Any]], hit: Any) -> dict[str, Any]:
        hits = sum(bool(hit(row)) for row in part)
        low, high = clopper_pearson(hits, len(part)) if part else (0.0, 1.0)
        return {"hits": hits, "of": len(part), "low": low, "high": high}

    worse = [r for r in rows if r["truth"] <= 0]
    better = [r for r in rows if r["truth"] > 0]
    held = {
        m: rate(rows, lambda r, m=m: r["bounds"][m][1] > r["truth"])
        for m in rows[0]["bounds"]
    }  # fmt: skip
    return {
        "deployed_although_worse": rate(worse, lambda r: r["deploy"]),
        "deployed_although_worse_by_up_to_1": rate(
            [r for r in worse if r["truth"] > -1], lambda r: r["deploy"]
        ),
        "passed_over_although_better": rate(better, lambda r: not r["deploy"]),
        "passed_over_better_by_up_to_1": rate(
            [r for r in better if r["truth"] < 1], lambda r: not r["deploy"]
        ),
        "passed_over_better_by_more_than_1": rate(
            [r for r in better if r["truth"] >= 1], lambda r: not r["deploy"]
        ),
        "lower_bound_above_the_truth": rate(rows, lambda r: r["lower_bound"] > r["truth"]),
        "lower_bound_above_the_truth_by_method": held,
    }


def draw(rows: list[dict[str, Any]]) -> None:
    """Lower bounds against true differences."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.2), layout="constrained")
    axes = figure.subplots()
    for deploy, colour in ((True, "#2ba86d"), (False, "#e0662a")):
        part = [r for r in rows if r["deploy"] == deploy]
        label = "deploy" if deploy else "not shown to be better"
        axes.plot([r["truth"] for r in part], [max(r["lower_bound"], -12) for r in part], "o",
                  ms=4, alpha=0.7, color=colour, label=label)  # fmt: skip
    axes.plot([-12, 8], [-12, 8], color="0.6", lw=1)
    axes.axhline(0, color="0.6", lw=1, ls="--")
    axes.axvline(0, color="0.6", lw=1, ls="--")
    axes.set(xlabel="true difference to the log", ylabel="lower bound (at least -12)",
             xlim=(-12.5, 8), ylim=(-12.5, 8))  # fmt: skip
    axes.legend(fontsize="small")
    figure.savefig(HERE / "decisions.png", dpi=100)


def main() -> None:
    """All logs; goes on where it was."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--logs", type=int, default=48)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    kept, start, rows = arguments.work / "rows.jsonl", time.process_time(), []
    if kept.exists():
        rows = [json.loads(line) for line in kept.read_text().splitlines()]
    done = {row["log"] for row in rows}
    for number in range(arguments.first, arguments.first + arguments.logs):
        if number in done:
            continue
        new = one_log(number, arguments.work)
        rows += new
        with kept.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in new)
        said = [
            (r["kind"], r["deploy"], round(r["truth"], 2), round(r["lower_bound"], 2)) for r in new
        ]
        print(number, said, f"{time.process_time() - start:.0f} s", flush=True)
    for row in rows:
        row["lower_bound"] = max(row["lower_bound"], -1e9)  # JSON has no infinity
    result = {"level": LEVEL, "logs": len({r["log"] for r in rows}), "policies": len(rows),
              "summary": summary(rows)}  # fmt: skip
    print(json.dumps(result, indent=1))
    for row in rows:
        row["bounds"] = {m: [x if np.isfinite(x) else None for x in v]
                         for m, v in row["bounds"].items()}  # fmt: skip
    (HERE / "decisions.json").write_text(json.dumps(result | {"rows": rows}, indent=1) + "\n")
    draw(rows)


if __name__ == "__main__":
    main()
