"""Batches from datasets (`torch.utils.data.dataloader`)."""

import itertools
import multiprocessing
import os
import types
import typing
import warnings

from ... import _core
from . import _utils  # noqa: F401
from ._utils.collate import default_collate, default_convert
from ._utils.fetch import _DatasetKind
from ._utils.pin_memory import pin_memory as _pinned
from ._utils.processes import _MultiProcessingDataLoaderIter
from ._utils.worker import get_worker_info  # noqa: F401
from .dataset import IterableDataset
from .sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler


class _InfiniteConstantSampler(Sampler):
    """Yields None endlessly: samples without indices have the order of their dataset."""

    def __iter__(self):
        return itertools.repeat(None)


class _BaseDataLoaderIter:
    """One pass over a loader. After an error in creating a sample, the caller may continue the pass. Libraries replace parts of it by PyTorch's names."""

    def __init__(self, loader):
        self._dataset, self._dataset_kind, self._index_sampler = loader.dataset, loader._dataset_kind, loader._index_sampler
        self._auto_collation, self._drop_last, self._collate_fn = loader._auto_collation, loader.drop_last, loader.collate_fn
        self._num_workers, self._pin_memory, self._timeout = loader.num_workers, loader.pin_memory, loader.timeout
        self._persistent_workers, self._IterableDataset_len_called = loader.persistent_workers, loader._IterableDataset_len_called
        # What pipes of data and former releases would use.
        self._world_size, self._rank, self._shared_seed, self._pin_memory_device = 1, 0, None, None
        _BaseDataLoaderIter._reset(self, loader)
        # Every pass draws a seed, as one with workers does: the numbers that a program draws later do not depend on `num_workers`.
        self._base_seed = _core.empty([], dtype=_core.int64).random_(generator=loader.generator).item()

    def _reset(self, loader, first_iter=False):
        """Begins a pass."""
        self._num_yielded, self._sampler_iter = 0, iter(self._index_sampler)

    def __iter__(self):
        return self

    def _next_index(self):
        return next(self._sampler_iter)

    def _next_data(self):
        raise NotImplementedError

    def __next__(self):
        batch = self._next_data()
        self._num_yielded += 1
        return batch

    def __len__(self):
        return len(self._index_sampler)


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    """One pass over a loader in the program's own thread."""

    def __init__(self, loader):
        super().__init__(loader)
        self._dataset_fetcher = _DatasetKind.create_fetcher(self._dataset_kind, self._dataset, self._auto_collation, self._collate_fn, self._drop_last)

    def _next_data(self):
        batch = self._dataset_fetcher.fetch(self._next_index())
        return _pinned(batch) if self._pin_memory else batch


def _check_workers(num_workers, timeout, prefetch_factor, persistent_workers):
    """Refuses inconsistent options of workers."""
    if num_workers < 0:
        raise ValueError("num_workers option should be non-negative; use num_workers=0 to disable multiprocessing.")
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError("prefetch_factor option could only be specified in multiprocessing. Let num_workers > 0 to enable multiprocessing, "
                         "otherwise set prefetch_factor to None.")
    if prefetch_factor is not None and prefetch_factor < 0:
        raise ValueError("prefetch_factor option should be non-negative")
    if persistent_workers and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")


def _context(value, num_workers):
    """Returns a multiprocessing context by its name, or unchanged."""
    if num_workers == 0:
        raise ValueError(f"multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got num_workers={num_workers}")
    if isinstance(value, str):
        names = multiprocessing.get_all_start_methods()
        if value not in names:
            raise ValueError(f"multiprocessing_context option should specify a valid start method in {names!r}, but got "
                             f"multiprocessing_context={value!r}")
        return multiprocessing.get_context(value)
    if not isinstance(value, multiprocessing.context.BaseContext):
        raise TypeError("multiprocessing_context option should be a valid context object or a string specifying the start method, but got "
                        f"multiprocessing_context={value}")
    return value


