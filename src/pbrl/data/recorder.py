"""Logs of one's own: record what happens in a Gymnasium loop into a file pbrl trains on."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from pbrl.data.rows import BLOCK, Metadata, Rows, RowSource, ViewChoice
from pbrl.data.writers import writing
from pbrl.errors import PbrlError


class Recorder:
    """Collects steps and writes them, with both observations of every step.

    The file appears when ``close`` is called (or the ``with`` block ends); an exception inside the
    block leaves nothing behind.

    Args:
        path: ``.hdf5``, ``.npz``, ``.csv``, ``.parquet``, or a store's directory.
        observation_dim: S.
        action_dim: A.
        metadata: environment, bounds and recipe to keep with the rows.
        overwrite: replace what is there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        observation_dim: int,
        action_dim: int,
        *,
        metadata: Metadata | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path).expanduser()
        known = metadata or Metadata(self.path.stem, str(self.path))
        choice = ViewChoice("file", "Using the file's own next_observations.")
        shape = RowSource(
            known, observation_dim, action_dim, True, True, lambda size: iter(()), choice=choice
        )
        self._writing = writing(self.path, shape, overwrite=overwrite)
        self._writer = self._writing.__enter__()
        self._shape = shape
        self._buffer = shape.empty(4096)
        self._used = 0
        self._open = True
        self.rows = 0

    def add(
        self,
        observation: NDArray[Any],
        action: NDArray[Any],
        reward: SupportsFloat,
        next_observation: NDArray[Any],
        terminated: bool,
        truncated: bool,
    ) -> None:
        """Adds one step: observation ``[S]``, action ``[A]``."""
        s, a = (self._shape.observation_dim,), (self._shape.action_dim,)
        shapes = np.shape(observation), np.shape(action), np.shape(next_observation)
        if shapes != (s, a, s):
            raise PbrlError(
                f"A step has observation {shapes[0]}, action {shapes[1]} and next observation "
                f"{shapes[2]}; the file is for observations {s} and actions {a}."
            )
        if self._used == len(self._buffer):
            self._flush(keep=1)
        i = self._used
        buffer = self._buffer
        assert buffer.timeouts is not None
        assert buffer.next_observations is not None
        buffer.observations[i] = observation
        buffer.actions[i] = action
        buffer.rewards[i] = float(reward)
        buffer.terminals[i] = terminated
        buffer.timeouts[i] = truncated
        buffer.next_observations[i] = next_observation
        self._used += 1

    def append(self, rows: Rows) -> None:
        """Adds whole blocks of rows, with timeouts and next observations."""
        self._flush()
        for start in range(0, len(rows), BLOCK):
            self._writer.append(rows[start : start + BLOCK])
        self.rows += len(rows)

    def end_episode(self) -> None:
        """Marks the last step as cut where an episode is abandoned in the middle."""
        if self._used:
            assert self._buffer.timeouts is not None
            last = self._used - 1
            self._buffer.timeouts[last] |= not self._buffer.terminals[last]

    def _flush(self, keep: int = 0) -> None:
        # The newest row may stay in the buffer so that end_episode can still mark it.
        ready = self._used - keep
        if ready > 0:
            self._writer.append(self._buffer[:ready])
            self.rows += ready
        for entry in fields(Rows):
            column = getattr(self._buffer, entry.name)
            column[:keep] = column[ready : self._used].copy()
        self._used = keep

    def close(self) -> None:
        """Completes the file."""
        if not self._open:
            return
        self._open = False
        try:
            self.end_episode()
            self._flush()
            if self.rows == 0:
                raise PbrlError(f"Nothing was recorded for '{self.path}'; no file was written.")
        except BaseException as error:
            self._leave(error)
            raise
        self._writing.__exit__(None, None, None)

    def abandon(self, why: BaseException | None = None) -> None:
        """Leaves nothing behind."""
        if self._open:
            self._open = False
            self._leave(why or PbrlError("Abandoned."))

    def _leave(self, error: BaseException) -> None:
        """Ends the writing as ``error`` ended it; a full disk is named in its sentence."""
        self._writing.__exit__(type(error), error, error.__traceback__)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon(error)


class EpisodeRecorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records every step of the wrapped environment; ``close`` completes the file.

    Args:
        env: an environment with flat Box observations and actions.
        path: ``.hdf5``, ``.npz``, ``.csv``, ``.parquet``, or a store's directory.
        recipe: how the data are made (policy, seed, …), JSON values, kept with the rows.
        overwrite: replace what is there.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        path: str | os.PathLike[str],
        *,
        recipe: dict[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        super().__init__(env)
        s = _flat_size(env.observation_space, "observations")
        a = _flat_size(env.action_space, "actions")
        space = env.action_space
        assert isinstance(space, spaces.Box)
        bounded = bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())
        spec = env.spec
        metadata = Metadata(
            name=Path(path).stem,
            source=str(path),
            env_id=None if spec is None else spec.id,
            action_low=space.low.astype(np.float32) if bounded else None,
            action_high=space.high.astype(np.float32) if bounded else None,
            recipe=recipe or {},
        )
        self.recorder = Recorder(path, s, a, metadata=metadata, overwrite=overwrite)
        self._observation: Any = None

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; one that was still going on counts as cut."""
        self.recorder.end_episode()
        self._observation, info = self.env.reset(**options)
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Takes and records one step."""
        before = self._observation
        after, reward, terminated, truncated, info = self.env.step(action)
        self.recorder.add(before, action, reward, after, terminated, truncated)
        self._observation = after
        return after, reward, terminated, truncated, info

    def close(self) -> None:
        """Completes the file and closes the environment."""
        try:
            self.recorder.close()
        finally:
            self.env.close()


def _flat_size(space: spaces.Space[Any], what: str) -> int:
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise PbrlError(
            f"The environment has {what} of {space}; flat Box spaces are recorded only. Wrap it in "
            "gymnasium.wrappers.FlattenObservation, or use continuous actions."
        )
    return int(space.shape[0])
