"""Which column of a table plays which part: default names, other spellings, and the user's map."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pbrl.errors import PbrlError, unknown_name

ROLES = (
    "observations",
    "actions",
    "rewards",
    "terminals",
    "timeouts",
    "next_observations",
    "episode",
)
_PREFIXES = {
    "observations": ("obs_", "observation_", "observations_", "state_"),
    "actions": ("action_", "actions_", "act_"),
    "next_observations": ("next_obs_", "next_observation_", "next_observations_", "next_state_"),
}
_NAMES = {
    "rewards": ("reward", "rewards"),
    "terminals": ("terminal", "terminals", "terminated"),
    "timeouts": ("timeout", "timeouts", "truncated"),
    "episode": ("episode", "episode_id"),
}
_ALIASES = {
    **dict.fromkeys(("obs", "observation", "state", "states"), "observations"),
    **dict.fromkeys(("act", "action"), "actions"),
    **dict.fromkeys(("next_obs", "next_observation", "next_states"), "next_observations"),
    **{role.removesuffix("s"): role for role in ("rewards", "terminals", "timeouts")},
    **dict.fromkeys(("episodes", "episode_id"), "episode"),
}
"""What users write for a role -> the role."""

REQUIRED_ROLES = ("observations", "actions", "rewards", "terminals")
# Words in the names of columns by which a proposal is made; nothing is ever read by them.
_TELLING = {
    "rewards": r"reward|profit|cost|loss|yield|score|utility|eur|usd",
    "terminals": r"terminal|done|trip|fail|death|died|crash|abort",
    "episode": r"episode|batch|trial|traj|patient|run_?(id|no|nr)|session|lot",
    "time": r"^(t|i|id|index|row|minute|second|hour|day|date|time|step)s?$|timestamp|_time$",
    "actions": r"action|valve|set_?point|control|dose|command|cmd|actuator|throttle|torque|voltage",
}


@dataclass(frozen=True)
class TableLayout:
    """Column names by role; ``None`` where the table has no such column.

    Attributes:
        observations: S names.
        actions: A names.
        rewards: one name.
        terminals: one name.
        timeouts: one name or None.
        next_observations: S names or None.
        episode: one name or None.
        ignored: columns that play no part.
    """

    observations: tuple[str, ...]
    actions: tuple[str, ...]
    rewards: str
    terminals: str
    timeouts: str | None
    next_observations: tuple[str, ...] | None
    episode: str | None
    ignored: tuple[str, ...]

    def numeric(self) -> list[str]:
        """Names of all columns of numbers in use, in the order of the roles."""
        names = [*self.observations, *self.actions, self.rewards, self.terminals]
        names += [] if self.timeouts is None else [self.timeouts]
        names += self.next_observations or ()
        return names


def find_columns(
    where: str, names: Sequence[str], mapping: Mapping[str, str | Sequence[str]] | None
) -> TableLayout:
    """Finds the columns of a table.

    Args:
        where: the file, for messages.
        names: the table's column names.
        mapping: role -> column, columns separated by commas, or ``prefix*``; roles left out are
            found by their default names.
    """
    if twice := _repeated(names):
        raise PbrlError(f"{where} has more than one column named '{twice[0]}'; rename one.")
    mapping = _by_role(where, mapping or {})
    for role in mapping:
        if role not in ROLES:
            raise unknown_name("column role", role, ROLES)
    found: dict[str, list[str]] = {}
    for role in ROLES:
        if role in mapping:
            found[role] = _mapped(where, names, role, mapping[role])
        elif role in _PREFIXES:
            found[role] = _numbered(where, names, _PREFIXES[role])
        else:
            found[role] = [name for name in names if name.lower() in _NAMES[role]][:1]
    missing = [role for role in REQUIRED_ROLES if not found[role]]
    if missing:
        raise PbrlError(_proposal(where, names, found, missing))
    for role in _NAMES:
        if len(found[role]) > 1:
            raise PbrlError(f"{where}: give one column for '{role}', not {len(found[role])}.")
    following = found["next_observations"]
    if following and len(following) != len(found["observations"]):
        raise PbrlError(
            f"{where} has {len(following)} columns of next observations and "
            f"{len(found['observations'])} of observations; they must agree."
        )
    taken = [name for role in ROLES for name in found[role]]
    if shared := _repeated(taken):
        raise PbrlError(f"{where}: column '{shared[0]}' is used for two things; map it once.")
    used = set(taken)
    return TableLayout(
        tuple(found["observations"]),
        tuple(found["actions"]),
        found["rewards"][0],
        found["terminals"][0],
        found["timeouts"][0] if found["timeouts"] else None,
        tuple(following) or None,
        found["episode"][0] if found["episode"] else None,
        tuple(name for name in names if name not in used),
    )


def _repeated(names: Sequence[str]) -> list[str]:
    """Names that are there more than once."""
    return sorted(name for name, times in Counter(names).items() if times > 1)


def _mapped(where: str, names: Sequence[str], role: str, wanted: str | Sequence[str]) -> list[str]:
    listed = wanted.split(",") if isinstance(wanted, str) else list(wanted)
    columns: list[str] = []
    for name in (entry.strip() for entry in listed):
        if name.endswith("*"):
            columns += _numbered(where, names, (name[:-1],)) or _starting(where, names, name)
        else:
            columns.append(name)
    known = set(names)
    for name in columns:
        if name not in known:
            raise unknown_name(f"column for {role} in {where}:", name, names)
    return columns


def _by_role(
    where: str, mapping: Mapping[str, str | Sequence[str]]
) -> dict[str, str | Sequence[str]]:
    """The user's map with every role by its full name."""
    full: dict[str, str | Sequence[str]] = {}
    for given, columns in mapping.items():
        role = _ALIASES.get(given.lower(), given)
        if role in full:
            raise PbrlError(f"{where}: the columns for {role} are given twice; give them once.")
        full[role] = columns
    return full


