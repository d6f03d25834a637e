"""Datasets: samples by index, or one after another (`torch.utils.data.dataset`)."""

import bisect
import itertools
import math
import types

from ... import _core
from .sampler import _place_of


class Dataset:
    """Samples by index. Subclasses implement `__getitem__` and `__len__`."""

    __class_getitem__ = classmethod(types.GenericAlias)

    def __getitem__(self, index):
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __add__(self, other):
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """Samples one after another. Subclasses implement `__iter__`."""

    def __iter__(self):
        raise NotImplementedError(f"{type(self).__name__} has no `__iter__`: a subclass of IterableDataset has one")

    def __add__(self, other):
        return ChainDataset([self, other])


class TensorDataset(Dataset):
    """The rows of tensors."""

    def __init__(self, *tensors):
        if any(tensor.shape[0] != tensors[0].shape[0] for tensor in tensors):
            raise AssertionError("Size mismatch between tensors")
        self.tensors = tensors

    def __getitem__(self, index):
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self):
        return self.tensors[0].shape[0]


def _taken(dataset, numbers, is_nested=False):
    """Returns the samples of a dataset at the given indices, with one call if the dataset supports that."""
    if not callable(getattr(dataset, "__getitems__", None)):
        return [dataset[number] for number in numbers]
    samples = dataset.__getitems__(numbers)
    if is_nested and len(samples) != len(numbers):
        raise ValueError(f"Nested dataset's output size mismatch. Expected {len(numbers)}, got {len(samples)}")
    return samples


class StackDataset(Dataset):
    """Samples of several datasets combined: tuples, or dictionaries if the datasets have names."""

    def __init__(self, *args, **kwargs):
        if args and kwargs:
            raise ValueError("Supported either ``tuple``- (via ``args``) or ``dict``- (via ``kwargs``) like input/output, but both types are given.")
        if not (args or kwargs):
            raise ValueError("At least one dataset should be passed")
        self.datasets = args or kwargs
        lengths = {len(dataset) for dataset in args or kwargs.values()}
        if len(lengths) > 1:
            raise ValueError("Size mismatch between datasets")
        self._length = lengths.pop()

    def __getitem__(self, index):
        if isinstance(self.datasets, dict):
            return {name: dataset[index] for name, dataset in self.datasets.items()}
        return tuple(dataset[index] for dataset in self.datasets)

    def __getitems__(self, indices):
        """Returns the samples at several indices."""
        if isinstance(self.datasets, dict):
            parts = zip(*(_taken(dataset, indices, is_nested=True) for dataset in self.datasets.values()))
            return [dict(zip(self.datasets, sample)) for sample in parts]
        return list(zip(*(_taken(dataset, indices, is_nested=True) for dataset in self.datasets)))

    def __len__(self):
        return self._length


class ConcatDataset(Dataset):
    """Several datasets, concatenated."""

    @staticmethod
    def cumsum(sequence):
        """Returns the numbers of samples up to the end of each dataset."""
        return list(itertools.accumulate(map(len, sequence)))

    def __init__(self, datasets):
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets should not be an empty iterable")
        if any(isinstance(dataset, IterableDataset) for dataset in self.datasets):
            raise AssertionError("ConcatDataset does not support IterableDataset")
        self.cumulative_sizes = self.cumsum(self.datasets)

    def __getitem__(self, index):
        count = len(self)
        if index < -count:
            raise ValueError("absolute value of index should not exceed dataset length")
        if index >= count:
            raise IndexError(f"ConcatDataset has {count} samples, and none of number {index}")
        index %= count
        place = bisect.bisect_right(self.cumulative_sizes, index)
        return self.datasets[place][index - (self.cumulative_sizes[place - 1] if place else 0)]

    def __len__(self):
        return self.cumulative_sizes[-1]


class ChainDataset(IterableDataset):
    """Several datasets without indices, one after another."""

    def __init__(self, datasets):
        self.datasets = datasets

    def __iter__(self):
        return itertools.chain.from_iterable(map(self._checked, self.datasets))

    def _checked(self, dataset):
        if not isinstance(dataset, IterableDataset):
            raise AssertionError("ChainDataset only supports IterableDataset")
        return dataset

    def __len__(self):
        return sum(len(dataset) for dataset in self.datasets)


class Subset(Dataset):
    """Some samples of another dataset."""

    def __init__(self, dataset, indices):
        self.dataset, self.indices = dataset, indices
        own = type(self)
        if own.__getitem__ is not Subset.__getitem__ and own.__getitems__ is Subset.__getitems__:
            raise NotImplementedError(f"{own.__name__} overrides __getitem__ but not __getitems__, by which DataLoader takes samples")

    def __getitem__(self, index):
        if isinstance(index, list):
            return self.dataset[[self.indices[place] for place in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices):
        """Returns the samples at several indices."""
        return _taken(self.dataset, [self.indices[place] for place in indices])

    def __len__(self):
        return len(self.indices)


def random_split(dataset, lengths, generator=None):
    """Returns random parts of a dataset, by numbers of samples or by fractions that sum to 1."""
    count, lengths = len(dataset), list(lengths)
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1 and all(0 <= length <= 1 for length in lengths):
        lengths = [math.floor(count * fraction) for fraction in lengths]
        for place in range(count - sum(lengths)):
            lengths[place % len(lengths)] += 1
    if sum(lengths) != count:
        raise ValueError("Sum of input lengths does not equal the length of the input dataset!")
    order = _core.randperm(count, **_place_of(generator)).tolist()
    ends = list(itertools.accumulate(lengths))
    return [Subset(dataset, order[end - length:end]) for end, length in zip(ends, lengths)]
