"""Episodes played together equal episodes played alone; the five action kinds are what they say."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pbrl import PBRL, Agent, DatasetInfo, Evaluator, PBRLConfig, Preprocessing, TransitionDataset
from pbrl.errors import PbrlError
from pbrl.evaluation.probe import probe, probe_actions
from pbrl.evaluation.scores import normalized_score

ENV = "InvertedPendulum-v5"


def proportional(observations: NDArray[Any]) -> NDArray[Any]:
    actions: NDArray[Any] = np.clip(observations[:, :1] * 2 + observations[:, 1:2] * 8, -3, 3)
    return actions


def test_batched_episodes_equal_single_ones() -> None:
    evaluator = Evaluator(ENV, (0.0, 1000.0))
    result = evaluator.evaluate(proportional, episodes=3, seed=5)
    seeds = np.random.SeedSequence(5).generate_state(3)
    for i in range(3):
        env = gymnasium.make(ENV)
        observation, _ = env.reset(seed=int(seeds[i]))
        total, steps, over = 0.0, 0, False
        while not over:
            action = proportional(observation[None].astype(np.float32))[0]
            observation, reward, terminated, truncated, _ = env.step(action)
            total, steps, over = total + float(reward), steps + 1, terminated or truncated
        assert result.returns[i] == pytest.approx(total)
        assert result.lengths[i] == steps
    assert result.scores is not None
    np.testing.assert_allclose(result.scores, result.returns / 10)
    evaluator.evaluate(proportional, episodes=1, seed=1)
    again = evaluator.evaluate(proportional, episodes=3, seed=5)
    assert np.array_equal(again.returns, result.returns), "nothing is left over from other calls"
    with pytest.raises(PbrlError, match="episodes"):
        evaluator.evaluate(proportional, episodes=0)
    evaluator.close()


def test_normalised_score_is_d4rls() -> None:
    hopper = (-20.272305, 3234.3)
    assert normalized_score(-20.272305, hopper) == pytest.approx(0)
    assert normalized_score(3234.3, hopper) == pytest.approx(100)
    assert normalized_score([1422.0], hopper)[0] == pytest.approx(44.3, abs=0.05)


def agent_and_data() -> tuple[Agent, TransitionDataset]:
    rng = np.random.default_rng(0)
    rows = 500
    ends = np.zeros(rows, np.bool_)
    dataset = TransitionDataset(
        rng.normal(size=(rows, 3)).astype(np.float32),
        rng.uniform(0, 10, (rows, 2)).astype(np.float32),
        np.ones(rows, np.float32),
        rng.normal(size=(rows, 3)).astype(np.float32),
        ends,
        ends,
        DatasetInfo("made up"),
    )
    config = PBRLConfig(hidden=(8,), policy_hidden=(8,), ensemble_size=3)
    maps = Preprocessing.fit(
        dataset, action_low=np.zeros(2, np.float32), action_high=np.full(2, 10, np.float32)
    )
    return Agent(PBRL(config, 3, 2), maps), dataset


def test_the_five_kinds_of_actions() -> None:
    agent, dataset = agent_and_data()
    s, a = dataset.observations, dataset.actions
    kinds = probe_actions(agent, s, a, np.random.default_rng(1))
    assert np.array_equal(kinds["offline"], a)
    assert np.array_equal(kinds["policy"], agent.act(s))
    assert kinds["random"].min() >= 0
    assert kinds["random"].max() <= 10
    # Noise is in units of half the action range (5 here), and not clipped.
    assert (kinds["noise1"] - a).std() == pytest.approx(0.5, rel=0.1)
    assert (kinds["noise2"] - a).std() == pytest.approx(2.5, rel=0.1)
    assert kinds["noise2"].max() > 10


def test_probe_reports_u_and_q_of_each_kind() -> None:
    agent, dataset = agent_and_data()
    result = probe(agent, dataset, rows=100, seed=3)
    assert probe(agent, dataset, rows=100, seed=3) == result
    assert result["rows"] == 100
    chosen = np.sort(np.random.default_rng(3).choice(500, 100, replace=False))
    s, a = dataset.observations[chosen], dataset.actions[chosen]
    offline = result["kinds"]["offline"]
    assert offline["u_mean"] == pytest.approx(float(agent.uncertainty(s, a).mean()), rel=1e-5)
    assert offline["q_mean"] == pytest.approx(float(agent.q_values(s, a).mean()), rel=1e-5)
    assert result["beta_0"] > 0
    with pytest.raises(PbrlError, match="dimensions"):
        probe(Agent(PBRL(PBRLConfig(hidden=(8,)), 2, 2), Preprocessing.identity(2, 2)), dataset)


def test_beta_0_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three members at -1, 0, 1 times a spread: std = sqrt(2/3), min = mean - 1."""
    agent, dataset = agent_and_data()

    def values(observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        spread = torch.arange(1.0, len(observations) + 1)
        return torch.stack([7 - spread, 7 + 0 * spread, 7 + spread])

    monkeypatch.setattr(agent.algorithm, "q_values", values)
    result = probe(agent, dataset, rows=50)
    assert result["beta_0"] == pytest.approx(1.5**0.5, rel=1e-5)
