"""Batches of samples (`torch.utils.data`), made in the program's own thread."""

import random

from .. import _core


class Dataset:
    """Samples by their number; a subclass has `__getitem__` and `__len__`."""

    def __getitem__(self, index):
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")


class IterableDataset(Dataset):
    """Samples one after the other; a subclass has `__iter__`."""


class TensorDataset(Dataset):
    """The rows of tensors."""

    def __init__(self, *tensors):
        if any(tensor.shape[0] != tensors[0].shape[0] for tensor in tensors):
            raise ValueError("Size mismatch between tensors")
        self.tensors = tensors

    def __getitem__(self, index):
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self):
        return self.tensors[0].shape[0]


class Subset(Dataset):
    """Some samples of another dataset."""

    def __init__(self, dataset, indices):
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index):
        return self.dataset[self.indices[index]]

    def __len__(self):
        return len(self.indices)


def default_collate(batch):
    """Returns a list of samples as one: tensors stacked, numbers as a tensor, lists and dictionaries part by part."""
    first = batch[0]
    if isinstance(first, _core.Tensor):
        return _core.stack(list(batch))
    if isinstance(first, (int, float)) or hasattr(first, "__array_interface__"):
        if hasattr(first, "__array_interface__"):
            return _core.stack([_core.tensor(value) for value in batch])
        return _core.tensor(list(batch), dtype=_core.float64 if isinstance(first, float) else None)
    if isinstance(first, str):
        return list(batch)
    if isinstance(first, dict):
        return {name: default_collate([sample[name] for sample in batch]) for name in first}
    if isinstance(first, (list, tuple)):
        return [default_collate(list(part)) for part in zip(*batch)]
    raise TypeError(f"default_collate: batch must contain tensors, numbers, dicts or lists; found {type(first)}")


class DataLoader:
    """Yields batches of a dataset, shuffled where asked for. `num_workers` is taken and no process is started."""

    def __init__(self, dataset, batch_size=1, shuffle=False, sampler=None, batch_sampler=None, num_workers=0, collate_fn=None,
                 pin_memory=False, drop_last=False, timeout=0, worker_init_fn=None, multiprocessing_context=None, generator=None,
                 *, prefetch_factor=None, persistent_workers=False, pin_memory_device=""):
        self.generator = generator
        self.dataset, self.batch_size, self.shuffle, self.drop_last = dataset, batch_size, shuffle, drop_last
        self.sampler, self.batch_sampler, self.collate_fn = sampler, batch_sampler, collate_fn or default_collate

    def _batches(self):
        if self.batch_sampler is not None:
            yield from self.batch_sampler
            return
        order = list(self.sampler if self.sampler is not None else range(len(self.dataset)))
        if self.shuffle:
            if self.generator is None:
                random.shuffle(order)
            else:
                places = _core.randperm(len(order), device=self.generator.device, generator=self.generator)
                order = [order[place] for place in places.tolist()]
        for start in range(0, len(order), self.batch_size):
            batch = order[start:start + self.batch_size]
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __iter__(self):
        for batch in self._batches():
            yield self.collate_fn([self.dataset[index] for index in batch])

    def __len__(self):
        if self.batch_sampler is not None:
            return len(self.batch_sampler)
        count = len(self.sampler if self.sampler is not None else self.dataset)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)
