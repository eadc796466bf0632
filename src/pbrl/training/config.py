"""The settings of a run, resolved and saved so that the run explains itself."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pbrl.algorithms import ALGORITHMS, algorithm_class
from pbrl.algorithms.pbrl import PBRLConfig
from pbrl.algorithms.settings import (
    AlgorithmConfig,
    Count,
    CountOrZero,
    HeldOut,
    Seed,
    check_rules,
)
from pbrl.data.dataset import TransitionDataset
from pbrl.data.episodes import choose_episodes, split_episodes
from pbrl.data.formats import stem_of
from pbrl.data.loading import Source, load_dataset, parse_columns
from pbrl.data.missing import Missing
from pbrl.data.preprocessing import RewardNormalization
from pbrl.errors import PbrlError, unknown_name
from pbrl.training.moved import moved
from pbrl.training.purposes import KEPT, LENGTH, PLACE, RECORD, RESULT, SCORE, purposes

# Not the run's: runs that differ in their seed alone are judged by the same episodes.
HOLD_OUT_SEED = 0

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"steps": 1_000_000, "eval_every": 1000},
    "adroit": {"steps": 1_000_000, "eval_every": 1000},
    "fast": {"steps": 60_000},
    "demo": {"steps": 10_000, "threads": 1},  # networks too small for two
}


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run; each says what it is for (``pbrl.training.purposes``)."""

    dataset: Annotated[str, PLACE] = "demo"
    """A name or path of logged data; the embedded demo when omitted."""
    algorithm: Annotated[str, RESULT] = "pbrl"
    """What to train: pbrl, pbrl-prior, pbrl-anchored, pbrl-ablations, bc, td3bc, rebrac, iql,
    sac-n, edac, cql, bear, uwac, mopo."""
    preset: Annotated[str, PLACE] = "paper"
    """A set of defaults: paper, adroit, fast (CPUs) or demo (minutes)."""
    settings: Annotated[AlgorithmConfig, RESULT] = field(default_factory=PBRLConfig)
    """The algorithm's own settings."""
    env_id: Annotated[str | None, SCORE] = None
    """Environment to evaluate in; the dataset's own when omitted."""
    eval: Annotated[bool, SCORE] = True
    """Evaluate in the environment during training."""
    eval_every: Annotated[CountOrZero, RECORD] = 0
    """Steps between evaluations; 0: one percent of the run, but at least 1000."""
    eval_episodes: Annotated[Count, SCORE] = 10
    """Episodes of an evaluation."""
    steps: Annotated[Count, LENGTH] = 1_000_000
    """Gradient steps."""
    seed: Annotated[Seed, RESULT] = 0
    """Of everything random."""
    device: Annotated[Literal["auto", "cpu", "cuda"], PLACE] = "auto"
    """auto takes CUDA where there is one."""
    threads: Annotated[CountOrZero, PLACE] = 0
    """CPU threads; 0: all cores. Runs side by side want 1 each."""
    run_dir: Annotated[Path | None, PLACE] = None
    """Where the run lives; a directory in runs/ named by data, settings and seed when omitted."""
    checkpoint_every: Annotated[CountOrZero, PLACE] = 0
    """Steps between checkpoints; 0: one percent of the run, but at least 1000."""
    keep_every: Annotated[CountOrZero, KEPT] = 0
    """Also keep every checkpoint at a multiple of this; 0 keeps the last two only."""
    log_every: Annotated[CountOrZero, RECORD] = 0
    """Steps between metric records; 0: one percent of the run, at most 1000."""
    normalize_observations: Annotated[bool | None, RESULT] = None
    """Standardise observations; the algorithm's habit when omitted."""
    normalize_rewards: Annotated[RewardNormalization, RESULT] = "none"
    """Map rewards before training."""
    next_observations: Annotated[Literal["auto", "file", "shift"], RESULT] = "auto"
    """Where s' comes from: the file, the following row, or what suits."""
    action_low: Annotated[tuple[float, ...] | None, RESULT] = None
    """Declared lower bounds of the actions (one number, or one a dimension)."""
    action_high: Annotated[tuple[float, ...] | None, RESULT] = None
    """Declared upper bounds of the actions."""
    clip_actions: Annotated[bool, PLACE] = False
    """Clip data actions outside their bounds instead of refusing them."""
    missing: Annotated[Missing, PLACE] = "refuse"
    """Cells without a number: split (their rows are left out, and no transition reaches across),
    drop-episode (their episodes are) or forward-fill (the last reading holds)."""
    hold_out: Annotated[HeldOut, RESULT] = 0.0
    """Share of the episodes to leave out of training and keep for `pbrl decide`; the same episodes
    for every seed and setting.
    """
    columns: Annotated[tuple[str, ...], RESULT] = ()
    """Column names of a CSV or Parquet table: ROLE=NAME, ROLE=NAME,NAME or ROLE=PREFIX*; roles are
    observations, actions, rewards, terminals, timeouts, next_observations, episode."""
    tensorboard: Annotated[bool, PLACE] = True
    """Write TensorBoard events."""
    wandb: Annotated[str | None, PLACE] = None
    """A Weights & Biases project to log to; off when omitted."""
    tune_allocator: Annotated[bool, PLACE] = True
    """Keep freed memory in the process (glibc); saves page faults every step."""

    def __post_init__(self) -> None:
        check_rules(self)

    def load_dataset(self, source: Source | None = None) -> TransitionDataset:
        """The data to train on: what this config names (or ``source``), read as it says."""
        return self.training_part(self.load_whole(source))

    def training_part(self, dataset: TransitionDataset) -> TransitionDataset:
        """Without the episodes that are held out, where any are."""
        if not self.hold_out or dataset.info.held_out:
            return dataset
        episodes = sum(1 for _ in dataset.episodes())
        numbers = choose_episodes(episodes, self.hold_out, HOLD_OUT_SEED)
        return split_episodes(dataset, numbers)[0]

    def load_whole(self, source: Source | None = None) -> TransitionDataset:
        """The same with the episodes that are held out."""
        return load_dataset(
            self.dataset if source is None else source,
            next_observations=self.next_observations,
            clip_actions=self.clip_actions,
            action_low=self.action_low,
            action_high=self.action_high,
            columns=parse_columns(self.columns),
            env_id=self.env_id,
            missing=self.missing,
        )

    def resolved(self) -> TrainConfig:
        """With intervals and run directory filled in."""
        percent = self.steps // 100
        run_dir = self.run_dir
        if run_dir is None:
            run_dir = Path("runs") / _run_name(self)
        return dataclasses.replace(
            self,
            run_dir=run_dir,
            eval_every=self.eval_every or max(1000, percent),
            checkpoint_every=self.checkpoint_every or max(1000, percent),
            log_every=self.log_every or max(1, min(1000, percent)),
        )


