"""Fitting a guard on the data an agent learned from, and calibrating it on episodes it did not.

Shapes: B rows, S observation and A action dimensions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbrl.algorithms.base import Algorithm
from pbrl.data.dataset import TransitionDataset
from pbrl.data.preprocessing import Preprocessing
from pbrl.deploy.episodes import WINDOW, EpisodeCalibration, check_window, peak
from pbrl.deploy.guard import QUANTILES, Guard, GuardModel
from pbrl.errors import PbrlError

Rows = NDArray[np.int64]

PROTOTYPES = 2048
CALIBRATION_ROWS = 5000
EPISODE_ROWS = 50_000  # about as many are scored to calibrate whole episodes,
LEAST_EPISODES = 40  # but of so many episodes, however long
WANTED_EPISODES = 20  # to hold out of a log of few; 19 are enough for alpha = 0.05
CHUNK = 8192
SHRINKAGE = 1e-3  # keeps directions finite in which the log does not vary


def fit_guard(
    algorithm: Algorithm,
    preprocessing: Preprocessing,
    dataset: TransitionDataset,
    *,
    steps: int | None = None,
    seed: int = 0,
    held_out: Sequence[int] | None = None,
    window: tuple[int, int] = WINDOW,
    on_step: Callable[[int], None] | None = None,
) -> Guard:
    """Fit a guard for ``algorithm`` on the data it learned from; some seconds on one core.

    Some episodes are held out to calibrate the scores: those named, else a tenth of all, and of
    fewer than 200 up to 20, at most a quarter.

    Args:
        algorithm: trained.
        preprocessing: of its run.
        dataset: its training data, raw.
        steps: gradient steps of the behaviour model; 500 to 3,000 by the size of the data when
            omitted.
        seed: of the split and the fit.
        held_out: numbers of the episodes in ``dataset``, from 0, that ``algorithm`` did not learn
            from. When omitted, those held out are new to the guard, but not to its U.
        window: the light of episodes takes k of n steps in a row.
        on_step: called with the number of steps done.
    """
    if len(dataset) < 20:
        raise PbrlError(f"A guard needs at least 20 transitions, these data have {len(dataset)}.")
    check_window(window)
    steps = min(3000, max(500, len(dataset))) if steps is None else steps
    rng = np.random.default_rng(seed)
    chosen_episodes = _to_hold_out(dataset, rng) if held_out is None else list(held_out)
    kept, held = _split(dataset, chosen_episodes, rng)
    s_all, a_all = _unit(preprocessing, dataset, kept)
    generator = torch.Generator().manual_seed(seed)
    count = min(PROTOTYPES, len(kept))
    model = GuardModel(dataset.observation_dim, dataset.action_dim, count, generator=generator)

    s = s_all.double()
    model.shift.copy_(s.mean(0))
    model.scale.copy_(s.std(0, correction=0) + 1e-6)
    z = (s - model.shift.double()) / model.scale.double()
    covariance = z.mT @ z / len(z) + SHRINKAGE * torch.eye(z.shape[1], dtype=torch.float64)
    values, vectors = torch.linalg.eigh(covariance)
    model.whitening.copy_(vectors / values.sqrt())
    chosen = torch.from_numpy(rng.choice(len(s), count, replace=False))
    model.prototypes.copy_(model.standardised(s_all[chosen]) @ model.whitening)
    _fit_behaviour(model, s_all, a_all, steps, generator, on_step)
    model.requires_grad_(False)

    s_cal, a_cal = _unit(preprocessing, dataset, _some(held, CALIBRATION_ROWS, rng))
    s_cal, a_cal = s_cal.to(algorithm.device), a_cal.to(algorithm.device)
    model.to(algorithm.device)
    with torch.no_grad():
        u = algorithm.uncertainty(s_cal, a_cal) if algorithm.has_critics else None
        measured = [model.state(s_cal), u, model.action(s_cal, a_cal)]
        for i, part in enumerate(measured):
            if part is not None:
                middle, high = torch.quantile(part, torch.tensor([0.5, 0.99], device=part.device))
                model.medians[i] = middle
                model.spreads[i] = (high - middle).clamp_min(1e-6)
        own_u = algorithm.uncertainty(s_cal, algorithm.act(s_cal)) if u is not None else None
        own = model.score(s_cal, own_u, None)
        proposed = model.score(s_cal, u, a_cal)
        u_grid = np.full(len(QUANTILES), np.nan)
        if algorithm.has_critics:
            everywhere = _some(np.concatenate([kept, held]), CALIBRATION_ROWS, rng)
            s_any, a_any = _unit(preprocessing, dataset, everywhere)
            u_grid = _grid(
                algorithm.uncertainty(s_any.to(algorithm.device), a_any.to(algorithm.device))
            )
    about = {
        "data_fingerprint": dataset.fingerprint,
        "held_out_rows": len(s_cal),
        "held_out_episodes": len(chosen_episodes),
        "prototypes": count,
    }
    guard = Guard(model, _grid(own), _grid(proposed), u_grid, about)
    every = list(dataset.episodes())
    episodes = [every[i] for i in sorted(set(chosen_episodes))]
    if not any(e.stop - e.start >= window[0] for e in episodes):
        return guard
    unseen = held_out is not None
    return calibrated(guard, algorithm, preprocessing, dataset, episodes, window, unseen, seed)


def calibrated(
    guard: Guard,
    algorithm: Algorithm,
    preprocessing: Preprocessing,
    dataset: TransitionDataset,
    episodes: Sequence[slice],
    window: tuple[int, int] = WINDOW,
    unseen: bool = True,
    seed: int = 0,
) -> Guard:
    """The guard with the peaks of these episodes, which it was not fitted on.

    Args:
        guard: fitted.
        algorithm: whose guard it is.
        preprocessing: of its run.
        dataset: raw, holds the episodes.
        episodes: their rows, in the order of the log.
        window: the light takes k of n steps in a row.
        unseen: whether ``algorithm`` never learned from them.
        seed: of the choice among very many.
    """
    check_window(window)
    if not any(e.stop - e.start >= window[0] for e in episodes):
        raise PbrlError(
            f"A guard is calibrated on whole episodes of at least {window[0]} steps; these data "
            "have none."
        )
    mean_length = sum(e.stop - e.start for e in episodes) / len(episodes)
    count = min(len(episodes), max(LEAST_EPISODES, int(EPISODE_ROWS / mean_length)))
    picked = np.sort(np.random.default_rng([seed, 1]).permutation(len(episodes))[:count])
    some = [episodes[i] for i in picked]
    scores = {
        proposed: [_scores(guard, algorithm, preprocessing, dataset, e, proposed) for e in some]
        for proposed in (False, True)
    }
    own, proposed = (np.array([peak(s, window) for s in scores[kind]]) for kind in (False, True))
    shares = (
        _share_with_alarm(guard.own, scores[False]),
        _share_with_alarm(guard.proposed, scores[True]),
    )
    longest = max(e.stop - e.start for e in some)
    calibration = EpisodeCalibration(window, own, proposed, longest, unseen, shares)
    return dataclasses.replace(guard, episodes=calibration)


def _share_with_alarm(grid: NDArray[np.float64], episodes: list[NDArray[np.float32]]) -> float:
    """Of episodes in which some step scores beyond the 99th percentile of single steps."""
    limit = np.interp(0.99, QUANTILES, grid)
    return float(np.mean([bool((~(scores <= limit)).any()) for scores in episodes]))


def _scores(
    guard: Guard,
    algorithm: Algorithm,
    preprocessing: Preprocessing,
    dataset: TransitionDataset,
    episode: slice,
    proposed: bool,
) -> NDArray[np.float32]:
    """Scores of an episode's steps, of the policy's own or of the logged actions, ``[T]``."""
    parts = []
    for start in range(episode.start, episode.stop, CHUNK):
        rows = np.arange(start, min(start + CHUNK, episode.stop))
        s, a = (x.to(algorithm.device) for x in _unit(preprocessing, dataset, rows))
        parts.append(guard.read(algorithm, s, a if proposed else None)[2].cpu().numpy())
    return np.concatenate(parts)


def _to_hold_out(dataset: TransitionDataset, rng: np.random.Generator) -> list[int]:
    """Numbers of the episodes to calibrate on; none where there are fewer than ten."""
    count = int(sum(1 for _ in dataset.episodes()))
    if count < 10:
        return []
    held = max(1, count // 10, min(count // 4, WANTED_EPISODES))
    return [int(i) for i in rng.permutation(count)[:held]]


def _split(
    dataset: TransitionDataset, held_out: list[int], rng: np.random.Generator
) -> tuple[Rows, Rows]:
    """Rows to fit on and rows held out: whole episodes where some are named, else single rows."""
    if held_out:
        lengths = [e.stop - e.start for e in dataset.episodes()]
        if not all(0 <= i < len(lengths) for i in held_out):
            raise PbrlError(
                f"held_out must name episodes by their numbers, 0 to {len(lengths) - 1} in these "
                "data."
            )
        mask = np.isin(np.repeat(np.arange(len(lengths)), lengths), held_out)
        if mask.all():
            raise PbrlError("Every episode is held out; leave some to fit the guard on.")
    else:
        mask = np.zeros(len(dataset), np.bool_)
        mask[rng.permutation(len(dataset))[: max(1, len(dataset) // 10)]] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)


def _some(rows: Rows, count: int, rng: np.random.Generator) -> Rows:
    return np.sort(rng.permutation(rows)[:count])


def _unit(
    preprocessing: Preprocessing, dataset: TransitionDataset, rows: Rows
) -> tuple[Tensor, Tensor]:
    """Observations and actions of these rows in network units, on the CPU."""
    s = preprocessing.observations(dataset.observations[rows])
    a = preprocessing.actions(dataset.actions[rows])
    return torch.from_numpy(np.ascontiguousarray(s)), torch.from_numpy(np.ascontiguousarray(a))


def _grid(values: Tensor) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # what is not finite is refused by Guard itself
        return np.asarray(np.quantile(values.double().cpu().numpy(), QUANTILES), np.float64)


def _fit_behaviour(
    model: GuardModel,
    observations: Tensor,
    actions: Tensor,
    steps: int,
    generator: torch.Generator,
    on_step: Callable[[int], None] | None,
) -> None:
    rate = 1e-3
    optimizer = torch.optim.Adam(model.behaviour.parameters(), lr=rate, fused=True)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - 0.95 * step / steps)
        rows = torch.randint(len(observations), (256,), generator=generator)
        loss = model.action(observations[rows], actions[rows]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if on_step is not None and (step + 1) % 100 == 0:
            on_step(step + 1)
