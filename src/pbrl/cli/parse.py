"""Words of a command become its options; what is wrong with them is said in three lines.

The parser shows a mistake as a box of help texts. A reader needs what was wrong, the flag that was
meant, and the usage line; the rest is in ``--help``.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
from pathlib import Path
from typing import Any, TypeVar

import tyro

from pbrl.errors import PbrlError, printable

T = TypeVar("T")

# How the parser puts it -> how we do.
_WORDINGS = (
    (r"Unrecognized options: (.*)", r"There is no option \1."),
    (r"Missing from .*?: (.*)", r"Missing: \1"),
    (r"Missing value for argument '(.*)'\. .*", r"\1 is given without a value."),
    (r"Error parsing (\S+): invalid literal for int.*?: (.*)", r"\1 takes a whole number, not \2."),
    (r"Error parsing (\S+): could not convert string.*?: (.*)", r"\1 takes a number, not \2."),
    (r"Error parsing (\S+): no type matching (.*) could .* \[(.*)\]\.", r"\1 takes \2, not \3."),
    (r"invalid choice (.*) for argument '(.*)'\. .* of (\(.*\))\.", r"\2 takes one of \3, not \1."),
)  # fmt: skip


def parse(kind: type[T], argv: list[str], prog: str, **options: Any) -> T:
    """The options of the command ``prog``, an instance of ``kind``.

    ``options`` are the parser's own (``default``, ``config``). Words that do not fit are refused
    with what is wrong, the nearest flag and the usage line.
    """
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            chosen: T = tyro.cli(kind, args=argv, prog=prog, **options)
        _require_seed(chosen)
        return chosen
    except SystemExit as end:
        if not end.code:  # --help
            raise
    help_page = _printed(kind, ["--help"], prog, options)
    usage = help_page.split("\n\n", 1)[0]
    wrong = printable(_reworded(_first_words(_printed(kind, argv, prog, options))))
    hint = _nearest_flags(wrong, help_page)
    raise PbrlError(f"{wrong}{hint}\n{usage}\n{prog} --help explains every option.")


def run_and_step(word: str) -> tuple[Path, int | None]:
    """``RUN`` or ``RUN@STEP`` as a directory and the step of a kept checkpoint."""
    if Path(word).exists():
        return Path(word), None
    path, sign, step = word.partition("@")
    if sign and not step.isdecimal():
        raise PbrlError(f"'{word}': after @ comes the step of a kept checkpoint.")
    return Path(path), int(step) if sign else None


def _require_seed(chosen: object) -> None:
    """Refuse what no random generator takes; None leaves the seed to the command."""
    seed = getattr(chosen, "seed", None)
    if isinstance(seed, int) and not 0 <= seed < 2**31:
        raise PbrlError(f"--seed must lie in [0, 2^31), got {seed}.")


def _printed(kind: type[Any], argv: list[str], prog: str, options: dict[str, Any]) -> str:
    """What the parser prints for these words, unwrapped and without colours."""
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # it draws with the signs of UTF-8
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100000"
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            tyro.cli(kind, args=argv, prog=prog, **options)
    except SystemExit:
        pass
    finally:
        del os.environ["COLUMNS"]
        if columns is not None:
            os.environ["COLUMNS"] = columns
    said.seek(0)
    return re.sub(r"\x1b\[[0-9;]*m", "", said.read())


def _first_words(box: str) -> str:
    """What stands in the box above its first rule or gap, as one line."""
    lines: list[str] = []
    for line in box.splitlines()[1:]:  # the first has the title
        words = line.strip("│ ")
        if not words.strip("─╰╯"):
            break
        lines.append(words)
    return " ".join(" ".join(lines).split())


def _reworded(sentence: str) -> str:
    for pattern, ours in _WORDINGS:
        found = re.fullmatch(pattern, sentence)
        if found:
            return found.expand(ours).replace("{None}|", "").replace(" (required)", "")
    return sentence


def _nearest_flags(wrong: str, help_page: str) -> str:
    """``Did you mean --steps?``, where a flag that is not there resembles one that is."""
    # A long page is set in boxes side by side.
    columns = re.findall(r"│ +(-.*?)(?:  |│|$)", help_page, re.MULTILINE)
    known = set(re.findall(r"--[a-z][\w-]*", "\n".join(columns)))
    near: list[str] = []
    for given in re.findall(r"--[\w-]+", wrong):
        flag = given.replace("_", "-").lower()
        if flag not in known:
            near += difflib.get_close_matches(flag, known, n=1)
    return f" Did you mean {' and '.join(dict.fromkeys(near))}?" if near else ""