def make_config(
    algorithm: str = "pbrl", preset: str | None = None, dataset: str = "demo", **overrides: Any
) -> TrainConfig:
    """A config from a preset; ``overrides`` may name fields of the run or of the algorithm.

    Without a preset it is the algorithm's first: the paper's, where there is a paper.
    """
    cls = algorithm_class(algorithm)
    preset = cls.first_preset() if preset is None else preset
    if preset not in cls.presets:
        raise unknown_name(f"preset for {algorithm}", preset, cls.presets)
    run_fields, own_fields = _hints(TrainConfig), _hints(cls.Config)
    for fixed in ("settings", "algorithm", "preset", "dataset"):
        run_fields.pop(fixed)
    chosen = cls.presets[preset]
    chosen = chosen | cls.dataset_overrides(Path(dataset).name, preset)
    # A preset of one algorithm only is a variant of its paper's.
    values, own = dict(PRESETS.get(preset, PRESETS["paper"])), dict[str, Any]()
    for name, value in (chosen | overrides).items():
        if name in run_fields:
            values[name] = _restore(value, run_fields[name], f"The setting '{name}'")
        elif name in own_fields:
            own[name] = _restore(value, own_fields[name], f"The setting '{name}'")
        else:
            raise _unknown_setting(name, algorithm, run_fields | own_fields)
    return TrainConfig(
        dataset=dataset, algorithm=algorithm, preset=preset, settings=cls.Config(**own), **values
    )


def usual_algorithm(chosen: bool) -> str:
    """What is trained where no algorithm is named, by whether data or a preset were ``chosen``."""
    return "pbrl" if chosen else "pbrl-anchored"


