"""The runs of a sweep: a grid of settings, and how a run is known again by its content."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbrl.data.catalogue import catalogue
from pbrl.data.download import cached_file
from pbrl.data.formats import stem_of
from pbrl.data.loading import EMBEDDED
from pbrl.envs.environments import named_by_file
from pbrl.errors import PbrlError, optional_import, unknown_name
from pbrl.training.config import TrainConfig, from_json, make_config, to_json
from pbrl.training.purposes import names_of
from pbrl.training.run import CONFIG, Run

SPEC_KEYS = ("datasets", "algorithms", "seeds", "preset", "settings", "grid", "variants")


@dataclass(frozen=True)
class Job:
    """One run of a sweep.

    Attributes:
        label: how tables and figures call its settings.
        config: resolved, ``run_dir`` included.
        key: hash of what decides its result: settings and data.
        observation_dim: of its data.
        action_dim: of its data.
    """

    label: str
    config: TrainConfig
    key: str
    observation_dim: int
    action_dim: int

    @property
    def run_dir(self) -> Path:
        """Where the run lives."""
        assert self.config.run_dir is not None
        return self.config.run_dir


def content_key(config: TrainConfig, fingerprint: str, schedule_steps: int | None = None) -> str:
    """Hash of the settings that decide a run's result and of its data.

    Args:
        config: the run's settings.
        fingerprint: of its data.
        schedule_steps: length the schedules were made for, where a run was extended.
    """
    whole = to_json(config.resolved())
    content = {name: whole[name] for name in names_of(TrainConfig, "result", "score", "record")}
    content["schedule_steps"] = schedule_steps or config.steps
    content["data"] = fingerprint
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def find_runs(root: Path) -> dict[str, Path]:
    """All runs below ``root`` by content, whatever their folders are called; finished ones win."""
    found: dict[str, Path] = {}
    for file in sorted(root.glob(f"**/{CONFIG}")):
        try:
            run = Run.open(file.parent)
            steps = int(run.info["schedule_steps"])
            config = from_json(run.info["config"], str(file), complete=True)
            key = content_key(config, run.info["data"]["fingerprint"], steps)
        except (PbrlError, KeyError, TypeError, ValueError):
            continue  # someone else's config.json, or a run of an algorithm we do not have
        if key not in found or run.summary is not None:
            found[key] = run.path
    return found


class Data:
    """Datasets by their settings, loaded once.

    Args:
        download: fetch D4RL files that are not here yet. Without, they count as "not here".
    """

    def __init__(self, download: bool = True) -> None:
        self.download = download
        self._known: dict[tuple[Any, ...], tuple[str, int, int]] = {}

    def describe(self, config: TrainConfig) -> tuple[str, int, int]:
        """(fingerprint, S, A) of a config's data."""
        entry = catalogue().get(config.dataset)
        if entry is not None and not self.download and not cached_file(entry).exists():
            env = entry.environment
            return f"not here: {entry.sha256}", env.observation_dim, env.action_dim
        place = (
            config.dataset,
            config.next_observations,
            config.clip_actions,
            config.action_low,
            config.action_high,
            config.env_id,
            config.columns,
            config.missing,
            config.hold_out,
        )
        if place not in self._known:
            data = config.load_dataset()
            self._known[place] = (data.fingerprint, data.observation_dim, data.action_dim)
        return self._known[place]


def make_jobs(
    planned: Iterable[tuple[str, TrainConfig]],
    out: Path,
    threads: int = 1,
    download: bool = True,
) -> list[Job]:
    """One job for each of ``planned``; a run already below ``out`` keeps its folder.

    Args:
        planned: labels and settings; equal content gives the same key and directory.
        out: the sweep's directory, shared by all machines.
        threads: CPU threads of a run.
        download: fetch D4RL files that are not here yet (a dry run does not).
    """
    out = out.resolve()
    data, known = Data(download), find_runs(out)
    jobs = []
    for label, config in planned:
        named = config.dataset in EMBEDDED or config.dataset in catalogue()
        if not named and Path(config.dataset).exists():  # workers may stand elsewhere
            config = dataclasses.replace(config, dataset=str(Path(config.dataset).resolve()))
        fingerprint, observation_dim, action_dim = data.describe(config)
        key = content_key(config, fingerprint)
        run_dir = known.get(key, out / _folder(config, key))
        config = dataclasses.replace(config, run_dir=run_dir, threads=threads).resolved()
        jobs.append(Job(label, config, key, observation_dim, action_dim))
    return jobs


