"""Fine-tuning from a run on the embedded data: the return as it goes, and its lowest point.

    python results/trust/measure_finetune.py --run RUN --work DIR [--steps 20000] [--from-step 3000]

Writes finetune.json and .png, or finetune-from-3000.json and .png for an early checkpoint that has
more left to learn.
Evaluated every 500 environment steps by 10 episodes, at the start and the end by 20.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pbrl import Evaluator, Run
from pbrl.training.finetune import finetune

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Fine-tune, read the evaluations, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--from-step", type=int, default=None)
    parser.add_argument("--steps", type=int, default=8000)
    arguments = parser.parse_args()
    start = arguments.from_step
    name = "finetune" if start is None else f"finetune-from-{start}"
    place = arguments.work / f"{name}-{arguments.run.name}"
    run = finetune(
        arguments.run, steps=arguments.steps, run_dir=place, eval_every=500, eval_episodes=10,
        threads=1, quiet=True, resume=True, from_step=start,
    )  # fmt: skip
    records = [r for r in run.metrics() if r["kind"] == "eval"]
    steps = [int(r["step"]) for r in records]
    returns = [float(r["return_mean"]) for r in records]
    assert run.env_id is not None
    evaluator = Evaluator(run.env_id)
    before = evaluator.evaluate(Run.open(arguments.run).agent(start).act, 20, seed=4)
    after = evaluator.evaluate(run.agent().act, 20, seed=4)
    evaluator.close()
    early = [(value, step) for step, value in zip(steps, returns, strict=True) if step <= 5000]
    result = {
        "before": {"mean": float(before.returns.mean()), "std": float(before.returns.std())},
        "after": {"mean": float(after.returns.mean()), "std": float(after.returns.std())},
        "offline_steps": run.info["finetune"]["step"],
        "online_steps": arguments.steps,
        "lowest_in_first_5000": {"return": min(early)[0], "step": min(early)[1]},
        "steps": steps,
        "returns": returns,
    }
    (HERE / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print({k: v for k, v in result.items() if k not in ("steps", "returns")})
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, returns, "o-")
    axes.axhline(returns[0], color="0.5", linestyle="--", label="offline run")
    axes.axvspan(0, 5000, alpha=0.08)
    axes.set(xlabel="environment steps", ylabel="return (10 episodes)")
    axes.legend()
    figure.savefig(HERE / f"{name}.png", dpi=90)


if __name__ == "__main__":
    main()
