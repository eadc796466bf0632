"""The report in a real browser: it renders, draws its charts and sorts its tables."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pbrl.data.preprocessing import Preprocessing
from pbrl.errors import PbrlError
from pbrl.evaluation.statistics import aggregates
from pbrl.reports.gather import find_run_directories, read_runs, system_labels
from pbrl.reports.page import render, write_report
from pbrl.training.config import make_config, to_json
from pbrl.training.run import Run

SCORES = {  # (data, n_ood) -> last scores of three seeds
    ("alpha", 0): [5.0, 9.0, 10.0],
    ("alpha", 2): [50.0, 61.0, 72.0],
    ("beta", 0): [100.0, 20.0, 30.0],
    ("beta", 2): [80.0, 90.0, 85.0],
}


def write_run(root: Path, data: str, n_ood: int, seed: int, last: float) -> Path:
    """A run directory as the training loop leaves it, with made-up numbers."""
    path = root / f"{data}-{n_ood}-{seed}"
    path.mkdir(parents=True)
    config = make_config("pbrl", "demo", data, n_ood=n_ood, seed=seed, steps=100).resolved()
    info = {
        "config": to_json(config),
        "schedule_steps": 100,
        "threads": 1,
        "device": "cpu",
        "data": {
            "name": data,
            "fingerprint": "f" * 64,
            "observation_dim": 3,
            "action_dim": 1,
            "env_id": None,
            "reference_scores": [0.0, 1.0],
            "score_source": "<b>nobody & co</b>",
            "behaviour_return_mean": 12.5,
            "observation_names": ["flow", "temp <°C>"],
            "action_names": ["valve"],
        },
        "preprocessing": Preprocessing.identity(3, 1).to_json(),
        "versions": {"python": "3"},
        "git_revision": "abc123",
    }
    (path / "config.json").write_text(json.dumps(info))
    records: list[dict[str, Any]] = []
    for step in (50, 100):
        values = {
            f"{what}_{kind}": float(step + len(kind))
            for kind in ("data", "policy", "random")
            for what in ("q", "u")
        }
        records.append({"step": step, "kind": "train", "steps_per_second": 20.0, **values})
        score = last + (3.0 if step == 50 else 0.0)
        evaluation = {"return_mean": score, "score_mean": score, "evaluation_seconds": 1.0}
        records.append({"step": step, "kind": "eval", **evaluation})
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (path / "summary.json").write_text("{}")
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for (data, n_ood), scores in SCORES.items():
        for seed, last in enumerate(scores):
            write_run(root, data, n_ood, seed, last)
    return root


def test_systems_are_named_by_what_differs(runs: Path) -> None:
    opened = [Run.open(path) for path in find_run_directories([runs])]
    assert set(system_labels(opened)) == {"pbrl (n_ood=0)", "pbrl (n_ood=2)"}
    assert system_labels(opened[:1]) == ["pbrl"]
    # Where most runs agree, only the others are marked.
    more = [run for run in opened if "alpha-0" in run.path.name][:1]
    more += [run for run in opened if "alpha-2" in run.path.name]
    assert system_labels(more) == ["pbrl (n_ood=0)", *["pbrl"] * 3]


def test_numbers_on_the_page_follow_from_the_runs(runs: Path) -> None:
    page = render(read_runs(find_run_directories([runs])))
    table = page[page.index('id="scores"') : page.index("</table>")]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in table.split("<tr>")[2:]]
    found = {(row[0], row[1]): row for row in rows}
    assert len(found) == 4
    for (data, n_ood), scores in SCORES.items():
        row = found[data, f"pbrl (n_ood={n_ood})"]
        assert row[2] == f"{np.mean(scores):.1f} ± {np.std(scores):.1f}"
        assert row[3] == f"{np.mean(scores) + 3:.1f} ± {np.std(scores):.1f}"  # best, at step 50
        assert row[4] == "3"
    # The aggregate table shows what statistics.py computes from the same matrix.
    matrix = np.array([SCORES["alpha", 2], SCORES["beta", 2]]).T
    iqm = aggregates(matrix)["IQM"]
    assert f"{iqm.value:.1f} [{iqm.low:.1f}, {iqm.high:.1f}]" in page


def test_the_page_is_self_contained_and_escapes_what_it_shows(runs: Path) -> None:
    page = render(read_runs(find_run_directories([runs])), "<script>alert(1)</script>")
    ours = page.replace(page[page.index("<script>/**") : page.index('<script type="app')], "")
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", ours)
    assert "default-src 'none'" in ours
    assert "<script>alert" not in ours
    assert "<b>nobody" not in ours
    assert "<p>Observations: flow, temp &lt;°C&gt;</p><p>Actions: valve</p>" in ours


def test_bad_places_get_one_sentence(tmp_path: Path) -> None:
    for place, complaint in ((tmp_path, "none below"), (tmp_path / "no", "No file")):
        with pytest.raises(PbrlError, match=complaint):
            write_report([place], tmp_path / "report.html")


# ------------------------------------------------------------------------------ in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium; where ``CI`` is true it must be there."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if not chromium or not driver:
        reason = "no chromium and chromedriver here (Debian: chromium, chromium-driver)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("profile")
    for flag in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
        "disable-background-networking", "disable-component-update", "disable-sync",
        "disable-dev-shm-usage", "window-size=1200,900", f"user-data-dir={profile}",
    ):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, webdriver.ChromeService(driver))
    started.set_page_load_timeout(120)
    yield started
    started.quit()


@pytest.fixture(scope="module")
def page(browser: Any, runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("page") / "report.html"
    assert write_report([runs], file, "A report") == 12
    browser.get(file.as_uri())
    return browser


def test_it_renders_without_console_errors(page: Any) -> None:
    assert page.title == "A report"
    loud = [entry for entry in page.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert loud == []


def test_every_chart_is_drawn_with_its_numbers(page: Any) -> None:
    charts = json.loads(page.execute_script("return charts.textContent"))
    names = {chart["id"] for chart in charts}
    assert {"learning-0", "learning-1", "aggregates", "profile-runs", "profile-tasks"} <= names
    assert {"values-u-0", "values-q-0"} <= names
    for name in names:
        drawn = page.execute_script(
            "const d = document.getElementById(arguments[0]);"
            "return [d.querySelectorAll('.trace path, .points path').length,"
            " d.getBoundingClientRect().height, d.data.length]",
            name,
        )
        assert drawn[0] > 0, name
        assert drawn[1] > 200, name
    # The curve drawn is the mean over the seeds: 61 + 3 half way, 61 at the end.
    lines = page.execute_script(
        "return document.getElementById('learning-0').data.filter(t => t.name)"
        ".map(t => [t.name, t.y])"
    )
    assert dict(lines)["pbrl (n_ood=2)"] == [64, 61]


def test_the_table_sorts_by_number_both_ways(page: Any) -> None:
    def column() -> list[float]:
        cells = page.find_elements("css selector", "#scores tbody td:nth-child(3)")
        return [float(cell.text.split(" ")[0]) for cell in cells]

    means = [float(f"{np.mean(scores):.1f}") for scores in SCORES.values()]
    button = page.find_element("css selector", "#scores th:nth-child(3) button")
    button.click()
    assert column() == sorted(means)
    head = page.find_element("css selector", "#scores th:nth-child(3)")
    assert head.get_attribute("aria-sort") == "ascending"
    button.click()
    assert column() == sorted(means, reverse=True)


def test_dark_and_light(page: Any) -> None:
    def look() -> tuple[str, str]:
        back = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        chart = page.execute_script(
            "return document.getElementById('learning-0')._fullLayout.paper_bgcolor"
        )
        return back, chart

    first = look()
    page.find_element("id", "theme").click()
    second = look()
    assert first[0] != second[0]
    assert first[1] != second[1]
    page.find_element("id", "theme").click()
    assert look() == first


def test_hover_shows_values(page: Any) -> None:
    page.execute_script(
        "const d = document.getElementById('learning-0'); d.scrollIntoView();"
        "Plotly.Fx.hover(d, [{curveNumber: 2, pointNumber: 1}])"
    )
    text = page.execute_script(
        "return document.getElementById('learning-0').querySelector('.hoverlayer').textContent"
    )
    assert "8.000 ± 2.2" in text  # the mean of 5, 9 and 10


def widen(browser: Any, width: int) -> None:
    """Show the page at this width; the charts follow with a little delay."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        fits = browser.execute_script(
            "return innerWidth === arguments[0] && [...document.querySelectorAll('.chart')].every("
            "c => c._fullLayout && Math.abs(c._fullLayout.width - c.clientWidth) < 2)",
            width,
        )
        if fits:
            return
        time.sleep(0.1)
    raise AssertionError(f"the charts do not follow a page {width} wide")


