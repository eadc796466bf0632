"""Minari datasets, read from their files; the minari package is needed only to download.

``minari_writer`` writes them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pbrl.data.dataset import Floats
from pbrl.data.formats import Reading
from pbrl.data.hdf5_file import opened_hdf5, own_array
from pbrl.data.minari_arrow import KINDS, arrow_episodes
from pbrl.data.rows import Metadata, Rows, RowSource
from pbrl.data.validate import check_kind, reading, to_rows
from pbrl.errors import PbrlError, optional_import

DATA_FILE = "main_data.hdf5"
ROOT_VARIABLE = "MINARI_DATASETS_PATH"

OURS = "pbrl_metadata"
"""The key of metadata.json under which our writer keeps what Minari has no key for."""

CREDITS = ("author", "author_email", "code_permalink", "algorithm_name", "description")
"""Minari's keys on who made the data, and how; kept in the recipe."""


def minari_root() -> Path:
    """Where Minari keeps its datasets: ``MINARI_DATASETS_PATH`` or ``~/.minari/datasets``."""
    return Path(os.environ.get(ROOT_VARIABLE, "~/.minari/datasets")).expanduser()


def minari_data_dir(path: Path) -> Path | None:
    """The folder with ``metadata.json``, if ``path`` is a Minari dataset (or its data folder)."""
    for folder in (path, path / "data"):
        if (folder / "metadata.json").is_file():
            return folder
    return None


def local_ids() -> list[str]:
    """Ids of the Minari datasets on this machine."""
    root = minari_root()
    if not root.is_dir():
        return []
    found = root.glob("**/data/metadata.json")
    return sorted(file.parent.parent.relative_to(root).as_posix() for file in found)


def download_minari(dataset_id: str) -> Path:
    """Downloads through the minari package into Minari's own root."""
    minari = optional_import("minari", "minari")
    try:
        minari.download_dataset(dataset_id)
    except Exception as error:  # its exceptions are of many kinds: HTTP, Hugging Face, values
        detail = " ".join(str(error).split())[:200]
        raise PbrlError(
            f"Minari could not download '{dataset_id}': {detail}. Check the id with 'minari list "
            "remote' and the network."
        ) from error
    return minari_root() / dataset_id


def open_minari(folder: Path, how: Reading) -> RowSource:
    """The dataset whose ``metadata.json`` lies in ``folder`` as a source of rows."""
    where = f"'{folder}'"
    with reading(folder / "metadata.json", "Minari metadata"):
        described = json.loads((folder / "metadata.json").read_text())
        if not isinstance(described, dict):
            raise PbrlError(f"{where}: metadata.json must hold a JSON object.")
        s, _, _ = _box(where, described, "observation_space", "observations")
        a, low, high = _box(where, described, "action_space", "actions")
        metadata = _metadata(folder, described, low, high)
        ours = described.get(OURS)
        repeated = isinstance(ours, dict) and ours.get("last_observations") == "repeated"
    kind = described.get("data_format", "hdf5")
    if kind in KINDS:
        return _arrow_source(folder, kind, metadata, (s, a), how)
    if kind != "hdf5":
        raise PbrlError(
            f"{where} is stored as '{kind}'; Minari's HDF5, Arrow and Parquet layouts are read. "
            "Write it again with data_format='hdf5'."
        )
    path = folder / DATA_FILE
    with opened_hdf5(path, "Minari HDF5") as file:
        episodes = _episodes(where, file)
        length = sum(_check_episode(where, name, file[name], s, a) for name in episodes)

    def logged() -> Iterator[Rows]:
        with opened_hdf5(path, "Minari HDF5") as file:
            for name in episodes:
                rows = _episode(f"{where}, {name}", file[name], how.strict)
                # The log that was written here had no next observations.
                yield replace(rows, next_observations=None) if repeated else rows

    return RowSource(metadata, s, a, True, not repeated, _in_blocks(logged), length)


def _arrow_source(
    folder: Path, kind: str, metadata: Metadata, widths: tuple[int, int], how: Reading
) -> RowSource:
    def episodes() -> Iterator[Rows]:
        for name, arrays in arrow_episodes(folder, kind, widths):
            yield _episode(f"'{folder}', {name}", arrays, how.strict)

    return RowSource(metadata, *widths, True, True, _in_blocks(episodes))


def _in_blocks(episodes: Callable[[], Iterator[Rows]]) -> Callable[[int], Iterator[Rows]]:
    """Whole episodes together, as many as reach the size asked for."""

    def blocks(size: int) -> Iterator[Rows]:
        waiting: list[Rows] = []
        for rows in episodes():
            waiting.append(rows)
            if sum(map(len, waiting)) >= size:
                yield Rows.concatenate(waiting)
                waiting = []
        if waiting:
            yield Rows.concatenate(waiting)

    return blocks


