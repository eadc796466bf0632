"""A run directory: config, metrics, checkpoints and results, readable without the code."""

from __future__ import annotations

import dataclasses
import json
import platform
import subprocess
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
from pbrl.training.checkpoint import Checkpoint, latest_checkpoint, read_checkpoint
from pbrl.training.config import TrainConfig, from_json, read_config
from pbrl.training.guard_of_run import guard_of_run
from pbrl.training.metrics import read_metrics

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

    @staticmethod
    def open(path: str | Path) -> Run:
        """Open an existing run directory."""
        path = Path(path)
        if not (path / CONFIG).is_file():
            raise PbrlError(f"{path} holds no pbrl run (no {CONFIG}); give a run directory.")
        return Run(path, read_config(path / CONFIG))

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

    @property
    def summary(self) -> dict[str, Any] | None:
        """Results of a finished run; None while it is not finished."""
        path = self.path / SUMMARY
        return json.loads(path.read_text()) if path.exists() else None

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
    checkpoint = _checkpoint(opened, step)
    data = opened.info["data"]
    algorithm = algorithm_class(config.algorithm)(
        config.settings, data["observation_dim"], data["action_dim"], device=device
    )
    try:
        algorithm.load_state_dict(checkpoint.state, networks_only=True)
    except (RuntimeError, KeyError) as error:
        raise PbrlError(f"{checkpoint.path} does not fit the run's config: {error}.") from error
    agent = Agent(algorithm, opened.preprocessing, opened.info)
    agent.guard_source = lambda asked: guard_of_run(asked, opened.path, checkpoint.step)
    return agent


def _checkpoint(run: Run, step: int | None) -> Checkpoint:
    """The networks of the newest checkpoint, of the one at ``step``, or of a hub's directory."""
    if (run.path / WEIGHTS).is_file() and not run.checkpoints.is_dir():
        if step is not None:
            raise PbrlError(f"{run.path} holds one policy and no checkpoint at step {step}.")
        try:
            state = load_tensors((run.path / WEIGHTS).read_bytes())
        except (OSError, SafetensorError) as error:
            raise PbrlError(f"{run.path / WEIGHTS} is damaged ({error}).") from error
        return Checkpoint(int(run.info["config"]["steps"]), state, run.path / WEIGHTS)
    if step is None:
        checkpoint = latest_checkpoint(run.checkpoints, networks_only=True)
        if checkpoint is None:
            raise PbrlError(f"{run.path} has no checkpoint yet; train it first.")
        return checkpoint
    path = run.checkpoints / f"step_{step:09d}"
    if not path.is_dir():
        raise PbrlError(f"{run.path} has no checkpoint at step {step}.")
    return read_checkpoint(path, networks_only=True)


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
