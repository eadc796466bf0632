"""``pbrl bench``."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from pbrl.bench.measuring import answer_of, begin
from pbrl.bench.variants import by_name, other_variants, pbrl_variants, scaling_name
from pbrl.cli.parse import parse
from pbrl.console import plain_console
from pbrl.errors import PbrlError, printable
from pbrl.training.files import write_figure, write_json
from pbrl.training.machine import cores


@dataclass(frozen=True)
class BenchArguments:
    """Measure training speed on this machine, interleaved, one process a variant.

    Attributes:
        quick: PBRL, PBRL-Prior and the yardstick only, under a minute.
        scaling: how the cost grows with K, N_ood, batch and width instead.
        parallel: two one-thread runs beside each other against one run with two threads instead.
        loop: the update inside pbrl train against the bare update instead.
        peers: the same algorithms by d3rlpy instead, both sides taking turns.
        peers_python: the Python that has d3rlpy, where it is another than this one.
        score: minutes of one core until a policy earns nine tenths of TD3+BC's last score instead.
        dataset: for score: data whose environment is known; the embedded demo when omitted.
        minutes: for score: CPU minutes that each system trains.
        only: measure only variants whose name contains this.
        threads: CPU threads of a process; 0: all cores.
        rounds: how often each variant is measured.
        seconds: length of one measurement.
        device: cpu or cuda.
        json: also write the figures to this file.
        picture: also draw bars to this file (PNG).
    """

    quick: bool = False
    scaling: bool = False
    parallel: bool = False
    loop: bool = False
    peers: bool = False
    peers_python: Path = Path(sys.executable)
    score: bool = False
    dataset: str = "demo"
    minutes: float = 10.0
    only: str | None = None
    threads: int = 0
    rounds: int = 3
    seconds: float = 4.0
    device: Literal["cpu", "cuda", "auto"] = "auto"
    json: Path | None = None
    picture: Path | None = Path("bench.png")


def main(argv: list[str]) -> int:
    """Run ``pbrl bench`` with these words; returns the exit code."""
    a = parse(BenchArguments, argv, "pbrl bench")
    threads = a.threads or cores()
    console = plain_console()
    if a.score:
        results = _scores(a, console)
    elif a.parallel:
        results = _parallel(threads, a.seconds)
        _print_parallel(results, console)
    elif a.peers:
        results = _peers(threads, a, console)
    elif a.loop:
        names = ["pbrl N_ood=10", "pbrl N_ood=2"]
        results = _rounds([n for n in names if a.only is None or a.only in n], threads, a, "loop")
        for r in results:
            console.print(
                f"{r['variant']}: {r['bare_ms_per_step']:.1f} ms an update, "
                f"{100 * r['overhead']:.2f} % around it (a record and a checkpoint take "
                f"{r['record_and_checkpoint_ms']:.0f} ms)",
            )
    elif a.scaling:
        results = _rounds(_scaling_names(), threads, a, "step")
        _print_scaling(results, console)
    else:
        variants = pbrl_variants() + ([] if a.quick else other_variants())
        if a.quick:
            quick = (
                "pbrl N_ood=10", "pbrl N_ood=2", "pbrl-prior N_ood=10", "pbrl-anchored",
                "plain N_ood=2",
            )  # fmt: skip
            variants = [v for v in variants if v.name in quick]
        names = [v.name for v in variants if a.only is None or a.only in v.name]
        if not names:
            raise PbrlError(f"No variant's name contains '{a.only}'.")
        results = _rounds(names, threads, a, "step")
        _print_table(results, console)
        if all(find_spec(module) for module in ("onnx", "onnxruntime")):
            _decisions(results, console)
        if a.picture is not None:
            draw(results, a.picture)
            console.print(f"Picture: {a.picture}")
    if a.json is not None:
        write_json(a.json, results)
    return 0


def _scores(a: BenchArguments, console: Console) -> list[dict[str, Any]]:
    from pbrl.bench.score import SYSTEMS, YARDSTICK, compare_scores

    marks = 20
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("training", total=len(SYSTEMS) * marks)
        found = compare_scores(
            a.dataset, a.minutes, marks=marks,
            advance=lambda system: progress.update(task, advance=1, description=system),
        )  # fmt: skip
    table = Table(
        "system", "steps", "CPU minutes to it", "last score", "best",
        title=f"{found['share']:.0%} of {YARDSTICK}'s last score, {found['score']:.4g}, on "
        f"{printable(found['dataset'])}; {a.minutes:g} CPU minutes each",
    )  # fmt: skip
    for system in found["systems"]:
        reached = system["minutes_to_score"]
        table.add_row(
            system["system"], f"{system['steps']:,}",
            "not reached" if reached is None else f"{reached:.2f}",
            f"{system['scores'][-1]:.4g}", f"{max(system['scores']):.4g}",
        )  # fmt: skip
    console.print(table)
    return [found]


def _peers(threads: int, a: BenchArguments, console: Console) -> list[dict[str, Any]]:
    from pbrl.bench.peers import SETTINGS, compare

    names = [name for name in SETTINGS if a.only is None or a.only in name]
    if not names:
        raise PbrlError(f"No algorithm that d3rlpy has, too, contains '{a.only}' in its name.")
    rounds, seconds = (3, 1.0) if a.quick else (5 * a.rounds, a.seconds / 2)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        results = compare(
            names, a.peers_python, threads=threads, rounds=rounds, seconds=seconds,
            progress=progress,
        )  # fmt: skip
    versions = results[0]["versions"]["d3rlpy's"]
    table = Table(
        "algorithm", "networks, batch", "pbrl steps/s", "d3rlpy steps/s", "times as fast",
        "CPU ms a step", "times less",
        title=f"pbrl beside d3rlpy {versions['d3rlpy']}; torch {versions['torch']}, "
        f"{threads} threads",
    )  # fmt: skip
    for r in results:
        sizes = f"{' x '.join(map(str, r['hidden']))}, {r['batch_size']}"
        low, high = min(r["ratios"]), max(r["ratios"])
        table.add_row(
            r["algorithm"], sizes, f"{r['pbrl_steps_per_second']:.1f}",
            f"{r['d3rlpy_steps_per_second']:.1f}", f"{r['ratio']:.2f} ({low:.2f} to {high:.2f})",
            f"{r['pbrl_cpu_ms']:.2f}, {r['d3rlpy_cpu_ms']:.2f}", f"{r['cpu_ratio']:.2f}",
        )  # fmt: skip
    console.print(table)
    return results


def _rounds(names: list[str], threads: int, a: BenchArguments, kind: str) -> list[dict[str, Any]]:
    """Measure every variant once a round, so that slow minutes of the machine hit all alike."""
    rounds, seconds = (1, 2.0) if a.quick else (a.rounds, a.seconds)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with Progress(console=plain_console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=rounds * len(names))
        for _ in range(rounds):
            for name in names:
                progress.update(task, description=name)
                process = _start(name, threads, seconds, a.device, kind)
                found[name].append(answer_of(process, name))
                progress.advance(task)
    return [_median(measured) for measured in found.values()]


def _decisions(results: list[dict[str, Any]], console: Console) -> None:
    """Add to PBRL's and PBRL-Prior's figures what one decision of their export takes."""
    for r in results:
        if r["variant"] in ("pbrl N_ood=10", "pbrl-prior N_ood=10"):
            found = answer_of(_start(r["variant"], 1, 0.0, "cpu", "decision"), r["variant"])
            r |= {key: found[key] for key in ("decision_ms", "onnx_mb")}
            console.print(
                f"{r['variant'].split()[0]}: one decision by onnxruntime on one core "
                f"{r['decision_ms']:.2f} ms (median), file {r['onnx_mb']:.1f} MB",
            )


def _start(
    name: str, threads: int, seconds: float, device: str, kind: str
) -> subprocess.Popen[str]:
    by_name(name)
    words = [name, str(threads), str(seconds), device, kind]
    return begin(["-m", "pbrl.bench.worker", *words], threads)


def _median(measured: list[dict[str, Any]]) -> dict[str, Any]:
    out = dict(measured[0])
    for key, value in out.items():
        if isinstance(value, float):
            out[key] = float(np.median([m[key] for m in measured]))
    out["ms_per_round"] = [m["ms_per_step"] for m in measured]
    if out.get("gflop") and out.get("gemm_gflops"):
        out["steps_per_second"] = 1000 / out["ms_per_step"]
        fractions = [m["gflop"] / (m["ms_per_step"] / 1000) / m["gemm_gflops"] for m in measured]
        out["fraction_of_gemm"] = float(np.median(fractions))
    return out


def _print_table(results: list[dict[str, Any]], console: Console) -> None:
    rates = [r["gemm_gflops"] for r in results if not r["variant"].startswith("plain")]
    gemm = float(np.median(rates or [r["gemm_gflops"] for r in results]))
    threads = results[0]["threads"]
    table = Table(
        Column("variant", no_wrap=True), "ms/step", "steps/s", "GFLOP", "of GEMM", "peak MB",
        "param.",
        title=f"{threads} threads; GEMM rate in the same run {gemm:.0f} GFLOP/s",
        caption="ms/step is also seconds per 1000 steps",
    )  # fmt: skip
    for r in results:
        table.add_row(
            r["variant"], f"{r['ms_per_step']:.1f}", f"{r['steps_per_second']:.1f}",
            f"{r['gflop']:.2f}", f"{100 * r['fraction_of_gemm']:.0f} %",
            f"{r['peak_rss_mb']:.0f}", f"{r['parameters'] / 1e6:.2f} M",
        )  # fmt: skip
    console.print(table)
    times = {r["variant"]: r["ms_per_step"] for r in results}
    for name in times:
        plain = name.replace("pbrl ", "plain ")
        if plain != name and plain in times:
            ratio = times[plain] / times[name]
            console.print(f"{name}: {ratio:.2f} times as fast as {plain}")


def _scaling_names() -> list[str]:
    changes: list[dict[str, int]] = [{}]
    changes += [{"k": k} for k in (2, 5, 20)]
    changes += [{"n": n} for n in (1, 5, 10)]
    changes += [{"batch": b} for b in (64, 512, 1024)]
    changes += [{"width": w} for w in (64, 128, 512)]
    return [scaling_name(**c) for c in changes]


def _print_scaling(results: list[dict[str, Any]], console: Console) -> None:
    base = results[0]
    groups = {
        "K": slice(1, 4),
        "N_ood + 1": slice(4, 7),
        "batch": slice(7, 10),
        "width": slice(10, 13),
    }
    values = {"K": (10, 2, 5, 20), "N_ood + 1": (3, 2, 6, 11), "batch": (256, 64, 512, 1024),
              "width": (256, 64, 128, 512)}  # fmt: skip
    table = Table("what grows", "values", "ms/step", "fitted exponent")
    for name, rows in groups.items():
        chosen = [base, *results[rows]]
        order = np.argsort(values[name])
        x = np.array(values[name])[order]
        y = np.array([r["ms_per_step"] for r in chosen])[order]
        slope = float(np.polyfit(np.log(x), np.log(y), 1)[0])
        table.add_row(
            name, ", ".join(map(str, x)), ", ".join(f"{v:.1f}" for v in y), f"{slope:.2f}"
        )
    console.print(table)


def _parallel(threads: int, seconds: float) -> list[dict[str, Any]]:
    """Throughput of one run with all threads, of as many one-thread runs side by side, again."""
    name = "pbrl N_ood=2"
    out: list[dict[str, Any]] = []
    for runs, each in ((1, threads), (threads, 1), (1, 1)) * 2:
        processes = [_start(name, each, seconds * 3, "cpu", "step") for _ in range(runs)]
        measured = [answer_of(p, name) for p in processes]
        rate = sum(1000 / m["ms_per_step"] for m in measured)
        out.append({"runs": runs, "threads_each": each, "steps_per_second": rate})
    return out


def _print_parallel(results: list[dict[str, Any]], console: Console) -> None:
    table = Table("runs", "threads each", "steps/s in total")
    totals: dict[tuple[int, int], list[float]] = {}
    for r in results:
        totals.setdefault((r["runs"], r["threads_each"]), []).append(r["steps_per_second"])
    for (runs, each), rates in totals.items():
        table.add_row(str(runs), str(each), f"{np.mean(rates):.2f}")
    console.print(table)


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Bars of milliseconds a step, with the time the GEMM rate alone would allow."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.5 + 0.38 * len(results)), layout="constrained")
    axes = figure.subplots()
    for i, r in enumerate(results):
        limit = 1000 * r["gflop"] / r["gemm_gflops"]
        axes.barh(i, r["ms_per_step"], color="tab:blue" if "plain" not in r["variant"] else "0.6")
        axes.plot([limit, limit], [i - 0.4, i + 0.4], color="black")
        axes.text(r["ms_per_step"], i, f" {100 * r['fraction_of_gemm']:.0f} %", va="center")
    axes.set(yticks=range(len(results)), xlabel="ms a step (black: limit by the GEMM rate)")
    axes.set_yticklabels([r["variant"] for r in results])
    axes.invert_yaxis()
    axes.margins(x=0.1)  # room for the figures behind the bars
    write_figure(path, figure, dpi=120)
