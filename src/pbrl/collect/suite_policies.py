"""Where the policies of a suite come from: D4RL's own files, or the package's SAC."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pbrl.collect.online import OnlineConfig, OnlineTraining
from pbrl.collect.policies import Behaviour, StoredPolicy, policy_of, sac_policy
from pbrl.collect.rollouts import play_returns
from pbrl.console import plain_console
from pbrl.data.rows import Rows
from pbrl.envs.environments import D4RL_ENVIRONMENTS
from pbrl.envs.player import Player
from pbrl.errors import PbrlError
from pbrl.training.files import write_json
from pbrl.training.progress import TrainingProgress

TRIAL_EPISODES = 10
"""A snapshot is judged by so many episodes."""
EXPERT_CANDIDATES = 10
"""The expert is the best of so many last snapshots."""


@dataclass(frozen=True)
class StoredFile:
    """A policy of a D4RL HDF5 file.

    Attributes:
        path: the file.
        policy: its behaviour policy, sampled as D4RL's were.
        digest: hash of its weights.
    """

    path: Path
    policy: Behaviour
    digest: str

    def to_json(self) -> dict[str, str]:
        """For the recipe: a copy of the file elsewhere is the same policy."""
        return {"file": self.path.name, "weights_sha256": self.digest}


def find_policies(
    directories: Sequence[Path], tasks: Iterable[str], tiers: Iterable[str]
) -> dict[tuple[str, str], StoredFile]:
    """The policy of every task and tier, by the names of files in or below ``directories``."""
    files: list[Path] = []
    for directory in directories:
        if not directory.expanduser().is_dir():
            raise PbrlError(f"--policies: no directory '{directory}'.")
        files += sorted(directory.expanduser().rglob("*.hdf5"))
    found = {}
    for task in tasks:
        for tier in tiers:
            named = [path for path in files if _plain(path) == f"{task}-{tier}"]
            stored = [_stored(task, path) for path in named]
            chosen = {file.digest: file for file in stored if file is not None}
            if len(chosen) != 1:
                where = ", ".join(map(str, directories))
                raise PbrlError(_trouble(f"{task}-{tier}", where, named, list(chosen.values())))
            found[task, tier] = next(iter(chosen.values()))
    return found


def _plain(path: Path) -> str:
    """``hopper_medium-v2.hdf5`` as ``hopper-medium``."""
    name = path.stem.replace("_", "-")
    return name.rsplit("-v", 1)[0] if name[-1:].isdigit() else name


def _stored(task: str, path: Path) -> StoredFile | None:
    """The policy in a file; None where the file stores none."""
    try:
        policy, _, _ = policy_of(path, deterministic=False, env_id=D4RL_ENVIRONMENTS[task])
    except PbrlError as error:
        if "holds no policy" in str(error):
            return None
        raise
    assert isinstance(policy, StoredPolicy)
    digest = hashlib.sha256()
    for array in [*(part for layer in policy.layers for part in layer), *(policy.log_std or ())]:
        digest.update(np.ascontiguousarray(array, np.float64).tobytes())
    return StoredFile(path, policy, digest.hexdigest()[:16])


def _trouble(name: str, where: str, named: Sequence[Path], found: Sequence[StoredFile]) -> str:
    if found:
        both = " and ".join(str(file.path) for file in found[:2])
        return f"There are different policies of {name}: {both}; give --policies with one of them."
    if named:
        return f"'{named[0]}' stores no policy (no 'metadata/policy'); give a file that does."
    task, tier = name.split("-", 1)
    return (
        f"No policy of {name} in {where}: expected a D4RL HDF5 file named {task}_{tier}-v2.hdf5 or "
        f"{name}.hdf5. Give its directory with --policies too, or leave --policies out and let SAC "
        "make all policies."
    )


class TaskTraining:
    """One task's SAC, trained as far as the sets of a suite ask and no further.

    Args:
        config: of the training.
        path: its directory; what lies there is gone on with.
        player: of its environment.
        target: the return at which its policy is D4RL's medium one.
        quiet: show no progress.
    """

    def __init__(
        self, config: OnlineConfig, path: Path, player: Player, target: float, quiet: bool
    ) -> None:
        self.player, self.target = player, target
        self.training = OnlineTraining(config, path, player)
        console = plain_console(stderr=True)
        self.progress = TrainingProgress(config.steps, self.training.done, console, quiet)
        self.training.resume(self.progress)
        self._file = path / "trials.json"
        self._trials: dict[str, float] = {}
        if self._file.exists():
            try:
                self._trials = json.loads(self._file.read_text())
            except ValueError:
                self._file.unlink()  # damaged; every snapshot can be played again

    def replay(self) -> tuple[list[Rows], dict[str, Any]]:
        """All rows until the policy was D4RL's medium one, and what the recipe says of it."""
        step = self._medium()
        rows = self.training.replay.rows(step, self.training.preprocessing)
        return [rows], {"medium": self._told(step)}

    def policy(self, tier: str) -> tuple[Behaviour, str, dict[str, Any]]:
        """The medium or expert policy with sampled actions, a name for it and its record."""
        step = self._medium() if tier == "medium" else self._expert()
        sac = self.training.snapshot(step)
        told = f"the policy of pbrl's SAC after {step:,} steps"
        return sac_policy(sac, self.training.preprocessing), told, {tier: self._told(step)}

    def save(self) -> None:
        """Keep what was trained, for a set that asks for more; only between episodes."""
        if self.training.step > self.training.saved:
            self.training.save()

    def _told(self, step: int) -> dict[str, Any]:
        target = self.target if np.isfinite(self.target) else None
        return {"step": step, "return_mean": self._trial(step), "target": target}

    def _candidates(self) -> list[int]:
        start = self.training.config.start_steps
        return [step for step in self.training.snapshot_steps if step > start]

    def _medium(self) -> int:
        """The first snapshot that earns the target."""
        for step in self._candidates():
            if self._trial(step) >= self.target:
                # Its trial may be older than the checkpoint that was gone on from.
                self.training.advance(step, self.progress)
                return step
        best = max(self._candidates(), key=self._trial)
        raise PbrlError(
            f"SAC's policy earned at most {self._trial(best):,.0f} in {self.player.env_id} (after "
            f"{best:,} of {self.training.config.steps:,} steps), and D4RL's medium policy earns "
            f"{self.target:,.0f}: remove {self.training.path} and give more --train-steps."
        )

    def _expert(self) -> int:
        """The best of the last snapshots of the whole training."""
        return max(self._candidates()[-EXPERT_CANDIDATES:], key=self._trial)

    def _trial(self, step: int) -> float:
        """Mean return of the snapshot at ``step``, training until there if need be."""
        if str(step) not in self._trials:
            self.training.advance(step, self.progress)
            self.save()
            policy = sac_policy(self.training.snapshot(step), self.training.preprocessing)
            seed = (self.training.config.seed, 5, step)
            earned = float(play_returns(self.player, policy, TRIAL_EPISODES, seed).mean())
            self._trials[str(step)] = earned
            write_json(self._file, self._trials)
            self.progress.update(self.training.step, {"return_mean": earned})
        return self._trials[str(step)]
