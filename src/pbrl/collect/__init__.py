"""Making datasets like D4RL's in any continuous environment, from random to expert.

``collect`` trains SAC online and records its tiers; ``collect_policy`` records one given policy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from pbrl.collect.files import Collected, describe, places, record
from pbrl.collect.online import OnlineConfig, OnlineTraining, sac_config
from pbrl.collect.policies import Behaviour, policy_of, sac_policy, uniform_policy
from pbrl.collect.rollouts import bounded_player, play_returns, play_rows
from pbrl.console import plain_console
from pbrl.data.rows import Rows
from pbrl.envs.environments import D4RL_ENVIRONMENTS
from pbrl.envs.player import Player
from pbrl.errors import PbrlError, unknown_name
from pbrl.training.files import write_json
from pbrl.training.machine import use_threads
from pbrl.training.progress import TrainingProgress

__all__ = ["TIERS", "Collected", "collect", "collect_policy"]

TIERS = ("random", "medium", "medium-replay", "medium-expert", "expert")

MEDIUM_SHARE = 1 / 3
"""Medium is the policy that earns this share of the way from random to expert."""
EXPERT_CANDIDATES = 10
"""The expert is the best of so many last snapshots: SAC's very last policy may be a bad moment."""
TRIAL_EPISODES, RANDOM_EPISODES, EXPERT_EPISODES = 5, 100, 20


def collect(
    env_id: str,
    tiers: Iterable[str] = TIERS,
    *,
    steps: int,
    train_steps: int | None = None,
    start_steps: int = 1000,
    seed: int = 0,
    out: str | Path = "collected",
    file_format: str = "hdf5",
    hidden: tuple[int, ...] = (256, 256),
    learning_rate: float = 3e-4,
    batch_size: int = 256,
    threads: int = 0,
    overwrite: bool = False,
    quiet: bool = False,
) -> list[Collected]:
    """Train SAC in ``env_id`` and record datasets of several qualities.

    random: uniform actions. expert: SAC's policy at the end. medium: SAC's policy when it earned a
    third of the way from random to expert. medium-replay: everything SAC had seen until then (its
    rows, not ``steps``). medium-expert: half medium, half expert.

    The training lies in ``<out>/<env>-sac``; a call that was killed goes on where it was, and
    datasets that are complete are kept.

    Args:
        env_id: any environment with continuous vectors.
        tiers: which datasets to make.
        steps: rows of each dataset.
        train_steps: environment steps of SAC's training; as many as ``steps`` when omitted.
        start_steps: uniform actions before SAC's policy takes over.
        seed: of everything random.
        out: a directory; or, with a single tier, a file whose suffix says the format.
        file_format: ``hdf5`` (D4RL's layout), ``npz`` or ``store``.
        hidden: hidden units of SAC's networks.
        learning_rate: of all of SAC's networks.
        batch_size: of SAC's updates.
        threads: CPU threads; 0 decides by the machine's free cores.
        overwrite: replace datasets made with other settings.
        quiet: print nothing.
    """
    tiers = list(dict.fromkeys(tiers))
    for tier in tiers:
        if tier not in TIERS:
            raise unknown_name("tier", tier, TIERS)
    if not tiers:
        raise PbrlError(f"Name at least one tier of {', '.join(TIERS)}.")
    train_steps = steps if train_steps is None else train_steps
    _require_positive(steps=steps, train_steps=train_steps)
    if seed < 0 or start_steps < 0:
        raise PbrlError("--seed and --start-steps must not be negative.")
    if tiers != ["random"] and train_steps <= start_steps:
        raise PbrlError(
            f"SAC would only act at random: --train-steps {train_steps} must be larger than "
            f"--start-steps {start_steps}."
        )
    folder, files = places(env_id, tiers, Path(out).expanduser(), file_format)
    use_threads(threads)
    console = plain_console(stderr=True)
    with closing(bounded_player(env_id)) as player:
        sac = sac_config(hidden, learning_rate, batch_size)
        config = OnlineConfig(env_id, train_steps, start_steps, seed, sac)
        recipe: dict[str, Any] = {"made_by": "pbrl data collect", "env_id": env_id, "seed": seed}
        source = None
        if tiers != ["random"]:
            training = OnlineTraining(config, folder, player)
            _train(training, console, quiet)
            source = _Tiers(training, player)
            source.choose(console, quiet)
            recipe |= {"training": config.to_json(), "chosen": source.chosen}
        made = []
        for tier in tiers:
            entry = recipe | {"tier": tier, "steps": steps}
            metadata = describe(player, files[tier], entry, _scores(player, source))
            rows = _tier_rows(tier, player, source, steps, seed)
            made.append(record(tier, files[tier], player, metadata, rows, overwrite, quiet))
    return made


