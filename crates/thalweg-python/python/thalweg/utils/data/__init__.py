"""Batches of samples (`torch.utils.data`), made in the program's own thread."""

from .dataloader import DataLoader, default_collate, default_convert, get_worker_info
from .dataset import ChainDataset, ConcatDataset, Dataset, IterableDataset, StackDataset, Subset, TensorDataset, random_split
from .distributed import DistributedSampler
from .sampler import (
    BatchSampler, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)

_LEFT_OUT = dict.fromkeys((
    "IterDataPipe", "MapDataPipe", "DFIterDataPipe", "DataChunk", "functional_datapipe", "argument_validation", "runtime_validation",
    "guaranteed_datapipes_determinism", "non_deterministic"), "there are no pipes of data: say `Dataset` or `IterableDataset`")


def __getattr__(name):
    if name in _LEFT_OUT:
        raise AttributeError(f"thalweg.utils.data.{name} is left out: {_LEFT_OUT[name]}")
    raise AttributeError(f"module 'thalweg.utils.data' has no attribute '{name}'")
