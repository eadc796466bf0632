"""Policies that data are collected with: uniform, SAC's, a run's, or one stored in a D4RL file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pbrl.algorithms.sac import SAC
from pbrl.data.dataset import Floats
from pbrl.data.formats import Reading
from pbrl.data.formats.hdf5 import open_hdf5
from pbrl.data.hdf5_file import opened_hdf5, own_array
from pbrl.data.preprocessing import Preprocessing
from pbrl.data.resolve import describe
from pbrl.errors import PbrlError
from pbrl.training.run import Run

# Raw observations [B, S], source of randomness -> raw actions [B, A].
Behaviour = Callable[[Floats, np.random.Generator], Floats]

# rlkit's limits of a Gaussian policy's log-std, which D4RL's SAC policies were trained under.
RLKIT_LOG_STD = (-20.0, 2.0)


def uniform_policy(low: Floats, high: Floats) -> Behaviour:
    """Actions uniform between ``low [A]`` and ``high [A]``."""

    def act(observations: Floats, rng: np.random.Generator) -> Floats:
        draws = rng.random((len(observations), len(low)), np.float32)
        return (low + (high - low) * draws).astype(np.float32)

    return act


def sac_policy(sac: SAC, preprocessing: Preprocessing) -> Behaviour:
    """SAC's sampled actions."""
    generator = torch.Generator()

    def act(observations: Floats, rng: np.random.Generator) -> Floats:
        generator.manual_seed(int(rng.integers(2**62)))
        unit = sac.act(torch.from_numpy(observations), False, generator)
        return preprocessing.raw_actions(unit.numpy())

    return act


