"""Makes the embedded dataset ``demo`` again, from nothing: python scripts/make_demo_dataset.py

Trains SAC on InvertedDoublePendulum-v5 with ``pbrl data collect`` (10 to 20 minutes on one core),
then mixes two of its tiers into src/pbrl/data/embedded/demo.npz: all that SAC had seen until it was
a medium policy, and that policy's own episodes. No row comes from the expert; it is trained only to
know what can be reached (the 100 of normalised scores).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from pbrl.collect import Collected, collect
from pbrl.data.loading import open_source
from pbrl.data.recorder import Recorder

ENV_ID = "InvertedDoublePendulum-v5"
TIERS = ("medium-replay", "medium")
EMBEDDED = Path(__file__).resolve().parents[1] / "src/pbrl/data/embedded/demo.npz"


def make_tiers(directory: Path) -> list[Collected]:
    """The command ``pbrl data collect`` that src/pbrl/data/embedded/RECIPE.md names."""
    return collect(
        ENV_ID,
        TIERS,
        steps=12_000,
        train_steps=20_000,
        hidden=(64, 64),
        batch_size=128,
        learning_rate=1e-3,
        seed=0,
        out=directory,
        threads=1,
    )


def mix(tiers: list[Collected], path: Path) -> None:
    """Write the tiers one after the other, with the recipe they share."""
    opened = [open_source(tier.path).source for tier in tiers]
    first = opened[0].metadata
    recipe = {key: value for key, value in first.recipe.items() if key not in ("tier", "steps")}
    recipe["parts"] = {
        tier.tier: {"rows": tier.rows, "return_mean": tier.return_mean} for tier in tiers
    }
    metadata = replace(first, name="demo", source="demo", recipe=recipe)
    source = opened[0]
    with Recorder(
        path, source.observation_dim, source.action_dim, metadata=metadata, overwrite=True
    ) as recorder:
        for part in opened:
            recorder.append(part.read())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the embedded dataset again.")
    parser.add_argument("--work", type=Path, default=Path("demo-dataset"), help="for the tiers")
    parser.add_argument("--out", type=Path, default=EMBEDDED)
    options = parser.parse_args()
    mix(make_tiers(options.work), options.out)
    print(f"Wrote {options.out} ({options.out.stat().st_size / 1e6:.2f} MB).")
