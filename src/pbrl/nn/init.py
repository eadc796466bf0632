"""Initialisers as in rlkit, the base of the authors' code (paper: A8), and as other baselines have.

``rlkit``: weights in +-1/sqrt(outputs) (see ``fan_in_bound``), biases 0.1. ``fan-in``: weights in
+-1/sqrt(inputs), biases 0.1; the stacked critics of SAC-N and EDAC, whose (in, out) matrices turn
rlkit's slip into the right thing. ``torch``: weights and biases in +-1/sqrt(inputs), the default of
``nn.Linear`` (TD3+BC).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Init = Literal["rlkit", "fan-in", "torch"]

HIDDEN_BIAS = 0.1
CRITIC_HEAD_BOUND = 3e-3
POLICY_HEAD_BOUND = 1e-3


def uniform_(weight: Tensor, bound: float, generator: torch.Generator) -> None:
    """Fill ``weight`` from Unif(-bound, bound)."""
    with torch.no_grad():
        weight.uniform_(-bound, bound, generator=generator)


def fan_in_bound(out_features: int) -> float:
    """rlkit's bound for hidden weights.

    Its ``fan_in`` is the first dimension of an (out, in) matrix, that is the number of *outputs*:
    1/16 for every layer of 256 units. A slip, but the one all of the paper's numbers rest on.
    """
    return 1 / math.sqrt(out_features)


def hidden_bound(init: Init, fan_in: int, fan_out: int) -> float:
    """Bound of a hidden layer's weights."""
    return fan_in_bound(fan_out) if init == "rlkit" else 1 / math.sqrt(fan_in)


def hidden_bias_(bias: Tensor, init: Init, fan_in: int, generator: torch.Generator) -> None:
    """Fill a hidden layer's bias."""
    if init == "torch":
        uniform_(bias, 1 / math.sqrt(fan_in), generator)
    else:
        with torch.no_grad():
            bias.fill_(HIDDEN_BIAS)