def _starting(where: str, names: Sequence[str], pattern: str) -> list[str]:
    """Columns whose names start as ``prefix*`` says, in the order of the table."""
    prefix = pattern[:-1]
    found = [name for name in names if name.startswith(prefix)]
    if not found:
        raise PbrlError(
            f"{where} has no column whose name starts with '{prefix}'; its columns are "
            f"{', '.join(names)}."
        )
    return found


def _numbered(where: str, names: Sequence[str], prefixes: tuple[str, ...]) -> list[str]:
    """Columns ``prefix0, prefix1, …`` of the first prefix that has any, in order of number."""
    for prefix in prefixes:
        pattern = re.compile(re.escape(prefix) + r"(\d{1,6})", re.IGNORECASE)
        numbered = {int(m.group(1)): name for name in names if (m := pattern.fullmatch(name))}
        if not numbered:
            continue
        first = min(numbered)
        if first > 1 or len(numbered) != max(numbered) - first + 1:
            gap = next(i for i in range(1 if first else 0, max(numbered)) if i not in numbered)
            raise PbrlError(
                f"{where} lacks column '{prefix}{gap}' though it has '{prefix}{max(numbered)}'."
            )
        return [numbered[number] for number in sorted(numbered)]
    return []


def _proposal(
    where: str, names: Sequence[str], found: dict[str, list[str]], missing: list[str]
) -> str:
    """What is missing, what there is, and a command that names everything, to be corrected."""
    taken = {name for columns in found.values() for name in columns}
    free = [name for name in names if name not in taken]
    guessed = {role: list(columns) for role, columns in found.items() if columns}
    for role, words in _TELLING.items():
        telling = [name for name in free if re.search(words, name, re.IGNORECASE)]
        if role == "time":
            free = [name for name in free if name not in telling]
        elif role in missing or (role == "episode" and not found["episode"]):
            guessed[role] = telling if role == "actions" else telling[:1]
            free = [name for name in free if name not in guessed[role]]
    if "observations" in missing:
        guessed["observations"] = free
    said = [
        f"{role}={','.join(guessed.get(role) or ['NAME'])}"
        for role in ROLES
        if role in missing or guessed.get(role)
    ]
    hint = ""
    if "terminals" in missing:
        hint = (
            " Terminals say where an episode ended for good (1) rather than being cut (0); a "
            "column of zeros means that none did."
        )
    return (
        f"{where} does not say which columns are {', '.join(missing)}. Its columns: "
        f"{', '.join(names)}. Say so with --columns; by their names it could be (correct what is "
        f"wrong):\npbrl data inspect {where} --columns {' '.join(map(shlex.quote, said))}\n"
        f"(train takes the same words).{hint}"
    )
