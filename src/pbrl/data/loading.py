"""``load_dataset``: one call for every source of logged data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np

from pbrl.data.dataset import DatasetInfo, TransitionDataset
from pbrl.data.known import environment_of_id, environment_of_name, reference_scores
from pbrl.data.readers_hdf5 import open_hdf5
from pbrl.data.readers_npz import open_npz
from pbrl.data.rows import Metadata, RowSource
from pbrl.data.validate import bound_actions, checked_bounds
from pbrl.data.view import NextObservations, choose_view, training_view
from pbrl.errors import PbrlError, unknown_name

EMBEDDED = ("demo",)
SUFFIXES = {".hdf5": open_hdf5, ".h5": open_hdf5, ".npz": open_npz}


def load_dataset(
    source: str | os.PathLike[str] = "demo",
    *,
    next_observations: NextObservations = "auto",
    clip_actions: bool = False,
    action_low: object = None,
    action_high: object = None,
    columns: Mapping[str, str] | None = None,
    env_id: str | None = None,
) -> TransitionDataset:
    """Load logged data from wherever they are, checked and in one form.

    Args:
        source: ``demo``, or a path to a D4RL HDF5 or ``.npz`` file.
        next_observations: ``file`` uses the log's own, ``shift`` the following row's, ``auto``
            decides and says so in ``info.notes``.
        clip_actions: clip actions to their bounds instead of refusing those outside.
        action_low: declared lower bounds, a number or ``[A]``.
        action_high: declared upper bounds, a number or ``[A]``.
        columns: for tables, other names of columns.
        env_id: the environment to score in, where the data do not tell or tell another.

    Returns:
        The transitions, with what is known about them in ``info``.
    """
    opened = describe(open_source(source, columns), env_id, action_low, action_high)
    metadata = opened.metadata
    rows = opened.read()
    if len(rows) == 0:
        raise PbrlError(f"'{metadata.source}' has no rows.")
    rows = bound_actions(
        f"'{metadata.source}'", rows, metadata.action_low, metadata.action_high, clip_actions
    )
    choice = choose_view(metadata, rows[: 1 << 16], next_observations)
    info = info_of(metadata.with_notes(choice.note))
    return training_view(rows, choice.view, info, metadata.horizon)


def open_source(
    source: str | os.PathLike[str], columns: Mapping[str, str] | None = None
) -> RowSource:
    """The raw rows behind a name or path, not yet read."""
    text = os.fspath(source)
    if text in EMBEDDED:
        return _open_embedded(text)
    path = Path(text).expanduser()
    opener = SUFFIXES.get(path.suffix.lower())
    if opener is not None:
        return opener(path)
    if path.is_dir():
        raise PbrlError(f"'{path}' is a directory that holds no dataset pbrl knows.")
    if path.exists():
        raise PbrlError(f"'{path}' has an unknown suffix; known: {', '.join(sorted(SUFFIXES))}.")
    raise unknown_name("dataset", text, EMBEDDED)


def _open_embedded(name: str) -> RowSource:
    file = resources.files("pbrl.data") / "embedded" / f"{name}.npz"
    with resources.as_file(file) as path:
        if not path.exists():
            raise PbrlError(
                f"The embedded dataset '{name}' is missing from this installation; install pbrl "
                "again."
            )
        opened = open_npz(path)
    return replace(opened, metadata=replace(opened.metadata, name=name, source=name))


def describe(
    opened: RowSource,
    env_id: str | None = None,
    action_low: object = None,
    action_high: object = None,
) -> RowSource:
    """Fills in what file, file name and user say about environment, scores and bounds."""
    metadata = opened.metadata
    metadata = _with_environment(metadata, (opened.observation_dim, opened.action_dim), env_id)
    low, high = metadata.action_low, metadata.action_high
    if (action_low is None) != (action_high is None):
        raise PbrlError("Give both action_low and action_high, or neither.")
    if action_low is not None:
        low = checked_bounds(action_low, opened.action_dim, "action_low")
        high = checked_bounds(action_high, opened.action_dim, "action_high")
    if low is not None and high is not None and not np.all(low < high):
        raise PbrlError(f"Action bounds need low < high; got {low.tolist()} and {high.tolist()}.")
    return replace(opened, metadata=replace(metadata, action_low=low, action_high=high))


def _with_environment(metadata: Metadata, shape: tuple[int, int], env_id: str | None) -> Metadata:
    recipe = metadata.recipe
    notes: list[str] = []
    known = None
    found = metadata.env_id
    provenance = str(recipe.get("provenance", ""))
    if found is not None:
        known = environment_of_id(found)
        if known is not None and (known.observation_dim, known.action_dim) != shape:
            known = None
        if known is not None and "D4RL's physics" in provenance:
            found = known.env_id
    else:
        known = environment_of_name(Path(metadata.name).name, shape)
        if known is not None:
            found = known.env_id
            notes.append(f"Environment {found} taken from the name '{metadata.name}'.")
    if "regenerated" in provenance:
        notes.append(f"Provenance: {provenance}.")
        if "regen" not in metadata.name:
            metadata = replace(metadata, name=f"{metadata.name} (regenerated)")
    scores, score_source = metadata.reference_scores, metadata.score_source
    if scores is None and known is not None:
        scores, score_source = known.reference_scores, "D4RL"
    if env_id is not None and env_id != found:
        found = env_id
        if scores is None and (scores := reference_scores(env_id)) is not None:
            score_source = "D4RL"
    low, high = metadata.action_low, metadata.action_high
    if known is not None and low is None:
        low = -np.ones(known.action_dim, np.float32)
        high = np.ones(known.action_dim, np.float32)
    return replace(
        metadata,
        env_id=found,
        reference_scores=scores,
        score_source=score_source,
        action_low=low,
        action_high=high,
        horizon=metadata.horizon or (known.horizon if known is not None else None),
    ).with_notes(*notes)


def info_of(metadata: Metadata) -> DatasetInfo:
    """What the training side needs to know."""
    return DatasetInfo(
        name=metadata.name,
        source=metadata.source,
        env_id=metadata.env_id,
        reference_scores=metadata.reference_scores,
        score_source=metadata.score_source,
        action_low=metadata.action_low,
        action_high=metadata.action_high,
        notes=metadata.notes,
    )
