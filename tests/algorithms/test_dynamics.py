"""The dynamics ensemble and termination rules, against plain equations and real environments."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
import torch
from algorithm_tester import tiny_dataset
from torch import Tensor

from pbrl.algorithms.dynamics import (
    DynamicsModel,
    DynamicsTrainer,
    TrainerSettings,
    pairs,
    sound_rows,
)
from pbrl.algorithms.termination import (
    choose_termination,
    halfcheetah,
    hopper,
    never,
    pen,
    walker2d,
)
from pbrl.data.dataset import DatasetInfo, TransitionDataset
from pbrl.data.training_data import TrainingData
from pbrl.errors import PbrlError

# -------------------------------------------------------------------- the model


def model(members: int = 3, elites: int = 2, hidden: tuple[int, ...] = (8, 9)) -> DynamicsModel:
    g = torch.Generator().manual_seed(0)
    made = DynamicsModel(members, elites, 3, 2, hidden, generator=g).double()
    with torch.no_grad():
        made.input_mean.normal_(generator=g)
        made.input_std.uniform_(0.5, 2, generator=g)
        made.network.head_bias.normal_(0, 3, generator=g)  # log-variances on both sides
    return made


def plain_member(net: DynamicsModel, k: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """Member k written out for one row."""
    h = (x - net.input_mean) / net.input_std
    for weight, bias in zip(net.network.weights, net.network.biases, strict=True):
        z = h @ weight[k] + bias[k, 0]
        h = z / (1 + torch.exp(-z))
    out = net.network.head_weight[k] @ h + net.network.head_bias[k, :, 0]
    mean, raw = out[:4], out[4:]
    top, bottom = net.max_log_var, net.min_log_var
    below = top - torch.log1p(torch.exp(top - raw))
    return mean.detach(), (bottom + torch.log1p(torch.exp(below - bottom))).detach()


def test_members_are_plain_networks_with_bounded_log_variance() -> None:
    net, x = model(), torch.randn(5, 5, dtype=torch.float64)
    mean, log_var = net(x)
    for k in range(3):
        for n in range(5):
            expected_mean, expected_log_var = plain_member(net, k, x[n])
            torch.testing.assert_close(mean[k, n].detach(), expected_mean)
            torch.testing.assert_close(log_var[k, n].detach(), expected_log_var)
    with torch.no_grad():
        net.network.head_bias.mul_(1000)
        far = net(x)[1]
    assert float(far.max()) <= 0.5 + 1e-4  # the bounds' own softplus
    assert float(far.min()) >= -10


def test_loss_is_the_gaussian_likelihood_of_every_member() -> None:
    net = model()
    g = torch.Generator().manual_seed(1)
    x = torch.randn(3, 6, 5, dtype=torch.float64, generator=g)  # rows of its own for each member
    y = torch.randn(3, 6, 4, dtype=torch.float64, generator=g)
    total = 0.0
    for k in range(3):
        for n in range(6):
            mean, log_var = plain_member(net, k, x[k, n])
            normal = torch.distributions.Normal(mean, (0.5 * log_var).exp())
            # -2 log p without log(2 pi)
            total += float((-2 * normal.log_prob(y[k, n]) - math.log(2 * math.pi)).sum()) / 24
    bounds = 0.01 * 4 * (0.5 + 10)
    assert float(net.loss(x, y).detach()) == pytest.approx(total + bounds, rel=1e-10)


def test_errors_are_every_members_mean_square() -> None:
    net = model()
    x, y = torch.randn(6, 5).double(), torch.randn(6, 4).double()
    errors = net.errors(x, y)
    for k in range(3):
        square = [float((plain_member(net, k, x[n])[0] - y[n]).square().mean()) for n in range(6)]
        assert float(errors[k]) == pytest.approx(sum(square) / 6, rel=1e-10)


def test_imagined_rows_come_from_elites_and_carry_the_largest_norm() -> None:
    net = model(members=4, elites=2)
    with torch.no_grad():
        net.elites.copy_(torch.tensor([3, 1]))
        net.network.head_bias[:, 4:] = -60.0  # next to no noise for draws ...
        net.min_log_var.fill_(-50.0)
        net.network.head_bias[2, 4:] = 3.0  # ... but for a member that is no elite
    g = torch.Generator().manual_seed(0)
    s, a = torch.randn(400, 3).double(), torch.randn(400, 2).double()
    s2, r, penalty = net.imagine(s, a, g)
    x = torch.cat([s, a], 1)
    mean, log_var = net(x)
    one, other = (torch.cat([mean[k, :, :1], s + mean[k, :, 1:]], 1).detach() for k in (3, 1))
    got = torch.cat([r[:, None], s2], 1)
    is_one = torch.isclose(got, one, atol=1e-8).all(1)
    is_other = torch.isclose(got, other, atol=1e-8).all(1)
    assert bool((is_one ^ is_other).all())
    assert 140 < int(is_one.sum()) < 260  # a fair choice, row by row
    norms = [log_var[k].detach().exp().sum(1).sqrt() for k in range(4)]
    torch.testing.assert_close(penalty, torch.stack(norms).max(0).values)
    torch.testing.assert_close(penalty, norms[2])  # all members count, not the elites alone
    torch.testing.assert_close(net.penalty(s, a), penalty)


def test_draws_have_the_predicted_deviation() -> None:
    net = model(members=2, elites=1)
    s, a = torch.zeros(20_000, 3).double(), torch.zeros(20_000, 2).double()
    s2, r, _ = net.imagine(s, a, torch.Generator().manual_seed(0))
    mean, log_var = net(torch.zeros(1, 5).double())
    drawn = torch.cat([r[:, None], s2], 1)
    std = (0.5 * log_var[0, 0]).exp().detach()
    assert ((drawn.mean(0) - mean[0, 0].detach()).abs() < 5 * std / math.sqrt(20_000)).all()
    torch.testing.assert_close(drawn.std(0), std, rtol=0.03, atol=0)


# -------------------------------------------------------------------- its training


def trainer(patience: int = 5, max_updates: int = 400, **more: Any) -> DynamicsTrainer:
    settings = TrainerSettings(
        **{
            "batch_size": 32,
            "lr": 3e-3,
            "weight_decay": (0.0,),
            "holdout_fraction": 0.2,
            "holdout_rows": 1000,
            "patience": patience,
            "max_updates": max_updates,
            **more,
        }
    )
    g = torch.Generator().manual_seed(0)
    net = DynamicsModel(3, 2, 3, 2, (16, 16), generator=g)
    made = DynamicsTrainer(net, settings, g, seed=0)
    made.build_optimizer()
    made.attach(TrainingData(tiny_dataset(300)))
    return made


def test_split_is_disjoint_and_every_member_has_its_own_bootstrap() -> None:
    made = trainer()
    data = made.data
    assert data is not None
    assert len(made.rows) == 240
    held = made.holdout[0]
    train = pairs(data.gather(made.rows))[0]
    assert not bool((held[:, None] == train[None]).all(2).any())
    assert made.bootstrap.shape == (3, 240)
    for member in made.bootstrap:
        assert 0.55 < len(member.unique()) / 240 < 0.72  # 1 - 1/e
    assert not torch.equal(made.bootstrap[0], made.bootstrap[1])
    torch.testing.assert_close(made.model.input_mean, train.mean(0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(made.model.input_std, train.std(0, correction=0))


def test_learns_the_rewards_and_the_spread_of_what_cannot_be_known() -> None:
    made = trainer(max_updates=800, patience=100)
    first = made.model.errors(*made.holdout).mean()
    while not made.finished:
        made.step()
    mean, log_var = made.model(made.holdout[0])
    y = made.holdout[1]
    # The reward is a function of (s, a); the next state is noise of variance 1/3.
    assert float((mean[:, :, 0] - y[:, 0]).detach().square().mean()) < 0.3 * float(y[:, 0].var())
    assert float(log_var[:, :, 1:].detach().exp().mean()) == pytest.approx(1 / 3, rel=0.35)
    assert made.best_error.mean() < 0.5 * first


def test_keeps_best_members_and_stops_when_none_improves() -> None:
    made = trainer(patience=1)
    net = made.model.network

    def mark(value: float) -> None:
        with torch.no_grad():
            for k in range(3):
                net.biases[0][k] = value + k / 10

    def epoch(value: float, *errors: float) -> None:
        mark(value)
        made._end_epoch(torch.tensor(errors), last=False)

    epoch(1, 1.0, 1.0, 1.0)
    epoch(2, 0.5, 1.5, 0.995)  # member 0 improves; member 2 by too little
    assert made.stale_epochs == 0
    assert made.best_error.tolist() == [0.5, 1.0, 1.0]
    epoch(3, 0.6, 0.9, 2.0)  # member 1 improves
    epoch(4, 0.6, 0.95, 2.0)
    assert (made.stale_epochs, made.finished) == (1, False)
    epoch(5, 0.6, 0.95, 2.0)
    assert made.finished  # more than one epoch without improvement
    torch.testing.assert_close(made.best_error, torch.tensor([0.5, 0.9, 1.0]))
    # Each member has its own best weights back, and the best two are the elites.
    assert [round(float(net.biases[0][k, 0, 0].detach()), 3) for k in range(3)] == [2.0, 3.1, 1.2]
    assert made.model.elites.tolist() == [0, 1]


def test_reports_an_error_from_the_first_epochs_end_on() -> None:
    made = trainer(max_updates=200)  # epochs of 8 updates
    reports = [made.step() for _ in range(9)]
    assert ["model_error" in r for r in reports] == [False] * 7 + [True, True]
    assert all(torch.isfinite(value) for r in reports for value in r.values())


def test_stops_at_the_most_updates_whatever_the_errors() -> None:
    made = trainer(max_updates=30, patience=100)
    for _ in range(30):
        assert not made.finished
        made.step()
    assert made.finished


def test_weight_decay_pulls_layer_by_layer() -> None:
    made = trainer(weight_decay=(0.1, 0.2))
    groups = made.optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.2, 0.2, 0]
    assert groups[0]["params"][0] is made.model.network.weights[0]
    assert groups[2]["params"][0] is made.model.network.head_weight
    listed = sum(len(group["params"]) for group in groups)
    assert listed == len(list(made.model.parameters()))


def episodes(next_observations: str) -> TransitionDataset:
    """Three episodes of four steps that end in a terminal."""
    s = np.arange(24, dtype=np.float32).reshape(12, 2)
    terminals = np.arange(12) % 4 == 3
    after = s + 100
    after[~terminals] = s[np.flatnonzero(~terminals) + 1]
    if next_observations == "shifted":
        after = np.roll(s, -1, 0)
    elif next_observations == "repeated":
        after[terminals] = s[terminals]
    zeros = np.zeros((12, 1), np.float32)
    return TransitionDataset(
        s, zeros, zeros[:, 0], after, terminals, terminals, DatasetInfo(next_observations)
    )


def test_terminal_rows_teach_only_if_they_say_what_followed() -> None:
    assert sound_rows(episodes("true")).tolist() == list(range(12))
    inner = [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert sound_rows(episodes("shifted")).tolist() == inner
    assert sound_rows(episodes("repeated")).tolist() == inner


def test_too_few_rows_are_refused() -> None:
    made = trainer()
    with pytest.raises(PbrlError, match="too few to hold some out"):
        made.attach(TrainingData(tiny_dataset(3)))


# -------------------------------------------------------------------- when episodes end


def upright(size: int, rows: int = 1) -> Tensor:
    s = torch.zeros(rows, size)
    s[:, 0] = 1.2
    return s


def test_hopper_rule_in_every_corner() -> None:
    cases = [
        ({}, False),
        ({0: 0.7}, True),
        ({0: 0.71}, False),
        ({1: 0.2}, True),
        ({1: -0.2}, True),
        ({1: -0.19}, False),
        ({5: 100.0}, True),
        ({5: -100.0}, True),  # the original lets this one pass
        ({5: -99.0}, False),
        ({0: 200.0}, False),  # the height has no upper bound
        ({7: math.nan}, True),
    ]
    for changes, ends in cases:
        s = upright(11)
        for column, value in changes.items():
            s[0, column] = value
        assert bool(hopper(s)[0]) == ends, changes


def test_other_rules_in_every_corner() -> None:
    for changes, ends in [
        ({}, False),
        ({0: 0.8}, True),
        ({0: 2.0}, True),
        ({0: 1.99}, False),
        ({1: 1.0}, True),
        ({1: -0.99}, False),
        ({9: -100.0}, True),
    ]:
        s = upright(17)
        for column, value in changes.items():
            s[0, column] = value
        assert bool(walker2d(s)[0]) == ends, changes
    s = torch.zeros(3, 17)
    s[1, 4], s[2, 4] = -100.0, 99.0
    assert halfcheetah(s).tolist() == [False, True, False]
    assert never(s).tolist() == [False] * 3
    p = torch.full((2, 45), 0.2)
    p[1, 26] = 0.07
    assert pen(p).tolist() == [False, True]


@pytest.mark.parametrize(("env_id", "rule"), [("Hopper-v4", hopper), ("Walker2d-v4", walker2d)])
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_rules_agree_with_the_environments(env_id: str, rule: Any) -> None:
    env = gymnasium.make(env_id)
    env.action_space.seed(0)
    ends = 0
    env.reset(seed=0)
    for _ in range(600):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert bool(rule(torch.from_numpy(observation)[None])[0]) == terminated
        ends += terminated
        if terminated or truncated:
            env.reset()
    env.close()
    assert ends >= 5


@pytest.mark.parametrize(
    "name", ["hopper_medium-v2", "hopper_medium_replay-v1", "hopper_random-v1"]
)
def test_hopper_rule_agrees_with_recorded_terminals(real_data: Path, name: str) -> None:
    with h5py.File(real_data / "d4rl-slices" / f"{name}.hdf5") as file:
        terminals = np.asarray(file["terminals"][:]).astype(bool)
        observations = np.asarray(file["observations"][:])
        if "next_observations" in file:
            after, expected = np.asarray(file["next_observations"][:]), terminals
        else:  # states inside an episode are those that did not end it
            after, expected = observations, np.zeros(len(observations), bool)
    # States that touch a limit within float32's rounding may fall on either side.
    near = np.abs(np.abs(after[:, 1]) - 0.2) < 1e-5
    near |= np.abs(after[:, 0] - 0.7) < 1e-5
    found = hopper(torch.from_numpy(after)).numpy()
    assert (found == expected)[~near].all()


def test_rule_is_chosen_by_environment_or_refused() -> None:
    for env_id, size, function in [
        ("pbrl/HopperD4RL-v0", 11, hopper),
        ("Walker2d-v5", 17, walker2d),
        ("HalfCheetah-v4", 17, halfcheetah),
        ("AdroitHandPen-v1", 45, pen),
        ("pbrl/DoorD4RL-v0", 39, never),
    ]:
        assert choose_termination("auto", env_id, size, True)[0] is function
    assert choose_termination("auto", None, 4, any_terminal=False)[0] is never
    assert choose_termination("walker2d", None, 17, True)[0] is walker2d
    for unknown in ("Ant-v4", None):
        with pytest.raises(PbrlError, match="set termination to hopper"):
            choose_termination("auto", unknown, 27, any_terminal=True)
    with pytest.raises(PbrlError, match="reads observations of size 17"):
        choose_termination("walker2d", None, 11, True)
