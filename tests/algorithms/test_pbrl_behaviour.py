"""PBRL, PBRL-Prior and the ablations pass the shared tester."""

from __future__ import annotations

from typing import Any

from algorithm_tester import AlgorithmCase, AlgorithmTester

from pbrl.algorithms.pbrl import PBRL, PBRLPrior
from pbrl.algorithms.pbrl_ablations import PBRLAblations
from pbrl.training.config import make_config

SMALL = {
    "hidden": (32, 32),
    "policy_hidden": (32, 32),
    "ensemble_size": 4,
    "n_ood": 2,
    "critic_lr": 3e-3,
    "actor_lr": 1e-3,
    "alpha_lr": 3e-3,
    "initial_log_alpha": -3.0,
    "tau": 0.05,
}
BAD = (
    ({"ensemble_size": 1}, "ensemble_size"),
    ({"gamma": 1.0}, "gamma"),
    ({"tau": 0.0}, "tau"),
    ({"n_ood": -1}, "n_ood"),
    ({"critic_lr": 0.0}, "critic_lr"),
    ({"beta_in": -0.1}, "beta_in"),
    ({"beta_ood_end": 0.0}, "beta_ood_end"),
    ({"beta_ood_linear": 1.5}, "beta_ood_linear"),
    ({"beta_ood_schedule": "rising"}, "beta_ood_schedule"),
)


class TestPBRL(AlgorithmTester):
    case = AlgorithmCase(PBRL, SMALL, max_regret=0.08, bad_settings=BAD)


class TestPBRLPrior(AlgorithmTester):
    case = AlgorithmCase(PBRLPrior, SMALL, max_regret=0.08, bad_settings=BAD)


class TestPBRLAsTheAuthorsCodeHasIt(AlgorithmTester):
    case = AlgorithmCase(
        PBRLPrior, {**SMALL, "authors_code": True}, max_regret=0.08, bad_settings=BAD
    )


class TestPBRLAblations(AlgorithmTester):
    case = AlgorithmCase(
        PBRLAblations,
        SMALL,
        max_regret=0.08,
        bad_settings=(*BAD, ({"l2": -1.0}, "l2"), ({"in_penalty": "none"}, "in_penalty")),
    )


def test_the_adroit_trainer_of_the_authors_has_weights_by_dataset() -> None:
    weights = {}
    for name in ("pen-human-v0", "hammer-cloned-v0", "door-expert-v0", "relocate-expert-v0"):
        settings: Any = make_config("pbrl-prior", "adroit-authors", name).settings
        assert settings.authors_code
        assert settings.prior_moves
        assert settings.beta_ood_schedule == "constant"
        weights[name] = (settings.beta_ood, settings.ood_next_weight)
    assert weights == {
        "pen-human-v0": (0.001, 0.001),
        "hammer-cloned-v0": (0.01, 0.01),
        "door-expert-v0": (0.2, 0.1),
        "relocate-expert-v0": (0.4, 0.2),
    }
