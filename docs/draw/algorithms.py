"""Draws docs/images/algorithms/NAME.png: ``python docs/draw/algorithms.py [NAME ...]``.

Every algorithm learns the same task of one step and one action from the same 2,000 rows, with small
networks. Two habits made the log, one common and worse, one rare and better; the best action lies
beyond both. The picture shows what the trained algorithm believes along the axis of actions.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from pbrl.algorithms import ALGORITHMS, Algorithm
from pbrl.data import DatasetInfo, TrainingData, TransitionDataset
from pbrl.training.config import make_config

OUT = Path(__file__).parent.parent / "images" / "algorithms"
ROWS, STEPS = 2000, 3000
# Slopes along one action have no angle between them, a model that imagines needs later steps, and
# ablations are PBRL until a setting says otherwise.
NO_PICTURE = ("edac", "mopo", "pbrl-ablations")
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#666666"


def reward(actions: np.ndarray) -> np.ndarray:
    """1 at the best action, 0.6; falls with the square of the distance."""
    return 1 - (actions - 0.6) ** 2


def log() -> TransitionDataset:
    """70 % of the actions around -0.5, 30 % around 0.2; rewards with noise of 0.1."""
    rng = np.random.default_rng(0)
    centres = np.where(rng.uniform(size=ROWS) < 0.7, -0.5, 0.2)
    actions = np.clip(rng.normal(centres, 0.1), -1, 1).astype(np.float32)
    rewards = (reward(actions) + rng.normal(0, 0.1, ROWS)).astype(np.float32)
    states = rng.uniform(-1, 1, (2, ROWS, 1)).astype(np.float32)
    ends = np.ones(ROWS, np.bool_)
    info = DatasetInfo("one-step")
    return TransitionDataset(states[0], actions[:, None], rewards, states[1], ends, ends, info)


def train(name: str, data: TrainingData) -> Algorithm:
    """The demo preset with these few settings more, so that a minute is enough."""
    config = make_config(name, "demo", "one-step", steps=STEPS, batch_size=128)
    algorithm = ALGORITHMS[name](config.settings, seed=0, total_steps=STEPS)
    algorithm.prepare(data)
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        algorithm.update(data.sample(128, generator))
    return algorithm


def draw(name: str, algorithm: Algorithm, data: TrainingData) -> Figure:
    """Reward, belief with its uncertainty, logged actions and the policy's action, at s = 0."""
    actions = np.linspace(-1, 1, 201, dtype=np.float32)
    state = torch.zeros(len(actions), 1)
    figure = Figure(figsize=(6.2, 3.0), layout="constrained")
    axis = figure.subplots()
    axis.plot(actions, reward(actions), "--", color=GREY, label="true reward")
    if algorithm.has_critics:
        q = algorithm.q_values(state, torch.from_numpy(actions)[:, None])
        u = algorithm.uncertainty(state, torch.from_numpy(actions)[:, None]).numpy()
        mean = q.mean(0).numpy()
        axis.plot(actions, mean, color=BLUE, label="Q, mean of the critics")
        axis.fill_between(actions, mean - u, mean + u, color=BLUE, alpha=0.25, label="± U")
    chosen = float(algorithm.act(torch.zeros(1, 1))[0, 0])
    axis.axvline(chosen, color=ORANGE, label=f"policy: {chosen:.2f}")
    axis.set(xlabel="action", ylabel="value", xlim=(-1, 1), ylim=(-2.2, 1.6))
    counts = axis.twinx()
    counts.hist(data.dataset.actions[:, 0], bins=60, range=(-1, 1), color=GREY, alpha=0.35)
    counts.set(ylim=(0, 1200), yticks=[])
    axis.legend(fontsize=8, loc="upper left", ncols=2)
    axis.set_title(f"{name}: 2,000 logged actions (grey), {STEPS:,} steps", fontsize=10)
    return figure


def main(names: list[str]) -> None:
    """Draw the named algorithms, or all."""
    OUT.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    data = TrainingData(log())
    for name in names or [name for name in ALGORITHMS if name not in NO_PICTURE]:
        draw(name, train(name, data), data).savefig(OUT / f"{name}.png", dpi=90)
        print(OUT / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
