"""Corollary 1: how far pessimistic value iteration can be from optimal, and whom it beats."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pbrl.theory.bounds import binomial_upper_tail, clopper_pearson, self_normalised_beta
from pbrl.theory.experiments.claims import CHANCE, Claim, Experiment
from pbrl.theory.linear_mdp import LinearMDP, OfflineData, greedy_policy, uniform_policy
from pbrl.theory.regression import Floats, Precision, prior_matrix
from pbrl.theory.value_iteration import Beta, OODSamples, Solution, lsvi, pevi

if TYPE_CHECKING:
    from matplotlib.figure import Figure

XI = 0.1
DATASETS = 500
SIZES = (25, 100, 400)
SCALES = (1.0, 0.1, 0.02)
SMALL_BETA_DATASETS = 200
BEHAVIOURS = {"good": 0.95, "mixed": 0.5, "random": 0.0}
BETAS = {0.01: (0.1, 0.3, 1.0, 3.0), 1.0: (0.3, 1.0)}  # by ridge


def explicit_beta(ood_phi: Floats, horizon: int, xi: float, scale: float = 1.0) -> Beta:
    """Theorem 1's β for every step, with ``xi`` shared among the steps.

    Step t's noise is that of a next value in ``[0, T - t - 1]``, so σ is half of that.
    """
    prior = Precision.of(prior_matrix(ood_phi.shape[1], ood_phi=ood_phi))

    def beta(t: int, precision: Precision) -> float:
        return scale * self_normalised_beta(
            precision, prior, xi / horizon, sigma=(horizon - t - 1) / 2.0
        )

    return beta


def suboptimality(mdp: LinearMDP, policy: Floats) -> float:
    """``V* - V^π`` at the start, exactly, for ``policy [T, S, A]``."""
    best = mdp.start_value(mdp.optimal_values()[1])
    return best - mdp.start_value(mdp.policy_values(policy)[1])


def expected_penalty(mdp: LinearMDP, solution: Solution) -> float:
    """``Σ_t E_π*[Γ_t]``, the corollary's right-hand side without its factor, exactly."""
    optimal = greedy_policy(mdp.optimal_values()[0])
    return float(np.sum(mdp.occupancy(optimal) * solution.penalty))


def quantifier_holds(mdp: LinearMDP, solution: Solution) -> bool:
    """Whether Γ covered ``|T^ V - T V|`` at every step, state and action."""
    for t in range(mdp.horizon):
        truth = mdp.bellman_weights(solution.values[t + 1])
        error = np.abs(mdp.features @ (solution.weights[t] - truth))
        if np.any(error > solution.penalty[t] + 1e-9):
            return False
    return True


def run(seed: int) -> Experiment:
    """The bound over many datasets, the counterexample without the 2, and the comparison."""
    rng = np.random.default_rng([seed, 5])
    bound, bound_claims = _measure_bound(rng)
    counter, counter_claims = _counterexample()
    contest, contest_claims = _compare(rng)
    return Experiment(
        "corollary1",
        "Pessimistic value iteration",
        (*bound_claims, *counter_claims, *contest_claims),
        {"bound": bound, "counterexample": counter, "comparison": contest},
    )


