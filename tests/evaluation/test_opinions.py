"""Five methods on logs whose every value is known."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from paid_log import always, paid_by_action

from pbrl.errors import PbrlError
from pbrl.evaluation.behaviour import BehaviourDensity, log_density
from pbrl.evaluation.model_based import WorldModel
from pbrl.evaluation.ope import FQEConfig
from pbrl.evaluation.opinions import METHODS, Evidence, against
from pbrl.evaluation.ranking import accuracy

GAMMA = 0.9
SMALL = FQEConfig(
    gamma=GAMMA, hidden=(32,), ensemble_size=4, steps=400, batch_size=64, tau=0.1,
    learning_rate=3e-3,
)  # fmt: skip


def test_density_is_a_normal_cut_at_the_bounds() -> None:
    a, mean, std = np.array([-1.0, -0.4, 0.9, 1.0]), 0.5, 0.7
    expected = scipy.stats.norm.logpdf(a, mean, std)
    expected[0] = scipy.stats.norm.logcdf(-1, mean, std)
    expected[3] = scipy.stats.norm.logsf(1, mean, std)
    found = log_density(
        torch.tensor(a)[:, None], torch.full((4, 1), mean), torch.full((4, 1), np.log(std))
    )
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


def test_behaviour_is_recovered_also_where_actions_lie_on_their_bounds() -> None:
    rng = np.random.default_rng(0)
    log = paid_by_action(400, noise=0.8)  # a fifth of these actions lie on a bound
    assert (np.abs(log.actions) == 1).mean() > 0.15
    density = BehaviourDensity(log, steps=1500)
    s = rng.uniform(-1, 1, (200, 2)).astype(np.float32)
    a = np.clip(0.2 * s + 0.8 * rng.normal(size=s.shape), -1, 1).astype(np.float32)
    own = np.full_like(s, 0.3)
    scale = torch.full((200, 2), float(np.log(0.8)))
    exact = log_density(torch.tensor(a), torch.tensor(own), scale) - log_density(
        torch.tensor(a), torch.tensor(0.2 * s), scale
    )
    found = density.log_ratio(s, a, own)
    assert np.abs(found - exact.numpy()).mean() < 0.12
    assert density.variation == pytest.approx(0.8, abs=0.12)
    drawn = density.draw(np.zeros((4000, 2), np.float32), rng)
    assert (np.abs(drawn) == 1).mean() == pytest.approx(2 * scipy.stats.norm.sf(1 / 0.8), abs=0.05)


def test_unlike_is_rare_for_the_log_and_common_far_from_it() -> None:
    log = paid_by_action(noise=0.1)
    density = BehaviourDensity(log, steps=600)
    assert density.unlike(log.observations, log.actions).mean() == pytest.approx(0.01, abs=0.005)
    assert not density.unlike(log.observations, 0.2 * log.observations).any()
    assert density.unlike(log.observations, always(0.9)(log.observations)).all()


@pytest.mark.parametrize("ending", [0.0, 0.2])
def test_imagined_episodes_are_worth_what_real_ones_are(ending: float) -> None:
    world = WorldModel(paid_by_action(150, ending=ending), GAMMA, updates=500)
    for action in (-0.3, 0.4):
        truth = action / (1 - GAMMA * (1 - ending))
        assert world.value(always(action)).values.mean() == pytest.approx(truth, abs=0.5)


def test_all_methods_find_the_value_of_a_policy_near_the_log() -> None:
    log = paid_by_action(300)
    evidence = Evidence(log, SMALL)
    found = evidence.opinions(always(0.1))
    assert tuple(found) == METHODS
    for opinion in found.values():
        assert opinion.value == pytest.approx(0.1 / (1 - GAMMA), abs=0.4)
        assert opinion.baseline == pytest.approx(0.0, abs=0.4)
        assert opinion.bound(0.95) < 1.0 < opinion.bound(0.95, upper=True) + 0.3
    other = against(found["dr"], evidence.opinions(always(0.3))["dr"])
    assert other.difference == pytest.approx(-0.2 / (1 - GAMMA), abs=0.5)
    assert other.bound(0.95, upper=True) < 0


def test_episodes_of_unequal_length_that_end_for_good() -> None:
    log = paid_by_action(400, noise=0.5, ending=0.3)
    assert len({rows.stop - rows.start for rows in log.episodes()}) > 5
    truth = 0.2 / (1 - GAMMA * 0.7)  # 0.54
    for opinion in Evidence(log, SMALL).opinions(always(0.2)).values():
        assert opinion.value == pytest.approx(truth, abs=0.2)
        assert opinion.baseline == pytest.approx(0.0, abs=0.2)


def test_far_from_the_log_the_weights_say_so() -> None:
    found = Evidence(paid_by_action(noise=0.1), SMALL, ("wis", "dr")).opinions(always(0.9))
    assert set(found) == {"wis", "dr"}
    assert found["wis"].effective < 10
    assert "effective episodes" in found["wis"].notes[0]
    assert "it is fqe" in found["dr"].notes[0]


def test_what_cannot_be_judged_is_refused_in_a_sentence() -> None:
    log = paid_by_action(6)
    with pytest.raises(PbrlError, match="these data have 1 of them"):
        Evidence(log.rows(slice(0, 5)), SMALL)
    with pytest.raises(PbrlError, match="always did the same"):
        Evidence(paid_by_action(noise=0.0), SMALL, ("wis",))
    with pytest.raises(PbrlError, match="Did you mean 'pdis'"):
        Evidence(log, SMALL, ("pdi",))


def test_accuracy_by_hand() -> None:
    # The second is thought best and lacks 2 of the range of 4; errors 1, 4 and 2.
    found = accuracy([1.0, 6.0, 2.0], [0.0, 2.0, 4.0])
    assert found.regret == pytest.approx(2 / 4)
    assert found.error == pytest.approx((1 + 4 + 2) / 3 / 4)
    assert found.rank_correlation == pytest.approx(0.5)
    with pytest.raises(PbrlError, match="different true values"):
        accuracy([1, 2], [3, 3])
