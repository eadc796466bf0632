"""Datasets that Minari loads: its HDF5 layout, written as the rows come, without the package."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from pbrl.data.dataset import Bools, Floats
from pbrl.data.hdf5_growing import GrowingHdf5
from pbrl.data.minari import CREDITS, DATA_FILE, OURS, minari_root
from pbrl.data.rows import Metadata, Rows, RowSource
from pbrl.data.view import StepCounter
from pbrl.errors import PbrlError

PREFIX = "minari:"
"""What stands before the id of a dataset to write."""

LAYOUT = "0.4.3"
"""The version of Minari whose layout this is; later ones read it."""

CHUNK = 4096
"""Rows of an array's pieces where the episode's length is not known yet."""

METADATA_FILE = "metadata.json"

PER_EPISODE = 1 << 15
"""Bytes that the tables of an episode's group and its five arrays stay below."""

_ID = re.compile(r"(?:(?P<namespace>\w[\w-]*(?:/\w[\w-]*)*)/)?\w[\w-]*-v(?:0|[1-9]\d*)", re.ASCII)


def minari_destination(path: Path) -> Path | None:
    """The directory of the dataset that ``minari:ID`` names; None for every other path."""
    text = path.as_posix()
    if not text.startswith(PREFIX):
        return None
    dataset_id = text.removeprefix(PREFIX)
    found = _ID.fullmatch(dataset_id)
    # Minari takes no namespace of one character, and a directory named data for a dataset's own.
    if (
        found is None
        or len(found["namespace"] or "..") < 2
        or "data" in dataset_id.split("/")
        or len(dataset_id) > 200
    ):
        raise PbrlError(
            f"'{dataset_id[:80]}' cannot be the id of a Minari dataset; it is NAMESPACE/NAME-vN, "
            "of letters, digits, '-' and '_', for example minari:mine/pump-v0."
        )
    target = minari_root() / dataset_id
    for parent in target.parents[: dataset_id.count("/")]:
        if is_minari(parent):
            raise PbrlError(
                f"'{parent}' is a Minari dataset itself, and none can lie inside; choose another "
                "id."
            )
    return target


def is_minari(path: Path) -> bool:
    """Whether the directory is a dataset of Minari's."""
    return (path / "data" / "metadata.json").is_file()


