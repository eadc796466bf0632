"""PBRL, PBRL-Prior and PBRL's variants of our own pass the shared tester."""

from __future__ import annotations

from algorithm_tester import AlgorithmCase, AlgorithmTester

from pbrl.algorithms.pbrl import PBRL, PBRLConfig, PBRLPrior

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
    ({"policy_average": 1.5}, "policy_average"),
    ({"ood_min_std": -0.1}, "ood_min_std"),
    ({"cloning": -0.1}, "cloning"),
    ({"ood_penalty": "relative", "ood_next_states": True}, "ood_next_states"),
)


class TestPBRL(AlgorithmTester):
    case = AlgorithmCase(PBRL, SMALL, max_regret=0.08, bad_settings=BAD)


class TestPBRLPrior(AlgorithmTester):
    case = AlgorithmCase(PBRLPrior, SMALL, max_regret=0.08, bad_settings=BAD)


class TestPBRLWithAnAveragedPolicy(AlgorithmTester):
    case = AlgorithmCase(PBRL, {**SMALL, "policy_average": 0.1}, max_regret=0.08, bad_settings=BAD)


class TestPBRLWithARelativePenalty(AlgorithmTester):
    case = AlgorithmCase(
        PBRL, {**SMALL, "ood_penalty": "relative"}, max_regret=0.08, bad_settings=BAD
    )


class TestPBRLWithCloning(AlgorithmTester):
    case = AlgorithmCase(
        PBRL, {**SMALL, "cloning": 0.1, "cloning_end": 0.02}, max_regret=0.08, bad_settings=BAD
    )


def test_critics_start_as_asked() -> None:
    # 4 inputs, 100 units: rlkit takes 1/sqrt(outputs), fan-in 1/sqrt(inputs).
    largest = {
        init: PBRL(PBRLConfig(hidden=(100, 100), critic_init=init), 3, 1).critics.main.weights[0]
        for init in ("rlkit", "fan-in")
    }
    assert 0.09 < largest["rlkit"].abs().max() <= 0.1
    assert 0.45 < largest["fan-in"].abs().max() <= 0.5
