"""Batches of samples (`torch.utils.data`), which are created in the program's own thread."""

from ..._left_out import attributes as _attributes
from .dataloader import DataLoader, default_collate, default_convert, get_worker_info
from .dataset import ChainDataset, ConcatDataset, Dataset, IterableDataset, StackDataset, Subset, TensorDataset, random_split
from .distributed import DistributedSampler
from .sampler import (
    BatchSampler, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)



def functional_datapipe(name, enable_df_api_tracing=False):
    """Returns a decorator that returns its class unchanged: there are no data pipes."""
    return lambda cls: cls


__getattr__ = _attributes(__name__)