def policy_of(
    source: str | Path, deterministic: bool, env_id: str | None = None
) -> tuple[Behaviour, str | None, str]:
    """A policy from a run directory or a D4RL HDF5 file.

    Args:
        source: the directory or file.
        deterministic: take the mean action instead of a draw.
        env_id: where to play it; where its origin says when omitted.

    Returns:
        The policy, its environment (if known), and a sentence about it.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return _run_policy(path, deterministic, env_id)
    if path.exists():
        return _stored_policy(path, deterministic, env_id)
    raise PbrlError(
        f"--policy: no file or directory '{source}'; give a run directory or a D4RL HDF5 file."
    )


def _run_policy(
    path: Path, deterministic: bool, env_id: str | None
) -> tuple[Behaviour, str | None, str]:
    run = Run.open(path)
    agent = run.agent()
    generator = torch.Generator()

    def act(observations: Floats, rng: np.random.Generator) -> Floats:
        generator.manual_seed(int(rng.integers(2**62)))
        return agent.act(observations, deterministic, generator)

    kind = "mean" if deterministic else "sampled"
    story = f"{kind} actions of the {run.config.algorithm} run {path.name}"
    return act, env_id or run.env_id, story


def _stored_policy(
    path: Path, deterministic: bool, env_id: str | None
) -> tuple[Behaviour, str | None, str]:
    """The behaviour policy that D4RL keeps under ``metadata/policy``."""
    with opened_hdf5(path) as file:
        if "metadata/policy" not in file:
            raise PbrlError(
                f"'{path}' holds no policy (no 'metadata/policy'); D4RL stores one in its medium "
                "and expert files and in Adroit's cloned ones."
            )
        group = file["metadata/policy"]
        layers = []
        for name in (*sorted(key for key in group if key[:2] == "fc"), "last_fc"):
            layers.append(_layer(path, group, name))
        log_std: tuple[Any, ...] | None = None
        if "infos/action_log_std" in file:
            # Adroit's experts drew with this constant; their last_fc_log_std was never trained.
            logged = own_array(f"'{path}'", "action_log_std", file["infos/action_log_std"])
            log_std = (np.asarray(logged[0], np.float64),)
        elif "last_fc_log_std" in group:
            log_std = _layer(path, group, "last_fc_log_std")
        nonlinearity = _word(group, "nonlinearity", "relu")
        distribution = _word(group, "output_distribution", "tanh_gaussian")
    source = describe(open_hdf5(path, Reading()))
    policy = StoredPolicy(layers, log_std, nonlinearity, distribution, deterministic)
    sizes = (policy.observation_dim, policy.action_dim)
    if sizes != (source.observation_dim, source.action_dim):
        raise PbrlError(
            f"'{path}': the stored policy maps {sizes[0]} observations to {sizes[1]} actions, the "
            f"rows have {source.observation_dim} and {source.action_dim}."
        )
    return policy, env_id or source.metadata.env_id, f"the policy stored in {path.name}"


def _layer(path: Path, group: Any, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        weight, bias = (
            np.asarray(own_array(f"'{path}'", key, group[name][key]), np.float64)
            for key in ("weight", "bias")
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PbrlError(
            f"'{path}': the stored policy lacks a weight or bias of '{name}'."
        ) from error
    if bias.ndim != 1 or weight.ndim != 2 or len(bias) not in weight.shape:
        raise PbrlError(
            f"'{path}': layer '{name}' of the stored policy has weight {weight.shape} and bias "
            f"{bias.shape}, which do not fit."
        )
    return weight, bias


def _word(group: Any, key: str, default: str) -> str:
    if key not in group:
        return default
    value = own_array(f"'{group.file.filename}'", key, group[key])[()]
    return value.decode() if isinstance(value, bytes) else str(value)


class StoredPolicy:
    """A multi-layer perceptron with a Gaussian or tanh-Gaussian output, in float64.

    Args:
        layers: weights and biases, the mean's last; weights ``[out, in]`` or ``[in, out]`` (the
            cloned Adroit policies have the latter).
        log_std: a constant ``[A]``, a layer on the last hidden units, or None for no noise.
        nonlinearity: of the hidden layers, ``relu`` or ``tanh``.
        distribution: ``tanh_gaussian`` or ``gaussian``.
        deterministic: never draw.
    """

    def __init__(
        self,
        layers: list[tuple[NDArray[Any], NDArray[Any]]],
        log_std: tuple[Any, ...] | None,
        nonlinearity: str,
        distribution: str,
        deterministic: bool,
    ) -> None:
        activations: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
            "relu": lambda x: np.maximum(x, 0),
            "tanh": np.tanh,
        }
        if nonlinearity not in activations:
            raise PbrlError(f"The stored policy has an unknown nonlinearity '{nonlinearity}'.")
        self.activation = activations[nonlinearity]
        self.squash = "tanh" in distribution
        transposed = _is_transposed(layers)
        self.layers = [(w if transposed else w.T, b) for w, b in layers]
        self.log_std = log_std
        if log_std is not None and len(log_std) == 2:
            self.log_std = (log_std[0] if transposed else log_std[0].T, log_std[1])
        self.deterministic = deterministic
        self.observation_dim = self.layers[0][0].shape[0]
        self.action_dim = self.layers[-1][0].shape[1]

    def distribution(self, observations: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Mean and log-std before the tanh, ``[B, S] -> [B, A], [B, A]``."""
        h = np.asarray(observations, np.float64)
        for weight, bias in self.layers[:-1]:
            h = self.activation(h @ weight + bias)
        weight, bias = self.layers[-1]
        mean = h @ weight + bias
        if self.log_std is None:
            return mean, None
        if len(self.log_std) == 1:
            return mean, np.broadcast_to(self.log_std[0], mean.shape)
        return mean, np.clip(h @ self.log_std[0] + self.log_std[1], *RLKIT_LOG_STD)

    def __call__(self, observations: Floats, rng: np.random.Generator) -> Floats:
        """Actions, ``[B, S] -> [B, A]``."""
        action, log_std = self.distribution(observations)
        if log_std is not None and not self.deterministic:
            action = action + np.exp(log_std) * rng.standard_normal(action.shape)
        if self.squash:
            action = np.tanh(action)
        return action.astype(np.float32)


def _is_transposed(layers: list[tuple[NDArray[Any], NDArray[Any]]]) -> bool:
    """Whether the weights are ``[in, out]``: told by the layers that are not square."""
    return any(w.shape[0] != len(b) for w, b in layers)
