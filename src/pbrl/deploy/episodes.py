"""How often whole episodes like the log raise an alarm: split conformal prediction, on NumPy alone.

An episode raises an alarm when ``k`` of some ``n`` steps in a row score above a threshold. The
highest threshold at which it still would is a single number, its *peak*, so the question becomes:
how high are the peaks of episodes like the log? For ``m`` episodes that were held out and a new
one, all exchangeable, the new peak is as likely to take any of the ``m + 1`` ranks. It lies above
the ``j``-th highest of the held-out ones with probability at most ``j / (m + 1)``, whatever the
scores mean and however they are distributed; with ``j = floor(alpha (m + 1))`` that is at most
``alpha``.

The promise is about the draw of the held-out episodes and the new one together, and about episodes
like the log: drawn as it was, as long as its own, watched in the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pbrl.errors import PbrlError

Bools = NDArray[np.bool_]

ALPHA = 0.05
WINDOW = (3, 5)  # steps above the threshold, of so many in a row


def check_alpha(alpha: float) -> None:
    """Refuse what is no share of episodes."""
    if not 0 < alpha < 1:
        raise PbrlError(f"alpha must lie between 0 and 1, got {alpha}.")


def check_window(window: tuple[int, int]) -> None:
    """Refuse what is no k of n."""
    k, n = window
    if not 1 <= k <= n:
        raise PbrlError(f"A window of {k} of {n} steps is none; give 1 <= k <= n, such as 3 of 5.")


def peak(scores: ArrayLike, window: tuple[int, int]) -> float:
    """The level that ``k`` of some ``n`` steps in a row reach, of the scores ``[T]`` of an episode.

    Above it there is no alarm, just below it there is one; NaN counts as infinite. An episode of
    fewer than ``k`` steps never raises one: its peak is minus infinity.
    """
    k, n = window
    values = np.asarray(scores, np.float64)
    values = np.where(np.isnan(values), np.inf, values)
    padded = np.concatenate([np.full(n - 1, -np.inf), values])
    if len(padded) < n:
        return -math.inf
    windows = np.lib.stride_tricks.sliding_window_view(padded, n)  # [T, n]
    return float(np.partition(windows, n - k, axis=1)[:, n - k].max())


@dataclass(frozen=True)
class Threshold:
    """A level, and what it promises.

    Attributes:
        level: steps that score above it count.
        promise: episodes like the log raise an alarm with at most this probability.
        alpha: what was asked for; less than the promise where too few episodes were held out.
        episodes: how many were.
    """

    level: float
    promise: float
    alpha: float
    episodes: int

    def sentence(self) -> str:
        """The promise in words."""
        said = (
            f"At most {self.promise:.1%} of episodes like the log raise an alarm "
            f"({self.episodes} held-out episodes)"
        )
        if self.promise <= self.alpha:
            return said + "."
        needed = math.ceil(1 / self.alpha - 1e-9) - 1
        return f"{said}; to promise {self.alpha:.1%} takes at least {needed} of them."


def conformal_threshold(peaks: ArrayLike, alpha: float) -> Threshold:
    """The lowest level that at most ``alpha`` of episodes like these peaks ``[m]`` exceed.

    With fewer than ``1 / alpha - 1`` episodes no level can promise that; the highest peak is taken
    then, which promises ``1 / (m + 1)``.
    """
    check_alpha(alpha)
    ordered = np.sort(np.asarray(peaks, np.float64))[::-1]
    if not len(ordered):
        raise PbrlError("No episode was held out, so nothing can be promised of episodes.")
    above = max(1, math.floor(alpha * (len(ordered) + 1) + 1e-9))
    promise = above / (len(ordered) + 1)
    return Threshold(float(ordered[above - 1]), promise, alpha, len(ordered))


@dataclass(frozen=True)
class Drift:
    """A threshold of the earlier half of the held-out episodes, tried on the later half.

    Where episodes are exchangeable, alarms are about as rare as promised; where the log drifted,
    they are not.
    """

    alarms: int
    episodes: int
    promise: float


@dataclass(frozen=True)
class EpisodeCalibration:
    """The peaks of held-out episodes, in the order of the log.

    Attributes:
        window: an alarm takes ``k`` of ``n`` steps in a row.
        own: peaks of the score of the policy's own actions, ``[m]``.
        proposed: peaks of the score of the logged actions, ``[m]``.
        longest: steps of the longest of these episodes; longer ones have more chances to alarm.
        unseen: whether the policy and its critics never learned from these episodes.
        step_light: shares of them in which the light of single steps, at its 99th percentile,
            comes on at least once, for own and logged actions; None where not measured.
    """

    window: tuple[int, int]
    own: NDArray[np.float64]
    proposed: NDArray[np.float64]
    longest: int
    unseen: bool
    step_light: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check_window(self.window)
        if len(self.own) != len(self.proposed) or not len(self.own):
            raise PbrlError("A calibration needs as many peaks of own as of logged actions.")
        for peaks in (self.own, self.proposed):
            if not (peaks < np.inf).all():  # NaN is not
                raise PbrlError(
                    "Held-out episodes score values that are not finite; the data or the networks "
                    "are damaged."
                )

    def __len__(self) -> int:
        return len(self.own)

    def threshold(self, alpha: float = ALPHA, proposed: bool = False) -> Threshold:
        """For the policy's own actions, or for proposed ones."""
        return conformal_threshold(self.proposed if proposed else self.own, alpha)

    def drift(self, alpha: float = ALPHA, proposed: bool = False) -> Drift | None:
        """The promise tried within the log; None with fewer than four held-out episodes."""
        peaks = self.proposed if proposed else self.own
        half = len(peaks) // 2
        if half < 2:
            return None
        early = conformal_threshold(peaks[:half], alpha)
        later = peaks[half:]
        return Drift(int((later > early.level).sum()), len(later), early.promise)

    def to_json(self) -> dict[str, Any]:
        """As kept in files; minus infinity, which JSON has not, becomes null."""
        return {
            "window": list(self.window),
            "own": [float(x) if x > -np.inf else None for x in self.own],
            "proposed": [float(x) if x > -np.inf else None for x in self.proposed],
            "longest": self.longest,
            "unseen": self.unseen,
            "step_light": None if self.step_light is None else list(self.step_light),
        }

    @staticmethod
    def from_json(values: dict[str, Any]) -> EpisodeCalibration:
        """The inverse; raises KeyError, TypeError, ValueError or PbrlError where it is none."""
        own, proposed = (
            np.array([-np.inf if x is None else float(x) for x in values[name]], np.float64)
            for name in ("own", "proposed")
        )
        k, n = values["window"]
        shares = values["step_light"]
        return EpisodeCalibration(
            (int(k), int(n)),
            own,
            proposed,
            int(values["longest"]),
            bool(values["unseen"]),
            None if shares is None else (float(shares[0]), float(shares[1])),
        )


