"""Where metric records go: a JSONL file always, TensorBoard and W&B on request."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pbrl.errors import PbrlError, optional_import
from pbrl.training.files import cannot_write, write_text

# Fields that tell the time and so differ between equal runs.
CLOCK_FIELDS = ("seconds", "steps_per_second", "evaluation_seconds")
# Enough of a file's end for the newest record of each kind.
TAIL_BYTES = 1 << 16


class MetricLog:
    """Appends records to ``metrics.jsonl`` and passes them on to TensorBoard and W&B.

    Args:
        run_dir: the run's directory.
        from_step: records after this step are dropped first (a resumed run writes them again).
        tensorboard: also write TensorBoard events.
        wandb: W&B project, or None.
    """

    def __init__(
        self,
        run_dir: Path,
        from_step: int = 0,
        tensorboard: bool = True,
        wandb: str | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        self.path = run_dir / "metrics.jsonl"
        kept = [r for r in read_metrics(run_dir) if r["step"] <= from_step] if from_step else []
        write_text(self.path, "".join(_line(record) for record in kept))
        self.last: dict[str, Any] = {}
        for record in kept:
            self.last |= record
        self._file = open(self.path, "a")  # noqa: SIM115 - closed in close()
        self._writer: Any = None
        self._wandb: Any = None
        if tensorboard:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # tensorboard's own deprecations
                from torch.utils.tensorboard import SummaryWriter

                self._writer = SummaryWriter(
                    str(run_dir / "tensorboard"), purge_step=from_step + 1 if from_step else None
                )
        if wandb:
            module = optional_import("wandb", "wandb")
            self._wandb = module.init(
                project=wandb, dir=str(run_dir), name=run_dir.name, config=config
            )

    def record(self, step: int, kind: str, values: dict[str, float]) -> None:
        """Write one record of ``kind`` train or eval."""
        record = {"step": step, "kind": kind, **values}
        self.last |= record
        try:
            self._file.write(_line(record))
            self._file.flush()
        except OSError as error:
            raise cannot_write(self.path, error) from error
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(f"{kind}/{name}", value, step)
        if self._wandb is not None:
            self._wandb.log({f"{kind}/{k}": v for k, v in values.items()}, step=step)

    def sync(self) -> None:
        """Make the records durable; called before a checkpoint that counts on them."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        """Flush and close everything."""
        self._file.close()
        if self._writer is not None:
            self._writer.close()
        if self._wandb is not None:
            self._wandb.finish()


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"


def read_metrics(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Records of a run in order; a last line torn by a crash is left out."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line.decode())
                if not isinstance(record["step"], int) or not isinstance(record["kind"], str):
                    raise TypeError("step and kind")
            except (ValueError, RecursionError, KeyError, TypeError) as error:
                if not line.endswith(b"\n"):
                    return
                raise PbrlError(f"{path} is damaged at line {number}; delete that line.") from error
            yield record


def latest_metrics(run_dir: Path) -> dict[str, Any]:
    """The newest value of every metric, read from the end of a file that may be growing.

    Cheap enough to be called all the time, however long the run; empty before the first record.
    """
    try:
        with open(run_dir / "metrics.jsonl", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return {}
    newest: dict[str, Any] = {}
    for line in lines:
        try:
            newest |= json.loads(line)
        except (ValueError, TypeError):
            continue  # cut at either end
    return newest
