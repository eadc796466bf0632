"""The guard of a run: fitted once on the run's own data, and kept beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pbrl.data.dataset import TransitionDataset
from pbrl.data.preprocessing import bounded_actions
from pbrl.deploy.agent import Agent
from pbrl.deploy.guard import Guard
from pbrl.errors import PbrlError
from pbrl.training.config import from_json


def guard_file(run_path: Path, step: int) -> Path:
    """Where the guard of the checkpoint at ``step`` is kept."""
    return run_path / "guards" / f"step_{step:09d}.safetensors"


def guard_of_run(agent: Agent, run_path: Path, step: int) -> Guard:
    """The kept guard of this checkpoint, or a new one fitted on the run's data.

    A file that is damaged, has no checksum or belongs to other data is fitted anew: the same data
    and networks give the same guard. So is one of an older pbrl that knows nothing of episodes;
    where the data are gone, it goes on serving single steps.
    """
    path, trouble = guard_file(run_path, step), ""
    older = None
    if path.exists():
        try:
            guard = Guard.load(path)
            if guard.about.get("data_fingerprint") == agent.info["data"]["fingerprint"]:
                if "held_out_episodes" in guard.about:
                    return guard
                older = guard
            else:
                trouble = f"{path} was fitted on other data than the run's. "
        except PbrlError as error:
            trouble = f"{error} "
    try:
        guard = agent.fit_guard(training_dataset(agent.info))
    except PbrlError as error:
        if older is not None:
            return older
        raise PbrlError(f"{trouble}{error}") from error
    guard.about["step"] = step
    try:
        path.parent.mkdir(exist_ok=True)
        guard.save(path)
    except OSError:
        pass  # a run on a read-only disk still gets its guard, only not for the next time
    return guard


def training_dataset(info: dict[str, Any]) -> TransitionDataset:
    """The data a run was trained on, loaded again and compared with its fingerprint."""
    config, data = from_json(info["config"], complete=True), info["data"]
    try:
        dataset = config.load_dataset()
    except PbrlError as error:
        raise PbrlError(
            f"The run's data cannot be loaded again ({error}) Give them yourself: --dataset, or "
            "agent.fit_guard(dataset) in Python."
        ) from error
    if dataset.fingerprint != data["fingerprint"] and config.clip_actions:
        maps = info["preprocessing"]
        low = np.array(maps["action_low"], np.float32)
        high = np.array(maps["action_high"], np.float32)
        dataset = bounded_actions(dataset, low, high, clip=True)
    if dataset.fingerprint != data["fingerprint"]:
        raise PbrlError(
            f"'{config.dataset}' no longer holds the transitions this run was trained on; give "
            "the right data with --dataset, or agent.fit_guard(dataset) in Python."
        )
    return dataset
