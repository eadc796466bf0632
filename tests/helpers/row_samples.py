"""Small logs for the data tests, and ways to write them by hand (not by the code under test)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hypothesis import strategies as st

from pbrl.data.rows import Rows


def random_rows(
    seed: int = 0,
    length: int = 30,
    s: int = 3,
    a: int = 2,
    *,
    timeouts: bool = True,
    following: bool = True,
    end_rate: float = 0.2,
) -> Rows:
    """Random rows whose own next observations agree with the following row inside episodes."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(length, s)).astype(np.float32)
    terminals = rng.random(length) < end_rate / 2
    cut = rng.random(length) < end_rate / 2
    next_observations = np.roll(observations, -1, axis=0)
    ends = terminals | cut
    ends[-1] = True
    next_observations[ends] = rng.normal(size=(int(ends.sum()), s)).astype(np.float32)
    return Rows(
        observations,
        rng.uniform(-1, 1, size=(length, a)).astype(np.float32),
        rng.normal(size=length).astype(np.float32),
        terminals,
        cut if timeouts else None,
        next_observations if following else None,
    )


@st.composite
def any_rows(draw: st.DrawFn) -> Rows:
    """Rows with one-step episodes, one episode, awkward floats, with and without extra columns."""
    length = draw(st.integers(2, 40))
    kind = draw(st.sampled_from(["mixed", "one episode", "one-step", "no end"]))
    rate = {"mixed": 0.4, "one episode": 0.0, "one-step": 2.0, "no end": 0.0}[kind]
    rows = random_rows(
        draw(st.integers(0, 2**32 - 1)),
        length,
        draw(st.integers(1, 4)),
        draw(st.integers(1, 3)),
        timeouts=draw(st.booleans()),
        following=draw(st.booleans()),
        end_rate=rate,
    )
    if kind == "one episode":
        rows.terminals[-1] = True
    awkward = st.sampled_from([0.0, -0.0, 1e-40, 3.4e38, -1.1754944e-38, 0.1, 1 / 3, 16777217.0])
    rows.observations[0, 0] = draw(awkward)
    rows.rewards[-1] = draw(awkward)
    return rows


def as_arrays(rows: Rows) -> dict[str, Any]:
    """D4RL's keys, without those the rows do not have."""
    arrays = {
        "observations": rows.observations,
        "actions": rows.actions,
        "rewards": rows.rewards,
        "terminals": rows.terminals,
        "timeouts": rows.timeouts,
        "next_observations": rows.next_observations,
    }
    return {key: value for key, value in arrays.items() if value is not None}


def write_hdf5(path: Path, arrays: dict[str, Any], **attributes: Any) -> Path:
    with h5py.File(path, "w") as file:
        for key, values in arrays.items():
            file[key] = values
        for key, value in attributes.items():
            file.attrs[key] = value
    return path


def write_npz(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path, **arrays)
    return path


def assert_same_rows(left: Rows, right: Rows) -> None:
    """Bit for bit, including which optional columns there are."""
    a, b = as_arrays(left), as_arrays(right)
    assert a.keys() == b.keys()
    for key in a:
        assert a[key].dtype == b[key].dtype, key
        assert a[key].tobytes() == b[key].tobytes(), key


def qlearning_reference(
    arrays: dict[str, Any], horizon: int | None
) -> dict[str, np.ndarray[Any, Any]]:
    """D4RL's ``qlearning_dataset`` as a plain loop, from its published rules."""
    kept: dict[str, list[Any]] = {"obs": [], "next": [], "act": [], "rew": [], "done": []}
    step = 0
    for i in range(len(arrays["rewards"]) - 1):
        done = bool(arrays["terminals"][i])
        if "timeouts" in arrays:
            final = bool(arrays["timeouts"][i])
        else:
            final = horizon is not None and step == horizon - 1
        if final:
            step = 0
            continue
        if done:
            step = 0
        kept["obs"].append(arrays["observations"][i].astype(np.float32))
        kept["next"].append(arrays["observations"][i + 1].astype(np.float32))
        kept["act"].append(arrays["actions"][i].astype(np.float32))
        kept["rew"].append(np.float32(np.asarray(arrays["rewards"][i]).reshape(())))
        kept["done"].append(done)
        step += 1
    return {key: np.array(values) for key, values in kept.items()}
