"""Writing files so that a crash leaves either the old one or the new one, never half of it."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbrl.errors import PbrlError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in one step."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` in one step."""
    if not path.name:  # an empty word, . or /
        raise PbrlError(f"'{path}' is no name of a file; give one to write.")
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as indented JSON in one step."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_figure(path: Path, figure: Figure, dpi: int) -> None:
    """Replace ``path`` by the picture in one step; its suffix says of which kind."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi, format=path.suffix.lower().removeprefix(".") or "png")
    write_bytes(path, drawn.getvalue())


def cannot_write(path: Path, error: OSError) -> PbrlError:
    """What to say when the file system refuses."""
    reason = error.strerror or str(error)
    return PbrlError(
        f"Cannot write {path}: {reason}. Free some space or choose another place; what was saved "
        "before is intact."
    )


def refuse_file(run_dir: Path) -> None:
    """Refuse a file where a run's directory shall be."""
    if run_dir.exists() and not run_dir.is_dir():
        raise PbrlError(f"--run-dir {run_dir} is a file; give a directory.")


def sync_directory(path: Path) -> None:
    """Make renames in ``path`` durable where the system allows it."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