class EpisodeLight:
    """The light over running episodes, one or several side by side: once on, on until ``reset``.

    Args:
        calibration: of a guard or an exported policy.
        alpha: at most this share of episodes like the log raise an alarm.

    Attributes:
        own: the threshold for the policy's own actions.
        proposed: the threshold for proposed ones.
    """

    def __init__(self, calibration: EpisodeCalibration, alpha: float = ALPHA) -> None:
        self.needed, self.length = calibration.window
        self.own = calibration.threshold(alpha)
        self.proposed = calibration.threshold(alpha, proposed=True)
        self._above: Bools | None = None  # [B, n], the newest step last
        self._alarm: Bools = np.zeros(0, np.bool_)
        self._steps: NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def alarm(self) -> Bools:
        """Whether the light is on, ``[B]``."""
        return self._alarm.copy()

    @property
    def steps(self) -> NDArray[np.int64]:
        """Steps since the last reset, ``[B]``."""
        return self._steps.copy()

    @property
    def count(self) -> NDArray[np.int64]:
        """How many of the last ``n`` steps were above the threshold, ``[B]``."""
        return np.zeros(0, np.int64) if self._above is None else self._above.sum(1)

    def update(self, scores: ArrayLike, proposed: bool = False) -> Bools:
        """Take in the next step of every episode, ``[B]`` or a single score; the alarms ``[B]``."""
        values = np.atleast_1d(np.asarray(scores, np.float64))
        if self._above is None:
            self._above = np.zeros((len(values), self.length), np.bool_)
            self._alarm = np.zeros(len(values), np.bool_)
            self._steps = np.zeros(len(values), np.int64)
        if len(values) != len(self._alarm):
            raise PbrlError(
                f"{len(self._alarm)} episodes are running, and {len(values)} rows came; "
                "call reset() where others begin."
            )
        level = (self.proposed if proposed else self.own).level
        self._above = np.roll(self._above, -1, axis=1)
        self._above[:, -1] = ~(values <= level)  # NaN is above
        self._steps += 1
        self._alarm |= self._above.sum(1) >= self.needed
        return self.alarm

    def reset(self, which: ArrayLike | None = None) -> None:
        """New episodes begin: all of them, or those of a mask ``[B]`` of several side by side."""
        if which is None or self._above is None:
            self._above = None
            self._alarm, self._steps = np.zeros(0, np.bool_), np.zeros(0, np.int64)
            return
        mask = np.asarray(which, np.bool_)
        if mask.shape != self._alarm.shape:
            raise PbrlError(f"reset takes a mask of the {len(self._alarm)} running episodes.")
        self._above[mask], self._alarm[mask], self._steps[mask] = False, False, 0