def _unknown_setting(name: str, algorithm: str, known: dict[str, Any]) -> PbrlError:
    """That names the algorithm which has the setting, if another one does."""
    homes = homes_of(name)
    if not homes:
        return unknown_name("setting", name, known)
    return PbrlError(f"{algorithm} has no setting '{name}'; it is one of {', '.join(homes)}.")


def homes_of(setting: str) -> list[str]:
    """The algorithms that have this setting of their own."""
    return [name for name, cls in ALGORITHMS.items() if setting in _hints(cls.Config)]


def to_json(config: Any) -> dict[str, Any]:
    """A config dataclass as a JSON object."""
    out: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            value = to_json(value)
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Path):
            value = str(value)
        out[f.name] = value
    return out


def bound_settings(values: dict[str, Any]) -> dict[str, Any]:
    """The settings, the algorithm's among them, that a resumed run must have as it had them.

    Args:
        values: of a ``TrainConfig``, as ``to_json`` writes it.
    """
    free = {name for name, purpose in purposes(TrainConfig).items() if purpose.changeable}
    flat = {**values, **values["settings"]}
    return {name: value for name, value in flat.items() if name not in free | {"settings"}}


def _run_name(config: TrainConfig) -> str:
    """``hopper-medium-v2-pbrl-paper-seed0``; a digest says that settings are not the preset's.

    Two settings of which the one cannot be resumed as the other have different names.
    """
    stem = stem_of(config.dataset) or "data"
    preset = make_config(config.algorithm, config.preset, config.dataset, seed=config.seed)
    usual, own = bound_settings(to_json(preset)), bound_settings(to_json(config))
    changed = {name: value for name, value in own.items() if value != usual[name]}
    text = json.dumps(changed, sort_keys=True).encode()
    digest = f"-{hashlib.sha256(text).hexdigest()[:8]}" if changed else ""
    return f"{stem}-{config.algorithm}-{config.preset}{digest}-seed{config.seed}"


def from_json(
    values: dict[str, Any], where: str = "config", *, complete: bool = False
) -> TrainConfig:
    """The inverse of ``to_json`` for a ``TrainConfig``; unknown names are refused.

    A ``complete`` config was written by ``to_json``: a setting it does not name is younger than it
    and has its own default, whatever the preset says by now.
    """
    if not isinstance(values, dict):
        raise PbrlError(f"{where} must be a JSON object of settings.")
    if not isinstance(values.get("settings", {}), dict):
        raise PbrlError(f"{where}: 'settings' must be a JSON object.")
    for name in ("algorithm", "preset", "dataset"):
        if not isinstance(values.get(name) or "", str):
            raise PbrlError(f"{where}: the setting '{name}' cannot be {values[name]!r}.")
    values = dict(moved(values, where) if complete else values)
    algorithm = values.get("algorithm", "pbrl")
    own = values.pop("settings", {})
    flat = {**values, **own}
    if complete:
        defaults = to_json(TrainConfig(settings=algorithm_class(algorithm).Config()))
        flat = defaults.pop("settings") | defaults | flat
    for name in ("algorithm", "preset", "dataset"):
        flat.pop(name, None)
    return make_config(algorithm, values.get("preset"), values.get("dataset", "demo"), **flat)


def read_config(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise PbrlError(f"Cannot read the config file {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # not UTF-8 is a ValueError, too
        raise PbrlError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(values, dict):
        raise PbrlError(f"{path} must hold one JSON object of settings.")
    return values


def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _restore(value: Any, hint: Any, where: str) -> Any:
    """Give a value the type its field declares (JSON has no tuples and no paths), or refuse."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for option in options:
            try:
                return _restore(value, option, where)
            except PbrlError:
                continue
    elif origin is Literal:
        if value in options and type(value) is type(options[options.index(value)]):
            return value
    elif origin is tuple:
        if isinstance(value, list | tuple):
            return tuple(_restore(item, options[0], where) for item in value)
    elif hint is Path and isinstance(value, str | Path):
        return Path(value)
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif hint is type(None) and value is None:
        return None
    elif isinstance(hint, type) and isinstance(value, hint) and type(value) is hint:
        return value
    raise PbrlError(f"{where} cannot be {value!r}.")
