"""PBRL's update against the paper's equations written plainly.

The plain one is ``examples/pbrl_single_file.py``, the tutorial: Algorithm 1 by ordinary autograd.
The ablations of the paper's appendices are held to it in ``test_pbrl_ablations.py``, our own method
in ``test_pbrl_anchored.py``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from plain_pbrl import A, PlainPBRL, S, batches, follow, put, small_in_double, stacked
from torch import Tensor

from pbrl.algorithms.pbrl import PBRL, PBRLConfig
from pbrl.bench import pbrl_single_file as single_file
from pbrl.data.training_data import Batch

PAPER: dict[str, dict[str, Any]] = {
    "paper": {},
    "prior": {"prior_scale": 1.0},
    "prior of another weight": {"prior_scale": 2.0},
    "K = 2": {"ensemble_size": 2},
    "K = 7": {"ensemble_size": 7},
    "beta_in": {"beta_in": 0.1},
    "beta_ood constant": {"beta_ood_schedule": "constant", "beta_ood": 0.1},
    "N_ood = 5": {"n_ood": 5},
    "no floor": {"ood_floor": "none"},
    "floor of one's own": {"ood_floor": 0.5},
    "target entropy": {"target_entropy": -5.0},
}


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("chunk", [5, 10_000])
def test_update_is_the_papers(name: str, chunk: int) -> None:
    fast = small_in_double(PBRL, **PAPER[name])
    fast.critics.main.chunk_rows = chunk
    follow(fast, PlainPBRL(fast))


class PlainAuthors(PlainPBRL):
    """What the authors' code does beside the paper."""

    def __init__(self, fast: PBRL) -> None:
        super().__init__(fast)
        if self.priors is not None:  # the targets have others
            assert fast.targets.prior is not None
            self.target_priors = copy.deepcopy(self.priors)
            put(self.target_priors, stacked(fast.targets.prior))

    def q(self, critics: single_file.Critics, s: Tensor, a: Tensor) -> Tensor:
        q: Tensor = critics(s, a)
        if self.priors is not None:
            priors = self.target_priors if critics is self.targets else self.priors
            q = q + self.c.prior_scale * priors(s, a).detach()
        return q

    def u(self, q: Tensor) -> Tensor:
        deviations = (q - q.mean(0)).square().sum(0)
        return (deviations / (len(q) - 1)).sqrt()

    @torch.no_grad()
    def ood_rows(self, s: Tensor, s2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # As many actions at s', with a weight of their own.
        groups = [super().ood_rows(s, s2)]
        s_ood, a_ood, beta = super().ood_rows(s2, s2)
        groups.append((s_ood, a_ood, torch.full_like(beta, self.options.ood_next_weight)))
        rows, actions, weights = zip(*groups, strict=True)
        return torch.cat(rows), torch.cat(actions), torch.cat(weights)

    def beta_ood(self) -> float:
        linear = round(0.05 * self.total_steps)
        if self.options.beta_ood_schedule == "auto" and self.step >= linear:
            return 1.0  # no record is far enough back in these few steps to change it
        return super().beta_ood()

    def update(self, batch: Sequence[Tensor]) -> dict[str, Tensor]:
        metrics = super().update(batch)
        if self.options.prior_moves and self.priors is not None:
            moves = zip(self.target_priors.parameters(), self.priors.parameters(), strict=True)
            for old, new in moves:
                old.data = (1 - self.c.tau) * old + self.c.tau * new
        return metrics


AUTHORS: dict[str, dict[str, Any]] = {
    "authors' code": {},
    "second group": {"ood_next_weight": 0.7},
    "constant weight": {"beta_ood_schedule": "constant", "beta_ood": 0.1},
    "priors": {"prior_scale": 300.0},  # they start next to nothing: seen only when enlarged
    "priors that move": {"prior_scale": 300.0, "prior_moves": True},
}


@pytest.mark.parametrize("name", AUTHORS)
def test_update_is_the_authors(name: str) -> None:
    fast = small_in_double(PBRL, authors_code=True, **AUTHORS[name])
    fast.critics.main.chunk_rows = 5
    follow(fast, PlainAuthors(fast))


def test_the_weight_falls_as_appendix_b_says() -> None:
    plain = single_file.PBRL(single_file.Settings(hidden=(4,)), 1, 1, steps=1_000_000, floor=0)
    for step, weight in ((0, 5.0), (25_000, 3.0), (50_000, 1.0), (1_000_000, 0.2)):
        plain.step = step
        assert plain.beta_ood() == pytest.approx(weight)
    plain.step = 525_000  # half way down: the geometric mean of 1 and 0.2
    assert plain.beta_ood() == pytest.approx(math.sqrt(0.2))


def test_densities_are_those_of_a_squashed_gaussian() -> None:
    torch.manual_seed(0)
    policy = single_file.Policy([S, 8, 2 * A]).double()
    s = torch.randn(7, S, dtype=torch.float64)
    actions, log_pi = policy.sample(s, torch.Generator().manual_seed(1))
    mean, std = policy(s)
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, std), torch.distributions.TanhTransform()
    )
    torch.testing.assert_close(log_pi, squashed.log_prob(actions).sum(1))


