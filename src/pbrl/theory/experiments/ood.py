"""OOD rows as a regulariser: they stand where ridge's ``λ I`` stood, if they reach everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pbrl.theory.experiments.claims import EXACT, Claim, Experiment
from pbrl.theory.experiments.lemma1 import conditional_variance
from pbrl.theory.linear_mdp import LinearMDP, greedy_policy, softmax_policy, uniform_policy
from pbrl.theory.regression import (
    Floats,
    Precision,
    data_precision,
    lcb_penalty,
    ood_regression,
    prior_matrix,
)
from pbrl.theory.value_iteration import OODSamples, Solution, lsvi

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RIDGE = 0.25
SAMPLERS = ("policy actions", "uniform actions", "random states and actions")
TEMPERATURE = 0.1


def solution_difference(one: Solution, other: Solution) -> float:
    """Largest difference between two solutions' weights and values."""
    return max(
        float(np.abs(one.weights - other.weights).max()),
        float(np.abs(one.values - other.values).max()),
    )


def ood_moments(mdp: LinearMDP, behaviour: Floats, policy: Floats) -> dict[str, Floats]:
    """Expected ``φ φᵀ`` of one OOD row under each sampler, without sampling error.

    The first two draw states from the data (``behaviour``'s visits), as PBRL does.

    Args:
        mdp: the MDP.
        behaviour: ``[T, S, A]``, the policy that gathered the data.
        policy: ``[T, S, A]``, the current policy; its average over time picks the OOD actions.

    Returns:
        A matrix ``[d, d]`` for each of ``SAMPLERS``.
    """
    states, actions, _ = mdp.features.shape
    seen = mdp.occupancy(behaviour).sum(axis=(0, 2)) / mdp.horizon
    weights = (
        seen[:, None] * policy.mean(axis=0),
        np.repeat(seen[:, None] / actions, actions, axis=1),
        np.full((states, actions), 1.0 / (states * actions)),
    )
    return {
        name: np.einsum("sa,sai,saj->ij", weight, mdp.features, mdp.features)
        for name, weight in zip(SAMPLERS, weights, strict=True)
    }


def isotropy(moment: Floats) -> float:
    """Smallest eigenvalue against their mean: 1 is a multiple of the identity, 0 is singular."""
    eigenvalues = np.linalg.eigvalsh(moment)
    return float(max(eigenvalues[0], 0.0) / eigenvalues.mean())


def run(seed: int) -> Experiment:
    """Check the equality with ridge, the counts, and how isotropic each way of sampling is."""
    rng = np.random.default_rng([seed, 3])
    mdp = LinearMDP.random(10, 4, 6, 5, rng)
    d = mdp.dimension
    data = mdp.sample(uniform_policy(mdp.horizon, 10, 4), 40, rng)
    ridge = lsvi(mdp.features, data, ridge=RIDGE)

    def with_rows(scale: float) -> Solution:
        return lsvi(mdp.features, data, ridge=0.0, ood=OODSamples.zero(scale * np.eye(d)))

    root = solution_difference(ridge, with_rows(np.sqrt(RIDGE)))
    printed = solution_difference(ridge, with_rows(RIDGE))
    squared = solution_difference(lsvi(mdp.features, data, ridge=RIDGE**2), with_rows(RIDGE))

    # OOD rows with y = 0 against Bayes with the prior N(0, Λ_ood⁻¹), conditioned without Λ~.
    phi = mdp.features[data.states[:, 0], data.actions[:, 0]]
    targets = data.rewards[:, 0] + rng.standard_normal(data.episodes)
    ood_phi = mdp.features.reshape(-1, d)[rng.integers(40, size=30)]
    covariance = Precision.of(prior_matrix(d, ood_phi=ood_phi)).solve(np.eye(d))
    gram = phi @ covariance @ phi.T + np.eye(len(phi))
    mean = covariance @ phi.T @ np.linalg.solve(gram, targets)
    fitted = ood_regression(phi, targets, ood_phi, np.zeros(len(ood_phi)))
    variance = data_precision(phi, ood_phi=ood_phi).norm(phi) ** 2
    bayes = max(
        float(np.abs(mean - fitted).max()),
        float(np.abs(variance - conditional_variance(phi, phi, covariance)).max()),
    )

    pairs, extra = rng.integers(12, size=50), rng.integers(12, size=40)
    extra = np.concatenate([extra, np.arange(12)])
    count, ood_count = np.bincount(pairs, minlength=12), np.bincount(extra, minlength=12)
    tabular_penalty = lcb_penalty(
        np.eye(12), data_precision(np.eye(12)[pairs], ood_phi=np.eye(12)[extra])
    )
    tabular = float(np.abs(tabular_penalty - 1.0 / np.sqrt(count + ood_count)).max())

    measured, spectra = _isotropy_over_mdps(rng)
    typical = {name: float(np.median(values)) for name, values in measured.items()}
    policy, uniform, random = SAMPLERS
    greedy = _tabular_isotropy(rng)

    claims = (
        Claim(
            "OOD rows sqrt(λ)eⱼ with y=0 are ridge",
            "LSVI equal step by step, to 1e-10",
            f"largest difference {root:.1e}",
            root < EXACT,
        ),
        Claim(
            "As printed, rows λeⱼ with y=0 are ridge λ",
            "no: they are ridge λ²",
            f"off by {printed:.2f} from ridge λ, by {squared:.1e} from ridge λ²",
            printed < EXACT or squared >= EXACT,
            expected=False,
        ),
        Claim(
            "OOD rows with y=0 are the prior N(0, Λ_ood⁻¹)",
            "mean and variance equal to Bayes, to 1e-10",
            f"largest difference {bayes:.1e}",
            bayes < EXACT,
        ),
        Claim(
            "Tabular: counts become N + N_ood",
            "penalty 1/sqrt(N + N_ood), to 1e-10",
            f"largest difference {tabular:.1e}",
            tabular < EXACT,
        ),
        Claim(
            "Random states and actions are isotropic",
            "Λ_ood ≻ 0 in every random MDP; smallest = mean eigenvalue in the tabular case",
            f"smallest / mean eigenvalue {typical[random]:.2f} typically, "
            f"{measured[random].min():.2f} at worst; tabular {greedy[random]:.3f}",
            bool(measured[random].min() > 1e-3 and abs(greedy[random] - 1.0) < EXACT),
        ),
        Claim(
            "Policy actions at data states are isotropic enough",
            "no: less than half as isotropic, and singular once the policy is decided (tabular)",
            f"{typical[policy]:.2g} typically (uniform actions {typical[uniform]:.2g}); "
            f"tabular {greedy[policy]:.3f} (uniform actions {greedy[uniform]:.3f})",
            typical[policy] > 0.5 * typical[random] or greedy[policy] > EXACT,
            expected=False,
        ),
    )
    series = {"isotropy": measured, "spectra": spectra, "tabular_isotropy": greedy}
    return Experiment("ood", "OOD sampling as a regulariser", claims, series)


