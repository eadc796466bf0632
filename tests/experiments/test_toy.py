"""Fig. 1a at its full size."""

from __future__ import annotations

from pbrl.experiments.toy import EXTENT, MEMBERS, POINTS, ToyResult, fig1a


def test_uncertainty_rises_away_from_the_data() -> None:
    result: ToyResult = fig1a(seed=0)
    assert (MEMBERS, POINTS) == (10, 60)
    assert result.points.shape == (60, 2)
    assert result.fit_error < 0.1  # the networks did learn: targets have unit variance
    assert result.ratio >= 5
    rings = [spread for _, spread in result.by_radius()]
    assert rings == sorted(rings)  # ring by ring outwards
    # The map is what its axes say: the most certain place lies among the points.
    row, column = divmod(int(result.uncertainty.argmin()), len(result.axis))
    assert abs(result.axis[row]) < EXTENT / 2
    assert abs(result.axis[column]) < EXTENT / 2