def collect_policy(
    policy: str | Path,
    env_id: str | None = None,
    *,
    steps: int,
    seed: int = 0,
    out: str | Path = "collected",
    file_format: str = "hdf5",
    deterministic: bool = False,
    threads: int = 0,
    overwrite: bool = False,
    quiet: bool = False,
) -> Collected:
    """Record a given policy.

    Args:
        policy: a run directory, or a D4RL HDF5 file that stores its behaviour policy.
        env_id: where to play it; by default where it comes from, for D4RL's files the environment
            with D4RL's physics.
        steps: rows of the dataset.
        seed: of everything random.
        out: a directory, or a file whose suffix says the format.
        file_format: ``hdf5``, ``npz`` or ``store``.
        deterministic: mean actions instead of sampled ones.
        threads: CPU threads; 0 decides by the machine's free cores.
        overwrite: replace a dataset made with other settings.
        quiet: print nothing.
    """
    _require_positive(steps=steps)
    if seed < 0:
        raise PbrlError("--seed must not be negative.")
    behaviour, env_id, story = policy_of(policy, deterministic, env_id)
    if env_id is None:
        raise PbrlError(f"'{policy}' does not say its environment; name one.")
    name = f"{Path(policy).stem}-policy"
    _, files = places(env_id, [name], Path(out).expanduser(), file_format, prefix=False)
    use_threads(threads)
    provenance = f"regenerated by pbrl: {story}, played in {env_id}"
    if env_id in D4RL_ENVIRONMENTS.values():
        provenance += " (D4RL's physics)"
    with closing(bounded_player(env_id)) as player:
        probe = np.zeros((1, player.observation_dim), np.float32)
        try:
            fits = behaviour(probe, np.random.default_rng(0)).shape == (1, player.action_dim)
        except (PbrlError, ValueError):
            fits = False
        if not fits:
            raise PbrlError(
                f"The policy in '{policy}' does not fit {env_id}, which has "
                f"{player.observation_dim} observation and {player.action_dim} action dimensions."
            )
        recipe = {
            "made_by": "pbrl data collect",
            "env_id": env_id,
            "policy": Path(policy).name,
            "deterministic": deterministic,
            "steps": steps,
            "seed": seed,
            "provenance": provenance,
        }
        metadata = describe(player, files[name], recipe)
        rows = play_rows(player, behaviour, steps, (seed, 4))
        return record("policy", files[name], player, metadata, rows, overwrite, quiet)


# ------------------------------------------------------------------------------- the tiers


class _Tiers:
    """The policies behind the tiers, chosen among the snapshots of a training."""

    def __init__(self, training: OnlineTraining, player: Player) -> None:
        self.training, self.player = training, player
        self.chosen: dict[str, Any] = {}
        self._trials: dict[int, float] = {}

    def choose(self, console: Console, quiet: bool) -> None:
        """Play the snapshots and remember which are medium and expert."""
        file = self.training.path / "tiers.json"
        if file.exists():
            try:
                self.chosen = json.loads(file.read_text())
                return
            except ValueError:
                file.unlink()  # damaged; it is only a summary of what can be played again
        steps = [
            step for step in self.training.snapshot_steps if step > self.training.config.start_steps
        ]
        if not quiet:
            console.print("Playing snapshots to choose the medium and the expert policy …")
        seed = self.training.config.seed
        uniform = uniform_policy(self.player.low, self.player.high)
        low = float(play_returns(self.player, uniform, RANDOM_EPISODES, (seed, 2)).mean())
        expert = max(steps[-EXPERT_CANDIDATES:], key=self._trial)
        high = float(self._returns(expert, EXPERT_EPISODES, (seed, 3)).mean())
        target = low + MEDIUM_SHARE * (high - low)
        medium, gap = expert, float("inf")
        for step in steps:  # up to the first that earns the target
            earned = self._trial(step)
            if abs(earned - target) < gap:
                medium, gap = step, abs(earned - target)
            if earned >= target:
                break
        self.chosen = {
            "random": {"return_mean": low, "episodes": RANDOM_EPISODES},
            "medium": {"step": medium, "return_mean": self._trial(medium), "target": target},
            "expert": {"step": expert, "return_mean": high, "episodes": EXPERT_EPISODES},
        }
        write_json(file, self.chosen)
        if not quiet and high <= low:
            console.print("SAC has not learned anything yet: give it more --train-steps.")

    def _trial(self, step: int) -> float:
        if step not in self._trials:
            seed = (self.training.config.seed, 5, step)
            self._trials[step] = float(self._returns(step, TRIAL_EPISODES, seed).mean())
        return self._trials[step]

    def _returns(self, step: int, episodes: int, seed: tuple[int, ...]) -> Any:
        return play_returns(self.player, self.at(step), episodes, seed)

    def at(self, step: int) -> Behaviour:
        """The policy at ``step``, with sampled actions as in D4RL's data."""
        return sac_policy(self.training.snapshot(step), self.training.preprocessing)

    def policy(self, tier: str) -> Behaviour:
        """The policy of medium or expert."""
        return self.at(int(self.chosen[tier]["step"]))


def _tier_rows(
    tier: str, player: Player, source: _Tiers | None, steps: int, seed: int
) -> Iterator[Rows]:
    if source is None or tier == "random":
        yield from play_rows(player, uniform_policy(player.low, player.high), steps, (seed, 6))
    elif tier == "medium-replay":
        filled = int(source.chosen["medium"]["step"])
        yield source.training.replay.rows(filled, source.training.preprocessing)
    else:
        halves = {"medium": steps, "expert": steps}
        if tier == "medium-expert":
            halves = {"medium": steps // 2, "expert": steps - steps // 2}
        for name, rows in halves.items():
            if name in tier.split("-"):
                yield from play_rows(
                    player, source.policy(name), rows, (seed, 7, TIERS.index(name))
                )


def _scores(player: Player, source: _Tiers | None) -> tuple[float, float] | None:
    """Returns of the random and the expert policy, for normalised scores."""
    if source is None or player.env_id in D4RL_ENVIRONMENTS.values():
        return None  # nothing measured; D4RL's environments have D4RL's scores
    low, high = (float(source.chosen[name]["return_mean"]) for name in ("random", "expert"))
    return (low, high) if low < high else None


def _train(training: OnlineTraining, console: Console, quiet: bool) -> None:
    progress = TrainingProgress(training.config.steps, training.done, console, quiet)
    try:
        training.run(progress)
    finally:
        progress.close()


def _require_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise PbrlError(f"--{name.replace('_', '-')} must be at least 1, got {value}.")
