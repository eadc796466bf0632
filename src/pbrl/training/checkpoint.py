"""Checkpoints: everything needed to go on bit for bit, in files that cannot run code.

A checkpoint is a directory ``step_000012000`` with

- ``networks.safetensors``: weights, enough to act and to judge,
- ``training.safetensors``: optimisers, random generators, schedule state,
- ``checkpoint.json``: format version, step, data fingerprint and the SHA-256 of the two files.

It is written under a temporary name and renamed when complete, and nothing in it depends on the
time, so equal trainings have equal files. A checkpoint whose bytes do not match its hashes is
passed over for the one before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from pbrl.errors import PbrlError
from pbrl.training.files import cannot_write, sync_directory

FORMAT_VERSION = 1
NETWORKS, TRAINING, MANIFEST = "networks.safetensors", "training.safetensors", "checkpoint.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back.

    Attributes:
        step: gradient steps done.
        state: the flat state of the algorithm and the loop.
        path: where it lies.
    """

    step: int
    state: dict[str, Tensor]
    path: Path


def save_checkpoint(
    directory: Path, step: int, state: Mapping[str, Tensor], fingerprint: str
) -> Path:
    """Write a checkpoint of ``state`` at ``step`` into ``directory``, all or nothing."""
    final = directory / f"step_{step:09d}"
    temporary = directory / f".{final.name}.tmp"
    parts = {
        NETWORKS: {k: v for k, v in state.items() if k.startswith("networks/")},
        TRAINING: {k: v for k, v in state.items() if not k.startswith("networks/")},
    }
    manifest: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "data_fingerprint": fingerprint,
        "sha256": {},
    }
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, tensors in parts.items():
            content = save_tensors({k: v.detach().cpu().contiguous() for k, v in tensors.items()})
            manifest["sha256"][name] = hashlib.sha256(content).hexdigest()
            _write_durably(temporary / name, content)
        _write_durably(temporary / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
        shutil.rmtree(final, ignore_errors=True)
        os.rename(temporary, final)
        sync_directory(directory)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise cannot_write(final, error) from error
    return final


def _write_durably(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def list_checkpoints(directory: Path) -> list[Path]:
    """Complete checkpoint directories, oldest first."""
    return sorted(p for p in directory.glob("step_*") if p.is_dir())


def prune(directory: Path, keep_every: int = 0, keep_last: int = 2) -> None:
    """Delete all but the last checkpoints and the milestones, and what a killed run half wrote."""
    for path in directory.glob(".step_*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
    for path in list_checkpoints(directory)[:-keep_last]:
        step = int(path.name.removeprefix("step_"))
        if not (keep_every and step % keep_every == 0):
            shutil.rmtree(path, ignore_errors=True)


def read_checkpoint(path: Path, *, networks_only: bool = False) -> Checkpoint:
    """Read and verify one checkpoint; raises PbrlError when it is damaged."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        version, step = int(manifest["format_version"]), int(manifest["step"])
        hashes = dict(manifest["sha256"])
        if version > FORMAT_VERSION:
            raise PbrlError(
                f"{path} has checkpoint format {version}, this pbrl reads up to {FORMAT_VERSION}; "
                "install a newer pbrl."
            )
        state: dict[str, Tensor] = {}
        for name in (NETWORKS,) if networks_only else (NETWORKS, TRAINING):
            content = (path / name).read_bytes()
            if hashlib.sha256(content).hexdigest() != hashes[name]:
                raise PbrlError(f"{path / name} does not match its checksum.")
            state |= load_tensors(content)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise PbrlError(f"{path} is damaged ({type(error).__name__}: {error}).") from error
    return Checkpoint(step, state, path)


def latest_checkpoint(
    directory: Path,
    *,
    networks_only: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are named through ``say`` and passed over.

    Returns None when there is no checkpoint at all; when all are damaged, raises PbrlError.
    """
    paths = list_checkpoints(directory)
    for path in reversed(paths):
        try:
            return read_checkpoint(path, networks_only=networks_only)
        except PbrlError as error:
            say(f"{error} Using the one before it.")
    if paths:
        raise PbrlError(
            f"Every checkpoint in {directory} is damaged; restore one from a backup, or train "
            "again in another --run-dir."
        )
    return None


def all_finite(state: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor with a NaN or Inf, if any."""
    for name, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            return name
    return None
