"""A run directory: config, metrics, checkpoints and results, readable without the code."""

from __future__ import annotations

import dataclasses
import json
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors

from pbrl.algorithms import algorithm_class
from pbrl.data.preprocessing import Preprocessing
from pbrl.deploy.agent import Agent
from pbrl.envs.environments import named_by_file
from pbrl.errors import PbrlError
from pbrl.training.checkpoint import (
    Checkpoint,
    all_finite,
    latest_checkpoint,
    origin_of,
    read_checkpoint,
)
from pbrl.training.config import TrainConfig, from_json
from pbrl.training.guard_of_run import guard_of_run
from pbrl.training.metrics import read_metrics
from pbrl.training.run_info import is_count, is_number, read_info

CONFIG, SUMMARY = "config.json", "summary.json"
WEIGHTS = "model.safetensors"  # of a run laid out for a model hub (hub.py)
SEEDS_CONFIG = "seeds.json"  # of several seeds, in the directory above theirs


@dataclass(frozen=True)
class Run:
    """A run on disk.

    Attributes:
        path: the run directory.
        info: the contents of ``config.json``.
    """

    path: Path
    info: dict[str, Any]

    def __repr__(self) -> str:
        """Where it is and what it reached; the whole ``info`` would fill pages."""
        config, summary = self.info.get("config", {}), self.summary
        told = f", {summary['steps']:,} steps" if summary else ", not finished"
        last = (summary or {}).get("last_evaluation")
        score = f", return {last['return_mean']:.1f}" if last else ""
        return f"Run({str(self.path)!r}: {config.get('algorithm')}{told}{score})"

    @staticmethod
    def open(path: str | Path) -> Run:
        """Open an existing run directory."""
        path = Path(path)
        if not (path / CONFIG).is_file():
            raise PbrlError(f"{path} holds no pbrl run (no {CONFIG}); give a run directory.")
        return Run(path, read_info(path / CONFIG))

    @property
    def config(self) -> TrainConfig:
        """The settings of the run, without an environment that would import a module."""
        config = from_json(self.info["config"], str(self.path / CONFIG), complete=True)
        own = config.env_id is not None and ":" in config.env_id
        return dataclasses.replace(config, env_id=None) if own else config

    @property
    def preprocessing(self) -> Preprocessing:
        """Maps between raw and network units, fitted on the training data."""
        return Preprocessing.from_json(self.info["preprocessing"])

    @property
    def env_id(self) -> str | None:
        """The environment the run is scored in; refused where making it would import a module."""
        value = self.info["data"]["env_id"]
        return named_by_file(None if value is None else str(value), str(self.path / CONFIG))

    @property
    def reference_scores(self) -> tuple[float, float] | None:
        """Returns that count as 0 and 100."""
        value = self.info["data"]["reference_scores"]
        return None if value is None else (float(value[0]), float(value[1]))

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.path / "checkpoints"

    def checkpoint_at(self, step: int) -> Path:
        """The kept checkpoint of that step."""
        path = self.checkpoints / f"step_{step:09d}"
        if not path.is_dir():
            raise PbrlError(f"{self.path} has no checkpoint at step {step}.")
        return path

    @property
    def summary(self) -> dict[str, Any] | None:
        """Results of a finished run; None while it is not finished, or where they are torn."""
        try:
            values = json.loads((self.path / SUMMARY).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return values if _is_summary(values) else None

    def metrics(self) -> list[dict[str, Any]]:
        """All metric records."""
        return list(read_metrics(self.path))

    def agent(self, step: int | None = None, device: str = "cpu") -> Agent:
        """The policy and critics of the newest whole checkpoint, or of the one at ``step``."""
        return load_agent(self.path, step, device)


def load_agent(run: str | Path, step: int | None = None, device: str = "cpu") -> Agent:
    """Load a trained agent.

    Args:
        run: the run directory.
        step: a kept checkpoint's step; the newest when omitted.
        device: where its networks shall live.

    Returns:
        An agent with ``act``, ``q_values`` and ``uncertainty`` on NumPy arrays.
    """
    opened = Run.open(run)
    config = opened.config
    data = opened.info["data"]
    algorithm = algorithm_class(config.algorithm)(
        config.settings, data["observation_dim"], data["action_dim"], device=device
    )

    def use(checkpoint: Checkpoint) -> None:
        checkpoint.require_origin(origin_of(opened.info))
        algorithm.load_checkpoint(checkpoint.state, str(checkpoint.path), networks_only=True)

    checkpoint = _checkpoint(opened, step, use)
    agent = Agent(algorithm, opened.preprocessing, opened.info)
    agent.guard_source = lambda asked: guard_of_run(asked, opened.path, checkpoint.step)
    return agent


def _checkpoint(run: Run, step: int | None, use: Callable[[Checkpoint], None]) -> Checkpoint:
    """The networks of the newest checkpoint, of the one at ``step``, or of a hub's directory.

    ``use`` loads them, and refuses those that do not fit.
    """
    if (run.path / WEIGHTS).is_file() and not run.checkpoints.is_dir():
        if step is not None:
            raise PbrlError(f"{run.path} holds one policy and no checkpoint at step {step}.")
        try:
            state = load_tensors((run.path / WEIGHTS).read_bytes())
        except (OSError, SafetensorError) as error:
            raise PbrlError(f"{run.path / WEIGHTS} is damaged ({error}).") from error
        if (broken := all_finite(state)) is not None:
            raise PbrlError(
                f"{run.path / WEIGHTS} is damaged: {broken} holds values that are not finite."
            )
        checkpoint = Checkpoint(int(run.info["config"]["steps"]), state, run.path / WEIGHTS, {})
        use(checkpoint)
        return checkpoint
    if step is None:
        newest = latest_checkpoint(run.checkpoints, networks_only=True, use=use)
        if newest is None:
            raise PbrlError(f"{run.path} has no checkpoint yet; train it first.")
        return newest
    checkpoint = read_checkpoint(run.checkpoint_at(step), networks_only=True)
    use(checkpoint)
    return checkpoint


def _is_summary(values: Any) -> bool:
    """Whether results are whole: a torn or edited file is as none."""
    if not isinstance(values, dict) or not isinstance(values.get("algorithm"), str):
        return False
    last = values.get("last_evaluation")
    if last is not None:
        if not isinstance(last, dict):
            return False
        names = ["episodes", "return_mean", "return_std"]
        names += ["score_mean", "score_std"] if "score_mean" in last else []
        if not all(is_number(last.get(name)) for name in names):
            return False
    training = values.get("last_training")
    if not (training is None or isinstance(training, dict)):
        return False
    numbers = [v for k, v in (training or {}).items() if k.startswith(("u_", "q_"))]
    return (
        is_count(values.get("steps"))
        and is_number(values.get("behaviour_return_mean"))
        and all(map(is_number, numbers))
    )


def versions() -> dict[str, str]:
    """Versions of what the numbers of a run depend on."""
    out = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for package in ("pbrl", "numpy", "gymnasium", "mujoco"):
        try:
            out[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return out


def git_revision() -> str | None:
    """The revision of the source tree this package runs from, if it is one."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
