"""Lemma 2: in tabular MDPs the penalty is ``1 / sqrt(N(s, a) + λ)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pbrl.theory.bounds import chi_square_interval
from pbrl.theory.experiments.claims import CHANCE, EXACT, Claim, Experiment
from pbrl.theory.linear_mdp import LinearMDP, softmax_policy
from pbrl.theory.posterior import bootstrap_posterior, ensemble_uncertainty
from pbrl.theory.regression import data_precision, lcb_penalty

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RIDGE = 0.1
MEMBERS = 1000


def run(seed: int) -> Experiment:
    """Count visits in a random tabular MDP and compare with the general formula."""
    rng = np.random.default_rng([seed, 2])
    states, actions, horizon = 8, 4, 6
    mdp = LinearMDP.tabular(
        rng.dirichlet(np.full(states, 0.2), size=(states, actions)),
        rng.uniform(size=(states, actions)),
        horizon,
    )
    optimal_q, _ = mdp.optimal_values()
    data = mdp.sample(softmax_policy(optimal_q, 0.15), 400, rng)
    pairs = (data.states * actions + data.actions).ravel()
    counts = np.bincount(pairs, minlength=states * actions)
    phi = mdp.features.reshape(-1, mdp.dimension)[pairs]

    penalty = lcb_penalty(mdp.features, data_precision(phi, RIDGE)).ravel()
    formula = 1.0 / np.sqrt(counts + RIDGE)
    difference = np.abs(penalty - formula).max()
    slope = float(np.polyfit(np.log(counts + RIDGE), np.log(penalty), 1)[0])

    # K U² (N + λ) is chi-square with K - 1 degrees of freedom, exactly, for every pair.
    weights = bootstrap_posterior(
        phi, rng.standard_normal(len(phi)), ridge=RIDGE, members=MEMBERS, rng=rng
    )
    bootstrapped = ensemble_uncertainty(weights, np.eye(mdp.dimension))
    low, high = chi_square_interval(MEMBERS - 1, CHANCE / mdp.dimension)
    statistic = MEMBERS * (bootstrapped / formula) ** 2
    largest = np.abs(bootstrapped / formula - 1.0).max()

    claims = (
        Claim(
            "Lemma 2, formula: Γ/β = 1/sqrt(N+λ)",
            "equal to sqrt(φᵀΛ⁻¹φ), to 1e-10",
            f"largest difference {difference:.1e} over counts {counts.min()} to {counts.max()}",
            bool(difference < EXACT),
        ),
        Claim(
            "Lemma 2, words: proportional to the reciprocal count",
            "no: power -1/2 of N+λ, not -1",
            f"power {slope:.6f}",
            abs(slope + 1.0) < abs(slope + 0.5),
            expected=False,
        ),
        Claim(
            "The bootstrapped U follows it",
            f"within the chi-square range of {MEMBERS} members at every pair",
            f"largest relative error {largest:.1%}",
            bool(np.all((low < statistic) & (statistic < high))),
        ),
    )
    series = {"counts": counts, "penalty": penalty, "bootstrapped": bootstrapped, "ridge": RIDGE}
    return Experiment("lemma2", "Counts in tabular MDPs", claims, series)


def draw(experiment: Experiment) -> Figure:
    """Penalty and bootstrapped spread against N + λ, with both powers."""
    from matplotlib.figure import Figure

    series = experiment.series
    effective = np.asarray(series["counts"]) + series["ridge"]
    line = np.geomspace(effective.min(), effective.max(), 50)
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.loglog(line, line**-0.5, "k:", label="1/sqrt(N+λ), the formula")
    axes.loglog(line, 1.0 / line, color="0.7", ls="--", label="1/(N+λ), the words")
    axes.loglog(effective, series["bootstrapped"], "o", label=f"anchored ensemble, K={MEMBERS}")
    axes.loglog(effective, series["penalty"], "kx", ms=4, label="sqrt(φᵀΛ⁻¹φ)")
    axes.set(xlabel="N(s,a) + λ", ylabel="uncertainty", title="A reciprocal root of the count")
    axes.legend(fontsize=8)
    return figure
