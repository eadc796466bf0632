"""Normalised scores: 0 is a random policy's return, 100 an expert's."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def normalized_score(returns: ArrayLike, reference: tuple[float, float]) -> NDArray[np.float64]:
    """D4RL's score, 100 * (return - random) / (expert - random), elementwise.

    Take it of returns, never of a deviation: that must be scaled without the offset. A deviation
    over normalised returns is right by itself.
    """
    low, high = reference
    return 100 * (np.asarray(returns, np.float64) - low) / (high - low)
