"""The bench's arithmetic by hand, and one real measurement from end to end."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from pbrl.algorithms.pbrl import PBRL, PBRLConfig
from pbrl.bench.flops import backward_flop, forward_flop, pbrl_gflop
from pbrl.bench.variants import SIZES, by_name, other_variants, pbrl_variants, scaling_name
from pbrl.bench.worker import clock_of, made_up_data, measure_loop, plain_pbrl
from pbrl.cli.main import main
from pbrl.data.training_data import TrainingData


def test_operations_of_a_small_network_by_hand() -> None:
    widths = [3, 4, 1]
    assert forward_flop(widths) == 2 * (12 + 4)
    assert backward_flop(widths, weights=False) == 2 * 4  # into the hidden layer
    assert backward_flop(widths, weights=False, inputs=True) == 2 * (4 + 12)
    assert backward_flop(widths) == 2 * 4 + 2 * (12 + 4)


def test_necessary_work_of_the_papers_step() -> None:
    """Observations 17, actions 6, K = 10, three layers of 256, batch 256: counted on paper."""
    forward, hidden_back = 274_432, 262_656  # a row through one critic, and back without weights
    policy = 2 * (17 * 256 + 2 * 256**2 + 256 * 12)
    policy_step = 3 * policy + (policy - 2 * 17 * 256)
    for config, rows in (
        (PBRLConfig(n_ood=2), 768),
        (PBRLConfig(n_ood=10), 2816),
        (PBRLConfig(n_ood=10, authors_code=True), 5376),
        (PBRLConfig(n_ood=0), 256),
    ):
        by_hand = 10 * rows * (2 * forward + hidden_back) + 2 * 10 * 256 * forward
        by_hand += 256 * (hidden_back + 2 * 23 * 256) + 256 * policy_step
        assert pbrl_gflop(config, 17, 6) == pytest.approx(by_hand / 1e9, rel=1e-6)
    assert pbrl_gflop(PBRLConfig(n_ood=2), 17, 6) == pytest.approx(8.0, abs=0.05)
    assert pbrl_gflop(PBRLConfig(n_ood=10), 17, 6) == pytest.approx(24.6, abs=0.05)


def test_the_yardstick_does_the_same_work() -> None:
    """It must be PBRL: same shapes, learns, finite."""
    config = PBRLConfig(hidden=(16, 16), policy_hidden=(16,), ensemble_size=3, n_ood=2)
    plain, ours = plain_pbrl(config), PBRL(config, 17, 6)
    for yardstick, engine in (
        (plain.critics.parameters(), ours.critics.trained_parameters()),
        (plain.policy.parameters(), ours.policy.parameters()),
    ):
        assert sum(p.numel() for p in yardstick) == sum(p.numel() for p in engine)
    data = TrainingData(made_up_data(17, 6, rows=500))
    generator = torch.Generator().manual_seed(0)
    before = plain.critics.weights[0].detach().clone()
    for _ in range(3):
        plain.update(data.sample(64, generator))
    assert not torch.equal(before, plain.critics.weights[0])
    assert all(torch.isfinite(p).all() for p in plain.critics.parameters())


def test_every_algorithm_has_a_variant() -> None:
    names = [v.name for v in (*pbrl_variants(), *other_variants())]
    assert len(set(names)) == len(names)
    for expected in ("bc", "td3bc", "cql", "bear", "mopo", "pbrl-anchored"):
        assert expected in names
    assert "edac ensemble_size=10" in names


def test_bench_writes_what_it_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "--only", "pbrl N_ood=2", "--rounds", "1", "--seconds", "0.1"]
    words += ["--threads", "1", "--json", str(tmp_path / "b.json")]
    assert main([*words, "--picture", str(tmp_path / "b.png")]) == 0
    results = json.loads((tmp_path / "b.json").read_text())
    wanted = {"variant", "ms_per_step", "gflop", "fraction_of_gemm", "peak_rss_mb", "parameters"}
    assert all(wanted <= result.keys() for result in results)
    first = results[0]
    assert first["variant"] == "pbrl N_ood=2"
    assert first["gflop"] == pytest.approx(8.0, abs=0.05)
    assert first["parameters"] == pytest.approx(1.52e6, rel=0.01)  # the paper's table 3
    assert 0 < first["fraction_of_gemm"] < 1.5
    assert (tmp_path / "b.png").stat().st_size > 1000
    assert "GEMM" in capsys.readouterr().out


def test_other_programs_do_not_count_against_a_single_thread() -> None:
    assert clock_of(1, "cpu") is time.process_time
    assert clock_of(2, "cpu") is clock_of(1, "cuda") is time.perf_counter


def test_bench_refuses_a_name_that_nothing_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--only", "dqn"]) == 2
    assert "dqn" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "megabytes"), [("pbrl", 7), ("pbrl-prior", 13)])
def test_size_and_time_of_a_decision(name: str, megabytes: float) -> None:
    pytest.importorskip("onnxruntime")
    from pbrl.bench.decision import measure_decision

    found = measure_decision(by_name(f"{name} N_ood=10"), made_up_data(*SIZES, rows=2000))
    assert 4 < found["onnx_mb"] < megabytes  # 1.5 (2.9) million float32 parameters
    assert found["decision_ms"] > 0


def test_what_training_spends_around_the_update() -> None:
    tiny = by_name(scaling_name(k=2, n=1, batch=16, width=8))
    found = measure_loop(tiny, threads=1, seconds=0.01)
    assert found["steps"] == 200
    assert found["overhead"] > 0
    around = found["ms_per_step"] - found["bare_ms_per_step"]
    assert around == pytest.approx(found["overhead"] * found["bare_ms_per_step"])
    # A step is charged with its thousandth part of a record and a checkpoint, and with more.
    assert found["record_and_checkpoint_ms"] / 1000 < around
