"""The presets of PBRL and PBRL-Prior."""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]

ADROIT: Settings = {
    "beta_in": 1e-4,
    "beta_ood_schedule": "constant",
    "beta_ood": 0.01,
    "ood_next_weight": 0.01,  # with authors_code
}
# What the authors' code has instead of both 0.01, at s and at s'. Of the sets not named here it is
# 0.01 twice, as everywhere in the paper.
AUTHORS_ADROIT = {
    "pen-human": (0.001, 0.001),
    "pen-expert": (0.4, 0.1),
    "hammer-expert": (0.4, 0.1),
    "door-expert": (0.2, 0.1),
    "relocate-expert": (0.4, 0.2),
}
SHORT: Settings = {
    "n_ood": 2,
    "tau": 0.01,
    "critic_lr": 1e-3,
    "actor_lr": 3e-4,
    "alpha_lr": 1e-3,
}

PRESETS: dict[str, Settings] = {
    "paper": {},
    "adroit": ADROIT,
    "adroit-authors": {**ADROIT, "authors_code": True, "prior_moves": True},
    # Smaller and quicker; no equation changes.
    "fast": {**SHORT, "ensemble_size": 5, "hidden": (256, 256), "policy_hidden": (256, 256)},
    "demo": {
        **SHORT,
        "hidden": (64, 64),
        "policy_hidden": (64, 64),
        "batch_size": 128,
        "gamma": 0.98,
        "critic_lr": 3e-3,
    },
}
PRESETS_BY_DATASET: dict[str, dict[str, Settings]] = {
    "adroit-authors": {
        name: {"beta_ood": at_s, "ood_next_weight": at_next}
        for name, (at_s, at_next) in AUTHORS_ADROIT.items()
    }
}
PRESET_NOTES = {
    "fast": "The preset fast of pbrl is the paper's method made smaller; for an hour without a GPU "
    "--algorithm pbrl-anchored is the better choice.",
}
