"""What the user sees when something is wrong: one sentence, and what to do about it."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


class PbrlError(Exception):
    """A mistake the user can repair. The command line prints it and exits with ``exit_code``."""

    exit_code = 2


class DivergenceError(PbrlError):
    """Training left the finite numbers; the last good checkpoint is still there."""

    exit_code = 3


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there is not enough memory, or nowhere near: sizes may be beyond any machine's."""
    if isinstance(error, MemoryError):  # NumPy's
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError | ValueError | OverflowError) and any(
        words in said
        for words in (
            "out of memory", "can't allocate", "not enough memory", "storage size calculation",
            "array is too big", "maximum allowed dimension", "invalid shape dimension",
        )
    )  # fmt: skip


def printable(text: str) -> str:
    """``text`` without control characters, by which a server or file could command a terminal."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def unknown_name(kind: str, name: str, options: Iterable[str]) -> PbrlError:
    """An error for a name that is not among ``options``, with the nearest one suggested."""
    known = sorted(options)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return PbrlError(f"Unknown {kind} '{name}'.{hint} Known: {', '.join(known)}.")


def optional_import(module: str, extra: str) -> Any:
    """Import ``module``, or say which extra of pbrl brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        if error.name is not None and not error.name.startswith(package):
            raise
        raise PbrlError(
            f"This needs the package '{package}', which is not installed; run: "
            f'pip install "pbrl[{extra}]"'
        ) from error
