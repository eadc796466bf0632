"""Fixtures that every room's tests may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory of real D4RL and Minari data; where ``CI`` is true it must exist."""
    place = os.environ.get("PBRL_REAL_DATA")
    if place and Path(place).is_dir():
        return Path(place)
    reason = "real data not found: set PBRL_REAL_DATA to the directory that has d4rl-slices"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
