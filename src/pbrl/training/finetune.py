"""Going on online from an offline run: half of every minibatch from the log, half from the world.

One environment step is taken before every gradient step, with an action drawn from the policy.
What the policy meets goes into a replay that fills the online half of the minibatches. Pessimism
was right while there was nothing but the log; now mistakes can be seen and unlearned, so PBRL's
beta_ood is relaxed exponentially from its last offline value.

The loop, checkpoints, metrics and resume are those of ``pbrl.training.loop``. The replay is part of
the checkpoint, and the running episode is restored by playing its actions again from its seed, so
that a resumed fine-tuning ends with the same bytes as an uninterrupted one (in environments that
are a function of seed and actions, as MuJoCo's are).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from pbrl.algorithms import algorithm_class
from pbrl.algorithms.base import require
from pbrl.data.dataset import TransitionDataset
from pbrl.data.replay import ReplayBuffer
from pbrl.data.training_data import Batch, LoggedBatch
from pbrl.deploy.agent import Agent
from pbrl.envs.player import Player, Step
from pbrl.errors import PbrlError
from pbrl.nn.generators import restore
from pbrl.training.checkpoint import Checkpoint, latest_checkpoint, origin_of, read_checkpoint
from pbrl.training.config import TrainConfig
from pbrl.training.guard_of_run import training_dataset
from pbrl.training.loop import evaluate_session, run_training
from pbrl.training.run import Run
from pbrl.training.session import BatchSource, Extension, Session

Floats = NDArray[np.float32]


def finetune(
    run: str | Path,
    *,
    env_id: str | None = None,
    steps: int = 10_000,
    run_dir: str | Path | None = None,
    from_step: int | None = None,
    dataset: TransitionDataset | None = None,
    offline_share: float = 0.5,
    relax: float = 0.1,
    capacity: int = 100_000,
    seed: int | None = None,
    threads: int = 0,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    eval_every: int = 1000,
    eval_episodes: int = 10,
    resume: bool = False,
    quiet: bool = False,
    console: Console | None = None,
) -> Run:
    """Continue an offline run online.

    Args:
        run: the offline run's directory.
        env_id: the environment to act in; the run's own when omitted.
        steps: environment steps, and as many gradient steps.
        run_dir: where the new run lives; RUN-finetuned when omitted.
        from_step: a kept checkpoint to start from; the newest when omitted.
        dataset: the run's data, where they are no longer where they were.
        offline_share: share of every minibatch that comes from the log.
        relax: PBRL's beta_ood falls to this fraction of its last offline value; 1 keeps it.
        capacity: rows of the online replay; the oldest go first.
        seed: of everything random; the run's own when omitted.
        threads: CPU threads; 0 decides by the machine.
        device: auto takes CUDA where there is one; what the run asked for when omitted.
        eval_every: steps between evaluations.
        eval_episodes: episodes of an evaluation.
        resume: go on with the fine-tuning in ``run_dir`` if there is one.
        quiet: print nothing.
        console: where to print.

    Returns:
        The finished fine-tuning, a run like any other.
    """
    require(0 <= offline_share < 1, f"offline_share must lie in [0, 1), got {offline_share}")
    require(0 < relax <= 1, f"relax must lie in (0, 1], got {relax}")
    require(
        1000 <= capacity < 2**40, f"capacity must be at least 1000 and fit a memory, got {capacity}"
    )
    parent = Run.open(run)
    where = env_id or parent.env_id
    if where is None:
        raise PbrlError("This run knows no environment to act in; name one with --env-id.")
    checkpoint = _parent_checkpoint(parent, from_step)
    if dataset is None:
        data = training_dataset(parent.info)
    else:
        data = parent.config.training_part(dataset)
    if data.fingerprint != parent.info["data"]["fingerprint"]:
        raise PbrlError("These are not the data the run was trained on; give the right --dataset.")
    settings, note = _relaxed(parent, checkpoint, relax)
    config: TrainConfig = dataclasses.replace(
        parent.config,
        settings=settings,
        env_id=where,
        eval=True,
        eval_every=eval_every,
        eval_episodes=eval_episodes,
        steps=steps,
        seed=parent.config.seed if seed is None else seed,
        threads=threads,
        device=device or parent.config.device,
        run_dir=Path(run_dir)
        if run_dir
        else parent.path.with_name(parent.path.name + "-finetuned"),
        checkpoint_every=0,
        log_every=0,
    )
    origin = {
        "run": str(parent.path),
        "step": checkpoint.step,
        "weights_sha256": _digest(checkpoint.state),
        "offline_share": offline_share,
        "relax": relax,
        "capacity": capacity,
    }

    def start(session: Session, resumed: Checkpoint | None) -> None:
        if resumed is None:
            _inherit(session, checkpoint)
        batches = OnlineBatches(
            session.data, session.agent, where, session.config.seed,
            capacity=capacity, offline_share=offline_share,
        )  # fmt: skip
        if resumed is not None:
            batches.load(resumed.state)
        session.data, session.extra_state = batches, batches.state
        session.notes.append(note)
        if resumed is None and session.evaluator is not None:
            values = evaluate_session(session, session.evaluator, session.config.eval_episodes)
            session.log.record(0, "eval", values)  # what the offline run is worth

    extension = Extension(f"pbrl finetune {parent.path}", {"finetune": origin}, start)
    return run_training(
        config, data, resume=resume, quiet=quiet, console=console, extension=extension
    )


def _parent_checkpoint(parent: Run, step: int | None) -> Checkpoint:
    def use(checkpoint: Checkpoint) -> None:
        checkpoint.require_origin(origin_of(parent.info))

    if step is not None:
        kept = read_checkpoint(parent.checkpoint_at(step))
        use(kept)
        return kept
    checkpoint = latest_checkpoint(parent.checkpoints, use=use)
    if checkpoint is None:
        raise PbrlError(f"{parent.path} has no checkpoint yet; train it first.")
    return checkpoint


def _digest(state: dict[str, Tensor]) -> str:
    """SHA-256 of the weights: the same parent gives the same."""
    digest = hashlib.sha256()
    for name in sorted(key for key in state if key.startswith("networks/")):
        digest.update(name.encode())
        digest.update(state[name].contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


def _relaxed(parent: Run, checkpoint: Checkpoint, relax: float) -> tuple[Any, str]:
    """The run's settings with pessimism that fades, and a sentence about it."""
    data = parent.info["data"]
    algorithm = algorithm_class(parent.config.algorithm)(
        parent.config.settings,
        data["observation_dim"],
        data["action_dim"],
        total_steps=int(parent.info["schedule_steps"]),
    )
    algorithm.load_checkpoint(checkpoint.state, str(checkpoint.path))
    return algorithm.relaxed(relax)