def _measure_bound(rng: np.random.Generator) -> tuple[dict[str, Any], tuple[Claim, ...]]:
    """Suboptimality against ``2 Σ E[Γ]`` with the theorem's own conditions met.

    OOD targets are the true ``T V`` and each step has its own episodes, so V is fixed given them.
    """
    mdp = LinearMDP.random(12, 4, 6, 4, rng)
    horizon, (states, actions) = mdp.horizon, mdp.rewards.shape
    behaviour = uniform_policy(horizon, states, actions)
    ood_phi = mdp.features.reshape(-1, mdp.dimension)[rng.permutation(states * actions)[:12]]
    ood = OODSamples.oracle(mdp, ood_phi)
    gaps: dict[int, Floats] = {}
    bounds: dict[int, Floats] = {}
    misses, exceptions, quantifier_misses, small_beta_held, pessimistic = 0, 0, 0, 0, True
    for rows in SIZES:
        gaps[rows], bounds[rows] = np.zeros((2, DATASETS))
        for i in range(DATASETS):
            data = mdp.sample(behaviour, rows * horizon, rng).split_by_step()
            # A smaller β makes the quantifier fail at times, which puts the implication to a test.
            for scale in SCALES if i < SMALL_BETA_DATASETS else SCALES[:1]:
                beta = explicit_beta(ood_phi, horizon, XI, scale)
                found = pevi(mdp.features, data, beta, ridge=0.0, ood=ood)
                gap = suboptimality(mdp, found.policy)
                limit = 2.0 * expected_penalty(mdp, found)
                held, within = quantifier_holds(mdp, found), gap <= limit + 1e-9
                exceptions += held and not within
                if held:
                    value = mdp.policy_values(found.policy)[1]
                    pessimistic &= bool(np.all(found.values <= value + 1e-9))
                if scale == 1.0:
                    gaps[rows][i], bounds[rows][i] = gap, limit
                    misses += not within
                    quantifier_misses += not held
                else:
                    small_beta_held += held
    total = DATASETS * len(SIZES)
    low, high = clopper_pearson(misses, total, 1.0 - CHANCE)
    small_beta = (len(SCALES) - 1) * SMALL_BETA_DATASETS * len(SIZES)
    failing = quantifier_misses + small_beta - small_beta_held
    shrink = float(bounds[SIZES[0]].mean() / bounds[SIZES[-1]].mean())
    claims = (
        Claim(
            "Corollary 1 with the 2: V* - V^π <= 2ΣE[Γ]",
            f"misses at most ξ={XI} of {total} datasets",
            f"{misses} misses, rate below {high:.4f}; quantifier missed {quantifier_misses}",
            low <= XI,
        ),
        Claim(
            "Wherever Γ covers the error, the bound holds and V^ is pessimistic",
            "no exception, also at 0.1 and 0.02 of the explicit β",
            f"{exceptions} exceptions in {total + small_beta} runs, {failing} with Γ too small",
            exceptions == 0 and pessimistic,
        ),
        Claim(
            "The bound shrinks with data",
            f"by at least 2 from {SIZES[0]} to {SIZES[-1]} rows a step (root: "
            f"{math.sqrt(SIZES[-1] / SIZES[0]):.0f})",
            f"by {shrink:.1f}; bound {bounds[SIZES[-1]].mean():.1f}, "
            f"gap {gaps[SIZES[-1]].mean():.3f} at {SIZES[-1]}",
            shrink > 2.0,
        ),
    )
    return {"gap": gaps, "bound": bounds, "misses": misses, "total": total}, claims


def two_action_mdp(sure_reward: float) -> LinearMDP:
    """A gamble against a sure thing, over two steps.

    From state 0, action 0 leads to a state of reward 1 or 0 with equal chance, action 1 to a state
    of reward ``sure_reward``.
    """
    transitions = np.zeros((4, 2, 4))
    transitions[0, 0, [1, 2]] = 0.5
    transitions[0, 1, 3] = 1.0
    for state in (1, 2, 3):
        transitions[state, :, state] = 1.0
    rewards = np.zeros((4, 2))
    rewards[1], rewards[3] = 1.0, sure_reward
    return LinearMDP.tabular(transitions, rewards, 2, np.array([1.0, 0.0, 0.0, 0.0]))


def two_action_data(mdp: LinearMDP, wins: int, gambles: int, sure: int) -> OfflineData:
    """``gambles`` episodes of action 0, of which ``wins`` ended well, and ``sure`` of action 1."""
    following = np.repeat([1, 2, 3], [wins, gambles - wins, sure])
    start = np.zeros_like(following)
    states = np.stack([start, following], axis=1)
    actions = np.stack([np.repeat([0, 1], [gambles, sure]), start], axis=1)
    return OfflineData(
        states, actions, mdp.rewards[states, actions], np.stack([following, following], axis=1)
    )


