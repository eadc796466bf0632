"""SAC online: one environment, one update a step, a replay buffer, snapshots of the policy.

A training that is killed goes on from its last checkpoint and ends with the same bytes: checkpoints
lie between episodes (a simulator's state cannot be saved in general, its reset can be repeated),
every episode starts from a seed of its own, and the replay buffer is a file that grows in place.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from pbrl.algorithms.sac import SAC, SACConfig
from pbrl.collect.rollouts import longest_episode
from pbrl.data.preprocessing import Preprocessing
from pbrl.data.replay import ReplayBuffer
from pbrl.data.rows import Rows
from pbrl.data.training_data import Batch
from pbrl.envs.player import Player, Step
from pbrl.errors import DivergenceError, PbrlError
from pbrl.training.checkpoint import (
    Checkpoint,
    all_finite,
    latest_checkpoint,
    list_checkpoints,
    prune,
    save_checkpoint,
)
from pbrl.training.files import cannot_write, write_bytes, write_json
from pbrl.training.progress import TrainingProgress

SNAPSHOTS = 100
CHECKPOINTS = 20
CONFIG, REPLAY = "config.json", "replay.npy"


def sac_config(
    hidden: tuple[int, ...] = (256, 256), learning_rate: float = 3e-4, batch_size: int = 256
) -> SACConfig:
    """SAC's settings from a few numbers; the defaults are its authors'."""
    return SACConfig(
        hidden=hidden,
        policy_hidden=hidden,
        critic_lr=learning_rate,
        actor_lr=learning_rate,
        alpha_lr=learning_rate,
        batch_size=batch_size,
    )


@dataclass(frozen=True)
class OnlineConfig:
    """Settings of the online training.

    Attributes:
        env_id: the environment.
        steps: environment steps, and the rows of the replay buffer.
        start_steps: uniform actions before the policy takes over.
        seed: of everything random.
        sac: SAC's own settings.
    """

    env_id: str
    steps: int
    start_steps: int = 1000
    seed: int = 0
    sac: SACConfig = field(default_factory=sac_config)

    def to_json(self) -> dict[str, Any]:
        """For the record and for the comparison when a training goes on."""
        sac = {name: getattr(self.sac, name) for name in self.sac.__dataclass_fields__}
        listed = {k: list(v) if isinstance(v, tuple) else v for k, v in sac.items()}
        return {
            "env_id": self.env_id,
            "steps": self.steps,
            "start_steps": self.start_steps,
            "seed": self.seed,
            "sac": listed,
        }


class ReplayFile:
    """All transitions of a training in one float32 file, ``[steps, 2S + A + 3]``, mapped.

    The last column is the timeout, which training ignores and datasets need.

    Args:
        path: the ``.npy`` file; made when it is not there.
        steps: its rows.
        observation_dim: S.
        action_dim: A.

    Attributes:
        buffer: the same rows as a replay buffer.
    """

    def __init__(self, path: Path, steps: int, observation_dim: int, action_dim: int) -> None:
        shape = (steps, 2 * observation_dim + action_dim + 3)
        try:
            if not path.exists():
                _allocate(path, shape)
            self.table: NDArray[np.float32] = np.load(path, mmap_mode="r+", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise PbrlError(
                f"Cannot use the replay buffer {path} ({error}); free space, or remove it and "
                "start again."
            ) from error
        if self.table.shape != shape or self.table.dtype != np.float32:
            raise PbrlError(f"{path} does not fit this training; remove it and start again.")
        rows = torch.from_numpy(self.table)
        self.buffer = ReplayBuffer(steps, observation_dim, action_dim, rows=rows)

    def add(self, unit: NDArray[np.float32], step: Step) -> None:
        """Write the one transition of ``step``, with its action in [-1, 1]."""
        columns = (step.observations, unit[None], step.rewards, step.next_observations)
        self.buffer.add(Batch(*map(torch.from_numpy, (*columns, step.terminals))))
        self.table[self.buffer.newest, -1] = step.timeouts[0]

    def rows(self, filled: int, preprocessing: Preprocessing) -> Rows:
        """The first ``filled`` transitions as raw rows; an episode cut at the end times out."""
        ends = np.cumsum(self.buffer.widths)
        s, a, r, s2, terminal, timeout = np.split(np.array(self.table[:filled]), ends, axis=1)
        terminals, timeouts = terminal[:, 0] > 0, timeout[:, 0] > 0
        timeouts[-1] |= not terminals[-1]
        return Rows(s, preprocessing.raw_actions(a), r[:, 0], terminals, timeouts, s2)

    def flush(self) -> None:
        """Bring the rows to the disk."""
        self.table.flush()  # type: ignore[attr-defined]


def _allocate(path: Path, shape: tuple[int, int]) -> None:
    """Make an empty table whose room on the disk is taken at once: a full disk shows up here."""
    temporary = path.with_suffix(".tmp")
    np.lib.format.open_memmap(temporary, "w+", np.float32, shape).flush()
    if hasattr(os, "posix_fallocate"):
        with open(temporary, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, temporary.stat().st_size)
    os.replace(temporary, path)


class OnlineTraining:
    """A SAC training in a directory of its own.

    Args:
        config: the settings.
        path: the directory; a training with other settings in it is refused.
        player: of the same environment.
    """

    def __init__(self, config: OnlineConfig, path: Path, player: Player) -> None:
        self.config, self.path, self.player = config, path, player
        self.preprocessing = Preprocessing(
            np.zeros(player.observation_dim, np.float32),
            np.ones(player.observation_dim, np.float32),
            player.low,
            player.high,
        )
        self._claim()
        sizes = player.observation_dim, player.action_dim
        self.replay = ReplayFile(path / REPLAY, config.steps, *sizes)
        self.sac = self.make_sac()
        self.sampler = torch.Generator().manual_seed(config.seed + 2_000_003)
        self.explorer = torch.Generator().manual_seed(config.seed + 3_000_017)
        self.step, self.saved, self.episode, self.recent = 0, 0, 0, np.zeros(0)

    def _claim(self) -> None:
        """Make the directory, or check that what lies there is this very training."""
        now, file = self.config.to_json(), self.path / CONFIG
        self.fingerprint = hashlib.sha256(json.dumps(now, sort_keys=True).encode()).hexdigest()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            before = json.loads(file.read_text()) if file.exists() else None
        except OSError as error:
            raise cannot_write(self.path, error) from error
        except ValueError as error:
            raise PbrlError(f"{file} is damaged; remove {self.path} and start again.") from error
        if before is None:
            write_json(file, now)
        elif before != now:
            names = sorted(
                k for k in now if not isinstance(before, dict) or before.get(k) != now[k]
            )
            raise PbrlError(
                f"{self.path} holds a training with other settings ({', '.join(names)}); use the "
                "same ones to go on with it, or give another --out."
            )

    def make_sac(self) -> SAC:
        """A fresh SAC of this training's shape."""
        return SAC(
            self.config.sac,
            self.player.observation_dim,
            self.player.action_dim,
            seed=self.config.seed,
            total_steps=self.config.steps,
        )

    @property
    def done(self) -> int:
        """Steps of the newest checkpoint on disk."""
        paths = list_checkpoints(self.path / "checkpoints")
        return int(paths[-1].name.removeprefix("step_")) if paths else 0

    @property
    def snapshot_steps(self) -> list[int]:
        """Steps at which the policy is kept, the last step included."""
        count = min(SNAPSHOTS, self.config.steps)
        return [self.config.steps * (i + 1) // count for i in range(count)]

    def snapshot(self, step: int) -> SAC:
        """The policy kept at ``step``."""
        path = self._snapshot_path(step)
        sac = self.make_sac()
        try:
            sac.policy.load_state_dict(load_tensors(path.read_bytes()))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise PbrlError(
                f"{path} is missing or damaged; remove {self.path} and start again."
            ) from error
        return sac

    def _snapshot_path(self, step: int) -> Path:
        return self.path / "policies" / f"step_{step:09d}.safetensors"

    # ---------------------------------------------------------------- the loop

    def run(self, progress: TrainingProgress) -> None:
        """Train to the end, from the newest checkpoint if there is one."""
        self.resume(progress)
        self.advance(self.config.steps, progress)

    def advance(self, until: int, progress: TrainingProgress) -> None:
        """Train to the end of the episode in which step ``until`` lies."""
        (self.path / "policies").mkdir(exist_ok=True)
        every, snapshots = max(1, self.config.steps // CHECKPOINTS), set(self.snapshot_steps)
        while self.step < until:
            self._play_episode(snapshots, progress)
            if self.step - self.saved >= every or self.step == self.config.steps:
                self.save()

    def _play_episode(self, snapshots: set[int], progress: TrainingProgress) -> None:
        config, total, units = self.config, 0.0, []

        def act(observations: NDArray[np.float32]) -> NDArray[np.float32]:
            units.append(self._explore(observations[0]))
            return self.preprocessing.raw_actions(units[-1][None])

        start = np.random.SeedSequence((config.seed, 1, self.episode)).generate_state(1).tolist()
        for step in self.player.play(act, start, longest_episode(self.player)):
            self.replay.add(units[-1], step)
            total += float(step.rewards[0])
            self.step += 1
            if self.step > config.start_steps:
                self.sac.update(self.replay.buffer.sample(config.sac.batch_size, self.sampler))
            if self.step in snapshots:
                self._keep_policy()
                shown = {"return_mean": float(self.recent.mean())} if len(self.recent) else {}
                progress.update(self.step, shown)
            if self.step == config.steps:
                break
        self.episode += 1
        self.recent = np.append(self.recent, total)[-10:]

    def _explore(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        """An action in [-1, 1], ``[S] -> [A]``: uniform at first, then drawn from the policy."""
        if self.step < self.config.start_steps:
            unit = torch.empty(self.player.action_dim).uniform_(-1, 1, generator=self.explorer)
            return unit.numpy()
        batch = torch.from_numpy(observation[None])
        return self.sac.act(batch, False, self.explorer)[0].numpy()

    def _keep_policy(self) -> None:
        state = {k: v.contiguous() for k, v in self.sac.policy.state_dict().items()}
        broken = all_finite(state)
        if broken is not None:
            raise DivergenceError(
                f"SAC diverged in {self.config.env_id} at step {self.step}: {broken} is not "
                "finite. Try a lower --learning-rate."
            )
        write_bytes(self._snapshot_path(self.step), save_tensors(state))

    # ---------------------------------------------------------------- checkpoints

    def save(self) -> None:
        """Write a checkpoint; only between episodes."""
        self.replay.flush()
        state: dict[str, Tensor] = {
            **self.sac.state_dict(),
            "rng/sampler": self.sampler.get_state(),
            "rng/explorer": self.explorer.get_state(),
            "loop/episode": torch.tensor(self.episode),
            "loop/recent": torch.from_numpy(self.recent.copy()),
        }
        save_checkpoint(self.path / "checkpoints", self.step, state, self._origin)
        prune(self.path / "checkpoints")
        self.saved = self.step

    @property
    def _origin(self) -> dict[str, str]:
        """What marks this training's checkpoints."""
        return {"data_fingerprint": self.fingerprint}

    def _use(self, checkpoint: Checkpoint) -> None:
        checkpoint.require_origin(self._origin)
        state, where = checkpoint.state, str(checkpoint.path)
        self.sac.load_checkpoint(state, where)
        try:
            self.sampler.set_state(state["rng/sampler"])
            self.explorer.set_state(state["rng/explorer"])
            self.episode = int(state["loop/episode"])
            self.recent = state["loop/recent"].numpy()
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise PbrlError(f"{where} does not fit this training: {error}.") from error
        self.step = self.saved = checkpoint.step

    def resume(self, progress: TrainingProgress) -> None:
        """Take up the newest checkpoint that fits, if there is one."""
        places = self.path / "checkpoints"
        if latest_checkpoint(places, say=progress.say, use=self._use) is None:
            return
        self.replay.buffer.total = self.step
        if self.step < self.config.steps:
            progress.say(f"Going on with {self.path} at step {self.step:,}.")
