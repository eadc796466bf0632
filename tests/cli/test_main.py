"""What ``pbrl`` does before a command starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pbrl.cli.main import _others_running


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_busy_neighbour_is_noticed() -> None:
    code = "print('up', flush=True)\nwhile True: pass"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        try:
            assert _others_running()
        finally:
            busy.kill()
