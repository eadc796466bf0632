"""The paper's theory, runnable: linear MDPs, LSVI, the LCB penalty, ensembles and OOD rows.

Everything is NumPy in float64 and small enough to read in one sitting; ``pbrl theory`` runs it.
"""

from pbrl.theory.bounds import (
    binomial_upper_tail,
    chi_square_interval,
    clopper_pearson,
    ensemble_error,
    fixed_design_beta,
    quantile_interval,
    self_normalised_beta,
)
from pbrl.theory.linear_mdp import (
    LinearMDP,
    OfflineData,
    greedy_policy,
    softmax_policy,
    uniform_policy,
)
from pbrl.theory.posterior import bootstrap_posterior, ensemble_uncertainty, weight_posterior
from pbrl.theory.regression import (
    Precision,
    data_precision,
    lcb_penalty,
    ood_regression,
    practical_ood_iteration,
    prior_matrix,
    ridge_regression,
)
from pbrl.theory.value_iteration import OODSamples, Solution, lsvi, pevi

__all__ = [
    "LinearMDP",
    "OODSamples",
    "OfflineData",
    "Precision",
    "Solution",
    "binomial_upper_tail",
    "bootstrap_posterior",
    "chi_square_interval",
    "clopper_pearson",
    "data_precision",
    "ensemble_error",
    "ensemble_uncertainty",
    "fixed_design_beta",
    "greedy_policy",
    "lcb_penalty",
    "lsvi",
    "ood_regression",
    "pevi",
    "practical_ood_iteration",
    "prior_matrix",
    "quantile_interval",
    "ridge_regression",
    "self_normalised_beta",
    "softmax_policy",
    "uniform_policy",
    "weight_posterior",
]