# The types of functions of a loader.
_collate_fn_t = typing.Callable[[list], typing.Any]
_worker_init_fn_t = typing.Callable[[int], None]


class DataLoader:
    """Yields batches of a dataset, in its own or in random order. With `num_workers`, processes make them."""

    __class_getitem__ = classmethod(types.GenericAlias)

    def __init__(self, dataset, batch_size=1, shuffle=None, sampler=None, batch_sampler=None, num_workers=0, collate_fn=None,
                 pin_memory=False, drop_last=False, timeout=0, worker_init_fn=None, multiprocessing_context=None, generator=None,
                 *, prefetch_factor=None, persistent_workers=False, pin_memory_device="", in_order=True):
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        if num_workers and prefetch_factor is None:
            prefetch_factor = 2
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.num_workers, self.pin_memory, self.generator = num_workers, pin_memory, generator
        self.timeout, self.worker_init_fn, self.prefetch_factor = timeout, worker_init_fn, prefetch_factor
        self.persistent_workers, self.pin_memory_device, self.in_order = persistent_workers, pin_memory_device, in_order
        self.multiprocessing_context, self._iterator = multiprocessing_context, None
        self._dataset_kind = _DatasetKind.Iterable if isinstance(dataset, IterableDataset) else _DatasetKind.Map
        self._IterableDataset_len_called = None
        for name, value in (("shuffle", shuffle or None), ("sampler", sampler), ("batch_sampler", batch_sampler)):
            if self._dataset_kind == _DatasetKind.Iterable and value is not None:
                raise ValueError(f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}={value}; the dataset has "
                                 "an order of its own")
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError("batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last")
        if batch_size is None and drop_last:
            raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")
        if sampler is None and self._dataset_kind == _DatasetKind.Iterable:
            sampler = _InfiniteConstantSampler()
        elif sampler is None:
            sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        if batch_sampler is not None:
            self.batch_size = None
        elif batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.collate_fn = collate_fn or (default_collate if self._auto_collation else default_convert)
        self._is_made = True

    _is_made = False
    _SETTLED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")

    def __setattr__(self, name, value):
        if self._is_made and name in self._SETTLED:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(name, value)

    @property
    def multiprocessing_context(self):
        """The context in which worker processes would be started, or None."""
        return self._context

    @multiprocessing_context.setter
    def multiprocessing_context(self, value):
        self._context = None if value is None else _context(value, self.num_workers)

    @property
    def _auto_collation(self):
        """Whether samples are collated into batches."""
        return self.batch_sampler is not None

    @property
    def _index_sampler(self):
        """The sampler that yields the indices for each step."""
        return self.batch_sampler if self._auto_collation else self.sampler

    def _get_iterator(self):
        if self.pin_memory and self.pin_memory_device:
            warnings.warn("pin_memory_device is deprecated, the current accelerator will be used as the device,"
                          f"ignore pin_memory_device='{self.pin_memory_device}'.", stacklevel=3)
        return _SingleProcessDataLoaderIter(self) if self.num_workers == 0 else _MultiProcessingDataLoaderIter(self)

    def check_worker_number_rationality(self):
        """Warns if there are more workers than processors. Loaders of libraries call it."""
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        if processors is not None and self.num_workers > processors:
            warnings.warn(f"This DataLoader will create {self.num_workers} worker processes for {processors} processors, which may be slow: lower `num_workers`")

    def __iter__(self):
        if not self.persistent_workers:
            return self._get_iterator()
        if self._iterator is None:
            self._iterator = self._get_iterator()
        else:
            self._iterator._reset(self)
        return self._iterator

    def __len__(self):
        if self._dataset_kind == _DatasetKind.Iterable:
            count = self._IterableDataset_len_called = len(self.dataset)
            if self.batch_size is None:
                return count
            return count // self.batch_size if self.drop_last else -(-count // self.batch_size)
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)
