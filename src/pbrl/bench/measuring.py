"""A process that measures one thing and prints what it found as its last line, in JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from pbrl.errors import PbrlError


def begin(words: Sequence[str], threads: int) -> subprocess.Popen[str]:
    """Start our Python with these words, in as many threads."""
    return subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )


def answer_of(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    """Wait for what the process finds about ``name``; one that fails gives a sentence."""
    out, err = process.communicate()
    if process.returncode:
        last = err.strip().splitlines()[-1] if err.strip() else "no message"
        raise PbrlError(f"Measuring '{name}' failed: {last}")
    result: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return result
