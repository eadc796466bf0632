"""What a policy earns in its environment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pbrl.envs.player import Player, Policy
from pbrl.errors import PbrlError
from pbrl.evaluation.noise import Noise, NoisyEpisodes
from pbrl.evaluation.scores import normalized_score


@dataclass(frozen=True)
class Evaluation:
    """What a policy earned.

    Attributes:
        returns: undiscounted return of every episode, ``[E]``.
        lengths: steps of every episode, ``[E]``.
        scores: normalised returns ``[E]``, where reference scores are known.
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    scores: NDArray[np.float64] | None = None

    def summary(self) -> dict[str, float]:
        """Means and deviations over the episodes, for metrics and tables."""
        out = {
            "return_mean": float(self.returns.mean()),
            "return_std": float(self.returns.std()),
            "length_mean": float(self.lengths.mean()),
        }
        if self.scores is not None:
            out["score_mean"] = float(self.scores.mean())
            out["score_std"] = float(self.scores.std())
        return out


class Evaluator:
    """Scores policies in one environment; keeps the simulators between calls.

    Episode i of a call with seed s always starts from the same state, whatever was played before:
    that keeps evaluations of a resumed run equal to those of an uninterrupted one.

    Args:
        env_id: a Gymnasium id, D4RL's restored environments included.
        reference_scores: returns that count as 0 and 100.
    """

    def __init__(self, env_id: str, reference_scores: tuple[float, float] | None = None) -> None:
        self.env_id = env_id
        self.reference_scores = reference_scores
        self._player = Player(env_id)

    @property
    def action_bounds(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The environment's lowest and highest actions, ``[A]`` each."""
        return self._player.low, self._player.high

    def require_spaces(self, observation_dim: int, action_dim: int) -> None:
        """Refuse data that do not fit the environment."""
        self._player.require_spaces(observation_dim, action_dim)

    def evaluate(
        self, policy: Policy, episodes: int = 10, seed: int = 0, noise: Noise | None = None
    ) -> Evaluation:
        """Play ``episodes`` episodes of ``policy`` from seeds derived from ``seed``.

        Args:
            policy: raw observations ``[B, S]`` to raw actions ``[B, A]``.
            episodes: how many.
            seed: of their starts, and of the noise.
            noise: on observations and actions.
        """
        if episodes < 1:
            raise PbrlError(f"episodes must be at least 1, got {episodes}.")
        seeds = np.random.SeedSequence(seed).generate_state(episodes).tolist()
        returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
        noisy = None if noise is None else NoisyEpisodes(noise, policy, seeds)
        for step in self._player.play(noisy or policy, seeds):
            returns[step.episodes] += step.rewards
            lengths[step.episodes] += 1
            if noisy is not None:
                noisy.running = step.episodes[~(step.terminals | step.timeouts)]
        scores = None
        if self.reference_scores is not None:
            scores = normalized_score(returns, self.reference_scores)
        return Evaluation(returns, lengths, scores)

    def close(self) -> None:
        """Release the simulators."""
        self._player.close()
