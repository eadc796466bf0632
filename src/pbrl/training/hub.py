"""A run as model hubs expect one: weights, settings, a README with metadata, the ONNX file.

    model.safetensors   all networks
    config.json         settings, data and versions, without paths of the machine it was made on
    README.md           the model card, with its results as ``model-index``
    policy.onnx         the policy without torch

``load_agent`` reads such a directory as it reads a run.
"""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from pbrl.data.formats import stem_of
from pbrl.deploy.agent import Agent
from pbrl.deploy.episodes import ALPHA
from pbrl.deploy.export import ExportReport, export_onnx
from pbrl.errors import PbrlError
from pbrl.training.files import write_json, write_text
from pbrl.training.model_card import hub_card
from pbrl.training.run import CONFIG, WEIGHTS, Run


def write_hub_layout(
    run: Run, agent: Agent, directory: Path, *, guard: bool = True, alpha: float = ALPHA
) -> ExportReport:
    """Write ``directory``, complete or not at all; it must not be there yet, or be empty.

    Args:
        run: finished.
        agent: of one of its checkpoints.
        directory: to upload.
        guard: put the warning light into the ONNX file.
        alpha: at most this share of episodes like the log raises an alarm.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise PbrlError(f"{directory} is there already; give a directory that is new or empty.")
    card = hub_card(run, agent)
    scratch = directory.with_name(f".{directory.name}.tmp")
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        report = export_onnx(agent, scratch / "policy.onnx", guard=guard, alpha=alpha)
        weights = {
            name: value.detach().cpu().contiguous()
            for name, value in agent.algorithm.state_dict().items()
            if name.startswith("networks/")
        }
        save_file(weights, scratch / WEIGHTS, metadata={"format": "pt"})
        write_json(scratch / CONFIG, _without_places(run.info))
        write_text(scratch / "README.md", card)
        if directory.exists():
            directory.rmdir()
        os.replace(scratch, directory)
    except OSError as error:
        raise PbrlError(f"Cannot write {directory}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return report


def _without_places(info: dict[str, Any]) -> dict[str, Any]:
    """What ``config.json`` says, but for where things lay on this machine."""
    values = copy.deepcopy(info)
    values["config"]["run_dir"] = None
    for part, name in ((values["config"], "dataset"), (values["data"], "source")):
        if os.sep in str(part[name]):
            part[name] = stem_of(str(part[name]))
    if "finetune" in values:
        values["finetune"]["run"] = Path(values["finetune"]["run"]).name
    return values
