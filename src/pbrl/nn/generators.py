"""Random numbers that go on where a checkpoint stands, on another device, too."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

CUDA_BYTES = 16  # of a CUDA generator's state: seed and offset


def restore(generator: torch.Generator, state: Tensor, step: int) -> None:
    """Go on with the random numbers of ``state``, or with new ones where it is another device's.

    The states of processor and GPU mean nothing to each other. A run that moves between them draws
    from a fresh stream by its own seed and ``step``: moved there again, it draws the same.

    Args:
        generator: as it was seeded for the run.
        state: ``[bytes]`` of the generator that was saved; what is neither device's is refused by
            torch with a RuntimeError or TypeError.
        step: of the checkpoint.
    """
    devices = {CUDA_BYTES: "cuda", torch.Generator().get_state().numel(): "cpu"}
    saved_on = devices.get(state.numel()) if state.dtype == torch.uint8 else None
    if saved_on in (None, generator.device.type):
        generator.set_state(state)
    else:
        fresh = np.random.SeedSequence([generator.initial_seed(), step]).generate_state(1)
        generator.manual_seed(int(fresh[0]))