def test_the_single_file_learns_from_data_to_an_evaluated_policy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As its reader runs it, but for the number of steps."""
    score = single_file.main(steps=20)
    said = capsys.readouterr().out
    assert f"return {score:.1f}" in said
    assert "normalised score" in said
    assert score > 30  # the pole stands for some steps
    assert score == single_file.main(steps=20), "the same seed, the same policy"


def test_float32_stays_close_to_the_equations() -> None:
    config = PBRLConfig(ensemble_size=4, hidden=(32, 32), policy_hidden=(32, 32), n_ood=2)
    fast, exact = PBRL(config, S, A, seed=2), PBRL(config, S, A, seed=2)
    for network in exact.networks().values():
        network.double()
    exact._build_optimizers()
    # The same noise in both: drawn in float64 and rounded.
    real = torch.Tensor.normal_

    def drawn(like: Tensor, *args: Any, generator: torch.Generator, **kwargs: Any) -> Tensor:
        exact_noise = real(torch.empty(like.shape, dtype=torch.float64), generator=generator)
        return like.copy_(exact_noise)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "normal_", drawn)
        for batch in batches(3):
            exact.update(batch)
            fast.update(Batch(*(t.float() for t in batch)))
    for one, other in zip(fast.critics.parameters(), exact.critics.parameters(), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=2e-5)


def test_uncertainty_by_hand() -> None:
    algorithm = PBRL(PBRLConfig(ensemble_size=2, hidden=(4,), policy_hidden=(4,)), 1, 1)
    q = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    assert algorithm.std(q).tolist() == [1.0, 0.0]  # 1/K: deviations of +-1 from the mean 2
    authors = PBRL(
        PBRLConfig(ensemble_size=2, hidden=(4,), policy_hidden=(4,), authors_code=True), 1, 1
    )
    assert authors.std(q)[0] == pytest.approx(2**0.5)


@pytest.mark.parametrize("authors", [False, True])
def test_the_authors_policy_does_not_follow_the_slope_of_the_prior(authors: bool) -> None:
    """Theirs detaches the prior from the action; Eq. 7 to the letter does not."""
    config = PBRLConfig(
        ensemble_size=3, hidden=(8,), policy_hidden=(8,), prior_scale=5.0, authors_code=authors
    )
    agent = PBRL(config, S, A)
    assert agent.critics.prior is not None
    with torch.no_grad():
        agent.critics.main.head_weight.zero_()  # the prior alone has a slope
        agent.critics.prior.head_weight.fill_(0.5)
    s, a = torch.randn(7, S), torch.randn(7, A).tanh().requires_grad_()
    for value in (agent.critics.extreme(s, a), agent.critics(s, a, frozen=True).amin(0)):
        (slope,) = torch.autograd.grad(value.sum() + 0 * a.sum(), a)
        assert bool((slope == 0).all()) == authors
    values = agent.critics.values(s, a.detach()).amin(0)
    torch.testing.assert_close(agent.critics.extreme(s, a).detach(), values)
