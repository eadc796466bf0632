"""Lemma 1: the posterior variance of Q is ``φᵀ Λ⁻¹ φ``; which ensembles attain it?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pbrl.theory.bounds import ensemble_error
from pbrl.theory.experiments.claims import EXACT, Claim, Experiment
from pbrl.theory.posterior import (
    EnsembleMethod,
    bootstrap_posterior,
    ensemble_uncertainty,
    weight_posterior,
)
from pbrl.theory.regression import Floats, data_precision, lcb_penalty

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RIDGE = 0.5
MEMBERS = (4, 10, 32, 100, 316, 1000, 3162)
METHODS: tuple[EnsembleMethod, ...] = ("anchored", "resampled", "initial-weights")
COUNTS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
TRAINING_TIME = 0.05


def conditional_variance(phi: Floats, query: Floats, prior_covariance: Floats) -> Floats:
    """Posterior variance at ``query [q, d]`` by conditioning the joint Gaussian on m targets.

    It never forms Λ: an independent route to Lemma 1's right-hand side, with unit noise.
    """
    gram = phi @ prior_covariance @ phi.T + np.eye(len(phi))
    cross = phi @ prior_covariance @ query.T  # [m, q]
    prior = np.einsum("qi,ij,qj->q", query, prior_covariance, query)
    return np.asarray(prior - np.sum(cross * np.linalg.solve(gram, cross), axis=0))


def run(seed: int) -> Experiment:
    """Measure Lemma 1 on a random regression whose last feature direction has no data."""
    rng = np.random.default_rng([seed, 1])
    dimension, rows = 8, 60
    phi = rng.standard_normal((rows, dimension)) / np.sqrt(dimension)
    phi[:, -1] = 0.0
    targets = phi @ rng.standard_normal(dimension) + rng.standard_normal(rows)
    query = rng.standard_normal((40, dimension))
    query /= np.linalg.norm(query, axis=1, keepdims=True)

    precision = data_precision(phi, RIDGE)
    exact = lcb_penalty(query, precision)
    difference = np.abs(
        exact**2 - conditional_variance(phi, query, np.eye(dimension) / RIDGE)
    ).max()

    errors = {method: np.zeros(len(MEMBERS)) for method in METHODS}
    bias_of_ten = 0.0
    for i, members in enumerate(MEMBERS):
        for method in METHODS:
            if method == "resampled":  # solved member by member, so with fewer repetitions
                repetitions = max(1, 1000 // members)
            else:
                repetitions = max(40, 6000 // members)
            relative = np.array(
                [
                    ensemble_uncertainty(
                        bootstrap_posterior(
                            phi, targets, ridge=RIDGE, members=members, rng=rng, method=method
                        ),
                        query,
                    )
                    / exact
                    - 1.0
                    for _ in range(repetitions)
                ]
            )
            errors[method][i] = np.sqrt(np.mean(relative**2))
            if method == "anchored" and members == 10:
                bias_of_ten = float(relative.mean())
    predicted = np.array([ensemble_error(k)[1] for k in MEMBERS])
    slope, law_slope = (
        float(np.polyfit(np.log(MEMBERS), np.log(error), 1)[0])
        for error in (errors["anchored"], predicted)
    )
    ten = MEMBERS.index(10)
    bias10, rmse10 = ensemble_error(10)

    empty = np.eye(dimension)[-1]
    spread = {
        method: float(
            ensemble_uncertainty(
                bootstrap_posterior(phi, targets, ridge=RIDGE, members=500, rng=rng, method=method),
                empty,
            )
        )
        for method in METHODS
    }
    trained_spread = ensemble_uncertainty(
        bootstrap_posterior(
            phi, targets, ridge=RIDGE, members=500, rng=rng, method="initial-weights"
        ),
        query,
    ).max()
    needed = 1.0 / np.sqrt(RIDGE)

    claims = (
        Claim(
            "Lemma 1: Var Q = φᵀΛ⁻¹φ",
            "equal to conditioning the joint Gaussian, to 1e-10",
            f"largest difference {difference:.1e}",
            bool(difference < EXACT),
        ),
        Claim(
            "An anchored, noise-perturbed ensemble attains it",
            f"error falls as K^(-1/2); exact law over these K {law_slope:.3f}",
            f"slope {slope:.3f}",
            abs(slope - law_slope) < 0.05,
        ),
        Claim(
            "Ten members (PBRL's K) estimate it",
            f"bias {bias10:+.1%}, typical error {rmse10:.1%}",
            f"bias {bias_of_ten:+.1%}, typical error {errors['anchored'][ten]:.1%}",
            bool(abs(bias_of_ten - bias10) < 0.04 and abs(errors["anchored"][ten] - rmse10) < 0.04),
        ),
        Claim(
            "Members that differ by initial weights alone attain it",
            "no: spread 0 once trained",
            f"largest spread {trained_spread:.1e}, needed {exact.min():.2f} to {exact.max():.2f}",
            bool(trained_spread > EXACT),
            expected=False,
        ),
        Claim(
            "Resampled ridge attains it",
            "no: spread 0 in a direction without data",
            f"there {spread['resampled']:.1e}, needed {needed:.2f} "
            f"(anchored {spread['anchored']:.2f})",
            spread["resampled"] > EXACT,
            expected=False,
        ),
    )
    series = {
        "members": MEMBERS,
        "error": errors,
        "predicted_error": predicted,
        "slope": slope,
        "spread_without_data": spread,
        "counts": COUNTS,
        "spread_by_count": _spread_by_count(rng),
    }
    return Experiment("lemma1", "Bootstrapped uncertainty and the LCB penalty", claims, series)


def _spread_by_count(rng: np.random.Generator) -> dict[str, Floats]:
    """One-hot features seen 0 to 128 times: the spread each ensemble assigns to each count."""
    phi = np.repeat(np.eye(len(COUNTS)), COUNTS, axis=0)
    targets = rng.standard_normal(len(phi))
    _, precision = weight_posterior(phi, targets, RIDGE)
    spread = {"posterior": lcb_penalty(np.eye(len(COUNTS)), precision)}
    for method in METHODS:
        weights = bootstrap_posterior(
            phi,
            targets,
            ridge=RIDGE,
            members=1000,
            rng=rng,
            method=method,
            training_time=TRAINING_TIME,
        )
        spread[method] = ensemble_uncertainty(weights, np.eye(len(COUNTS)))
    return spread


def draw(experiment: Experiment) -> Figure:
    """Left: error against K. Right: spread against the number of visits."""
    from matplotlib.figure import Figure

    series = experiment.series
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.loglog(series["members"], series["predicted_error"], "k:", label="exact law of U")
    labels = {
        "anchored": f"anchored (slope {series['slope']:.2f})",
        "resampled": "resampled ridge",
        "initial-weights": "initial weights alone",
    }
    for method, marker in zip(METHODS, "os^", strict=True):
        left.loglog(series["members"], series["error"][method], marker + "-", label=labels[method])
    left.set(xlabel="members K", ylabel="relative error of U", title="Who attains the posterior")
    left.legend(fontsize=8)
    counts = np.array(series["counts"])
    spread = series["spread_by_count"]
    right.plot(counts, spread["posterior"], "k:", label="posterior 1/sqrt(N+λ)")
    labels["anchored"] = "anchored"
    labels["initial-weights"] = "initial weights, half trained"
    for method, marker in zip(METHODS, "os^", strict=True):
        right.plot(counts, spread[method], marker + "-", label=labels[method])
    right.set_xscale("symlog", linthresh=1)
    right.set(xlabel="visits N", ylabel="spread of Q", title="Spread by number of visits")
    right.legend(fontsize=8)
    return figure
