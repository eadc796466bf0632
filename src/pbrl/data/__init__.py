"""Logged data: files and Minari -> one checked form, minibatches, normalisation, the store."""

from pbrl.data.convert import convert
from pbrl.data.dataset import DatasetInfo, TransitionDataset
from pbrl.data.loading import load_dataset
from pbrl.data.preprocessing import Preprocessing
from pbrl.data.recorder import EpisodeRecorder, Recorder
from pbrl.data.training_data import Batch, TrainingData

__all__ = [
    "Batch",
    "DatasetInfo",
    "EpisodeRecorder",
    "Preprocessing",
    "Recorder",
    "TrainingData",
    "TransitionDataset",
    "convert",
    "load_dataset",
]