def _folder(config: TrainConfig, key: str) -> str:
    stem = re.sub(r"[^\w.-]+", "_", stem_of(config.dataset)) or "data"
    return f"{stem}-{config.algorithm}-seed{config.seed}-{key[:12]}"


# ---------------------------------------------------------------------------- the YAML file


MOST_RUNS = 100_000
"""What is more than this was not meant."""


def read_spec(path: Path) -> dict[str, Any]:
    """A sweep's YAML file as a checked dictionary."""
    yaml = optional_import("yaml", "sweep")
    try:
        spec = yaml.safe_load(path.read_text())
    except OSError as error:
        raise PbrlError(f"Cannot read the sweep file {path}: {error.strerror}.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, no date
        first = str(error).replace("\n", " ")
        raise PbrlError(f"{path} is not valid YAML: {first}.") from error
    if not isinstance(spec, dict) or not spec:
        raise PbrlError(f"{path} must be a mapping with some of: {', '.join(SPEC_KEYS)}.")
    for env_id in _env_ids(spec):
        named_by_file(env_id, str(path))
    return spec


def _env_ids(spec: Any) -> Iterator[str]:
    """Every environment that a spec names, wherever in it; a part used twice is read once."""
    waiting = [(spec, False)]
    seen: set[tuple[int, bool]] = set()
    while waiting:
        value, named = waiting.pop()
        if (id(value), named) in seen:
            continue
        seen.add((id(value), named))
        if isinstance(value, dict):
            waiting += [(item, key == "env_id") for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [(item, named) for item in value]
        elif named and isinstance(value, str):
            yield value


def expand(spec: Mapping[str, Any]) -> list[tuple[str, TrainConfig]]:
    """Every combination a spec asks for, as (label, config).

    Keys: ``datasets`` and ``algorithms`` (a name or a list), ``seeds`` (a number or a list),
    ``preset``, ``settings`` (the same for all), ``grid`` (setting -> list of values) and
    ``variants`` (a list of named combinations, each with ``label``, ``settings`` and, where it
    differs, ``algorithm``).
    """
    for key in spec:
        if key not in SPEC_KEYS:
            raise unknown_name("key in the sweep file", str(key), SPEC_KEYS)
    datasets = [str(name) for name in _many(spec.get("datasets", "demo"), "datasets")]
    algorithms = [str(name) for name in _many(spec.get("algorithms", "pbrl"), "algorithms")]
    seeds = _seeds(spec.get("seeds", 1))
    preset = str(spec["preset"]) if "preset" in spec else None
    if preset is None and datasets == ["demo"]:
        preset = "demo"
    common = _mapping(spec.get("settings", {}), "settings")
    grid = _mapping(spec.get("grid", {}), "grid")
    variants = spec.get("variants", [{}])
    if not isinstance(variants, list) or not variants:
        raise PbrlError("'variants' in the sweep file must be a list of label and settings.")

    lengths = [len(datasets), len(algorithms), len(seeds), len(variants)]
    lengths += [len(_many(values, name)) for name, values in grid.items()]
    if math.prod(lengths) > MOST_RUNS:
        raise PbrlError(
            f"The sweep file asks for {math.prod(lengths):,} runs; at most {MOST_RUNS:,} are made."
        )
    axes = [[(name, value) for value in _many(values, name)] for name, values in grid.items()]
    planned = []
    for variant, point in itertools.product(variants, itertools.product(*axes)):
        variant = _mapping(variant, "variants")
        settings = {**common, **_mapping(variant.get("settings", {}), "settings"), **dict(point)}
        names = [str(variant["algorithm"])] if "algorithm" in variant else algorithms
        for algorithm, dataset, seed in itertools.product(names, datasets, seeds):
            config = make_config(algorithm, preset, dataset, **{**settings, "seed": seed})
            parts = [str(variant.get("label") or algorithm), *(f"{k}={v}" for k, v in point)]
            planned.append((" ".join(parts), config))
    return planned


def _many(value: Any, what: str) -> Sequence[Any]:
    if isinstance(value, list):
        if not value:
            raise PbrlError(f"'{what}' in the sweep file is an empty list; give at least one.")
        return value
    if isinstance(value, Mapping) or value is None:
        raise PbrlError(f"'{what}' in the sweep file must be a value or a list of values.")
    return [value]


def _seeds(value: Any) -> list[int]:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_RUNS:
        return list(range(value))
    if isinstance(value, list) and value and all(type(seed) is int for seed in value):
        return value
    raise PbrlError("'seeds' in the sweep file must be a number of seeds or a list of seeds.")


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PbrlError(f"'{what}' in the sweep file must be a mapping.")
    return value
