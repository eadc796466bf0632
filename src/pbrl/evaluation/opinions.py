"""What five methods say of a policy's value, the log's beside it, on the same samples of episodes.

- ``fqe``: fitted Q evaluation (``fqe.py``); extrapolates where the log has no such action.
- ``wis``, ``pdis``, ``dr``: importance sampling (``importance.py``) with a density of the logged
  actions (``behaviour.py``); honest about short horizons, and out of episodes over long ones.
- ``model``: imagined episodes (``model_based.py``); errors of the dynamics add up over steps.

They fail differently, which is what a second opinion is for.

Shapes: E episodes, K members of a fit, B bootstrap samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pbrl.data.dataset import TransitionDataset
from pbrl.errors import PbrlError, unknown_name
from pbrl.evaluation.behaviour import BehaviourDensity
from pbrl.evaluation.estimate import Opinion, bootstrap_counts
from pbrl.evaluation.fqe import FittedQ, FQEConfig, Policy, ask, fit_q
from pbrl.evaluation.importance import (
    Weighted,
    WeightedEpisodes,
    doubly_robust,
    per_decision,
    weighted_importance_sampling,
)
from pbrl.evaluation.model_based import WorldModel
from pbrl.evaluation.ope import LogValue, log_value, summarise

METHODS = ("fqe", "wis", "pdis", "dr", "model")
WEIGHTED = ("wis", "pdis", "dr")
SAMPLES = 1000
LEAST_EFFECTIVE = 10.0  # with fewer effective episodes, a weighted mean corrects nothing


class Evidence:
    """Everything that is fitted to a log once, to judge policies by.

    Args:
        dataset: the log.
        config: of the fits of Q; its discount and seed hold for all methods.
        methods: which to use.
    """

    def __init__(
        self,
        dataset: TransitionDataset,
        config: FQEConfig | None = None,
        methods: Sequence[str] = METHODS,
    ) -> None:
        self.dataset, self.config = dataset, config or FQEConfig()
        self.methods = tuple(method for method in METHODS if method in methods)
        for method in methods:
            if method not in METHODS:
                raise unknown_name("method", method, METHODS)
        episodes = sum(1 for _ in dataset.episodes())
        if episodes < 2:
            raise PbrlError(
                f"A value is judged by how it differs between episodes, and these data have "
                f"{episodes} of them; log more episodes, or mark where they end."
            )
        self.episodes = episodes
        self.log: LogValue = log_value(dataset, self.config)
        self.behaviour: BehaviourDensity | None = None
        self.world: WorldModel | None = None
        if any(method != "fqe" for method in self.methods):
            self.behaviour = BehaviourDensity(dataset, seed=self.config.seed)
        if "model" in self.methods:
            self.world = WorldModel(dataset, self.config.gamma, seed=self.config.seed)
            self._imagined_log = self.world.value(self.behaviour)  # type: ignore[arg-type]

    def opinions(self, policy: Policy, fit: FittedQ | None = None) -> dict[str, Opinion]:
        """Every method's value of ``policy`` and of the log, by the method's name.

        Args:
            policy: raw observations ``[B, S]`` to raw actions ``[B, A]``.
            fit: its Q, where it was fitted already to the same log with the same config.
        """
        found: dict[str, Opinion] = {}
        fit = fit or fit_q(policy, self.dataset, self.config)
        if "fqe" in self.methods:
            found["fqe"] = self._fitted(fit)
        if any(method in WEIGHTED for method in self.methods):
            found |= self._weighted(policy, fit)
        if self.world is not None:
            found["model"] = self._imagined(policy)
        return {method: found[method] for method in self.methods}

    def unlike(self, policy: Policy) -> float:
        """Share of logged states where the policy acts as 99 % of the log does not."""
        assert self.behaviour is not None
        s = np.asarray(self.dataset.observations)
        own = ask(policy, s, self.dataset.action_dim)
        return float(self.behaviour.unlike(s, own).mean())

    def _fitted(self, fit: FittedQ) -> Opinion:
        weights = fit.counts / fit.counts.sum(1, keepdims=True)  # [K, E]
        baseline = (weights * self.log.by_member).sum(1)
        summary = summarise(fit)
        return Opinion(
            "fqe",
            summary.value,
            float(baseline.mean()),
            fit.samples,
            baseline,
            refitted=True,
            effective=float(self.episodes),
            details={"settled": summary.converged, "drift": summary.drift},
            notes=summary.notes,
        )

    def _weighted(self, policy: Policy, fit: FittedQ) -> dict[str, Opinion]:
        assert self.behaviour is not None
        log, gamma = self.dataset, self.config.gamma
        s, a = np.asarray(log.observations), np.asarray(log.actions)
        own = ask(policy, s, log.action_dim)
        last = np.array([rows.stop - 1 for rows in log.episodes()])
        after = fit.values(np.asarray(log.next_observations)[last]).mean(0)
        q, v = fit.q_values(s, a).mean(0), fit.q_values(s, own).mean(0)
        ratio = self.behaviour.log_ratio(s, a, own)
        weighted = WeightedEpisodes.of(log, gamma, ratio, after, q, v)
        counts = bootstrap_counts(self.episodes, SAMPLES, self.config.seed)
        returns = self.log.by_episode
        baseline_draws = counts @ returns / self.episodes
        results: dict[str, Weighted] = {}
        if "wis" in self.methods:
            results["wis"] = weighted_importance_sampling(weighted, counts)
        if "pdis" in self.methods:
            results["pdis"] = per_decision(weighted, counts)
        if "dr" in self.methods:
            results["dr"] = doubly_robust(weighted, counts, least=LEAST_EFFECTIVE)
        return {
            name: _weighted_opinion(name, result, float(returns.mean()), baseline_draws, gamma)
            for name, result in results.items()
        }

    def _imagined(self, policy: Policy) -> Opinion:
        assert self.world is not None
        found, base = self.world.value(policy), self._imagined_log
        mine, said = float(base.values.mean()), float(self.log.by_episode.mean())
        notes = []
        spread = float(self.log.by_episode.std()) + 1e-9
        if abs(mine - said) > 0.5 * spread + 0.1 * abs(said):
            notes.append(
                f"The model values the log at {mine:.4g}, and the log itself says {said:.4g}: "
                "read its differences, not its values."
            )
        return Opinion(
            "model",
            float(found.values.mean()),
            mine,
            found.values,
            base.values,
            refitted=True,
            effective=float(self.episodes),
            details={"imagined_steps": found.steps},
            notes=tuple(notes),
        )


def _weighted_opinion(
    name: str, result: Weighted, baseline: float, baseline_draws: Any, gamma: float
) -> Opinion:
    steps, notes = result.steps, []
    effective = float(result.effective[-1] if name == "wis" else _typical(result, gamma))
    if effective < LEAST_EFFECTIVE and name != "dr":
        notes.append(
            f"{name} rests on {effective:.1f} effective episodes: the policy acts too unlike the "
            "log, over too many steps, to be weighed by whole episodes."
        )
    if name == "dr" and steps < len(result.effective):
        share = 1 - gamma**steps
        notes.append(
            f"dr corrects the first {steps} steps ({share:.0%} of the discounted weight); beyond "
            f"them fewer than {LEAST_EFFECTIVE:g} effective episodes are left and it is fqe."
        )
    return Opinion(
        name,
        result.value,
        baseline,
        result.draws,
        baseline_draws,
        refitted=False,
        effective=effective,
        influence=result.influence,
        details={"weighted_steps": steps, "reach": 1 - gamma**steps},
        notes=tuple(notes),
    )


def _typical(result: Weighted, gamma: float) -> float:
    """Effective episodes, averaged over the discounted weight of the steps they were used in."""
    used = result.effective[: max(1, result.steps)]
    weights = gamma ** np.arange(len(used))
    return float(weights @ used / weights.sum())


def against(opinion: Opinion, baseline: Opinion) -> Opinion:
    """The same of a policy compared with another one instead of with the log."""
    return replace(
        opinion,
        baseline=baseline.value,
        baseline_draws=baseline.draws,
        effective=min(opinion.effective, baseline.effective),
        notes=opinion.notes + tuple(f"Baseline: {note}" for note in baseline.notes),
    )
