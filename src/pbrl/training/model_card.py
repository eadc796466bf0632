"""MODEL_CARD.md: what a finished run is, in the layout people know from model hubs.

Everything in it comes from the run itself: ``config.json``, ``summary.json`` and the metrics.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from pbrl.deploy.agent import Agent
from pbrl.errors import PbrlError, printable
from pbrl.training.files import write_text
from pbrl.training.run import Run

MODEL_CARD = "MODEL_CARD.md"
NAMES = {"Observations": "observation_names", "Actions": "action_names"}  # in their order
PROFILE = {"data": "logged actions", "policy": "the policy's actions", "random": "random actions"}


def write_model_card(run: Run | str | Path, agent: Agent | None = None) -> Path:
    """Write ``MODEL_CARD.md`` into a finished run.

    Args:
        run: the run or its directory.
        agent: its agent where it is at hand, to count parameters; loaded when omitted.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    summary = run.summary
    if summary is None:
        raise PbrlError(f"{run.path} is not finished; its model card is written at the end.")
    agent = agent or run.agent()
    path = run.path / MODEL_CARD
    write_text(path, _card(run, summary, agent))
    return path


def hub_card(run: Run, agent: Agent) -> str:
    """The card as the README.md of a directory for a model hub (``pbrl.training.hub``)."""
    summary = run.summary
    if summary is None:
        raise PbrlError(f"{run.path} is not finished; a hub wants finished runs.")
    how = (
        "## How to use it\n\n"
        "    import pbrl\n"
        '    agent = pbrl.load_agent("DIRECTORY")   # model.safetensors and config.json\n'
        "    action = agent.act(observation)\n\n"
        "Or without torch, from the ONNX file, with its warning light where one is inside:\n\n"
        "    from pbrl.deploy import OnnxPolicy\n"
        '    decision = OnnxPolicy("DIRECTORY/policy.onnx").decide(observation)\n'
    )
    return _card(run, summary, agent, how)


def _card(run: Run, summary: dict[str, Any], agent: Agent, how: str | None = None) -> str:
    info, data = run.info, run.info["data"]
    algorithm, environment = info["config"]["algorithm"], data["env_id"]
    networks = agent.algorithm.networks()
    count = sum(p.numel() for n in networks.values() for p in n.parameters())
    title = f"{algorithm} on {_quoted(data['name'])}"
    sections = [
        _front_matter(run, summary),
        f"# {title}\n",
        _details(run, summary, count),
        _uses(run, agent),
        _data(run),
        _training(run),
        _results(run, summary),
        _uncertainty(summary),
        _limits(run, summary, agent),
        _how(run, environment) if how is None else how,
    ]
    return "\n".join(sections)


def _front_matter(run: Run, summary: dict[str, Any]) -> str:
    data, algorithm = run.info["data"], run.info["config"]["algorithm"]
    lines = [
        "---",
        "library_name: pbrl",
        "tags: [reinforcement-learning, offline-reinforcement-learning, " + algorithm + "]",
        f"datasets: [{json.dumps(data['name'])}]",
    ]
    last, environment = summary.get("last_evaluation"), json.dumps(data["env_id"])
    if last:
        lines += [
            "model-index:",
            f"- name: {json.dumps(algorithm)}",
            "  results:",
            "  - task: {type: reinforcement-learning, name: reinforcement-learning}",
            f"    dataset: {{name: {environment}, type: {environment}}}",
            "    metrics:",
            "    - {type: mean_reward, name: mean_reward, verified: false,",
            f'       value: "{last["return_mean"]:.2f} +/- {last["return_std"]:.2f}"}}',
        ]
    return "\n".join([*lines, "---", ""])


def _details(run: Run, summary: dict[str, Any], count: int) -> str:
    versions = ", ".join(f"{name} {v}" for name, v in run.info["versions"].items())
    rows = {
        "Algorithm": run.info["config"]["algorithm"],
        "Gradient steps": f"{summary['steps']:,}",
        "Seed": summary["seed"],
        "Numbers in all networks": f"{count:,} (targets and fixed networks included)",
        "Software": versions,
        "Source revision": run.info["git_revision"] or "not recorded",
        "Device": f"{run.info['device']}, {run.info['threads']} threads",
    }
    origin = run.info.get("finetune")
    if origin:
        rows["Fine-tuned online from"] = f"{_quoted(origin['run'])} at step {origin['step']:,}"
    return "## Model details\n\n" + _table(("what", "value"), list(rows.items()))


def _uses(run: Run, agent: Agent) -> str:
    data = run.info["data"]
    place = _code(data["env_id"]) if data["env_id"] else "the system the data were logged in"
    critics = (
        "Its critics also say how far they disagree (the uncertainty U), at every decision."
        if agent.algorithm.has_critics
        else "It has no critics, so it gives neither values nor an uncertainty of its own."
    )
    return (
        "## Intended use\n\n"
        f"A policy for {place}: {data['observation_dim']} numbers in, {data['action_dim']} out, in "
        f"the units of the log. {critics} It is meant for the conditions under which the data were "
        "logged. Not for any use where a wrong action can hurt somebody, unless an independent "
        "safety system stands behind it.\n"
    )


def _data(run: Run) -> str:
    data = run.info["data"]
    rows = [
        ("Name", _quoted(data["name"])),
        ("Transitions", f"{data['transitions']:,}"),
        ("Mean return of the logged episodes", f"{data['behaviour_return_mean']:.2f}"),
        *((what, _names(data[key])) for what, key in NAMES.items() if data.get(key)),
        ("SHA-256 of the transitions", f"`{data['fingerprint']}`"),
    ]
    notes = "".join(f"\n- {_quoted(note)}" for note in data["notes"])
    return (
        "## Training data\n\n" + _table(("what", "value"), rows) + (notes + "\n" if notes else "")
    )


