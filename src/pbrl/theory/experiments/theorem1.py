"""Theorem 1: with OOD targets ``y = T V`` the penalty covers the error, everywhere at once.

And what PBRL does instead, because nobody knows ``T V`` there: ``y = Q - Γ``, iterated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pbrl.theory.bounds import (
    clopper_pearson,
    fixed_design_beta,
    quantile_interval,
    self_normalised_beta,
)
from pbrl.theory.experiments.claims import CHANCE, EXACT, Claim, Experiment
from pbrl.theory.linear_mdp import LinearMDP, softmax_policy
from pbrl.theory.regression import (
    Floats,
    Precision,
    data_precision,
    lcb_penalty,
    ood_regression,
    practical_ood_iteration,
    prior_matrix,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATASETS = 2000
SIZES = (30, 300, 3000, 30_000)
XIS = (0.2, 0.1, 0.05, 0.01)
COUNTS = (0, 1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Coverage:
    """Errors of many independent regressions, in the norm that speaks of all φ at once.

    Attributes:
        error: ``sup_φ |φᵀ(w - w~)| / sqrt(φᵀ Λ~⁻¹ φ)`` with ``y = T V``, ``[datasets]``.
        error_zero_target: the same with ``y = 0``.
        explicit: the theorem's β, self-normalised, ``[len(xis), datasets]``.
        fixed_design: the β for rows independent given their features, same shape.
        zero_target_bias: ``sqrt(wᵀ Λ_ood w)``, by which ``y = 0`` can be off.
    """

    error: Floats
    error_zero_target: Floats
    explicit: Floats
    fixed_design: Floats
    zero_target_bias: float


def measure_coverage(
    mdp: LinearMDP,
    next_values: Floats,
    behaviour: Floats,
    ood_phi: Floats,
    rows: int,
    datasets: int,
    xis: tuple[float, ...],
    rng: np.random.Generator,
) -> Coverage:
    """Draw ``datasets`` independent datasets of ``rows`` transitions and regress on each.

    Args:
        mdp: the truth.
        next_values: the fixed V, ``[S]``.
        behaviour: distribution of ``(s, a)`` in the data, ``[S, A]``.
        ood_phi: ``[n, d]``, fixed before the data.
        rows: size of a dataset.
        datasets: how many.
        xis: error levels.
        rng: source of randomness.
    """
    d = mdp.dimension
    pairs = mdp.features.reshape(-1, d)
    joint = (behaviour[:, :, None] * mdp.transitions).ravel()  # of (s, a, s')
    joint /= joint.sum()  # multinomial refuses a sum that rounds above 1
    pair, following = np.divmod(np.arange(joint.size), mdp.transitions.shape[2])
    truth = mdp.bellman_weights(next_values)
    prior = Precision.of(prior_matrix(d, ood_phi=ood_phi))
    sigma = float(next_values.max() - next_values.min()) / 2.0
    error, error_zero = np.zeros(datasets), np.zeros(datasets)
    explicit, fixed = np.zeros((2, len(xis), datasets))
    for i in range(datasets):
        # Equal rows are merged into one with weight sqrt(count): the same regression, any size.
        count = rng.multinomial(rows, joint)
        seen = np.flatnonzero(count)
        root = np.sqrt(count[seen])
        phi = root[:, None] * pairs[pair[seen]]
        targets = phi @ mdp.theta + root * next_values[following[seen]]
        precision = data_precision(phi, ood_phi=ood_phi)
        with_truth = ood_regression(phi, targets, ood_phi, ood_phi @ truth)
        with_zero = ood_regression(phi, targets, ood_phi, np.zeros(len(ood_phi)))
        error[i] = precision.dual_norm(truth - with_truth)
        error_zero[i] = precision.dual_norm(truth - with_zero)
        for j, xi in enumerate(xis):
            explicit[j, i] = self_normalised_beta(precision, prior, xi, sigma)
            fixed[j, i] = fixed_design_beta(precision, prior, xi, sigma)
    return Coverage(error, error_zero, explicit, fixed, prior.dual_norm(truth))


def practical_fixed_point(
    reward: float, count: int, ood_count: int, beta: float, floor: float | None
) -> float:
    """Where ``y = max(floor, Q - Γ)`` settles in one tabular cell with mean target ``reward``.

    Without a floor the cell solves ``N (r - Q) = n Γ``; with one, ``y`` is either the penalised
    value or the floor, whichever is consistent. ``-inf`` where there is neither data nor floor.
    """
    penalty = beta / math.sqrt(count + ood_count)
    free = reward - ood_count * penalty / count if count else -math.inf
    if floor is None or free - penalty >= floor:
        return free
    return (count * reward + ood_count * floor) / (count + ood_count)


def run(seed: int) -> Experiment:
    """Coverage over independent datasets, then the practical target."""
    rng = np.random.default_rng([seed, 4])
    mdp = LinearMDP.random(12, 4, 6, 5, rng)
    behaviour = mdp.occupancy(softmax_policy(mdp.optimal_values()[0], 0.3)).mean(axis=0)
    # Values at both ends of [0, T - 1] make the noise as large as the theorem allows for.
    next_values = (mdp.horizon - 1.0) * rng.permutation(np.repeat([0.0, 1.0], 6))
    ood_phi = mdp.features.reshape(-1, mdp.dimension)[rng.permutation(48)[:16]]
    ood_precision = Precision.of(prior_matrix(mdp.dimension, ood_phi=ood_phi))

    table: list[dict[str, Any]] = []
    worst_upper, all_covered, fixed_covered, zero_covered = -math.inf, True, True, True
    zero_rate = 0.0
    for rows in SIZES:
        result = measure_coverage(mdp, next_values, behaviour, ood_phi, rows, DATASETS, XIS, rng)
        corrected = result.explicit + result.zero_target_bias
        zero_covered &= bool(np.all(result.error_zero_target <= corrected))
        if rows == SIZES[0]:  # where the prior weighs most
            at_xi = result.explicit[XIS.index(0.05)]
            zero_rate = float(np.mean(result.error_zero_target > at_xi))
        for j, xi in enumerate(XIS):
            misses = int(np.sum(result.error > result.explicit[j]))
            low, high = clopper_pearson(misses, DATASETS, 1.0 - CHANCE)
            fixed_misses = int(np.sum(result.error > result.fixed_design[j]))
            fixed_low, fixed_high = clopper_pearson(fixed_misses, DATASETS, 1.0 - CHANCE)
            smallest, smallest_low, smallest_high = quantile_interval(result.error, 1.0 - xi)
            table.append(
                {
                    "rows": rows,
                    "xi": xi,
                    "misses": misses,
                    "miss_interval": (low, high),
                    "fixed_design_misses": fixed_misses,
                    "fixed_design_interval": (fixed_low, fixed_high),
                    "explicit_beta": float(result.explicit[j].mean()),
                    "fixed_design_beta": float(result.fixed_design[j].mean()),
                    "smallest_beta": smallest,
                    "smallest_beta_interval": (smallest_low, smallest_high),
                }
            )
            all_covered &= low <= xi
            fixed_covered &= fixed_low <= xi
            worst_upper = max(worst_upper, high - xi)
    total_misses = sum(row["misses"] for row in table)
    ratios = [row["explicit_beta"] / row["smallest_beta"] for row in table]
    fixed_ratios = [row["fixed_design_beta"] / row["smallest_beta"] for row in table]
    growth = [
        [row[key] for row in table if row["xi"] == 0.2]
        for key in ("explicit_beta", "smallest_beta")
    ]

    # As printed, Γ uses Λ_t, with λ I in place of Λ_ood: never smaller, so still valid, but looser.
    phi = mdp.features.reshape(-1, mdp.dimension)[rng.choice(48, size=80, p=behaviour.ravel())]
    floor = float(np.linalg.eigvalsh(ood_precision.matrix)[0])
    wider = lcb_penalty(mdp.features, data_precision(phi, floor))
    tight = lcb_penalty(mdp.features, data_precision(phi, ood_phi=ood_phi))

    practical, practical_claims = _practical_target(rng)
    claims = (
        Claim(
            "Theorem 1: Γ covers the error at all φ, with y=TV",
            f"misses at most ξ of {DATASETS} datasets, every size and ξ",
            f"{total_misses} misses in {len(table) * DATASETS}; upper limit minus ξ at most "
            f"{worst_upper:+.4f}",
            all_covered,
        ),
        Claim(
            "The explicit β is not wasteful by orders",
            "1 to 4 times the smallest β that suffices",
            f"{min(ratios):.1f} to {max(ratios):.1f} times",
            min(ratios) > 1.0 and max(ratios) < 4.0,
        ),
        Claim(
            "β must grow with log(rows), as the explicit one does",
            "no: the smallest settles, and a fixed-design β, which settles too, also covers",
            f"ξ=0.2, rows {SIZES[-2]} to {SIZES[-1]}: explicit {growth[0][-2]:.1f} to "
            f"{growth[0][-1]:.1f}, smallest {growth[1][-2]:.1f} to {growth[1][-1]:.1f}; "
            f"fixed design {min(fixed_ratios):.1f} to {max(fixed_ratios):.1f} times the smallest",
            not (
                fixed_covered
                and growth[1][-1] < 1.1 * growth[1][-2]
                and growth[0][-1] > 1.1 * growth[0][-2]
            ),
            expected=False,
        ),
        Claim(
            "Γ with the printed Λ in place of Λ~",
            "never smaller: still valid, looser",
            f"{float((wider / tight).min()):.2f} to {float((wider / tight).max()):.2f} times",
            bool(np.all(wider >= tight * (1.0 - EXACT))),
        ),
        Claim(
            "y=0 keeps the same β",
            "no: it needs sqrt(wᵀΛ_ood w) more, and with that it covers",
            f"misses {zero_rate:.0%} at ξ=0.05 and {SIZES[0]} rows; with the extra term "
            + ("none" if zero_covered else "some"),
            zero_rate <= 0.05 or not zero_covered,
            expected=False,
        ),
        *practical_claims,
    )
    series = {"coverage": table, "practical": practical}
    return Experiment("theorem1", "The uncertainty quantifier", claims, series)


def _practical_target(rng: np.random.Generator) -> tuple[dict[str, Any], tuple[Claim, ...]]:
    """Iterate ``y = Q - Γ`` on one-hot cells with 0 to 64 visits, then on random features."""
    reward, beta, steps = 1.0, 0.5, 300
    cells = len(COUNTS)
    phi = np.repeat(np.eye(cells), COUNTS, axis=0)
    targets = np.full(len(phi), reward)
    runs = {
        name: practical_ood_iteration(
            phi,
            targets,
            np.eye(cells),
            beta=beta,
            steps=steps,
            floor=floor,
            initial=np.full(cells, 0.5),
        )
        for name, floor in (("without floor", None), ("floor at zero", 0.0))
    }
    fixed = {
        name: np.array([practical_fixed_point(reward, n, 1, beta, floor) for n in COUNTS])
        for name, floor in (("without floor", None), ("floor at zero", 0.0))
    }
    seen = np.array(COUNTS) > 0
    gap = max(
        float(np.abs(runs["without floor"][-1] - fixed["without floor"])[seen].max()),
        float(np.abs(runs["floor at zero"][-1] - fixed["floor at zero"]).max()),
    )
    fall = runs["without floor"][-1, 0] - runs["without floor"][0, 0]
    bias = fixed["without floor"] - reward

    # With correlated features a lowered target can raise Q elsewhere.
    raised, mdps = 0, 200
    largest = 0.0
    for _ in range(mdps):
        mdp = LinearMDP.random(12, 4, 6, 5, rng)
        pairs = mdp.features.reshape(-1, mdp.dimension)
        data_phi, ood_phi = pairs[rng.integers(48, size=60)], pairs[rng.integers(48, size=20)]
        precision = data_precision(data_phi, ood_phi=ood_phi)
        pull = ood_phi.T @ lcb_penalty(ood_phi, precision, beta)
        shift = -pairs @ data_precision(data_phi).solve(pull)
        raised += bool(shift.max() > EXACT)
        largest = max(largest, float(shift.max()))

    claims = (
        Claim(
            "Practical target y=Q-Γ converges where there is data",
            "to r - (n/N)Γ; with the floor to the closed form, to 1e-10",
            f"largest difference {gap:.1e}; bias {bias[1]:.3f} at N=1, {bias[-1]:.4f} at N=64",
            gap < EXACT,
        ),
        Claim(
            "Practical target without the floor is bounded where there is no data",
            f"no: falls by Γ each step, {-steps * beta:.0f} in {steps}; the floor stops it at 0",
            f"fell by {fall:.1f}; with the floor Q = {runs['floor at zero'][-1, 0]:.1e}",
            abs(fall + steps * beta) >= 1e-8 or abs(runs["floor at zero"][-1, 0]) >= EXACT,
            expected=False,
        ),
        Claim(
            "Practical target lowers Q at every (s, a)",
            "no: with shared features it can raise some",
            f"raised somewhere in {raised} of {mdps} random MDPs, by up to {largest:.2f}",
            raised == 0,
            expected=False,
        ),
    )
    return {"counts": COUNTS, "iterates": runs, "fixed_point": fixed, "reward": reward}, claims


def draw(experiment: Experiment) -> Figure:
    """Miss rates, the two explicit β against the smallest, and the practical iteration."""
    from matplotlib.figure import Figure

    table = experiment.series["coverage"]
    practical = experiment.series["practical"]
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    left.plot([0.008, 0.25], [0.008, 0.25], "k:", label="allowed: ξ")
    for rows, marker in zip(SIZES, "os^v", strict=True):
        chosen = [row for row in table if row["rows"] == rows]
        left.plot(
            [row["xi"] for row in chosen],
            [row["miss_interval"][1] for row in chosen],
            marker + "-",
            label=f"{rows} rows, upper limit",
        )
    left.set(xscale="log", yscale="log", xlabel="ξ", ylabel="miss rate", title="Coverage at all φ")
    left.legend(fontsize=8)
    at = [row for row in table if row["xi"] == 0.05]
    for key, label, style in (
        ("explicit_beta", "explicit (self-normalised)", "o-"),
        ("fixed_design_beta", "explicit (fixed design)", "s-"),
        ("smallest_beta", "smallest that suffices", "^-"),
    ):
        middle.plot([row["rows"] for row in at], [row[key] for row in at], style, label=label)
    middle.set(xscale="log", xlabel="rows", ylabel="β at ξ = 0.05", title="How large β must be")
    middle.set_ylim(bottom=0)
    middle.legend(fontsize=8)
    for name, style in (("without floor", "--"), ("floor at zero", "-")):
        iterates = practical["iterates"][name][:30]
        for cell, color in ((0, "C3"), (1, "C1"), (4, "C0")):
            count = practical["counts"][cell]
            right.plot(iterates[:, cell], style, color=color, label=f"N={count}, {name}")
    right.axhline(practical["reward"], color="k", ls=":", label="truth")
    right.set(xlabel="step", ylabel="Q", title="Practical target y = Q - Γ")
    right.set_ylim(-3, 1.2)
    right.legend(fontsize=7)
    return figure
