"""Fig. 1a: ten networks, sixty points in the plane, and how the networks' disagreement grows.

The covariates are standard Gaussian, the responses come from a random network, and the ten networks
differ by their initial weights alone, as in the paper. This is the full size; it takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pbrl.nn.ensemble import EnsembleMLP

MEMBERS, POINTS = 10, 60
HIDDEN = (50, 50)
STEPS, LEARNING_RATE = 1000, 5e-3
EXTENT, RESOLUTION = 6.0, 81
# "Far outside" is further from the origin than this; the points' radius is 1.25 on average.
FAR = 5.0

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ToyResult:
    """What the ten networks say about the plane.

    Attributes:
        points: ``[60, 2]``, the training inputs.
        targets: ``[60]``.
        axis: ``[R]``, the coordinates of the map in both directions.
        uncertainty: ``[R, R]``, U at ``(axis[column], axis[row])``.
        at_points: mean U at the training inputs.
        far_outside: mean U over the map beyond radius 5.
        fit_error: root mean squared error of the networks' mean at the training inputs.
    """

    points: Floats
    targets: Floats
    axis: Floats
    uncertainty: Floats
    at_points: float
    far_outside: float
    fit_error: float

    @property
    def ratio(self) -> float:
        """Mean U far outside over mean U at the points."""
        return self.far_outside / self.at_points

    def by_radius(self, width: float = 1.0) -> list[tuple[float, float]]:
        """(distance from the origin, mean U there), ring by ring."""
        x, y = np.meshgrid(self.axis, self.axis)
        ring = (np.hypot(x, y) / width).astype(int)
        rings = range(int(EXTENT / width))
        return [((i + 0.5) * width, float(self.uncertainty[ring == i].mean())) for i in rings]


def fig1a(seed: int = 0) -> ToyResult:
    """Fit the ten networks and map their disagreement."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(POINTS, 2, generator=generator)
    teacher = EnsembleMLP(1, 2, HIDDEN, init="torch", head_bound=None, generator=generator)
    targets = teacher.values(points)[0]
    # Unit variance, so that one learning rate suits every seed.
    targets = (targets - targets.mean()) / targets.std()

    networks = EnsembleMLP(MEMBERS, 2, HIDDEN, init="torch", head_bound=None, generator=generator)
    optimizer = torch.optim.Adam(networks.parameters(), lr=LEARNING_RATE, fused=True)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        loss = (networks(points) - targets).square().mean(1).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()

    axis = torch.linspace(-EXTENT, EXTENT, RESOLUTION)
    grid = torch.cartesian_prod(axis, axis).flip(1)  # rows of the map are y, columns x
    spread = networks.values(grid).std(0, correction=0).double().numpy()  # Eq. 3
    predictions = networks.values(points)
    far = np.hypot(*grid.numpy().T) > FAR
    return ToyResult(
        points=points.double().numpy(),
        targets=targets.double().numpy(),
        axis=axis.double().numpy(),
        uncertainty=spread.reshape(RESOLUTION, RESOLUTION),
        at_points=float(predictions.std(0, correction=0).mean()),
        far_outside=float(spread[far].mean()),
        fit_error=float((predictions.mean(0) - targets).square().mean().sqrt()),
    )