def _names(columns: list[str]) -> str:
    return ", ".join(map(_code, columns))


def _training(run: Run) -> str:
    config = dict(run.info["config"])
    settings = config.pop("settings")
    keep = ("preset", "normalize_observations", "normalize_rewards", "steps")
    rows = [(name, config[name]) for name in keep] + sorted(settings.items())
    cells = [(name, _code(json.dumps(value))) for name, value in rows]
    return "## Settings\n\n" + _table(("setting", "value"), cells)


def _results(run: Run, summary: dict[str, Any]) -> str:
    last = summary.get("last_evaluation")
    head = "## Results\n\n"
    if not last:
        return head + (
            "Never played in an environment. `pbrl ope` estimates its value from logged data.\n"
        )
    rows = [
        ("return", f"{last['return_mean']:.1f} ± {last['return_std']:.1f}"),
        ("episode length", f"{last['length_mean']:.0f}"),
    ]
    if "score_mean" in last:
        source = _quoted(run.info["data"]["score_source"] or "reference")
        score = f"{last['score_mean']:.1f} ± {last['score_std']:.1f}"
        rows.insert(0, (f"normalised score ({source})", score))
    table = _table((f"last step, {int(last['episodes'])} episodes", "mean ± deviation"), rows)
    best = summary["best_evaluation"]
    returns = [float(r["return_mean"]) for r in run.metrics() if r["kind"] == "eval"]
    tail = returns[-10:]
    return (
        head + table + "\nThe deviation is over episodes of this one run, not over seeds. Best of "
        f"{len(returns)} evaluations: {best['return_mean']:.1f} at step {best['step']:,} (choosing "
        f"that one would be choosing by luck); mean of the last {len(tail)}: {np.mean(tail):.1f}.\n"
    )


def _uncertainty(summary: dict[str, Any]) -> str:
    training = summary.get("last_training") or {}
    kinds = [kind for kind in PROFILE if f"u_{kind}" in training]
    if not kinds:
        return (
            "## Uncertainty profile\n\n"
            "This algorithm has no critics whose disagreement could be measured.\n"
        )
    rows = [
        (PROFILE[kind], f"{training[f'u_{kind}']:.4g}", f"{training[f'q_{kind}']:.4g}")
        for kind in kinds
    ]
    table = _table(("actions at logged states", "mean U", "mean Q"), rows)
    u = {kind: float(training[f"u_{kind}"]) for kind in kinds}
    ratio = u["random"] / max(u["data"], 1e-12) if {"random", "data"} <= u.keys() else float("nan")
    return (
        "## Uncertainty profile\n\n"
        + table
        + "\nMeans over one minibatch at the last step, in units of the reward. Random actions "
        f"are {ratio:.1f} times as uncertain as logged ones.\n"
    )


def _limits(run: Run, summary: dict[str, Any], agent: Agent) -> str:
    lines = [
        "Learned from logged data: where the log has nothing, neither policy nor values mean much.",
        "Q-values are pessimistic estimates of the discounted return, not forecasts of it.",
        "One training seed; other seeds give other policies.",
    ]
    last, behaviour = summary.get("last_evaluation"), summary["behaviour_return_mean"]
    if last and last["return_mean"] < behaviour:
        lines.append(
            f"Its return ({last['return_mean']:.1f}) is below that of the logged behaviour "
            f"({behaviour:.1f})."
        )
    if not last:
        lines.append("Its return in the real system is unknown.")
    if agent.algorithm.has_critics:
        lines.append(
            "U alone is a weak warning light; use the guard (`agent.guard`, `pbrl export`), and "
            "read in the documentation what it cannot see."
        )
    return "## Limits\n\n" + "".join(f"- {line}\n" for line in lines)


def _from_here(path: Path) -> Path:
    """The run as its trainer reached it; cards travel, and tell no machine's directories."""
    here = Path.cwd()
    whole = path.resolve()
    return whole.relative_to(here) if whole.is_relative_to(here) else Path(path.name)


def _how(run: Run, environment: str | None) -> str:
    place, size = printable(str(_from_here(run.path))), run.info["data"]["observation_dim"]
    evaluate = f"pbrl evaluate {shlex.quote(place)}\n" if environment else ""
    return (
        "## How to use it\n\n"
        "```python\n"
        "import pbrl\n\n"
        f"agent = pbrl.load_agent({place!r})\n"
        f"observation = [0.0] * {size}  # yours, in the order of the table above\n"
        "action = agent.act(observation)\n"
        "reading = agent.guard(observation)  # action, uncertainty, percentile, alarm\n"
        "```\n\n"
        "```bash\n"
        f"pbrl export {shlex.quote(place)} policy.onnx\n{evaluate}"
        "```\n"
    )


def _quoted(words: str) -> str:
    """Words of a file as plain text: on one line, no HTML, and no Markdown but its own letters."""
    line = html.escape(printable(" ".join(words.split())), quote=False)
    return re.sub(r"([\\`*\[\]])", r"\\\1", line)


def _code(words: str) -> str:
    """Words of a file between backticks, which they cannot leave."""
    return "`" + printable(words).replace("`", "'") + "`"


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    def line(cells: Any) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"

    return line(head) + line("---" for _ in head) + "".join(line(row) for row in rows)