def _inherit(session: Session, checkpoint: Checkpoint) -> None:
    """Weights and optimisers of the parent; step, schedule and random numbers start anew."""
    session.algorithm.inherit(checkpoint.state)  # which has been loaded into its equal before


class OnlineBatches:
    """Minibatches that are part log, part own experience; one environment step a batch.

    Args:
        offline: the logged data.
        agent: acts, and maps between raw and network units.
        env_id: where it acts.
        seed: of episodes and actions.
        capacity: rows of the replay.
        offline_share: share of the log in a batch.
    """

    def __init__(
        self,
        offline: BatchSource,
        agent: Agent,
        env_id: str,
        seed: int,
        *,
        capacity: int,
        offline_share: float,
    ) -> None:
        self.offline, self.agent, self.seed = offline, agent, seed
        self.offline_share = offline_share
        self.player = Player(env_id)
        device = agent.algorithm.device
        self.replay = ReplayBuffer(capacity, agent.observation_dim, agent.action_dim, device)
        self.episode = 0  # episodes begun
        self.episode_actions: list[Floats] = []  # of the running episode, as they were taken
        self.playing: Iterator[Step] | None = None  # the running episode
        self.generator = torch.Generator(device).manual_seed(seed + 3_000_017)

    def sample(self, size: int, generator: torch.Generator) -> Batch:
        """Take one step in the environment, then draw ``size`` rows from log and replay."""
        self._step()
        online = size - round(self.offline_share * size)
        if self.replay.size < size:  # too few to learn from without learning them by heart
            return self.offline.sample(size, generator)
        mine = self.replay.sample(online, self.generator)
        if online == size:
            return mine
        logged = self.offline.sample(size - online, generator)
        mixed = LoggedBatch(*(torch.cat(pair) for pair in zip(logged, mine, strict=True)))
        mixed.look_up = lambda: torch.cat([logged.next_actions, mine.next_actions])
        return mixed

    def _step(self) -> None:
        if self.playing is None:
            self.episode += 1
            self.episode_actions = []
            self.playing = self._play([])
        step = next(self.playing)
        self.episode_actions.append(step.actions[0])
        maps = self.agent.preprocessing
        columns = (
            maps.observations(step.observations),
            maps.actions(step.actions),
            maps.rewards(step.rewards),
            maps.observations(step.next_observations),
            step.terminals,
        )
        self.replay.add(Batch(*map(torch.from_numpy, columns)))
        if step.terminals[0] or step.timeouts[0]:
            self.playing = None

    def _play(self, taken: list[Floats]) -> Iterator[Step]:
        """The episode's steps: first the actions ``taken`` again, then the agent's."""
        again, maps = iter(taken), self.agent.preprocessing

        def act(observations: Floats) -> Floats:
            action = next(again, None)
            if action is not None:
                return action[None]
            drawn = self.agent.act(observations, deterministic=False, generator=self.generator)
            return np.clip(drawn, maps.action_low, maps.action_high)

        seeds = np.random.SeedSequence([self.seed, self.episode]).generate_state(1).tolist()
        return self.player.play(act, seeds)

    # ---------------------------------------------------------------- state

    def state(self) -> dict[str, Tensor]:
        """Replay, random numbers and the running episode, for the checkpoint."""
        running = self.playing is not None
        actions = np.zeros((0, self.agent.action_dim), np.float32)
        if running:
            actions = np.stack(self.episode_actions)
        return {
            "online/rows": self.replay.held(),
            "online/total": torch.tensor(self.replay.total),
            "online/episode": torch.tensor(self.episode),
            "online/running": torch.tensor(running),
            "online/episode_actions": torch.from_numpy(actions),
            "rng/online": self.generator.get_state(),
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """The inverse of ``state``; plays the running episode's actions again."""
        self.replay.restore(state["online/rows"], int(state["online/total"]))
        self.episode = int(state["online/episode"])
        restore(self.generator, state["rng/online"], self.agent.algorithm.step)
        self.episode_actions, self.playing = [], None
        if bool(state["online/running"]):
            self.episode_actions = list(state["online/episode_actions"].numpy())
            self.playing = self._play(list(self.episode_actions))
            for _ in self.episode_actions:
                next(self.playing)
