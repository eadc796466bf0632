"""D4RL's fifteen Gym sets made again, in D4RL's physics: three tasks, five tiers each.

A finished set is reused, a stopped SAC goes on from its checkpoint, and a set made with other
settings is never mixed with these: it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pbrl.collect.files import Collected, Totals, describe, existing, record
from pbrl.collect.online import OnlineConfig, sac_config
from pbrl.collect.policies import Behaviour, uniform_policy
from pbrl.collect.rollouts import bounded_player, play_rows
from pbrl.collect.suite_policies import StoredFile, TaskTraining, find_policies
from pbrl.data.loading import open_source
from pbrl.data.mix import mixture
from pbrl.data.rows import BLOCK, Rows
from pbrl.envs.environments import D4RL_ENVIRONMENTS
from pbrl.envs.player import Player
from pbrl.envs.tasks import ENVIRONMENTS
from pbrl.errors import PbrlError, unknown_name
from pbrl.evaluation.scores import normalized_score
from pbrl.training.files import write_json

SUITES = ("d4rl-gym",)
TASKS = ("hopper", "halfcheetah", "walker2d")
TIERS = ("random", "medium", "expert", "medium-expert", "medium-replay")
"""In the order in which they are made: what takes long, and may fail, comes last."""
REPORT = "suite.json"

# Mean return of the episodes in D4RL's v2 files. Those of medium-expert follow from the other two;
# random is what uniform actions earn (docs/collect.md), as the log-probabilities recorded in D4RL's
# random files say: log(1/2) for every dimension of every action.
D4RL_RETURNS: dict[str, dict[str, float]] = {
    "hopper": {
        "random": 18.40,
        "medium": 1422.06,
        "medium-replay": 467.30,
        "medium-expert": 2089.88,
        "expert": 3511.36,
    },
    "halfcheetah": {
        "random": -288.80,
        "medium": 4770.33,
        "medium-replay": 3093.29,
        "medium-expert": 7713.38,
        "expert": 10656.43,
    },
    "walker2d": {
        "random": 1.87,
        "medium": 2852.09,
        "medium-replay": 682.70,
        "medium-expert": 3796.57,
        "expert": 4920.51,
    },
}


@dataclass(frozen=True)
class SuiteConfig:
    """What the sets of a suite have in common.

    Attributes:
        rows: of each set; medium-replay has as many as SAC needed.
        seed: of everything random.
        train_steps: at most so many steps of a task's SAC.
        start_steps: uniform actions before SAC's policy takes over.
        replay_until: share of the way from a random to D4RL's medium return that SAC's policy must
            have gone for medium-replay to end; 0 takes the first snapshot, for trying out.
        hidden: hidden units of SAC's networks.
        learning_rate: of SAC's networks.
        batch_size: of SAC's updates.
    """

    rows: int = 200_000
    seed: int = 0
    train_steps: int = 1_000_000
    start_steps: int = 1000
    replay_until: float = 1.0
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    batch_size: int = 256

    def __post_init__(self) -> None:
        for name in ("rows", "train_steps"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise PbrlError(f"--{flag} must be at least 1, got {getattr(self, name)}.")
        if self.seed < 0 or self.start_steps < 0 or not 0 <= self.replay_until <= 2:
            raise PbrlError(
                "--seed and --start-steps must not be negative, and --replay-until must lie "
                "between 0 and 2."
            )
        if self.train_steps <= self.start_steps:
            raise PbrlError(
                f"SAC would only act at random: --train-steps {self.train_steps} must be larger "
                f"than --start-steps {self.start_steps}."
            )

    def online(self, task: str) -> OnlineConfig:
        """Of a task's SAC."""
        sac = sac_config(self.hidden, self.learning_rate, self.batch_size)
        env_id = D4RL_ENVIRONMENTS[task]
        return OnlineConfig(env_id, self.train_steps, self.start_steps, self.seed, sac)

    def target(self, task: str) -> float:
        """The return at which SAC's policy is D4RL's medium one."""
        if self.replay_until == 0:
            return -float("inf")
        low = ENVIRONMENTS[task].reference_scores[0]
        return low + self.replay_until * (D4RL_RETURNS[task]["medium"] - low)


@dataclass(frozen=True)
class SuiteSet:
    """One set of a suite.

    Attributes:
        task: D4RL's name of the task.
        made: its file, rows, episodes and mean return.
        d4rl: the mean return of D4RL's set.
    """

    task: str
    made: Collected
    d4rl: float

    @property
    def name(self) -> str:
        """As in ``hopper-medium``."""
        return f"{self.task}-{self.made.tier}"

    @property
    def scores(self) -> tuple[float, float]:
        """Mean normalised score of this set and of D4RL's."""
        reference = ENVIRONMENTS[self.task].reference_scores
        mine, theirs = normalized_score([self.made.return_mean, self.d4rl], reference).tolist()
        return mine, theirs

    def to_json(self) -> dict[str, Any]:
        """For the report."""
        mine, theirs = self.scores
        return {
            "file": self.made.path.name,
            "rows": self.made.rows,
            "episodes": self.made.episodes,
            "return_mean": round(self.made.return_mean, 2),
            "d4rl_return_mean": self.d4rl,
            "score_mean": round(mine, 2),
            "d4rl_score_mean": round(theirs, 2),
        }