@pytest.fixture(scope="module")
def mixed_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Systems that differ in a dozen settings, as runs of several experiments do."""
    root = tmp_path_factory.mktemp("mixed")
    for index in range(4):
        path = write_run(root, "walker2d-medium-replay-regenerated", index, 0, 10.0 * index)
        info = json.loads((path / "config.json").read_text())
        changes = {
            "gamma": 0.9, "tau": 0.01, "critic_lr": 1e-3, "actor_lr": 1e-3, "beta_in": 0.1,
            "hidden": [32, 32], "policy_hidden": [32, 32], "ensemble_size": 4, "batch_size": 32,
        }  # fmt: skip
        info["config"]["settings"] |= dict(list(changes.items())[: 2 + 2 * index])
        (path / "config.json").write_text(json.dumps(info))
    return root


def test_long_names_give_way_to_numbers_that_a_list_explains(mixed_runs: Path) -> None:
    runs = read_runs(find_run_directories([mixed_runs]))
    assert [run.result.label for run in runs] == ["pbrl #1", "pbrl #2", "pbrl #3", "pbrl #4"]
    assert all("n_ood=" in run.described for run in runs)
    page = render(runs)
    for run in runs:
        assert f"<dt>{run.result.label}</dt><dd>{run.described}</dd>" in page


@pytest.mark.parametrize("width", [1280, 390])
def test_scores_and_legends_are_in_sight(
    browser: Any, mixed_runs: Path, tmp_path: Path, width: int
) -> None:
    file = tmp_path / "report.html"
    write_report([mixed_runs], file)
    browser.get(file.as_uri())
    try:
        widen(browser, width)
        wide, last_score = browser.execute_script(
            "return [document.documentElement.scrollWidth,"
            " document.querySelector('#scores td:nth-child(3)').getBoundingClientRect().right]"
        )
        assert wide <= width
        assert last_score <= width
        cut = browser.execute_script(
            "return [...document.querySelectorAll('.chart')].flatMap(chart => {"
            " const room = chart.getBoundingClientRect();"
            " return [...chart.querySelectorAll('.legendtext')].filter(text => {"
            "  const box = text.getBoundingClientRect();"
            "  return box.right > room.right + 1 || box.bottom > room.bottom + 1"
            "   || box.left < room.left - 1; }).map(text => text.textContent)})"
        )
        assert cut == []
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
