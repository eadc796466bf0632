"""Logged data: files and Minari -> one checked form, minibatches, normalisation, the store."""

from typing import TYPE_CHECKING, Any

from pbrl.data.convert import convert
from pbrl.data.dataset import DatasetInfo, TransitionDataset
from pbrl.data.formats import Format, Reading, RowWriter, register_format
from pbrl.data.loading import load_dataset
from pbrl.data.preprocessing import Preprocessing
from pbrl.data.rows import Metadata, Rows, RowSource
from pbrl.data.training_data import Batch, TrainingData
from pbrl.data.validate import source_of_arrays

if TYPE_CHECKING:
    from pbrl.data.recorder import EpisodeRecorder, Recorder

__all__ = [
    "Batch",
    "DatasetInfo",
    "EpisodeRecorder",
    "Format",
    "Metadata",
    "Preprocessing",
    "Reading",
    "Recorder",
    "RowSource",
    "RowWriter",
    "Rows",
    "TrainingData",
    "TransitionDataset",
    "convert",
    "load_dataset",
    "register_format",
    "source_of_arrays",
]


def __getattr__(name: str) -> Any:
    """The recorder wraps Gymnasium environments; training from logs must not need Gymnasium."""
    if name in ("EpisodeRecorder", "Recorder"):
        from pbrl.data import recorder

        return getattr(recorder, name)
    raise AttributeError(f"module 'pbrl.data' has no attribute '{name}'")