def set_path(directory: Path, task: str, tier: str) -> Path:
    """Where a set of a suite lies."""
    return directory / f"{task}-{tier}.hdf5"


def make_suite(
    name: str,
    out: str | Path,
    config: SuiteConfig | None = None,
    *,
    tasks: Sequence[str] = TASKS,
    tiers: Sequence[str] = TIERS,
    policies: Sequence[str | Path] = (),
    quiet: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
) -> list[SuiteSet]:
    """Make the sets of a suite that are not there yet.

    Args:
        name: ``d4rl-gym``.
        out: the suite's directory.
        config: rows, seed and SAC's settings.
        tasks: only these.
        tiers: only these; medium-expert brings medium and expert along.
        policies: directories with D4RL HDF5 files that store the medium and expert policies;
            without any, SAC trains them.
        quiet: show no progress.
        say: takes sentences for the user.
    """
    if name not in SUITES:
        raise unknown_name("suite", name, SUITES)
    tasks, tiers = _known("task", tasks, TASKS), _known("tier", tiers, TIERS)
    if "medium-expert" in tiers:
        tiers = [tier for tier in TIERS if tier in {*tiers, "medium", "expert"}]
    with ExitStack() as stack:
        suite = _Suite(Path(out).expanduser(), config or SuiteConfig(), quiet, say, stack)
        for task in tasks:  # all environments first: one that is missing is known at once
            suite.players[task] = bounded_player(D4RL_ENVIRONMENTS[task])
            stack.callback(suite.players[task].close)
        if policies:
            wanted = [t for t in ("medium", "expert") if t in tiers]
            suite.stored = find_policies([Path(p) for p in policies], tasks, wanted)
        suite.refuse_others(tasks, tiers)
        made = [suite.make(task, tier) for tier in tiers for task in tasks]
        for training in suite.trainings.values():
            training.save()
    return sorted(made, key=lambda item: (TASKS.index(item.task), TIERS.index(item.made.tier)))


def sets_of(directory: Path, tasks: Sequence[str] = TASKS) -> list[Path]:
    """The files of a finished suite, in the paper's order; a suite with gaps is refused."""
    order = ("random", "medium", "medium-replay", "medium-expert", "expert")
    paths = [set_path(directory, task, tier) for tier in order for task in tasks]
    missing = [path.stem for path in paths if not path.is_file()]
    if missing:
        raise PbrlError(
            f"{directory} has {len(paths) - len(missing)} of the {len(paths)} sets; "
            f"{', '.join(missing[:3])}{' …' if len(missing) > 3 else ''} still to be made: 'pbrl "
            f"data suite d4rl-gym --out {directory}' goes on."
        )
    _refuse_unlike(paths, [_entry_in(path) for path in paths])
    return paths


def _entry_in(path: Path) -> Any:
    """What the set at ``path`` was asked for as; None where it is not of a suite."""
    return open_source(path).metadata.recipe.get("suite")


def _refuse_unlike(paths: Sequence[Path], entries: Sequence[Any]) -> None:
    for path, entry in zip(paths, entries, strict=True):
        if not isinstance(entry, dict):
            raise PbrlError(
                f"'{path}' was not made by 'pbrl data suite'; remove it, or give another directory."
            )
        for key in ("rows", "seed"):
            if entry.get(key) != entries[0].get(key):
                raise PbrlError(
                    f"The sets differ: {path.stem} has {key} {entry.get(key)}, {paths[0].stem} "
                    f"{entries[0].get(key)}; remove the odd ones and make them again."
                )


def _known(kind: str, names: Iterable[str], known: Sequence[str]) -> list[str]:
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in known:
            raise unknown_name(kind, name, known)
    if not chosen:
        raise PbrlError(f"Name at least one {kind} of {', '.join(known)}.")
    return [name for name in known if name in chosen]


