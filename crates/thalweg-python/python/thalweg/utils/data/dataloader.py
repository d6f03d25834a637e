"""Batches out of datasets (`torch.utils.data.dataloader`)."""

import collections.abc
import types

from ... import _core
from .dataset import IterableDataset
from .sampler import BatchSampler, RandomSampler, SequentialSampler


def default_convert(data):
    """Returns a sample with arrays of NumPy as tensors, part by part."""
    if isinstance(data, _core.Tensor) or isinstance(data, (str, bytes)):
        return data
    if hasattr(data, "__array_interface__"):
        return _core.tensor(data)
    if isinstance(data, collections.abc.Mapping):
        return {name: default_convert(part) for name, part in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(default_convert(part) for part in data))
    if isinstance(data, collections.abc.Sequence):
        return [default_convert(part) for part in data]
    return data


def default_collate(batch):
    """Returns a list of samples as one: tensors stacked, numbers as a tensor, lists and dictionaries part by part."""
    first = batch[0]
    if isinstance(first, _core.Tensor):
        return _core.stack(list(batch))
    if hasattr(first, "__array_interface__"):
        return _core.stack([_core.tensor(value) for value in batch])
    if isinstance(first, (int, float)):
        return _core.tensor(list(batch), dtype=_core.float64 if isinstance(first, float) else None)
    if isinstance(first, (str, bytes)):
        return list(batch)
    if isinstance(first, collections.abc.Mapping):
        return {name: default_collate([sample[name] for sample in batch]) for name in first}
    if isinstance(first, collections.abc.Sequence):
        if any(len(sample) != len(first) for sample in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        parts = [default_collate(list(part)) for part in zip(*batch)]
        return type(first)(*parts) if hasattr(first, "_fields") else parts
    raise TypeError(f"default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {type(first)}")


def get_worker_info():
    """Returns None: samples are made in the program's own thread, and there are no workers."""
    return None


def _pinned(batch):
    """Returns a batch whose tensors are in pinned memory, as far as they are not on a GPU."""
    if isinstance(batch, _core.Tensor):
        batch._mark_pinned()
    elif isinstance(batch, collections.abc.Mapping):
        for value in batch.values():
            _pinned(value)
    elif isinstance(batch, collections.abc.Sequence) and not isinstance(batch, (str, bytes)):
        for value in batch:
            _pinned(value)
    elif hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    return batch


class _BaseDataLoaderIter:
    """One pass over a loader."""

    def __init__(self, loader):
        self._loader, self._batches, self._num_yielded = loader, loader._batches(), 0

    def __iter__(self):
        return self

    def __next__(self):
        batch = next(self._batches)
        self._num_yielded += 1
        return batch

    def __len__(self):
        return len(self._loader)


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    """One pass over a loader in the program's thread."""


class _MultiProcessingDataLoaderIter(_BaseDataLoaderIter):
    """One pass over a loader whose batches are made in processes, which none is."""


class DataLoader:
    """Yields batches of a dataset, in an order of its own or drawn. `num_workers` is taken and no process is started."""

    __class_getitem__ = classmethod(types.GenericAlias)

    def __init__(self, dataset, batch_size=1, shuffle=None, sampler=None, batch_sampler=None, num_workers=0, collate_fn=None,
                 pin_memory=False, drop_last=False, timeout=0, worker_init_fn=None, multiprocessing_context=None, generator=None,
                 *, prefetch_factor=None, persistent_workers=False, pin_memory_device="", in_order=True):
        if num_workers < 0:
            raise ValueError("num_workers option should be non-negative; use num_workers=0 to disable multiprocessing.")
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.num_workers, self.pin_memory, self.generator = num_workers, pin_memory, generator
        self.timeout, self.worker_init_fn, self.prefetch_factor = timeout, worker_init_fn, prefetch_factor
        self.persistent_workers, self.pin_memory_device, self.in_order = persistent_workers, pin_memory_device, in_order
        self.multiprocessing_context, self._iterator = multiprocessing_context, None
        self._is_iterable = isinstance(dataset, IterableDataset)
        if self._is_iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("DataLoader with IterableDataset: the dataset has an order of its own; "
                             "leave shuffle, sampler and batch_sampler out")
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError("batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last")
        if batch_size is None and drop_last:
            raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")
        if sampler is None and not self._is_iterable:
            sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        if batch_sampler is not None:
            self.batch_size = None
        elif batch_size is not None and not self._is_iterable:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.collate_fn = collate_fn or (default_convert if batch_size is None and batch_sampler is None else default_collate)

    def _samples(self):
        """Yields samples in lists, or one by one where there are no batches."""
        if self._is_iterable:
            yield from self.dataset if self.batch_size is None else BatchSampler(self.dataset, self.batch_size, self.drop_last)
        elif self.batch_sampler is None:
            for number in self.sampler:
                yield self.dataset[number]
        else:
            for numbers in self.batch_sampler:
                if hasattr(self.dataset, "__getitems__"):
                    yield self.dataset.__getitems__(numbers)
                else:
                    yield [self.dataset[number] for number in numbers]

    def _batches(self):
        """Yields batches."""
        for samples in self._samples():
            batch = self.collate_fn(samples)
            yield _pinned(batch) if self.pin_memory else batch

    def _get_iterator(self):
        return _SingleProcessDataLoaderIter(self)

    def __iter__(self):
        return self._get_iterator()

    def __len__(self):
        if self._is_iterable:
            count = len(self.dataset)
            if self.batch_size is None:
                return count
            return count // self.batch_size if self.drop_last else -(-count // self.batch_size)
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)
