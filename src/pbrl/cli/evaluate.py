"""``pbrl evaluate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from pbrl.cli.parse import parse
from pbrl.console import plain_console
from pbrl.errors import PbrlError
from pbrl.evaluation.noise import Noise, require_size
from pbrl.evaluation.rollout import Evaluator
from pbrl.training.files import write_json
from pbrl.training.guard_of_run import training_dataset
from pbrl.training.run import Run


@dataclass(frozen=True)
class EvaluateArguments:
    """Score a run in its environment and write evaluation.json into it.

    Attributes:
        run: the run directory.
        episodes: how many episodes to play.
        seed: of the initial states and of the noise.
        step: a kept checkpoint; the newest when omitted.
        env_id: another environment than the run's own.
        observation_noise: Gaussian noise on what the policy sees, in deviations of the data's
            columns: 0.05 is five percent of what each of them varies by.
        action_noise: likewise on what it answers.
        dataset: the data whose deviations count; the run's own when omitted.
    """

    run: Annotated[Path, tyro.conf.Positional]
    episodes: int = 20
    seed: int = 0
    step: int | None = None
    env_id: str | None = None
    observation_noise: float = 0.0
    action_noise: float = 0.0
    dataset: str | None = None


def main(argv: list[str]) -> int:
    """Run ``pbrl evaluate`` with these words; returns the exit code."""
    arguments = parse(EvaluateArguments, argv, "pbrl evaluate")
    for name in ("observation", "action"):
        require_size(name, getattr(arguments, f"{name}_noise"))
    run = Run.open(arguments.run)
    env_id = arguments.env_id or run.env_id
    if env_id is None:
        raise PbrlError(
            "This run knows no environment to play in; 'pbrl ope "
            f"{arguments.run}' estimates its value from the log alone, or name one with --env-id."
        )
    agent = run.agent(arguments.step)
    evaluator = Evaluator(env_id, run.reference_scores)
    evaluator.require_spaces(agent.observation_dim, agent.action_dim)
    noise = _noise(run, arguments)
    result = evaluator.evaluate(agent.act, arguments.episodes, arguments.seed, noise)
    evaluator.close()
    values = {
        "env_id": env_id,
        "episodes": arguments.episodes,
        "seed": arguments.seed,
        "step": arguments.step,
        "observation_noise": arguments.observation_noise,
        "action_noise": arguments.action_noise,
        **result.summary(),
        "returns": result.returns.tolist(),
        "lengths": result.lengths.tolist(),
        "scores": None if result.scores is None else result.scores.tolist(),
        "score_source": run.info["data"]["score_source"],
    }
    write_json(run.path / "evaluation.json", values)

    table = Table("measure", "mean", "std", "min", "max", title=f"{run.path.name} in {env_id}")
    rows = {"return": result.returns, "episode length": result.lengths}
    if result.scores is not None:
        rows[f"normalised score ({run.info['data']['score_source']})"] = result.scores
    for label, numbers in rows.items():
        table.add_row(
            label,
            *(f"{x:.1f}" for x in (numbers.mean(), numbers.std(), numbers.min(), numbers.max())),
        )
    console = plain_console()
    console.print(table)
    if noise is not None:
        console.print(
            f"Under noise of {arguments.observation_noise:g} deviations of the data on "
            f"observations and {arguments.action_noise:g} on actions.",
            soft_wrap=True,
        )
    behaviour = run.info["data"]["behaviour_return_mean"]
    console.print(f"The data's own mean return: {behaviour:.1f}")
    return 0


def _noise(run: Run, arguments: EvaluateArguments) -> Noise | None:
    """What the words ask for, in the deviations of the data; None without noise."""
    sizes = (arguments.observation_noise, arguments.action_noise)
    if not any(sizes):
        return None
    if arguments.dataset is None:
        return Noise.of(training_dataset(run.info), *sizes)
    data, dims = run.config.load_dataset(arguments.dataset), run.info["data"]
    if (data.observation_dim, data.action_dim) != (dims["observation_dim"], dims["action_dim"]):
        raise PbrlError(
            f"'{arguments.dataset}' has {data.observation_dim} observation and {data.action_dim} "
            f"action dimensions, the run {dims['observation_dim']} and {dims['action_dim']}."
        )
    return Noise.of(data, *sizes)
