"""The experiments behind ``pbrl theory``, a module each: ``run(seed)`` measures, ``draw`` draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pbrl.theory.experiments import corollary1, lemma1, lemma2, ood, theorem1
from pbrl.theory.experiments.claims import Claim, Experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXPERIMENTS: dict[str, tuple[Callable[[int], Experiment], Callable[[Experiment], Figure]]] = {
    "lemma1": (lemma1.run, lemma1.draw),
    "lemma2": (lemma2.run, lemma2.draw),
    "ood": (ood.run, ood.draw),
    "theorem1": (theorem1.run, theorem1.draw),
    "corollary1": (corollary1.run, corollary1.draw),
}

__all__ = ["EXPERIMENTS", "Claim", "Experiment"]