def _isotropy_over_mdps(
    rng: np.random.Generator, number: int = 100
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Isotropy under each sampler over random MDPs with good data, and the mean spectra."""
    measured: dict[str, list[float]] = {name: [] for name in SAMPLERS}
    spectra: dict[str, list[Floats]] = {name: [] for name in SAMPLERS}
    for _ in range(number):
        mdp = LinearMDP.random(20, 5, 8, 5, rng, concentration=0.2)
        mdp = replace(mdp, initial=np.eye(20)[0])  # data from one start, as logged tasks have
        policy = softmax_policy(mdp.optimal_values()[0], TEMPERATURE)
        for name, moment in ood_moments(mdp, policy, policy).items():
            measured[name].append(isotropy(moment))
            spectra[name].append(np.linalg.eigvalsh(moment)[::-1] / np.trace(moment) * len(moment))
    return (
        {name: np.array(values) for name, values in measured.items()},
        {name: np.mean(values, axis=0) for name, values in spectra.items()},
    )


def _tabular_isotropy(rng: np.random.Generator) -> dict[str, float]:
    """The one-hot case with a greedy policy that stays in half of the states."""
    states, actions = 6, 3
    transitions = np.zeros((states, actions, states))
    transitions[:, :, :3] = rng.dirichlet(np.ones(3), size=(states, actions))
    start = np.repeat([1.0 / 3.0, 0.0], 3)
    mdp = LinearMDP.tabular(transitions, rng.uniform(size=(states, actions)), 5, start)
    policy = greedy_policy(mdp.optimal_values()[0])
    policy = np.broadcast_to(policy[0], policy.shape)  # one action a state, at all times
    return {name: isotropy(moment) for name, moment in ood_moments(mdp, policy, policy).items()}


def draw(experiment: Experiment) -> Figure:
    """Left: mean spectra of Λ_ood. Right: isotropy of each of 100 random MDPs."""
    from matplotlib.figure import Figure

    series = experiment.series
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, marker in zip(SAMPLERS, "os^", strict=True):
        spectrum = series["spectra"][name]
        left.semilogy(np.arange(1, len(spectrum) + 1), spectrum, marker + "-", label=name)
    left.axhline(1.0, color="k", ls=":", label="isotropic")
    left.set(xlabel="eigenvalue", ylabel="size against the mean", title="Spectrum of Λ_ood")
    left.legend(fontsize=8)
    # The floor only places exact zeros on the logarithmic axis.
    values = [np.log10(np.maximum(series["isotropy"][name], 1e-6)) for name in SAMPLERS]
    labels = [name.replace(" ", "\n", 1) for name in SAMPLERS]
    right.boxplot(values, tick_labels=labels)
    right.set(ylabel="log10 of smallest / mean eigenvalue", title="Isotropy over 100 random MDPs")
    return figure
