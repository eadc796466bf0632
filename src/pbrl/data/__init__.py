"""Logged data: files and Minari -> one checked form, minibatches, normalisation, the store."""

from pbrl.data.dataset import DatasetInfo, TransitionDataset
from pbrl.data.loading import load_dataset
from pbrl.data.preprocessing import Preprocessing
from pbrl.data.training_data import Batch, TrainingData

__all__ = [
    "Batch",
    "DatasetInfo",
    "Preprocessing",
    "TrainingData",
    "TransitionDataset",
    "load_dataset",
]
