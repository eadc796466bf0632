"""Our own store: a directory of memory-mapped arrays for data larger than memory.

On top lies the training view, ready to be mapped and sampled from: ``rows.npy`` holds every
transition side by side (observation, action, reward, next observation, terminal), so that a
minibatch touches one place of one file a row; rewards and flags, which are also read from end to
end, have files of their own. Under ``raw/`` lies what the view leaves out: the dropped rows, the
timeouts, and the file's own next observations where they differ from the view's. Together they give
back the raw rows, so a store converts to any other format without loss.

Everything is written in streaming fashion; ``manifest.json`` comes last and its presence says that
the store is complete.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from pbrl.data.column_file import ColumnFile
from pbrl.data.dataset import TransitionDataset, column_digest, combine_digests
from pbrl.data.formats import Format, Reading
from pbrl.data.rows import BLOCK, Metadata, Rows, RowSource, View, ViewChoice
from pbrl.data.validate import reading
from pbrl.data.view import Laid, TrainingView, cuts_before, no_transition
from pbrl.errors import PbrlError

MANIFEST = "manifest.json"
FORMAT = "pbrl-store"
VERSION = 1
VIEW_COLUMNS = (
    "observations",
    "actions",
    "rewards",
    "next_observations",
    "terminals",
    "episode_ends",
)
FILE_COLUMNS = ("rows", "rewards", "terminals", "episode_ends")
VERIFY_BYTES = 1 << 28
"""Stores up to this size are checked against their checksums whenever they are opened."""


class StoreWriter:
    """Writes raw rows, block by block, into a new store directory.

    Args:
        path: the directory to create.
        source: the rows to come: their shape, metadata and the training view to lay out.
    """

    def __init__(self, path: Path, source: RowSource) -> None:
        assert source.choice is not None
        self.path = path
        self.source = source
        self.choice = choice = source.choice
        (path / "raw").mkdir(parents=True)
        s, a = source.observation_dim, source.action_dim
        self.columns: dict[str, ColumnFile] = {}
        for name, dtype, width in (
            ("rows", "<f4", 2 * s + a + 2),
            ("rewards", "<f4", 0),
            ("terminals", "|b1", 0),
            ("episode_ends", "|b1", 0),
            ("raw/dropped_index", "<i8", 0),
            ("raw/dropped_observations", "<f4", s),
            ("raw/dropped_actions", "<f4", a),
            ("raw/dropped_rewards", "<f4", 0),
            ("raw/dropped_terminals", "|b1", 0),
        ):
            self._create(name, dtype, width)
        if source.has_timeouts:
            self._create("raw/timeouts", "|b1", 0)
            self._create("raw/dropped_timeouts", "|b1", 0)
        if source.has_next:
            self._create("raw/dropped_next_observations", "<f4", s)
            self._create("raw/next_index", "<i8", 0)
            self._create("raw/next_observations", "<f4", s)
        self._view = TrainingView(choice.view, source.has_timeouts, source.metadata.horizon)
        self._digests = {name: hashlib.sha256() for name in VIEW_COLUMNS}
        self._rows = 0
        self._low = np.full(a, np.inf, np.float32)
        self._high = np.full(a, -np.inf, np.float32)

    def _create(self, name: str, dtype: str, width: int) -> None:
        self.columns[name] = ColumnFile(self.path / f"{name}.npy", dtype, width)

    def append(self, rows: Rows) -> None:
        """Adds raw rows."""
        if len(rows):
            self._write(self._view.append(rows))

    def _write(self, laid: Laid) -> None:
        rows, keep, following = laid.rows, laid.keep, laid.following
        if len(rows) == 0:
            return
        columns = self.columns
        kept, dropped = rows[keep], rows[~keep]
        self._low = np.minimum(self._low, rows.actions.min(0))
        self._high = np.maximum(self._high, rows.actions.max(0))
        if rows.next_observations is not None:
            differs = keep & (rows.next_observations != following).any(1)
            columns["raw/next_index"].append(self._rows + np.flatnonzero(differs))
            columns["raw/next_observations"].append(rows.next_observations[differs])
            columns["raw/dropped_next_observations"].append(rows.next_observations[~keep])
        for name in ("observations", "actions", "rewards", "terminals"):
            columns[f"raw/dropped_{name}"].append(getattr(dropped, name))
        view = (kept.observations, kept.actions, kept.rewards, following[keep], kept.terminals)
        for name, values in zip(VIEW_COLUMNS, (*view, laid.ends[keep]), strict=True):
            self._digests[name].update(np.ascontiguousarray(values).data)
        columns["rows"].append(np.column_stack([v.astype(np.float32, copy=False) for v in view]))
        columns["rewards"].append(kept.rewards)
        columns["terminals"].append(kept.terminals)
        columns["episode_ends"].append(laid.ends[keep])
        columns["raw/dropped_index"].append(self._rows + np.flatnonzero(~keep))
        if kept.timeouts is not None and dropped.timeouts is not None:
            columns["raw/timeouts"].append(kept.timeouts)
            columns["raw/dropped_timeouts"].append(dropped.timeouts)
        self._rows += len(rows)

    def close(self) -> None:
        """Writes the last row and the manifest."""
        if (last := self._view.close()) is not None:
            self._write(last)
        for column in self.columns.values():
            column.close()
        if self.columns["rewards"].length == 0:
            raise no_transition(self.source.metadata.source, self._rows)
        entries = {name: column.entry(self.path) for name, column in self.columns.items()}
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "transitions": self.columns["rewards"].length,
            "raw_rows": self._rows,
            "observation_dim": self.source.observation_dim,
            "action_dim": self.source.action_dim,
            "view": self.choice.view,
            "view_note": self.choice.note,
            "action_min": self._low.tolist(),
            "action_max": self._high.tolist(),
            "fingerprint": combine_digests({n: d.hexdigest() for n, d in self._digests.items()}),
            "metadata": self.source.metadata.to_json(),
            "columns": entries,
        }
        (self.path / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")

    def abandon(self) -> None:
        """Closes the files as they are."""
        for column in self.columns.values():
            column.abandon()


class Store:
    """An opened store.

    Args:
        path: the directory.
        verify: compare every file with its checksum; by default only in small stores.
    """

    def __init__(self, path: Path, verify: bool | None = None) -> None:
        self.path = path
        self.where = f"'{path}'"
        with reading(path / MANIFEST, "a store's manifest"):
            manifest = json.loads((path / MANIFEST).read_text())
        try:
            if manifest["format"] != FORMAT:
                raise KeyError("format")
            version = manifest["version"]
            self.choice = ViewChoice(manifest["view"], str(manifest["view_note"]))
            self.fingerprint = str(manifest["fingerprint"])
            self.raw_rows = int(manifest["raw_rows"])
            self.transitions = int(manifest["transitions"])
            self.action_min = np.asarray(manifest["action_min"], np.float32)
            self.action_max = np.asarray(manifest["action_max"], np.float32)
            entries: dict[str, dict[str, Any]] = dict(manifest["columns"])
            if self.choice.view not in get_args(View) or not set(FILE_COLUMNS) <= {*entries}:
                raise KeyError("columns")
            s, a = int(manifest["observation_dim"]), int(manifest["action_dim"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise PbrlError(
                f"{self.where} is not a pbrl store: its {MANIFEST} lacks or garbles {error}. "
                "Convert the data again."
            ) from error
        if version != VERSION:
            raise PbrlError(
                f"{self.where} is a store of format version {version}; this pbrl reads version "
                f"{VERSION}. Convert the data again, or update pbrl."
            )
        self.columns = {name: self._map(name, entry) for name, entry in entries.items()}
        self._check_lengths(s, a)
        rows = self.columns["rows"]
        self.columns |= {
            "observations": rows[:, :s],
            "actions": rows[:, s : s + a],
            "next_observations": rows[:, s + a + 1 : -1],
        }
        self.metadata = Metadata(path.name.removesuffix(".store"), str(path)).updated(
            self.where, manifest.get("metadata", {})
        )
        size = sum(self.columns[name].nbytes for name in entries)
        if verify or (verify is None and size <= VERIFY_BYTES):
            self.verify(entries)

    def _map(self, name: str, entry: dict[str, Any]) -> NDArray[Any]:
        try:
            file = self.path / str(entry["file"])
            shape = tuple(int(n) for n in entry["shape"])
            dtype = np.dtype(entry["dtype"])
            inside = file.resolve().is_relative_to(self.path.resolve())
        except (KeyError, TypeError, ValueError) as error:
            raise PbrlError(f"{self.where}: the manifest garbles column '{name}'.") from error
        if not inside:
            raise PbrlError(f"{self.where}: column '{name}' points outside the store.")
        with reading(file, "a store's column"):
            column = np.load(file, mmap_mode="r", allow_pickle=False)
        if column.shape != shape or column.dtype != dtype:
            raise PbrlError(
                f"{self.where}: '{entry['file']}' holds {column.dtype} {list(column.shape)}, the "
                f"manifest says {dtype} {list(shape)}; the store is damaged, convert again."
            )
        return column  # type: ignore[no-any-return]

    def _check_lengths(self, s: int, a: int) -> None:
        n, c = self.transitions, self.columns
        dropped = len(c.get("raw/dropped_index", ()))
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(FILE_COLUMNS, (n,))
        shapes["rows"] = (n, 2 * s + a + 2)
        wrong = [name for name, shape in shapes.items() if c[name].shape != shape]
        if min(s, a) < 1 or self.action_min.shape != (a,) or self.action_max.shape != (a,):
            wrong.append("dimensions")
        if wrong or n == 0 or n + dropped != self.raw_rows:
            raise PbrlError(
                f"{self.where}: the columns do not fit together ({', '.join(wrong) or 'row count'})"
                "; the store is damaged, convert again."
            )

    def verify(self, entries: dict[str, dict[str, Any]] | None = None) -> None:
        """Compares every column with its checksum."""
        if entries is None:
            entries = json.loads((self.path / MANIFEST).read_text())["columns"]
        for name in entries:
            column = self.columns[name]
            digest = hashlib.sha256()
            for start in range(0, len(column), BLOCK):
                digest.update(np.ascontiguousarray(column[start : start + BLOCK]).data)
            if digest.hexdigest() != entries[name].get("sha256"):
                raise PbrlError(
                    f"{self.where}: '{entries[name]['file']}' does not match its checksum; the "
                    "store is damaged, convert the data again."
                )
        columns = {name: column_digest(self.columns[name]) for name in VIEW_COLUMNS}
        if combine_digests(columns) != self.fingerprint:
            raise PbrlError(f"{self.where}: the fingerprint does not match; convert again.")

    def dataset(self, info: Any) -> TransitionDataset:
        """The training view, mapped."""
        picked = {name: self.columns[name] for name in VIEW_COLUMNS}
        rows = self.columns["rows"]
        _random_access(rows)
        dropped = (self.columns[f"raw/dropped_{name}"] for name in ("index", "actions"))
        return TransitionDataset(
            **picked,
            info=info,
            known_fingerprint=self.fingerprint,
            side_by_side=rows,
            cuts=cuts_before(*map(np.asarray, dropped)),
        )

    def source(self) -> RowSource:
        """The raw rows, put together again from the view and what it left out."""
        c = self.columns
        has_timeouts, has_next = "raw/timeouts" in c, "raw/next_index" in c
        dropped_index = np.asarray(c["raw/dropped_index"])
        next_index = np.asarray(c["raw/next_index"]) if has_next else None

        def blocks(size: int) -> Iterator[Rows]:
            for start in range(0, self.raw_rows, size):
                stop = min(start + size, self.raw_rows)
                d0, d1 = np.searchsorted(dropped_index, [start, stop])
                gone = dropped_index[d0:d1] - start
                keep = np.ones(stop - start, np.bool_)
                keep[gone] = False
                v0, v1 = start - d0, stop - d1
                merged: dict[str, Any] = {}
                names = ["observations", "actions", "rewards", "terminals"]
                names += ["next_observations"] if has_next else []
                for name in names:
                    column = c[name]
                    merged[name] = np.empty((stop - start, *column.shape[1:]), column.dtype)
                    merged[name][keep] = column[v0:v1]
                    merged[name][gone] = c[f"raw/dropped_{name}"][d0:d1]
                if has_timeouts:
                    merged["timeouts"] = np.empty(stop - start, np.bool_)
                    merged["timeouts"][keep] = c["raw/timeouts"][v0:v1]
                    merged["timeouts"][gone] = c["raw/dropped_timeouts"][d0:d1]
                if next_index is not None:
                    n0, n1 = np.searchsorted(next_index, [start, stop])
                    place = next_index[n0:n1] - start
                    merged["next_observations"][place] = c["raw/next_observations"][n0:n1]
                yield Rows(**merged)

        return RowSource(
            self.metadata,
            int(c["observations"].shape[1]),
            int(c["actions"].shape[1]),
            has_timeouts,
            has_next,
            blocks,
            self.raw_rows,
            store=self,
        )


def is_store(path: Path) -> bool:
    """Whether ``path`` is a directory with a store's manifest."""
    return (path / MANIFEST).is_file()


def open_store(path: Path, how: Reading) -> RowSource:
    """A store as a source of rows."""
    return Store(path, how.verify).source()


STORE = Format(open_store, StoreWriter, is_store)


def _random_access(column: Any) -> None:
    """Tells the kernel not to read ahead: minibatches pick rows all over the file."""
    mapping = getattr(column, "_mmap", None)
    if mapping is not None and hasattr(mapping, "madvise") and hasattr(mmap, "MADV_RANDOM"):
        mapping.madvise(mmap.MADV_RANDOM)