def _counterexample(
    gambles: int = 100, sure: int = 10_000, xi: float = 0.05
) -> tuple[dict[str, Any], tuple[Claim, ...]]:
    """Probability that the bound without the 2 fails, exactly: a PEVI run for each number of wins.

    The gamble is worth 1/2. The sure thing is worth ``ratio`` penalties less, yet is preferred
    whenever the gamble was a little unlucky, because the gamble's estimate is penalised on top.
    """
    ood_phi = np.eye(8)  # every pair once: Λ_ood = I
    prior = Precision.of(np.eye(8))
    mass = [
        binomial_upper_tail(k, gambles, 0.5) - binomial_upper_tail(k + 1, gambles, 0.5)
        for k in range(gambles + 1)
    ]

    def beta(t: int, precision: Precision) -> float:
        # Only step 0 is noisy: step 1's targets are rewards.
        return self_normalised_beta(precision, prior, xi, 0.5) if t == 0 else 0.0

    def solve(mdp: LinearMDP, wins: int) -> Solution:
        data = two_action_data(mdp, wins, gambles, sure)
        return pevi(mdp.features, data, beta, ridge=0.0, ood=OODSamples.oracle(mdp, ood_phi))

    gamble_penalty = float(solve(two_action_mdp(0.0), gambles // 2).penalty[0, 0, 0])
    ratios = np.array([0.9, 1.02, 1.1, 1.25, 1.4, 1.6, 1.8])
    without, with_two, quantifier = np.zeros((3, len(ratios)))
    for i, ratio in enumerate(ratios):
        mdp = two_action_mdp(0.5 - ratio * gamble_penalty)
        for wins in range(gambles + 1):
            found = solve(mdp, wins)
            gap, limit = suboptimality(mdp, found.policy), expected_penalty(mdp, found)
            without[i] += mass[wins] * (gap > limit + 1e-9)
            with_two[i] += mass[wins] * (gap > 2.0 * limit + 1e-9)
            quantifier[i] += mass[wins] * (not quantifier_holds(mdp, found))
    at = int(np.argmax(without))
    series = {
        "ratio": ratios,
        "without_two": without,
        "with_two": with_two,
        "quantifier_misses": quantifier,
        "xi": xi,
    }
    claim = Claim(
        "As printed, without the 2: V* - V^π <= ΣE[Γ]",
        f"no: fails more often than ξ={xi} in a two-action MDP, though Γ is valid",
        f"fails with probability {without[at]:.3f} (exact), gap {ratios[at]:.2f}ΣE[Γ]; "
        f"Γ invalid {quantifier[at]:.0e}, with the 2 fails {with_two[at]:.0e}",
        without[at] <= xi or quantifier.max() > xi or with_two.max() > xi,
        expected=False,
    )
    return series, (claim,)


def _compare(
    rng: np.random.Generator, mdps: int = 100, episodes: int = 100
) -> tuple[dict[str, Any], tuple[Claim, ...]]:
    """Suboptimality of LSVI and PEVI as a share of what random behaviour loses, paired by MDP."""
    states, actions, horizon = 20, 10, 6
    lost: dict[str, dict[str, dict[str, list[float]]]] = {
        f"ridge {ridge}": {
            kind: {"LSVI": [], **{f"PEVI β={beta}": [] for beta in betas}} for kind in BEHAVIOURS
        }
        for ridge, betas in BETAS.items()
    }
    reach: dict[str, list[float]] = {kind: [] for kind in BEHAVIOURS}
    uniform = uniform_policy(horizon, states, actions)
    for _ in range(mdps):
        mdp = LinearMDP.random(states, actions, 20, horizon, rng, concentration=0.1)
        optimal = greedy_policy(mdp.optimal_values()[0])
        scale = suboptimality(mdp, uniform)
        for kind, share in BEHAVIOURS.items():
            data = mdp.sample(share * optimal + (1.0 - share) * uniform, episodes, rng)
            for ridge, betas in BETAS.items():
                row = lost[f"ridge {ridge}"][kind]
                plain = lsvi(mdp.features, data, ridge=ridge)
                row["LSVI"].append(suboptimality(mdp, plain.policy) / scale)
                for beta in betas:
                    careful = pevi(mdp.features, data, beta, ridge=ridge)
                    row[f"PEVI β={beta}"].append(suboptimality(mdp, careful.policy) / scale)
                    if beta == ridge == 1.0:
                        reach[kind].append(expected_penalty(mdp, careful))
    arrays = {
        ridge: {kind: {who: np.array(x) for who, x in row.items()} for kind, row in kinds.items()}
        for ridge, kinds in lost.items()
    }
    free = arrays["ridge 0.01"]
    chosen = "PEVI β=0.3"

    def advantage(kind: str, row: dict[str, Floats]) -> tuple[float, float, str]:
        """Mean paired gain of pessimism, its t-statistic, and the sentence."""
        gain = row["LSVI"] - row[chosen]
        t = float(gain.mean() / (gain.std(ddof=1) / math.sqrt(len(gain))))
        text = f"{kind}: LSVI {row['LSVI'].mean():.1%}, PEVI {row[chosen].mean():.1%} (t={t:+.1f})"
        return float(gain.mean()), t, text

    good, mixed, random = (advantage(kind, free[kind]) for kind in BEHAVIOURS)
    ridge_good = advantage("good", arrays["ridge 1.0"]["good"])
    bound = {kind: float(np.mean(values)) for kind, values in reach.items()}
    claims = (
        Claim(
            "The bound is small on good data, large on random data",
            "ΣE[Γ] at β=1 (λ=1) grows from good to mixed to random",
            ", ".join(f"{kind} {value:.2f}" for kind, value in bound.items()),
            bound["good"] < bound["mixed"] < bound["random"],
        ),
        Claim(
            "Pessimism beats plain LSVI on good data (λ=0.01, β=0.3)",
            "yes, loss at least halved",
            good[2],
            good[1] > 0 and free["good"][chosen].mean() < 0.5 * free["good"]["LSVI"].mean(),
        ),
        Claim(
            "Pessimism beats plain LSVI on random data",
            "no: with all actions tried it only costs; mixed data in between",
            f"{random[2]}; {mixed[2]}",
            random[0] > 0 or not good[0] > mixed[0] > random[0],
            expected=False,
        ),
        Claim(
            "With ridge 1 pessimism is needed less",
            "its zero prior is itself pessimistic: gain under a third of that at λ=0.01",
            ridge_good[2],
            ridge_good[0] < good[0] / 3.0,
        ),
    )
    means = {
        ridge: {
            kind: {who: float(x.mean()) for who, x in row.items()} for kind, row in kinds.items()
        }
        for ridge, kinds in arrays.items()
    }
    return {
        "mean_loss": means,
        "mean_expected_penalty": bound,
        "mdps": mdps,
        "episodes": episodes,
    }, claims


def draw(experiment: Experiment) -> Figure:
    """Gap against bound, the counterexample, and who wins where."""
    from matplotlib.figure import Figure

    series = experiment.series
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for rows, color in zip(SIZES, ("C0", "C1", "C2"), strict=True):
        gap, bound = series["bound"]["gap"][rows], series["bound"]["bound"][rows]
        shown = np.maximum(gap, 1e-3)  # places exact zeros on the logarithmic axis
        left.loglog(bound, shown, ".", ms=3, color=color, label=f"{rows} rows a step")
    line = np.array([2.0, 20.0])
    left.loglog(line, line, "k:", label="gap = 2ΣE[Γ]")
    left.loglog(line, line / 2, "k--", lw=0.8, label="gap = ΣE[Γ]")
    left.set(xlabel="2ΣE[Γ]", ylabel="V* - V^π", title="The bound, with room to spare")
    left.legend(fontsize=8)
    counter = series["counterexample"]
    middle.plot(counter["ratio"], counter["without_two"], "o-", label="gap > ΣE[Γ] (printed)")
    middle.plot(counter["ratio"], counter["with_two"], "s-", label="gap > 2ΣE[Γ]")
    middle.axhline(counter["xi"], color="k", ls=":", label="allowed: ξ")
    middle.set(xlabel="true gap / ΣE[Γ]", ylabel="probability, exact", title="Why the 2 is needed")
    middle.legend(fontsize=8)
    means = series["comparison"]["mean_loss"]["ridge 0.01"]
    who = list(means["good"])
    for i, name in enumerate(who):
        place = np.arange(len(BEHAVIOURS)) + (i - len(who) / 2 + 0.5) * 0.15
        right.bar(place, [means[kind][name] for kind in BEHAVIOURS], 0.15, label=name)
    right.set_xticks(np.arange(len(BEHAVIOURS)), list(BEHAVIOURS))
    right.set(ylabel="loss against random behaviour", title="Who wins where (λ=0.01)")
    right.legend(fontsize=8)
    return figure
