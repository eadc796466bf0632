"""Where sentences and tables are shown: words as they are, and no reader is needed.

Rich reads ``[old]`` as a style and ``:bug:`` as a picture, and ends the program when its reader is
gone. Names of files and columns are not ours to choose, and a training must not be lost because
somebody looked at its first line alone (``pbrl train | head -1``) or closed the terminal.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from pbrl.errors import printable


def plain_console(
    *, stderr: bool = False, quiet: bool = False, width: int | None = None
) -> Console:
    """A console that prints words unchanged, and into nothing once nobody reads them."""
    stream: Any = _Careful("stderr" if stderr else "stdout")
    return _PlainConsole(
        file=stream, quiet=quiet, width=width, markup=False, emoji=False, highlight=False
    )


class _PlainConsole(Console):
    """Shows control characters, by which a file's name could command the terminal, as strangers."""

    def render_str(self, text: str, **options: Any) -> Text:
        lines = (line.replace("\t", " ") for line in text.split("\n"))
        return super().render_str("\n".join(map(printable, lines)), **options)


class _Careful:
    """The process's stdout or stderr; what cannot be written any more goes nowhere."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def _stream(self) -> Any:
        """The stream of this moment; a live table puts a proxy in its place."""
        stream = getattr(sys, self._name)
        return getattr(stream, "rich_proxied_file", stream)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError:
            self._silence()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._silence()

    def __getattr__(self, name: str) -> Any:
        if name == "rich_proxied_file":  # rich would write past us
            raise AttributeError(name)
        return getattr(self._stream, name)

    def _silence(self) -> None:
        """Let the stream's file be the null device, for Python's own flush at the end, too."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)
