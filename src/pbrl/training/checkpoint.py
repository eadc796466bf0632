"""Checkpoints: everything needed to go on bit for bit, in files that cannot run code.

A checkpoint is a directory ``step_000012000`` with

- ``networks.safetensors``: weights, enough to act and to judge,
- ``training.safetensors``: optimisers, random generators, schedule state,
- ``checkpoint.json``: format version, step, whose it is (the run's algorithm, seed, data and
  preprocessing), and the SHA-256 of the two files.

It is written under a temporary name and renamed when complete, and nothing in it depends on the
time, so equal trainings have equal files. A checkpoint whose bytes do not match its hashes, or that
does not fit its run, is passed over for the one before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
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
        manifest: the contents of ``checkpoint.json``.
    """

    step: int
    state: dict[str, Tensor]
    path: Path
    manifest: dict[str, Any]

    def require_origin(self, origin: Mapping[str, Any]) -> None:
        """Refuse a checkpoint that says it is of another run; an older one may not say it."""
        for name, value in origin.items():
            if self.manifest.get(name, value) != value:
                raise PbrlError(
                    f"{self.path} is not of this run: its {name.replace('_', ' ')} is another."
                )


def origin_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """What marks the checkpoints of the run whose ``config.json`` says ``info``."""
    maps = json.dumps(info["preprocessing"], sort_keys=True)
    config = info["config"]  # as a file holds it: what it lacks stands at its default
    return {
        "algorithm": config.get("algorithm", "pbrl"),
        "seed": config.get("seed", 0),
        "data_fingerprint": info["data"]["fingerprint"],
        "preprocessing": hashlib.sha256(maps.encode()).hexdigest(),
    }


def save_checkpoint(
    directory: Path, step: int, state: Mapping[str, Tensor], origin: Mapping[str, Any]
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
        **origin,
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
    return sorted(
        p for p in directory.glob("step_*") if re.fullmatch(r"step_\d{9,}", p.name) and p.is_dir()
    )


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
    except (
        OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, SafetensorError
    ) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:200]
        raise PbrlError(f"{path} is damaged ({type(error).__name__}: {reason}).") from error
    if path.name != f"step_{step:09d}":
        raise PbrlError(f"{path} is damaged: its {MANIFEST} speaks of step {step}.")
    broken = all_finite(state)
    if broken is not None:
        raise PbrlError(f"{path} is damaged: {broken} holds values that are not finite.")
    return Checkpoint(step, state, path, manifest)


def latest_checkpoint(
    directory: Path,
    *,
    networks_only: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
    use: Callable[[Checkpoint], None] = lambda checkpoint: None,
) -> Checkpoint | None:
    """The newest checkpoint that is whole and fits; others are named and passed over.

    Args:
        directory: where the checkpoints are.
        networks_only: read no optimisers.
        say: told why a checkpoint is passed over.
        use: loads it; a PbrlError says that it does not fit.

    Returns:
        None when there is no checkpoint at all; when none fits, raises PbrlError.
    """
    paths = list_checkpoints(directory)
    reason = ""
    for path in reversed(paths):
        try:
            checkpoint = read_checkpoint(path, networks_only=networks_only)
            use(checkpoint)
            return checkpoint
        except PbrlError as error:
            reason = reason or str(error)
            say(f"{error} Using the one before it.")
    if paths:
        raise PbrlError(
            f"Every checkpoint in {directory} is damaged or another run's; restore one from a "
            f"backup, or train again in another --run-dir. ({reason})"
        )
    return None


def all_finite(state: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor with a NaN or Inf, if any."""
    for name, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            return name
    return None
