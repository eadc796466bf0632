"""From nothing to a figure: runs, reuse, gathered numbers and pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pbrl.experiments import drawings
from pbrl.experiments.collect_results import Curve, data_name, over_seeds
from pbrl.experiments.cost import measure_here
from pbrl.experiments.definitions import EXPERIMENTS, Experiment
from pbrl.experiments.figures import COLOURS, draw_curves
from pbrl.experiments.observe import probe_curves, trajectory_curves
from pbrl.experiments.reproduce import Reproduction, reproduce
from pbrl.sweep.runner import Resources
from pbrl.training.checkpoint import list_checkpoints
from pbrl.training.run import Run

HERE = Resources(workers=1)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduce")


def make(name: str, out: Path, **options: Any) -> Reproduction:
    return reproduce(name, "smoke", out=out, resources=HERE, quiet=True, **options)


def check_files(made: Reproduction) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((made.directory / "results.json").read_text())
    assert (made.directory / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (made.directory / "table.md").read_text() == made.table
    assert results["experiment"] == made.name
    return results


def test_an_ablation_is_run_once_and_then_reused(out: Path) -> None:
    made = make("ablation-ood-target", out)
    results = check_files(made)
    assert [o.attempts for o in made.outcomes] == [1, 1, 1, 1]  # 2 variants, 2 seeds
    assert "budget 'smoke'" in results["reductions"][0]
    assert "steps 20 (paper: 1,000,000)" in results["reductions"]
    # The numbers are the runs' own: last scores from their metrics.
    for outcome, row in zip(made.outcomes, results["runs"], strict=True):
        evaluations = [r for r in Run.open(outcome.job.run_dir).metrics() if r["kind"] == "eval"]
        assert row["last"] == pytest.approx(evaluations[-1]["score_mean"], abs=1e-3)
        assert row["best"] == pytest.approx(max(r["score_mean"] for r in evaluations), abs=1e-3)
    q = results["curves"]["Q of data actions"]["demo"]["zero"]
    logged = [
        [r["q_data"] for r in Run.open(o.job.run_dir).metrics() if "q_data" in r]
        for o in made.outcomes
        if o.job.label == "zero"
    ]
    np.testing.assert_allclose(q["mean"], np.mean(logged, 0), rtol=1e-4)

    again = make("ablation-ood-target", out)
    assert [o.attempts for o in again.outcomes] == [0, 0, 0, 0]
    assert again.table == made.table
    # Another figure needs the same default runs: only what is new is trained.
    actor = make("ablation-actor", out)
    assert [o.attempts for o in actor.outcomes] == [0, 0, 1, 1, 1, 1]
    assert check_files(actor)["beta_0"]["runs"] == 6


def test_fig3_looks_at_the_kept_checkpoints(out: Path) -> None:
    made = make("fig3", out)
    results = check_files(made)
    curves = results["curves"]["u_mean"]["demo"]
    assert set(curves) == {"offline", "policy", "random", "noise1", "noise2"}
    assert curves["offline"]["steps"] == [10, 20]
    run = Run.open(made.outcomes[0].job.run_dir)
    assert probe_curves(run)[-1]["kinds"]["offline"]["u_mean"] > 0
    assert set(results["verdicts"]["demo"]) >= {"u_ordered", "q_no_superior", "q_margin"}


def test_trajectories_are_the_policys_own(out: Path) -> None:
    made = make("fig3", out)
    run = Run.open(made.outcomes[0].job.run_dir)
    records = trajectory_curves(run)
    assert [r["step"] for r in records] == [10, 20]
    agent = run.agent(20)
    assert records[-1]["trajectory_u"] > 0
    assert np.isfinite(records[-1]["trajectory_q"])
    assert agent.algorithm.has_critics
    # Stored, and used again; a new checkpoint makes it stale.
    file = run.path / "trajectory_curves.json"
    marked = [{**record, "trajectory_q": 7.0} for record in records]
    file.write_text(json.dumps(marked))
    assert trajectory_curves(run) == marked
    file.write_text(json.dumps(marked[:1]))
    assert trajectory_curves(run) == records
    assert len(list_checkpoints(run.checkpoints)) == 2


def test_fig1a_needs_no_runs(out: Path) -> None:
    made = make("fig1a", out)
    assert check_files(made)["ratio"] >= 5
    assert made.outcomes == ()


def test_cost_counts_the_papers_parameters() -> None:
    """Table 3 prints 1.52M for PBRL and 0.42M for CQL."""
    found = {name: measure_here(name, 1)["parameters_millions"] for name in ("pbrl", "cql")}
    assert found["pbrl"] == pytest.approx(1.52, abs=0.005)
    assert found["cql"] == pytest.approx(0.42, abs=0.01)


# ------------------------------------------------------------------------------ drawing


def test_bands_stand_on_the_steps_all_seeds_have() -> None:
    curve = over_seeds([[(1, 2.0), (2, 4.0), (3, 9.0)], [(1, 4.0), (2, 8.0)], []])
    assert curve is not None
    assert curve.steps.tolist() == [1, 2]
    assert curve.mean.tolist() == [3, 6]
    assert curve.std.tolist() == [1, 2]
    assert curve.seeds == 2
    assert over_seeds([[], []]) is None


def test_a_system_has_one_colour_in_all_panels() -> None:
    curve = Curve(np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.zeros(2), 1)
    rows = {"score": {"one": {"x": curve, "y": curve}, "two": {"y": curve}}}  # x has no run on two
    first, second = draw_curves("title", rows, []).axes
    assert [line.get_color() for line in first.lines] == [COLOURS[0], COLOURS[1]]
    assert [line.get_color() for line in second.lines] == [COLOURS[1]]
    assert [text.get_text() for text in second.get_legend().get_texts()] == ["x", "y"]


def test_names_of_data() -> None:
    assert data_name("/some/where/hopper-medium-regen.hdf5") == "hopper-medium-regen"
    assert data_name("hopper-medium-v2") == "hopper-medium-v2"


class FakeRun:
    """Enough of a run to be drawn."""

    path = Path("fake")


def fake_results(chosen: Experiment, datasets: tuple[str, ...], seeds: int = 3) -> list[Any]:
    from pbrl.experiments.collect_results import RunResult

    out = []
    for v, variant in enumerate(chosen.variants):
        for d, dataset in enumerate(datasets):
            for seed in range(seeds):
                last = 10.0 * v + d + seed
                out.append(
                    RunResult(
                        variant.label,
                        dataset,
                        seed,
                        FakeRun(),  # type: ignore[arg-type]
                        ((1, last + 5), (2, last)),
                        True,
                    )
                )
    return out


def fake_plan(chosen: Experiment, datasets: tuple[str, ...]) -> Any:
    from pbrl.experiments.budgets import make_plan

    return make_plan(chosen, "paper", datasets, 3)


def test_a_score_table_has_the_papers_numbers_beside_ours() -> None:
    chosen, datasets = EXPERIMENTS["table1"], ("hopper-random-v2", "demo")
    drawn = drawings.scores(chosen, fake_plan(chosen, datasets), fake_results(chosen, datasets), [])
    lines = drawn.table.splitlines()
    assert lines[0].startswith("| data | BEAR | UWAC | CQL |")
    # BEAR is variant 0 on dataset 0: seeds give 0, 1, 2; the paper prints 3.9 ± 2.3.
    assert "| hopper-random-v2 | 1.0 ± 0.8 (3.9 ± 2.3) |" in lines[2]
    assert "(" not in lines[3].split("|")[2]  # the paper has no demo
    assert lines[4].split("|")[2].strip() == "1.50"  # mean of 1.0 and 2.0
    assert drawn.numbers["paper"]["hopper-random-v2"]["PBRL-Prior"] == [31.6, 0.3]


def test_fig2_averages_over_datasets_then_seeds() -> None:
    chosen, datasets = EXPERIMENTS["fig2"], ("a", "b")
    results = fake_results(chosen, datasets)
    without = [r for r in results if (r.label, r.dataset, r.seed) != ("BEAR", "b", 2)]
    drawn = drawings.curve(chosen, fake_plan(chosen, datasets), without, [])
    # BEAR: seed s has s on a and s + 1 on b; seed 2 lacks b and does not count.
    assert drawn.numbers["curves"]["BEAR"]["mean"] == [6.0, 1.0]
    assert drawn.numbers["curves"]["BEAR"]["seeds"] == 2
    assert drawn.numbers["curves"]["UWAC"]["seeds"] == 3


def test_statistics_show_the_papers_means_where_the_tasks_are_the_same() -> None:
    chosen, datasets = EXPERIMENTS["statistics"], EXPERIMENTS["statistics"].datasets
    drawn = drawings.statistics(
        chosen, fake_plan(chosen, datasets), fake_results(chosen, datasets), []
    )
    assert drawn.numbers["paper_means"]["PBRL"]["mean"] == pytest.approx(74.433, abs=1e-3)
    bear = drawn.numbers["aggregates"]["BEAR"]["mean"]
    assert bear["value"] == pytest.approx(np.mean(np.arange(15)) + 1)
    assert bear["low"] <= bear["value"] <= bear["high"]
    elsewhere = drawings.statistics(
        chosen, fake_plan(chosen, ("demo",)), fake_results(chosen, ("demo",)), []
    )
    assert elsewhere.numbers["paper_means"] == {}


def test_fig3_verdicts_can_say_no() -> None:
    chosen = EXPERIMENTS["fig3"]
    (result, *_) = fake_results(chosen, ("demo",), seeds=1)
    u = {"offline": 1.0, "policy": 1.1, "random": 3.0, "noise1": 1.2, "noise2": 2.0}
    q = {"offline": 100.0, "policy": 101.0, "random": 80.0, "noise1": 99.0, "noise2": 90.0}

    def verdict(u: dict[str, float], q: dict[str, float]) -> dict[str, Any]:
        values = {f"u_mean/{k}": [(1, x)] for k, x in u.items()}
        values |= {f"q_mean/{k}": [(1, x)] for k, x in q.items()}
        result.quantities.clear()
        result.quantities.update(values)
        drawn = drawings.uncertainty(chosen, fake_plan(chosen, ("demo",)), [result], [])
        found: dict[str, Any] = drawn.numbers["verdicts"]["demo"]
        return found

    good = verdict(u, q)
    assert good["u_ordered"]
    assert good["u_random_above_offline"]
    assert good["q_no_superior"]
    assert not verdict({**u, "noise1": 0.9}, q)["u_ordered"]
    assert not verdict({**u, "random": 0.5}, q)["u_random_above_offline"]
    bad = verdict(u, {**q, "noise2": 106.0})
    assert not bad["q_no_superior"]
    assert bad["q_largest_excess"] == pytest.approx(6)


def test_curves_in_json_are_short() -> None:
    curve = Curve(np.array([1.0]), np.array([1 / 3]), np.array([1 / 7]), 2)
    assert curve.to_json() == {"steps": [1], "mean": [0.33333], "std": [0.1429], "seeds": 2}
