"""Reading metric records back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pbrl.training.metrics import latest_metrics, read_metrics


@pytest.mark.parametrize("records", [1, 7, 3000])  # the last: more than is read
def test_the_latest_metrics_are_those_of_the_whole_file(tmp_path: Path, records: int) -> None:
    with open(tmp_path / "metrics.jsonl", "w") as file:
        for step in range(1, records + 1):
            more = {"kind": "eval", "score_mean": step / 3} if step % 20 == 0 else {"kind": "train"}
            file.write(json.dumps({"step": step, "q_data": -step, "padding": "x" * 500} | more))
            file.write("\n")
    newest: dict[str, Any] = {}
    for record in read_metrics(tmp_path):
        newest |= record
    assert latest_metrics(tmp_path) == newest
    with open(tmp_path / "metrics.jsonl", "a") as file:  # a record that is being written
        file.write('{"step": 999999, "q_da')
    assert latest_metrics(tmp_path) == newest


def test_there_are_no_latest_metrics_before_the_first(tmp_path: Path) -> None:
    assert latest_metrics(tmp_path) == {}
    (tmp_path / "metrics.jsonl").touch()
    assert latest_metrics(tmp_path) == {}
