"""Initialisers as in rlkit, the base of the authors' code (paper: A8), for stacked weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor

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
