"""What the log did: a density of its actions, which says how likely a policy would have acted so.

In every state a normal distribution with a mean and a deviation of its own, cut at the bounds: an
action that lies on a bound has the probability of everything beyond it, which is what happens to a
controller's noise there (a Tobit model). It is fitted by maximum likelihood, and kept as it was
when it did best on a fifth of the episodes.

Importance sampling needs a density of the policy, too, and a deterministic policy has none. It is
given the log's own deviation around its action: what is weighed is the log with its mean moved to
where the policy acts, its variation as it was. Where the policy acts as the log does on average,
every weight is 1.

Shapes: N rows, S observation and A action dimensions.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbrl.data.dataset import TransitionDataset
from pbrl.data.episodes import choose_episodes
from pbrl.data.preprocessing import Preprocessing
from pbrl.errors import PbrlError
from pbrl.evaluation.estimate import Doubles
from pbrl.nn.policy import MLP

HIDDEN = (64, 64)
BATCH = 256
OBSERVATION_LIMIT = 10.0  # deviations; beyond it the network would only extrapolate
ON_BOUND = 1 - 1e-4  # of half the range
LOG_STD_LIMITS = (math.log(0.01), math.log(2.0))
# Below this deviation (of half the range) in every dimension, the log only ever did one thing.
LEAST_VARIATION = 0.02
USUAL = 0.99  # of logged actions; what is rarer is called unlike the log


class BehaviourDensity:
    """mu(a|s), fitted to a log.

    Args:
        dataset: the log.
        steps: gradient steps.
        seed: of weights and minibatches.
    """

    def __init__(self, dataset: TransitionDataset, *, steps: int = 2000, seed: int = 0) -> None:
        self.maps = Preprocessing.fit(dataset, normalize_observations=True)
        generator = torch.Generator().manual_seed(seed)
        s, a = dataset.observation_dim, dataset.action_dim
        self.network = MLP(s, HIDDEN, 2 * a, init="torch", generator=generator)
        x, y = self._states(dataset.observations), self._actions(dataset.actions)
        self._fit(dataset, x, y, steps, seed, generator)
        mean, log_std = self._both(x)
        self.variation = float(log_std.exp().amax(1).median())
        if self.variation < LEAST_VARIATION:
            raise PbrlError(
                "The log always did the same in the same state: its actions vary by "
                f"{self.variation:.1%} of half their range. It cannot say what other actions "
                "would have led to; log with some variation of the actions."
            )
        self._usual = float(torch.quantile(_distance(y, mean, log_std)[:100_000], USUAL))

    def _fit(
        self,
        dataset: TransitionDataset,
        x: Tensor,
        y: Tensor,
        steps: int,
        seed: int,
        generator: torch.Generator,
    ) -> None:
        lengths = np.array([rows.stop - rows.start for rows in dataset.episodes()])
        rows = np.ones(len(dataset), np.bool_)
        if len(lengths) > 1:
            tested = choose_episodes(len(lengths), 0.2, seed)
            rows = ~np.isin(np.repeat(np.arange(len(lengths)), lengths), tested)
        taught, tested_rows = np.flatnonzero(rows), np.flatnonzero(~rows)
        if not len(tested_rows):
            tested_rows = taught
        learn, test = torch.from_numpy(taught), torch.from_numpy(tested_rows)
        rate = 1e-3
        optimizer = torch.optim.Adam(self.network.parameters(), lr=rate, fused=True)
        best, best_loss = copy.deepcopy(self.network.state_dict()), math.inf
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = rate * (1 - 0.9 * step / steps)
            pick = learn[torch.randint(len(learn), (BATCH,), generator=generator)]
            mean, log_std = self._heads(x[pick])
            loss = -log_density(y[pick], mean, log_std).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (step + 1) % 50 == 0 or step + 1 == steps:
                held = float(-log_density(y[test], *self._both(x[test])).mean())
                if held < best_loss:
                    best, best_loss = copy.deepcopy(self.network.state_dict()), held
        self.network.load_state_dict(best)

    def log_ratio(
        self,
        observations: NDArray[np.float32],
        actions: NDArray[np.float32],
        policy_actions: NDArray[np.float32],
    ) -> Doubles:
        """log pi(a|s) / mu(a|s) of logged ``actions``, ``[N]``, from raw rows.

        Args:
            observations: ``[N, S]``.
            actions: logged, ``[N, A]``.
            policy_actions: what the policy does there, ``[N, A]``.
        """
        mean, log_std = self._both(self._states(observations))
        a, own = self._actions(actions), self._actions(policy_actions)
        ratio = log_density(a, own, log_std) - log_density(a, mean, log_std)
        return ratio.double().numpy()

    def unlike(
        self, observations: NDArray[np.float32], actions: NDArray[np.float32]
    ) -> NDArray[np.bool_]:
        """Which ``actions`` are further off than 99 % of the logged ones, ``[N]``."""
        mean, log_std = self._both(self._states(observations))
        far: NDArray[np.bool_] = (
            _distance(self._actions(actions), mean, log_std) > self._usual
        ).numpy()
        return far

    def draw(
        self, observations: NDArray[np.float32], rng: np.random.Generator
    ) -> NDArray[np.float32]:
        """Actions as the log takes them, raw, ``[N, S] -> [N, A]``."""
        mean, log_std = (part.numpy() for part in self._both(self._states(observations)))
        noise = rng.standard_normal(mean.shape, np.float32)
        return self.maps.raw_actions((mean + np.exp(log_std) * noise).clip(-1, 1))

    def _states(self, raw: NDArray[np.float32]) -> Tensor:
        limited = self.maps.observations(raw).clip(-OBSERVATION_LIMIT, OBSERVATION_LIMIT)
        return torch.from_numpy(np.ascontiguousarray(limited))

    def _actions(self, raw: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.maps.actions(raw).clip(-1, 1)))

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.network(x).chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD_LIMITS)

    @torch.no_grad()
    def _both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._heads(x)


def log_density(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log-likelihood of actions in [-1, 1] under a normal cut at -1 and 1, ``[N, A] -> [N]``."""
    inverse = (-log_std).exp()
    z = (actions - mean) * inverse
    inside = -0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)
    above = torch.special.log_ndtr((mean - 1) * inverse)  # everything beyond 1
    below = torch.special.log_ndtr((-1 - mean) * inverse)
    found = torch.where(actions >= ON_BOUND, above, inside)
    return torch.where(actions <= -ON_BOUND, below, found).sum(-1)


def _distance(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Squared distance from the log's mean in its deviations, summed over dimensions, ``[N]``."""
    return ((actions - mean) * (-log_std).exp()).square().sum(-1)
