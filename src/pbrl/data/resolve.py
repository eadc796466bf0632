"""What file, file name, user and the table of tasks say about a log, settled in one place.

The user's word goes first, then the file's own, then what is known of the task that the file or its
name tells. Bounds of the actions that nobody knows are asked of the environment, where there is
one, when a run opens it (``training.session``).
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from pbrl.data.dataset import DatasetInfo
from pbrl.data.rows import Metadata, RowSource
from pbrl.data.validate import checked_bounds
from pbrl.envs.tasks import (
    KnownEnvironment,
    environment_of_id,
    environment_of_name,
    reference_scores,
)
from pbrl.errors import PbrlError

ANTMAZE = (
    "AntMaze data: their rows are read as D4RL's qlearning_dataset reads them. pbrl has no such "
    "maze, so there is no evaluation and no score (--env-id names an environment of your own), and "
    "the goal, which D4RL keeps beside the observations, is not among what the policy sees."
)


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
    if (low is None) != (high is None):
        raise PbrlError(f"'{metadata.source}' declares only one of action_low and action_high.")
    if low is not None and high is not None and not low.size == high.size == opened.action_dim:
        raise PbrlError(
            f"'{metadata.source}' declares bounds of {low.size} dimensions, its actions have "
            f"{opened.action_dim}."
        )
    for names, size, what in (
        (metadata.observation_names, opened.observation_dim, "observations"),
        (metadata.action_names, opened.action_dim, "actions"),
    ):
        if names and len(names) != size:
            raise PbrlError(
                f"'{metadata.source}' names {len(names)} {what} in its metadata, but has {size}; "
                "repair or remove these names."
            )
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
    if found is not None and ":" in found:  # data do not say which module is imported
        if env_id is None:
            notes.append(
                f"The data name the environment '{found}', whose module pbrl would have to import; "
                f"it does so for your own --env-id {found} alone."
            )
        found = None
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
        elif env_id is None and re.search("ant[-_]?maze", metadata.name, re.IGNORECASE):
            notes.append(ANTMAZE)
    if "regenerated" in provenance:
        notes.append(f"Provenance: {provenance}.")
        if "regen" not in metadata.name:
            metadata = replace(metadata, name=f"{metadata.name} (regenerated)")
    if known is not None:
        metadata = _with_task(metadata, known)
    if env_id is not None and env_id != found:
        found = env_id
        scores = reference_scores(env_id)
        if metadata.reference_scores is None and scores is not None:
            metadata = replace(metadata, reference_scores=scores, score_source="D4RL")
    return replace(metadata, env_id=found).with_notes(*notes)


def official(metadata: Metadata, name: str, path: Path, known: KnownEnvironment) -> Metadata:
    """Of a file of D4RL's, whose task is known by its name."""
    return _with_task(replace(metadata, name=name, source=str(path), env_id=known.env_id), known)


def _with_task(metadata: Metadata, known: KnownEnvironment) -> Metadata:
    """What the table of tasks adds where the file is silent."""
    scores, source = metadata.reference_scores, metadata.score_source
    low, high = metadata.action_low, metadata.action_high
    if scores is None:
        scores, source = known.reference_scores, "D4RL"
    if low is None:
        low = -np.ones(known.action_dim, np.float32)
        high = np.ones(known.action_dim, np.float32)
    return replace(
        metadata,
        reference_scores=scores,
        score_source=source,
        action_low=low,
        action_high=high,
        horizon=metadata.horizon or known.horizon,
    )


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
        observation_names=metadata.observation_names,
        action_names=metadata.action_names,
        logged_return_mean=metadata.logged_return_mean,
    )
