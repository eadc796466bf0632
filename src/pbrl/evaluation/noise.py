"""Robustness: playing a policy whose sensors and actuators are not exact.

Noise is Gaussian and counted in deviations of the logged data, so that 0.05 means the same in every
column: five percent of what the log varies by.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pbrl.data.dataset import TransitionDataset
from pbrl.data.preprocessing import moments
from pbrl.envs.player import Floats, Policy
from pbrl.errors import PbrlError


@dataclass(frozen=True)
class Noise:
    """Deviations of the noise, in the units of the log.

    Attributes:
        observation: ``[S]``, added to what the policy sees; the system itself goes on undisturbed.
        action: ``[A]``, added to what it answers, before the environment's bounds.
    """

    observation: NDArray[np.float64]
    action: NDArray[np.float64]

    @staticmethod
    def of(dataset: TransitionDataset, observation: float, action: float) -> Noise:
        """Noise of these sizes, counted in the deviations of ``dataset``'s columns."""
        for name, size in (("observation", observation), ("action", action)):
            require_size(name, size)
        return Noise(
            observation * moments(dataset.observations)[1], action * moments(dataset.actions)[1]
        )


def require_size(name: str, size: float) -> None:
    """Refuse a size of noise that means nothing."""
    if not 0 <= size < np.inf:
        raise PbrlError(
            f"--{name}-noise is a number of the data's deviations, 0 or more; got {size:g}."
        )


class NoisyEpisodes:
    """A policy under noise; every episode has a generator of its own.

    So an episode's noise depends on its seed alone, not on which others are played beside it.
    """

    def __init__(self, noise: Noise, policy: Policy, seeds: list[int]) -> None:
        self.noise, self.policy = noise, policy
        self.generators = [np.random.default_rng([seed, 104_729]) for seed in seeds]
        self.running = np.arange(len(seeds))

    def __call__(self, observations: Floats) -> Floats:
        """Actions ``[B, A]`` of the episodes ``running [B]`` at ``observations [B, S]``."""
        seen = observations + self._draw(self.noise.observation)
        actions = self.policy(seen.astype(np.float32))
        return (actions + self._draw(self.noise.action)).astype(np.float32)

    def _draw(self, deviations: NDArray[np.float64]) -> NDArray[np.float64]:
        size = len(deviations)
        draws = [self.generators[i].standard_normal(size) for i in self.running.tolist()]
        return np.stack(draws) * deviations
