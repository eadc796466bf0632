"""What a training process does to its machine: threads, device and allocator.

Nothing here happens on ``import pbrl``; only the training entry calls it.
"""

from __future__ import annotations

import ctypes
import os
import platform

import torch

from pbrl.errors import PbrlError


def free_cores() -> int:
    """Cores this process may use that others are not busy on, at least one.

    Two trainings with two threads each on two cores run several times slower than two with one
    thread each, so a new run takes what is left.
    """
    try:
        cores = len(os.sched_getaffinity(0))
        busy = os.getloadavg()[0]
    except (AttributeError, OSError):  # not on every system
        return max(1, (os.cpu_count() or 2) // 2)
    return max(1, min(cores, round(cores - busy)))


def use_threads(threads: int) -> int:
    """Set the number of CPU threads (0: as many as are free) and say how many it became."""
    threads = threads or free_cores()
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
