"""The paper's tables and figures: what to run, and how to draw it, as data.

What other packages need to bring a figure of their own is listed here.
"""

from pbrl.experiments.collect_results import Curve, RunResult, group, over_seeds
from pbrl.experiments.definitions import Experiment, Variant
from pbrl.experiments.drawings import Drawn, markdown
from pbrl.experiments.figures import draw_curves, new_figure

__all__ = [
    "Curve",
    "Drawn",
    "Experiment",
    "RunResult",
    "Variant",
    "draw_curves",
    "group",
    "markdown",
    "new_figure",
    "over_seeds",
]
