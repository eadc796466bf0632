"""Algorithms by name."""

from importlib.metadata import EntryPoint, entry_points

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
from pbrl.errors import PbrlError, unknown_name

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


ENTRY_POINTS = "pbrl.algorithms"


def algorithm_class(name: str) -> type[Algorithm]:
    """The algorithm called ``name``, or an error that suggests the nearest one.

    Installed packages bring theirs by entry points of the group ``pbrl.algorithms``, named as the
    algorithms are; one is imported when its name is asked for.
    """
    if name not in ALGORITHMS:
        brought = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
        if name not in brought:
            raise unknown_name("algorithm", name, [*ALGORITHMS, *brought])
        ALGORITHMS[name] = _load(brought[name])
    return ALGORITHMS[name]


def _load(entry: EntryPoint) -> type[Algorithm]:
    """The class behind an entry point; anything else is refused."""
    where = f"The algorithm '{entry.name}' of an installed package ({entry.value})"
    try:
        found = entry.load()
    except Exception as error:  # whatever a stranger's module does on import
        raise PbrlError(f"{where} cannot be loaded: {type(error).__name__}: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise PbrlError(f"{where} is not a subclass of pbrl.algorithms.Algorithm.")
    if found.name != entry.name:
        raise PbrlError(f"{where} calls itself '{found.name}'; both names must be the same.")
    return found


__all__ = ["ALGORITHMS", "Algorithm", "AlgorithmConfig", "algorithm_class"]