def _box(
    where: str, described: dict[str, Any], key: str, what: str
) -> tuple[int, Floats | None, Floats | None]:
    """Size and finite bounds of a flat Box space; everything else is refused."""
    space = described.get(key)
    if isinstance(space, str):
        space = json.loads(space)
    if not isinstance(space, dict) or "type" not in space:
        raise PbrlError(f"{where}: metadata.json has no readable '{key}'.")
    kind, shape = space["type"], space.get("shape", [])
    if kind != "Box":
        raise PbrlError(
            f"{where} has {what} of type {kind}; pbrl trains on flat vectors of real numbers (Box) "
            f"only. {_advice(kind, what)}"
        )
    if len(shape) != 1:
        image = " (images)" if len(shape) == 3 else ""
        raise PbrlError(
            f"{where} has {what} of shape {shape}{image}; only flat vectors are supported. Flatten "
            "or encode them first."
        )
    low = np.broadcast_to(np.asarray(space["low"], np.float32), shape)
    high = np.broadcast_to(np.asarray(space["high"], np.float32), shape)
    if np.isfinite(low).all() and np.isfinite(high).all():
        return int(shape[0]), low.copy(), high.copy()
    return int(shape[0]), None, None


def _advice(kind: str, what: str) -> str:
    if kind in ("Dict", "Tuple"):
        return "Flatten them with gymnasium.wrappers.FlattenObservation when recording."
    if what == "actions":
        return "Discrete actions need another method."
    return "Convert them to vectors when recording."


def _metadata(
    folder: Path, described: dict[str, Any], low: Floats | None, high: Floats | None
) -> Metadata:
    env_id = None
    horizon = None
    spec = described.get("env_spec")
    if isinstance(spec, str):
        spec = json.loads(spec)
    if isinstance(spec, dict):
        env_id = spec.get("id")
        horizon = spec.get("max_episode_steps")
    scores = (described.get("ref_min_score"), described.get("ref_max_score"))
    known = all(isinstance(score, int | float) for score in scores)
    dataset_id = described.get("dataset_id")
    top = folder.parent if folder.name == "data" else folder
    credits = {key: described[key] for key in CREDITS if described.get(key)}
    metadata = Metadata(
        name=dataset_id if isinstance(dataset_id, str) else top.name,
        source=str(top),
        env_id=env_id if isinstance(env_id, str) else None,
        reference_scores=(float(scores[0]), float(scores[1])) if known else None,  # type: ignore[arg-type]
        score_source="Minari" if known else None,
        action_low=low,
        action_high=high,
        horizon=horizon if isinstance(horizon, int) and horizon > 1 else None,
        recipe=({"minari": dataset_id} if isinstance(dataset_id, str) else {}) | credits,
    )
    metadata = metadata.updated(f"'{folder}'", described.get(OURS, {}))
    if metadata.reference_scores is not None:
        return metadata
    return metadata.with_notes("Minari's metadata give no reference scores for this dataset.")


def _episodes(where: str, file: Any) -> list[str]:
    names = [name for name in file if name.startswith("episode_")]
    if not names:
        raise PbrlError(f"{where}: {DATA_FILE} holds no episode.")
    numbers = {name.removeprefix("episode_"): name for name in names}
    odd = [name for number, name in numbers.items() if not number.isdigit()]
    if odd:
        raise PbrlError(f"{where}: '{odd[0]}' is not a numbered episode.")
    return [numbers[number] for number in sorted(numbers, key=int)]


def _check_episode(where: str, name: str, group: Any, s: int, a: int) -> int:
    for key in ("observations", "actions", "rewards", "terminations", "truncations"):
        if key not in group:
            raise PbrlError(f"{where}: {name} lacks '{key}'.")
        if not isinstance(group[key], h5py.Dataset):
            raise PbrlError(
                f"{where}: '{key}' of {name} is a dictionary; only flat vectors are supported."
            )
        array = own_array(where, f"{name}/{key}", group[key])
        check_kind(where, f"{name}/{key}", array.dtype)
    steps = int(group["rewards"].shape[0])
    wanted = {
        "observations": (steps + 1, s),
        "actions": (steps, a),
        "rewards": (steps,),
        "terminations": (steps,),
        "truncations": (steps,),
    }
    for key, shape in wanted.items():
        if group[key].shape != shape:
            raise PbrlError(
                f"{where}: '{key}' of {name} has shape {list(group[key].shape)}, expected "
                f"{list(shape)} (an episode of n steps has n + 1 observations)."
            )
    return steps


def _episode(where: str, group: Any, strict: bool) -> Rows:
    observations = group["observations"][:]
    truncations = group["truncations"][:].astype(np.bool_)
    terminations = group["terminations"][:].astype(np.bool_)
    if len(truncations):
        # The group ends here whatever its flags say, so nothing may be joined to what follows.
        truncations[-1] |= not terminations[-1]
    arrays = {
        "observations": observations[:-1],
        "actions": group["actions"][:],
        "rewards": group["rewards"][:],
        "terminals": terminations,
        "timeouts": truncations,
        "next_observations": observations[1:],
    }
    return to_rows(where, arrays, 0, strict)