class MinariWriter:
    """Minari's HDF5 layout: a group an episode, with one observation more than it has steps.

    An episode ends where the log says so. Where training uses the log's own next observations, one
    also ends where these are not the following row's: no transition is changed by that.

    Args:
        path: the dataset's directory.
        source: the rows to come: their shape, metadata and training view.
        dataset_id: by which Minari loads it.
    """

    def __init__(self, path: Path, source: RowSource, dataset_id: str) -> None:
        self._folder = path / "data"
        self._dataset_id = dataset_id
        self._folder.mkdir(parents=True)
        self._source = source
        known = source.metadata
        by_default = "file" if source.has_next and known.prefer_file else known.shift
        self._view = by_default if source.choice is None else source.choice.view
        counts = self._view == "d4rl" and not source.has_timeouts and known.horizon is not None
        self._counter = StepCounter(known.horizon) if counts and known.horizon else None
        self._growing = GrowingHdf5(self._folder / DATA_FILE)
        self._group: h5py.Group | None = None
        self._last: Floats | None = None  # [S], what follows the last row so far
        self._episodes = self._steps = self._count_apart = 0

    def append(self, rows: Rows) -> None:
        """Adds raw rows."""
        timeouts = self._timeouts(rows)
        ends = rows.terminals | timeouts
        apart = self._apart(rows, ends)
        self._count_apart += int(apart.sum())
        if self._view == "file":
            ends[:-1] |= apart[1:]
            if apart[:1].any():
                self._finish()
        stops = [*(np.flatnonzero(ends) + 1).tolist(), len(rows)]
        width = self._source.observation_dim + self._source.action_dim + 2  # float32 and two flags
        self._growing.reserve(4 * width * (3 * len(rows) + 2 * CHUNK) + PER_EPISODE * len(stops))
        start = 0
        for stop in stops:
            if stop > start:
                self._extend(rows[start:stop], timeouts[start:stop], whole=bool(ends[stop - 1]))
                if ends[stop - 1]:
                    self._finish()
            start = stop
        self._growing.file.flush()

    def close(self) -> None:
        """Completes the dataset."""
        if self._group is not None:
            self._finish()
        self._growing.close()
        text = json.dumps(self._described(), indent=1)
        (self._folder / METADATA_FILE).write_text(text, encoding="utf-8")

    def abandon(self) -> None:
        """Lets go of the file."""
        self._growing.abandon()

    @property
    def notes(self) -> tuple[str, ...]:
        """What this layout could not say as the log did."""
        if not self._source.has_next:
            return (
                "Minari wants an observation after each episode's last step, and the log has none: "
                "the last one was repeated there. pbrl reads the dataset without these.",
            )
        if not self._count_apart:
            return ()
        found = f"{self._count_apart:,} next observations are not the following row's though no "
        if self._view == "file":
            return (found + "episode ends there: Minari's episodes end at each of them.",)
        return (found + "episode ends there: Minari has no place for them.",)

    def _timeouts(self, rows: Rows) -> Bools:
        if rows.timeouts is not None:
            return rows.timeouts
        if self._counter is not None:
            return self._counter.timeouts(rows.terminals)
        return np.zeros(len(rows), np.bool_)

    def _apart(self, rows: Rows, ends: Bools) -> Bools:
        """Rows that are not what the row before says comes next in the episode, ``[N]`` bool."""
        apart = np.zeros(len(rows), np.bool_)
        if rows.next_observations is not None and len(rows):
            same = np.isclose(rows.next_observations[:-1], rows.observations[1:]).all(axis=1)
            apart[1:] = ~ends[:-1] & ~same
            if self._last is not None:
                apart[0] = not np.isclose(self._last, rows.observations[0]).all()
        return apart

    def _extend(self, rows: Rows, timeouts: Bools, whole: bool) -> None:
        """More rows of the episode that is open, or the first ones of a new one."""
        columns: dict[str, NDArray[Any]] = {
            "observations": rows.observations,
            "actions": rows.actions,
            "rewards": rows.rewards,
            "terminations": rows.terminals,
            "truncations": timeouts,
        }
        if self._group is None:
            self._group = self._growing.file.create_group(f"episode_{self._episodes}")
            for key, values in columns.items():
                tail = values.shape[1:]
                self._group.create_dataset(
                    key,
                    shape=(0, *tail),
                    maxshape=(None, *tail),
                    chunks=(min(len(rows) + 1, CHUNK) if whole else CHUNK, *tail),
                    dtype=values.dtype,
                    compression="gzip",
                    compression_opts=1,
                    shuffle=True,
                )
        for key, values in columns.items():
            _append(self._group[key], values)
        following = rows.next_observations
        self._last = (rows.observations if following is None else following)[-1]

    def _finish(self) -> None:
        """Ends the open episode; where the log does not say why, it was cut."""
        assert self._group is not None
        assert self._last is not None
        _append(self._group["observations"], self._last[None])
        if not self._group["terminations"][-1]:
            self._group["truncations"][-1] = True
        steps = len(self._group["rewards"])
        self._group.attrs["id"] = self._episodes
        self._group.attrs["total_steps"] = steps
        self._episodes += 1
        self._steps += steps
        self._group = self._last = None

    def _described(self) -> dict[str, Any]:
        """What metadata.json says: in Minari's keys where it has them, all of ours under one."""
        known = self._source.metadata
        ours = known.to_json() | {"prefer_file": self._view == "file"}
        if not self._source.has_next:
            ours["last_observations"] = "repeated"
        low, high = known.action_low, known.action_high
        size = (self._folder / DATA_FILE).stat().st_size
        described: dict[str, Any] = {
            "dataset_id": self._dataset_id,
            "minari_version": LAYOUT,
            "data_format": "hdf5",
            "total_episodes": self._episodes,
            "total_steps": self._steps,
            "dataset_size": round(size / 1e6, 1),
            "observation_space": _box(self._source.observation_dim, None, None),
            "action_space": _box(self._source.action_dim, low, high),
            "description": f"Written by pbrl {version('pbrl')}.",
        }
        if (spec := _spec(known)) is not None:
            described["env_spec"] = spec
        if known.reference_scores is not None:
            described["ref_min_score"], described["ref_max_score"] = known.reference_scores
        described |= _credits(known.recipe)
        if self.notes:
            described["description"] = " ".join((described["description"], *self.notes))
        return described | {OURS: ours}


def _append(array: h5py.Dataset, values: NDArray[Any]) -> None:
    start = len(array)
    array.resize(start + len(values), axis=0)
    array[start:] = values


def _box(size: int, low: Floats | None, high: Floats | None) -> str:
    """A flat space as Minari writes it; without bounds, an infinite one."""
    ends = ([-np.inf] * size, [np.inf] * size)
    if low is not None and high is not None:
        ends = (low.tolist(), high.tolist())
    space = {"type": "Box", "dtype": "float32", "shape": [size], "low": ends[0], "high": ends[1]}
    return json.dumps(space)


def _spec(known: Metadata) -> str | None:
    """Gymnasium's record of the environment, as far as it is known on this machine."""
    if known.env_id is None or ":" in known.env_id:  # a module, which looking up would import
        return None
    import gymnasium  # reading and writing logs does not need it

    try:
        return gymnasium.spec(known.env_id).to_json()
    except (gymnasium.error.Error, TypeError, ValueError):
        return None


def _credits(recipe: dict[str, Any]) -> dict[str, Any]:
    """Who made the data, and how, where the recipe says so in words that Minari has."""
    said = {key: recipe[key] for key in CREDITS if recipe.get(key)}
    if isinstance(provenance := recipe.get("provenance"), str):
        said.setdefault("description", provenance)
    for key in ("author", "author_email"):
        if isinstance(said.get(key), str):
            said[key] = [said[key]]
    texts = {key: text for key, text in said.items() if isinstance(text, str)}
    lists = {key: names for key, names in said.items() if isinstance(names, list)}
    return texts | {key: lists[key] for key in ("author", "author_email") if key in lists}
