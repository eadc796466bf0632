"""The paper's tables as carried in the package, against the paper's own printed averages."""

from __future__ import annotations

import pytest

from pbrl.algorithms import ALGORITHMS
from pbrl.data.catalogue import catalogue
from pbrl.errors import PbrlError
from pbrl.experiments import paper
from pbrl.experiments.budgets import BUDGETS, make_plan
from pbrl.experiments.definitions import EXPERIMENTS, experiment

# Printed averages that the printed cells do not give: (table, system) -> mean of the cells.
SLIPS = {
    ("table1", "PBRL"): 74.43,
    ("table1", "PBRL-Prior"): 76.67,  # cut, not rounded
    ("table4", "BEAR"): 38.36,
    ("table4", "CQL"): 40.32,  # cut, not rounded
    ("table4 without expert", "BEAR"): 3.14,
    ("table4 without expert", "TD3-BC"): 0.00,
    ("table4 without expert", "PBRL"): 14.51,
}


def test_tables_are_whole() -> None:
    assert len(paper.datasets("table1")) == 15
    assert len(paper.datasets("table4")) == 12
    assert all(len(row) == 7 for row in paper.table("table1").values())
    assert all(len(row) == 6 for row in paper.table("table4").values())
    assert paper.table("table1")["hopper-medium-replay-v2"]["PBRL"] == paper.Cell(100.6, 1.0)
    assert paper.table("table4")["pen-cloned"]["CQL"] == paper.Cell(39.2, None)


def test_printed_averages_follow_from_the_cells_except_where_noted() -> None:
    for place, printed in paper.PRINTED_AVERAGES.items():
        for system, value in printed.items():
            cells = paper.average(place.split()[0], system, expert="without" not in place)
            if (place, system) in SLIPS:
                assert cells == pytest.approx(SLIPS[place, system], abs=0.006)
                assert abs(cells - value) > 0.005
            else:
                assert cells == pytest.approx(value, abs=0.0051), (place, system)
    assert {(place, system) for place, system, _, _ in paper.slips()} == set(SLIPS)


def test_cells_are_found_whatever_the_version() -> None:
    for name in ("pen-human-v0", "pen-human-v1", "pen-human"):
        assert paper.cell_of("table4", name, "PBRL") == paper.Cell(35.4, 3.3)
    assert paper.cell_of("table1", "hopper-medium-v2", "CQL") == paper.Cell(53.0, 28.5)
    assert paper.cell_of("table1", "demo", "CQL") is None


# ------------------------------------------------------------------------------ what is run


def test_every_table_and_figure_is_there() -> None:
    for name in ("fig1a", "fig2", "fig3", "table1", "table3", "table4", "statistics"):
        assert name in EXPERIMENTS
    ablations = {name for name in EXPERIMENTS if name.startswith("ablation-")}
    assert len(ablations) == 7  # B1 to B7
    assert len(EXPERIMENTS["regularisers"].variants) == 8
    with pytest.raises(PbrlError, match="Did you mean 'fig1a'"):
        experiment("fig1b")


def test_the_paper_budget_is_the_papers_protocol() -> None:
    plan = make_plan(experiment("table1"), "paper")
    systems = [v for v in experiment("table1").variants if v.algorithm in ALGORITHMS]
    assert len(plan.planned) == 15 * 5 * len(systems)
    assert plan.reductions == ()
    for label, config in plan.planned:
        assert (config.steps, config.eval_every, config.dataset in catalogue()) == (
            1_000_000,
            1000,
            True,
        )
        if label == "PBRL":
            own = config.settings
            assert (own.n_ood, own.ensemble_size, own.hidden) == (10, 10, (256,) * 3)  # type: ignore[attr-defined]
    adroit = make_plan(experiment("table4"), "paper")
    assert adroit.reductions == ()
    assert adroit.seeds == 3
    assert len({config.dataset for _, config in adroit.planned}) == 12
    betas = {c.settings.beta_in for label, c in adroit.planned if label == "PBRL"}  # type: ignore[attr-defined]
    assert betas == {1e-4}


def test_reductions_are_named() -> None:
    plan = make_plan(experiment("ablation-n-ood"), "small")
    text = "; ".join(plan.reductions)
    for words in ("data: demo", "3 seeds (paper: 5)", "hidden 64x64 (paper: 256x256x256)"):
        assert words in text
    assert "(paper: 1,000,000)" in text
    # What the ablation varies is no reduction.
    assert "n_ood" not in text
    assert [c.settings.n_ood for _, c in plan.planned[::3]] == [0, 2, 5, 10]  # type: ignore[attr-defined]


@pytest.mark.parametrize("budget", list(BUDGETS))
@pytest.mark.parametrize("name", [n for n, e in EXPERIMENTS.items() if e.datasets])
def test_every_variant_is_a_valid_setting(name: str, budget: str) -> None:
    plan = make_plan(experiment(name), budget)
    settings = {(label, config.settings) for label, config in plan.planned}
    labels = {label for label, _ in settings}
    assert labels | set(plan.missing) == {v.label for v in experiment(name).variants}
    if not experiment(name).table and name != "fig2":
        assert len({own for _, own in settings}) == len(labels)  # variants do differ
