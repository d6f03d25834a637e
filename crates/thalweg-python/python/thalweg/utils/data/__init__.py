"""Batches of samples (`torch.utils.data`), made in the program's own thread."""

from ..._left_out import attributes as _attributes
from .dataloader import DataLoader, default_collate, default_convert, get_worker_info
from .dataset import ChainDataset, ConcatDataset, Dataset, IterableDataset, StackDataset, Subset, TensorDataset, random_split
from .distributed import DistributedSampler
from .sampler import (
    BatchSampler, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)



def functional_datapipe(name, enable_df_api_tracing=False):
    """Returns a decorator that leaves its class as it is: there are no pipes of data."""
    return lambda cls: cls


__getattr__ = _attributes(__name__)
