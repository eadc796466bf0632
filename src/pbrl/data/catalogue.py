"""The D4RL datasets pbrl knows by name: where they are, how large, and their checksums.

All 15 Gym v2 sets and the 24 Adroit v0 and v1 sets. PBRL's Adroit results are on v0.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

from pbrl.envs.tasks import ENVIRONMENTS, KnownEnvironment

HOST = "http://rail.eecs.berkeley.edu/datasets/offline_rl"


@dataclass(frozen=True)
class CatalogueEntry:
    """One official D4RL file.

    Attributes:
        name: D4RL's name, e.g. ``hopper-medium-v2``.
        file: its place under D4RL's host or a mirror of it.
        size: bytes.
        sha256: of the whole file.
        environment: its task, with environment id and reference scores.
    """

    name: str
    file: str
    size: int
    sha256: str
    environment: KnownEnvironment

    def url(self, mirror: str | None = None) -> str:
        """Where to download it, from ``mirror`` if given."""
        return f"{(mirror or HOST).rstrip('/')}/{self.file}"


@cache
def catalogue() -> dict[str, CatalogueEntry]:
    """All entries by name."""
    text = (resources.files("pbrl.data") / "catalogue.tsv").read_text()
    entries = [
        CatalogueEntry(
            row["name"],
            row["file"],
            int(row["bytes"]),
            row["sha256"],
            ENVIRONMENTS[row["name"].split("-")[0]],
        )
        for row in csv.DictReader(text.splitlines(), delimiter="\t")
    ]
    return {entry.name: entry for entry in entries}
