"""``inspect``: numbers against plain NumPy, findings, and a page that stands alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from row_samples import as_arrays, random_rows, write_hdf5, write_npz

from pbrl.data import convert, load_dataset
from pbrl.data.loading import open_source
from pbrl.data.summary import Summary, summarize
from pbrl.data.summary_html import summary_page
from pbrl.errors import PbrlError


def inspect(path: Path, **options: Any) -> Summary:
    return summarize(open_source(path, strict=False), **options)


@pytest.mark.parametrize("length", [1, 2, 50, 70_000])
def test_numbers(tmp_path: Path, length: int) -> None:
    rows = random_rows(3, length, end_rate=0.01 if length > 100 else 0.3)
    path = write_npz(tmp_path / "x.npz", as_arrays(rows))
    summary = inspect(path)
    assert rows.timeouts is not None
    ends = np.flatnonzero(rows.terminals | rows.timeouts)
    pieces = [p for p in np.split(np.arange(length), ends + 1) if len(p)]
    assert summary.rows == length
    assert summary.terminals == rows.terminals.sum()
    assert summary.timeouts == rows.timeouts.sum()
    np.testing.assert_array_equal(summary.lengths, [len(p) for p in pieces])
    returns = [rows.rewards[p].astype(np.float64).sum() for p in pieces]
    np.testing.assert_allclose(summary.returns, returns, rtol=1e-9, atol=1e-9)
    for stats, values in (
        (summary.observations, rows.observations),
        (summary.actions, rows.actions),
        (summary.rewards, rows.rewards[:, None]),
    ):
        wide = values.astype(np.float64)
        np.testing.assert_allclose(stats.mean, wide.mean(0), atol=1e-12)
        np.testing.assert_allclose(stats.std, wide.std(0), atol=1e-9)
        np.testing.assert_array_equal(stats.low, wide.min(0))
        np.testing.assert_array_equal(stats.high, wide.max(0))
    assert summary.negative_share == pytest.approx((rows.rewards < 0).mean())


@pytest.mark.parametrize("view", ["file", "shift"])
@pytest.mark.parametrize("kind", ["npz", "csv", "store"])
def test_transitions_are_those_that_training_sees(tmp_path: Path, view: Any, kind: str) -> None:
    for seed in range(5):
        origin = write_npz(tmp_path / f"{seed}.npz", as_arrays(random_rows(seed, 20, end_rate=1)))
        path = convert(origin, tmp_path / f"y{seed}.{kind}", next_observations=view).path
        assert inspect(path).transitions == len(load_dataset(path))


def test_counting_without_timeouts(tmp_path: Path) -> None:
    arrays = as_arrays(random_rows(1, 450, 45, 24, timeouts=False, following=False, end_rate=0.004))
    path = write_hdf5(tmp_path / "pen-x.hdf5", arrays)
    summary = inspect(path)
    assert summary.transitions == len(load_dataset(path))
    assert summary.lengths.max() <= 101


def test_duplicates_constants_and_nan(tmp_path: Path) -> None:
    arrays = as_arrays(random_rows(0, 100))
    for key in ("observations", "actions", "rewards"):
        arrays[key][40:50] = arrays[key][10:20]
    arrays["observations"][:, 1] = 7
    arrays["rewards"] = np.abs(arrays["rewards"])
    path = write_npz(tmp_path / "x.npz", arrays)
    summary = inspect(path)
    assert summary.duplicates == 10
    assert summary.observations.constant == ["obs_1"]
    text = " ".join(summary.findings())
    assert "10 rows (10.0%) repeat an earlier one" in text
    assert "never change: obs_1" in text
    assert "No reward is negative" in text

    arrays["observations"][5, 2] = np.nan
    arrays["actions"][6, 0] = np.inf
    write_npz(path, arrays)
    summary = inspect(path)
    text = " ".join(summary.findings())
    assert f"2 cells hold no number, in 2 of {summary.rows} rows: obs_2 1, action_0 1" in text
    assert np.isfinite(summary.observations.mean).all()
    assert "NaN" in summary_page(summary)
    with pytest.raises(PbrlError, match="NaN at row 5, column 2"):
        load_dataset(path)


@pytest.mark.parametrize(
    ("shift", "words"),
    [
        (10, "No reward is negative"),
        (1, "keeps its floor"),
        (-10, "make unseen actions attractive"),
    ],
)
def test_reward_sign(tmp_path: Path, shift: float, words: str) -> None:
    arrays = as_arrays(random_rows(0, 200))
    arrays["rewards"] = arrays["rewards"] + np.float32(shift)
    assert words in inspect(write_npz(tmp_path / "x.npz", arrays)).findings()[0]


def test_coverage(tmp_path: Path) -> None:
    arrays = as_arrays(random_rows(0, 3000))
    arrays["actions"][:, 1] = 0.3
    arrays["observations"][:, 0] = 1000 * arrays["observations"][:, 1]
    summary = inspect(write_npz(tmp_path / "x.npz", arrays))
    np.testing.assert_allclose(summary.coverage, [1.0, 1 / 20])
    assert summary.effective_dims == 1
    assert any("dimensions [1]" in line for line in summary.findings())


def test_page_stands_alone(real_data: Path) -> None:
    summary = inspect(real_data / "d4rl-slices" / "hopper_medium-v2.hdf5")
    page = summary_page(summary)
    assert page.count("<svg") == 3
    # No script, and nothing to fetch: the only addresses are the names of XML vocabularies.
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="(?!#|data:)', page.replace("xlink:href", "href"))
    assert "pbrl/HopperD4RL-v0" in page
    assert f"{summary.returns.mean():.4g}" in page
    assert summary_page(summary) == page


def test_names_in_a_page_are_text(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a<b>&c.npz", as_arrays(random_rows(0)))
    page = summary_page(inspect(path))
    assert "a<b>" not in page
    assert "a&lt;b&gt;&amp;c" in page
