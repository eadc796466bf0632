"""Opening a run: data, preprocessing, algorithm, checkpoint, and everything that may be refused.

Nothing is written before all of it has been accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from pbrl.algorithms import algorithm_class
from pbrl.algorithms.base import Algorithm
from pbrl.data.dataset import TransitionDataset
from pbrl.data.preprocessing import Preprocessing, bounded_actions
from pbrl.data.training_data import Batch, TrainingData
from pbrl.deploy.agent import Agent
from pbrl.errors import DivergenceError, PbrlError
from pbrl.evaluation.rollout import Evaluator
from pbrl.nn.generators import restore
from pbrl.training.checkpoint import (
    Checkpoint,
    all_finite,
    latest_checkpoint,
    origin_of,
    prune,
    save_checkpoint,
)
from pbrl.training.config import TrainConfig, bound_settings, from_json, to_json
from pbrl.training.files import cannot_write, refuse_file, write_json
from pbrl.training.metrics import MetricLog
from pbrl.training.run import CONFIG, Run, git_revision, versions
from pbrl.training.run_info import read_info

# Q beyond this many times the largest possible return counts as exploded.
EXPLOSION_FACTOR = 100.0


class BatchSource(Protocol):
    """Where minibatches come from."""

    def sample(self, size: int, generator: torch.Generator) -> Batch:
        """``size`` rows."""


@dataclass(frozen=True)
class Extension:
    """What another kind of training adds to the loop; fine-tuning is one.

    Attributes:
        command: what to type to go on with a stopped run.
        info: entries for ``config.json``; a resumed run must have the same.
        start: called before the first step with the session and the checkpoint it goes on from
            (None at the very beginning); may load weights and replace ``session.data``.
    """

    command: str
    info: dict[str, Any]
    start: Callable[[Session, Checkpoint | None], None]


@dataclass
class Session:
    """Everything a run holds while it is going."""

    config: TrainConfig
    run: Run
    data: BatchSource
    algorithm: Algorithm
    agent: Agent
    evaluator: Evaluator | None
    log: MetricLog
    sampler: torch.Generator
    notes: list[str]
    q_limit: float
    command: str = "pbrl train"
    extra_state: Callable[[], dict[str, Tensor]] = dict

    def close(self) -> None:
        """Close files and simulators."""
        self.log.close()
        if self.evaluator is not None:
            self.evaluator.close()

    def state(self) -> dict[str, Tensor]:
        """Everything a checkpoint holds."""
        own = {"rng/sampler": self.sampler.get_state()}
        return {**self.algorithm.state_dict(), **own, **self.extra_state()}

    def save(self) -> None:
        """Write a checkpoint, after the records it stands on are safe."""
        state = self.state()
        broken = all_finite(state)
        if broken is not None:
            raise diverged(f"the tensor {broken}", float("nan"), self.algorithm.step, self.run)
        self.log.sync()
        origin = origin_of(self.run.info)
        save_checkpoint(self.run.checkpoints, self.algorithm.step, state, origin)
        prune(self.run.checkpoints, self.config.keep_every)


def claim_directory(run_dir: Path, resume: bool) -> dict[str, Any] | None:
    """The stored config.json when resuming, None for a new run; refuses to overwrite a run."""
    refuse_file(run_dir)
    config_file = run_dir / CONFIG
    if config_file.exists():
        if not resume:
            raise PbrlError(
                f"{run_dir} already holds a run; add --resume to go on with it, or give another "
                "--run-dir."
            )
        return read_info(config_file)
    return None


def _make_directory(run: Run) -> None:
    """Create the run on disk; only called once nothing is left to refuse."""
    try:
        run.checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(run.path, error) from error
    write_json(run.path / CONFIG, run.info)


def open_session(
    config: TrainConfig,
    dataset: TransitionDataset | None,
    device: str,
    threads: int,
    stored: dict[str, Any] | None,
    extension: Extension | None = None,
) -> Session:
    """Everything the loop needs, from the start or from the newest checkpoint of ``stored``."""
    assert config.run_dir is not None
    notes: list[str] = []
    if dataset is None:
        dataset = config.load_dataset()
    dataset = config.training_part(dataset)
    notes += dataset.info.notes
    held_out = dataset.info.held_out
    if held_out:
        notes.append(
            f"{len(held_out)} of {len(held_out) + sum(1 for _ in dataset.episodes())} episodes are "
            "held out of training (hold_out); pbrl decide judges by them."
        )
    if len(dataset) < config.settings.batch_size:
        raise PbrlError(
            f"The dataset has {len(dataset)} transitions, fewer than one batch of "
            f"{config.settings.batch_size}; log more data or set --batch-size lower."
        )
    evaluator = _make_evaluator(config, dataset, notes)
    low, high = dataset.info.action_low, dataset.info.action_high
    if low is None and evaluator is not None:
        low, high = evaluator.action_bounds
        dataset = bounded_actions(dataset, low, high, clip=config.clip_actions)

    cls = algorithm_class(config.algorithm)
    if config.preset in cls.preset_notes:
        notes.append(cls.preset_notes[config.preset])
    normalize = config.normalize_observations
    preprocessing = Preprocessing.fit(
        dataset,
        normalize_observations=cls.normalize_observations if normalize is None else normalize,
        normalize_rewards=config.normalize_rewards,
        action_low=low,
        action_high=high,
    )
    schedule_steps = config.steps
    if stored is not None:
        schedule_steps = int(stored["schedule_steps"])
        config = _check_resume(config, dataset, preprocessing, stored, device, notes)
    info = {
        "format_version": 1,
        "config": to_json(config),
        "schedule_steps": schedule_steps,
        "threads": threads,
        "device": device,
        "data": {
            "name": dataset.info.name,
            "source": dataset.info.source,
            "fingerprint": dataset.fingerprint,
            "transitions": len(dataset),
            "observation_dim": dataset.observation_dim,
            "action_dim": dataset.action_dim,
            "env_id": evaluator.env_id if evaluator else (config.env_id or dataset.info.env_id),
            "reference_scores": dataset.info.reference_scores,
            "score_source": dataset.info.score_source,
            "observation_names": list(dataset.observation_names),
            "action_names": list(dataset.action_names),
            "behaviour_return_mean": dataset.behaviour_return_mean(),
            "notes": list(dataset.info.notes),
            "held_out_episodes": list(held_out),
        },
        "preprocessing": preprocessing.to_json(),
        "versions": versions(),
        "git_revision": git_revision(),
        **(extension.info if extension else {}),
    }
    if stored is not None:
        _check_same_kind(info, stored)
    assert config.run_dir is not None
    run = Run(config.run_dir, info)

    data = TrainingData(dataset, preprocessing, device)
    algorithm = cls(config.settings, seed=config.seed, device=device, total_steps=schedule_steps)
    notes += algorithm.prepare(data)
    sampler_device = device if not dataset.memory_mapped else "cpu"
    sampler = torch.Generator(sampler_device).manual_seed(config.seed + 2_000_003)
    checkpoint = None
    if stored is not None:

        def use(found: Checkpoint) -> None:
            found.require_origin(origin_of(info))
            algorithm.load_checkpoint(found.state, str(found.path))
            if algorithm.step != found.step:
                raise PbrlError(f"{found.path} is damaged: it holds step {algorithm.step}.")
            try:
                restore(sampler, found.state["rng/sampler"], found.step)
            except (RuntimeError, TypeError, KeyError) as error:
                raise PbrlError(f"{found.path} does not fit: rng/sampler ({error}).") from error

        checkpoint = latest_checkpoint(run.checkpoints, say=notes.append, use=use)
        if checkpoint is None:
            notes.append("No checkpoint yet: starting over.")
        else:
            notes.append(f"Resuming {run.path} at step {algorithm.step:,}.")
    _make_directory(run)
    log = MetricLog(run.path, algorithm.step, config.tensorboard, config.wandb, info)
    gamma = float(getattr(config.settings, "gamma", 0.99))
    rewards = data.reward_statistics()
    largest = max(abs(rewards.low), abs(rewards.high))
    session = Session(
        config,
        run,
        data,
        algorithm,
        Agent(algorithm, preprocessing, info),
        evaluator,
        log,
        sampler,
        notes,
        q_limit=EXPLOSION_FACTOR * max(1.0, largest) / (1 - gamma),
    )
    if extension is not None:
        session.command = extension.command
        try:
            extension.start(session, checkpoint)
        except BaseException:
            session.close()
            raise
    return session


def _check_same_kind(info: dict[str, Any], stored: dict[str, Any]) -> None:
    """A fine-tuning is not resumed as a training, nor from another run or with other shares."""
    if info.get("finetune") != stored.get("finetune"):
        raise PbrlError(
            f"This run was started as {stored.get('finetune') or 'an offline training'}, not as "
            f"{info.get('finetune') or 'an offline training'}; resume it the way it was started, "
            "or give another --run-dir."
        )


def _make_evaluator(
    config: TrainConfig, dataset: TransitionDataset, notes: list[str]
) -> Evaluator | None:
    env_id = config.env_id or dataset.info.env_id
    if not config.eval:
        return None
    if env_id is None:
        notes.append(
            "No environment is known for these data: training without evaluation (--env-id names "
            "one)."
        )
        return None
    try:
        evaluator = Evaluator(env_id, dataset.info.reference_scores)
    except PbrlError as error:
        raise PbrlError(f"{error} (--no-eval trains without a simulator.)") from error
    evaluator.require_spaces(dataset.observation_dim, dataset.action_dim)
    return evaluator


def _check_resume(
    config: TrainConfig,
    dataset: TransitionDataset,
    preprocessing: Preprocessing,
    stored: dict[str, Any],
    device: str,
    notes: list[str],
) -> TrainConfig:
    """Refuse other data or settings; explain a longer run and another place."""
    # Through the present classes: settings younger than the run stand at their defaults.
    before, now = to_json(from_json(stored["config"], CONFIG, complete=True)), to_json(config)
    differences = []
    if stored["data"]["fingerprint"] != dataset.fingerprint:
        differences.append(
            f"data: {stored['data']['name']} ({stored['data']['fingerprint'][:12]}) -> "
            f"{dataset.info.name} ({dataset.fingerprint[:12]})"
        )
    old, new = bound_settings(before), bound_settings(now)
    differences += [
        f"{name}: {old.get(name)!r} -> {new.get(name)!r}"
        for name in old.keys() | new.keys()
        if old.get(name) != new.get(name)
    ]
    if not differences and stored["preprocessing"] != preprocessing.to_json():
        differences.append("preprocessing: the data give other normalisation or action bounds")
    if config.steps < int(before["steps"]):
        differences.append(f"steps: {before['steps']} -> {config.steps} (a run can only grow)")
    if differences:
        raise PbrlError(
            "This run was started with other data or settings: "
            + "; ".join(sorted(differences))
            + ". Resume with the old ones, or give another --run-dir."
        )
    if config.steps > int(before["steps"]):
        notes.append(
            f"Extending the run from {before['steps']:,} to {config.steps:,} steps. Schedules keep "
            f"the length they began with ({stored['schedule_steps']:,} steps) and stay at their "
            "last value after it."
        )
    if config.threads != int(stored["threads"]):
        notes.append(
            f"The run had {stored['threads']} threads and now has {config.threads}: results will "
            "not be equal bit for bit."
        )
    if device != stored["device"]:
        notes.append(
            f"The run was on another device and goes on on {device}, with other random numbers "
            "from here."
        )
    return config


def diverged(name: str, value: float, step: int, run: Run) -> DivergenceError:
    """What to say of a run that left the sound numbers."""
    return DivergenceError(
        f"Training diverged: {name} is {value:g} at step {step:,}. Try a lower critic_lr, "
        f"normalize_observations or normalize_rewards; the last good checkpoint is in "
        f"{run.checkpoints}."
    )
