"""Algorithms by name."""

from pbrl.algorithms.base import Algorithm, AlgorithmConfig
from pbrl.algorithms.bc import BC
from pbrl.algorithms.bear import BEAR
from pbrl.algorithms.cql import CQL
from pbrl.algorithms.edac import EDAC
from pbrl.algorithms.iql import IQL
from pbrl.algorithms.mopo import MOPO
from pbrl.algorithms.pbrl import PBRL, PBRLPrior
from pbrl.algorithms.pbrl_ablations import PBRLAblations
from pbrl.algorithms.pbrl_anchored import PBRLAnchored
from pbrl.algorithms.rebrac import ReBRAC
from pbrl.algorithms.sac_n import SACN
from pbrl.algorithms.td3bc import TD3BC
from pbrl.algorithms.uwac import UWAC
from pbrl.errors import unknown_name

_CLASSES: tuple[type[Algorithm], ...] = (
    PBRL,
    PBRLPrior,
    PBRLAnchored,
    PBRLAblations,
    BC,
    TD3BC,
    ReBRAC,
    IQL,
    SACN,
    EDAC,
    CQL,
    BEAR,
    UWAC,
    MOPO,
)
ALGORITHMS: dict[str, type[Algorithm]] = {algorithm.name: algorithm for algorithm in _CLASSES}


def algorithm_class(name: str) -> type[Algorithm]:
    """The algorithm called ``name``, or an error that suggests the nearest one."""
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


__all__ = ["ALGORITHMS", "Algorithm", "AlgorithmConfig", "algorithm_class"]