@dataclass
class _Suite:
    """A suite on its way."""

    out: Path
    config: SuiteConfig
    quiet: bool
    say: Callable[[str], None]
    stack: ExitStack
    players: dict[str, Player] = field(default_factory=dict)
    stored: dict[tuple[str, str], StoredFile] = field(default_factory=dict)
    trainings: dict[str, TaskTraining] = field(default_factory=dict)

    def entry(self, task: str, tier: str) -> dict[str, Any]:
        """What was asked for; a set that is there must have been asked for in the same way."""
        entry = {"suite": SUITES[0], "task": task, "tier": tier, "seed": self.config.seed}
        return entry | {"rows": self.config.rows, "policy": self._policy_entry(task, tier)}

    def _policy_entry(self, task: str, tier: str) -> Any:
        if tier == "random":
            return "uniform actions"
        if tier == "medium-expert":
            return [self._policy_entry(task, part) for part in ("medium", "expert")]
        if (task, tier) in self.stored:
            return self.stored[task, tier].to_json()
        return {"sac": self.config.online(task).to_json(), "until": self.config.replay_until}

    def refuse_others(self, tasks: Sequence[str], tiers: Sequence[str]) -> None:
        """Nothing is made beside sets of other settings."""
        for task in TASKS:
            for tier in TIERS:
                path = set_path(self.out, task, tier)
                if not path.exists():
                    continue
                known = _entry_in(path)
                if not isinstance(known, dict):
                    raise PbrlError(
                        f"'{path}' was not made by 'pbrl data suite'; give another --out."
                    )
                wanted = self.entry(task, tier)
                keys = ["rows", "seed"]
                keys += ["policy"] if task in tasks and tier in tiers else []
                for key in keys:
                    if known.get(key) != wanted[key]:
                        words = "another policy" if key == "policy" else f"{key} {known.get(key)}"
                        raise PbrlError(
                            f"'{path}' was made with {words}; give the same settings to go on with "
                            "this suite, or another --out."
                        )

    def make(self, task: str, tier: str) -> SuiteSet:
        """One set, from its file where there is one."""
        path = set_path(self.out, task, tier)
        if path.exists():
            made = existing(tier, path)
        else:
            self.say(f"{task}-{tier} …")
            made = self._record(task, tier, path)
        item = SuiteSet(task, made, D4RL_RETURNS[task][tier])
        self._report(item)
        return item

    def _report(self, item: SuiteSet) -> None:
        """Enter a set in the report, beside those of earlier calls."""
        file, known = self.out / REPORT, {}
        with suppress(OSError, ValueError, AttributeError):
            known = dict(json.loads(file.read_text()).get("sets", {}))
        known[item.name] = item.to_json()
        names = [f"{task}-{tier}" for task in TASKS for tier in TIERS]
        write_json(
            file,
            {"suite": SUITES[0], "sets": {name: known[name] for name in names if name in known}},
        )

    def _record(self, task: str, tier: str, path: Path) -> Collected:
        player, rows = self.players[task], self.config.rows
        seed = (self.config.seed, 8, TASKS.index(task), TIERS.index(tier))
        details: dict[str, Any] = {}
        if tier == "medium-expert":
            parts = [set_path(self.out, task, part) for part in ("medium", "expert")]
            # Episodes stay whole; in a set of a few of them the halves cannot be exact.
            mixed = mixture(*parts, rows=rows, seed=self.config.seed, tolerance=1.0)
            blocks: list[Rows] = list(mixed.source.blocks(BLOCK))
            details = {"mixture": mixed.source.metadata.recipe}
            told = "episodes of the medium and the expert set, half and half"
        elif tier == "medium-replay":
            blocks, details = self._training(task).replay()
            told = "all that SAC saw until its policy earned what D4RL's medium policy earns"
        else:
            policy, told, details = self._behaviour(task, tier)
            blocks = list(play_rows(player, policy, rows, seed))
        totals = Totals()
        for block in blocks:
            totals.add(block)
        recipe = {
            "made_by": f"pbrl data suite {SUITES[0]}",
            "suite": self.entry(task, tier),
            **details,
            "steps": totals.rows,
            "return_mean": totals.mean,
            "d4rl_return_mean": D4RL_RETURNS[task][tier],
            "provenance": f"regenerated by pbrl: {told}, in {player.env_id} (D4RL's physics)",
        }
        return record(tier, path, player, describe(player, path, recipe), blocks, False, True)

    def _behaviour(self, task: str, tier: str) -> tuple[Behaviour, str, dict[str, Any]]:
        """The policy of random, medium or expert, and how to call it."""
        if tier == "random":
            player = self.players[task]
            return uniform_policy(player.low, player.high), "uniform actions", {}
        if (task, tier) in self.stored:
            file = self.stored[task, tier]
            return file.policy, f"the policy stored in {file.path.name}", {}
        return self._training(task).policy(tier)

    def _training(self, task: str) -> TaskTraining:
        if task not in self.trainings:
            config, place = self.config.online(task), self.out / "sac" / task
            training = TaskTraining(
                config, place, self.players[task], self.config.target(task), self.quiet
            )
            self.stack.callback(training.progress.close)
            self.trainings[task] = training
        return self.trainings[task]
