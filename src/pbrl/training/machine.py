"""What a training process does to its machine: threads, device, allocator and signals.

Nothing here happens on ``import pbrl``; only the training entry calls it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

from pbrl.errors import PbrlError

MOST_THREADS = 4096


def cores() -> int:
    """CPU cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def busy_machine() -> str | None:
    """A sentence for a user who starts a run on a machine that is already busy.

    The number of threads is not chosen by the load: it decides how sums are split, so the same
    config must give the same number, or the same bits would not come out twice.
    """
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
    if load < 0.75 * cores():
        return None
    return (
        f"This machine is busy (load {load:.1f} on {cores()} cores): several runs share it best "
        "with --threads 1 each."
    )


def require_threads(threads: int) -> None:
    """Refuse more threads than any machine has: the library that makes them ends the process."""
    if not 0 <= threads <= MOST_THREADS:
        raise PbrlError(f"--threads must lie between 0 and {MOST_THREADS}, got {threads}.")


def use_threads(threads: int) -> int:
    """Set the number of CPU threads (0: all cores) and say how many it became."""
    require_threads(threads)
    threads = threads or cores()
    torch.set_num_threads(threads)
    return threads


def pick_device(device: str) -> str:
    """``auto`` is CUDA where there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise PbrlError(
            "--device cuda was asked for, but this torch sees no CUDA device; use --device cpu or "
            "install torch with CUDA."
        )
    return device


def keep_freed_memory() -> bool:
    """Tell glibc not to give large temporaries back to the kernel after every operation.

    By default it does, and the page faults of taking them again cost up to half of a training
    step. Returns whether anything was changed; elsewhere than on glibc nothing is.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL("libc.so.6").mallopt
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # <malloc.h>
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, -1)
    mallopt(top_pad, 64 << 20)
    return True


def use_wide_products() -> bool:
    """Let oneDNN take torch's matrix products where MKL leaves half of the processor idle.

    MKL keeps to AVX2 on AMD's processors; with AVX-512 oneDNN makes twice as many products a
    second. torch hands float32 products to oneDNN only along with the permission to round them to
    bfloat16, of which oneDNN makes use on processors with AMX alone. So there must be none, and a
    product must come out in full float32, or everything stays as it was. Returns whether oneDNN was
    chosen; the environment variable PBRL_ONEDNN=0 forbids it.
    """
    matmul = getattr(torch.backends.mkldnn, "matmul", None)  # torch 2.9 and newer
    if matmul is None or os.environ.get("PBRL_ONEDNN") == "0" or not _amd_with_avx512():
        return False
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    numbers = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 256, 256, generator=numbers)
    exact = left.double() @ right.double()
    if ((left @ right) - exact).abs().max() < 1e-3:  # rounded to bfloat16 it would be 0.2
        return True
    matmul.fp32_precision = before
    return False


def _amd_with_avx512() -> bool:
    try:
        processor = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return False
    wanted = "AuthenticAMD" in processor and " avx512f " in processor
    return wanted and " amx_" not in processor


def stop_signals() -> list[int]:
    """What stops a process beside Ctrl-C: a scheduler's SIGTERM, a closed terminal's SIGHUP.

    Under nohup SIGHUP is ignored, and not among them.
    """
    if not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        return [signal.SIGTERM]
    return [signal.SIGTERM, signal.SIGHUP]


@contextmanager
def stops_as_interrupts() -> Iterator[None]:
    """``stop_signals`` raise KeyboardInterrupt, as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = {number: signal.signal(number, stop) for number in stop_signals()}
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
