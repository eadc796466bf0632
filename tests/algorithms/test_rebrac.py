"""ReBRAC against its paper and its authors' code."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from algorithm_tester import AlgorithmCase, AlgorithmTester
from plain_networks import (
    PlainCritics,
    PlainMLP,
    assert_equal_networks,
    in_double,
    move,
    normals,
    random_batches,
    same_generator,
    step,
)
from torch import Tensor

from pbrl.algorithms.rebrac import ReBRAC, ReBRACConfig
from pbrl.data.training_data import Batch, LoggedBatch
from pbrl.training.config import make_config


class TestReBRAC(AlgorithmTester):
    case = AlgorithmCase(
        ReBRAC,
        {
            "hidden": (32, 32),
            "policy_hidden": (32, 32),
            "critic_lr": 3e-3,
            "actor_lr": 3e-3,
        },
        max_regret=0.08,
        bad_settings=(
            ({"actor_penalty": -0.1}, "actor_penalty"),
            ({"critic_penalty": -0.1}, "critic_penalty"),
            ({"policy_freq": 0}, "policy_freq"),
        ),
    )


class NormedCritics(PlainCritics):
    """Separate Q functions whose hidden layers are normalised before the ReLU."""

    def __call__(self, s: Tensor, a: Tensor) -> Tensor:
        values = []
        for member in self.members:
            x = torch.cat([s, a], 1)
            for weight, bias in member.layers[:-1]:
                z = x @ weight + bias
                centred = z - z.mean(1, keepdim=True)
                x = torch.relu(centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt())
            weight, bias = member.layers[-1]
            values.append((x @ weight + bias).squeeze(1))
        return torch.stack(values)


def with_next_actions(batch: Batch, next_actions: Tensor) -> Batch:
    logged = LoggedBatch(*batch)
    logged.look_up = lambda: next_actions
    return logged


def test_updates_match_a_plain_transcription() -> None:
    config = ReBRACConfig(
        hidden=(16, 12), policy_hidden=(10, 14), tau=0.1, critic_lr=1e-3, actor_lr=2e-3,
        actor_penalty=0.3, critic_penalty=0.7,
    )  # fmt: skip
    algorithm = ReBRAC(config, 3, 2, seed=3)
    in_double(algorithm)
    generator = same_generator(algorithm)
    actor, actor_target = (PlainMLP.of(algorithm.policy.network) for _ in range(2))
    critics, critic_targets = (NormedCritics(algorithm.critics) for _ in range(2))
    critic_adam = torch.optim.Adam(critics.parameters, lr=1e-3)
    actor_adam = torch.optim.Adam(actor.parameters, lr=2e-3)

    for iteration, plain in enumerate(random_batches(6), 1):
        s, a, r, s2, d = plain
        logged = normals(a, torch.Generator().manual_seed(iteration)).tanh()  # a' of the log
        has_next = torch.arange(len(s)) % 5 != 0
        batch = with_next_actions(plain, torch.where(has_next[:, None], logged, torch.nan))
        with torch.no_grad():
            noise = (0.2 * normals(a, generator)).clamp(-0.5, 0.5)
            a2 = (torch.tanh(actor_target(s2)) + noise).clamp(-1, 1)
            penalty = 0.7 * ((a2 - logged) ** 2).sum(1) * has_next
            y = r + 0.99 * (1 - d) * (critic_targets(s2, a2).min(0).values - penalty)
        q1, q2 = critics(s, a)
        step(critic_adam, ((q1 - y) ** 2).mean() + ((q2 - y) ** 2).mean())
        metrics = algorithm.update(batch)
        if iteration % 2 == 0:
            pi = torch.tanh(actor(s))
            q = critics(s, pi).min(0).values
            weight = 1 / q.abs().mean().item()
            step(actor_adam, (0.3 * ((pi - a) ** 2).sum(1) - weight * q).mean())
            critic_targets.move_towards(critics, 0.1)
            move(actor_target.parameters, actor.parameters, 0.1)
            assert abs(metrics["lambda"].item() - weight) < 1e-9 * weight
        assert_equal_networks(critics.parameters, PlainCritics(algorithm.critics).parameters)
        assert_equal_networks(critic_targets.parameters, PlainCritics(algorithm.targets).parameters)
        assert_equal_networks(actor.parameters, PlainMLP.of(algorithm.policy.network).parameters)
        fast = PlainMLP.of(algorithm.target_policy.network)
        assert_equal_networks(actor_target.parameters, fast.parameters)


def test_starts_as_in_the_authors_code() -> None:
    algorithm = ReBRAC(observation_dim=17, action_dim=6, seed=0)
    critics, policy = algorithm.critics.main, algorithm.policy.network
    assert [w.shape for w in critics.weights] == [(2, 23, 256), (2, 256, 256), (2, 256, 256)]
    assert [x.weight.shape for x in policy.layers] == [(256, 17), (256, 256), (256, 256)]
    for weight, fan_in in ((critics.weights[0], 23), (policy.layers[0].weight, 17)):
        assert weight.abs().max().item() == pytest.approx(fan_in**-0.5, rel=0.01)
    for bias in (*critics.biases, *(x.bias for x in policy.layers)):
        assert (bias == 0.1).all()
    assert 0.0028 < critics.head_weight.abs().max() < 0.003
    assert 0.0009 < policy.head.weight.abs().max() < 0.001


def test_settings_follow_the_name_of_the_data() -> None:
    def settings(name: str, preset: str = "paper") -> tuple[float, float, float, int]:
        own = make_config("rebrac", preset, name).settings
        assert isinstance(own, ReBRACConfig)
        assert own.actor_lr == own.critic_lr
        return own.actor_penalty, own.critic_penalty, own.actor_lr, own.batch_size

    assert settings("hopper-medium-v2") == (0.01, 0.01, 1e-3, 1024)
    assert settings("hopper_medium_replay-v2.hdf5") == (0.05, 0.5, 1e-3, 1024)
    assert settings("data/walker2d-random-v2", "fast") == (0.01, 0.0, 1e-3, 1024)
    assert settings("door-cloned-v0") == (0.01, 0.1, 3e-4, 256)
    assert settings("door-cloned-v1", "adroit") == (0.01, 0.1, 3e-4, 256)
    assert settings("plant.csv") == (0.01, 0.01, 1e-3, 1024)
    assert "alpha" not in {field.name for field in dataclasses.fields(ReBRACConfig)}
