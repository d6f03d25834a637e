"""The order in which samples are taken (`torch.utils.data.sampler`).

Random orders follow `manual_seed`, or a generator of their own.
"""

import itertools
import types

from ... import _core


def _place_of(generator):
    """Returns the arguments with which a draw uses a generator, or the current device's generator."""
    return {} if generator is None else {"generator": generator, "device": generator.device}


def _checked_number(name, value):
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"{name} should be a positive integer value, but got {name}={value}")
    return value


def _checked_truth(name, value):
    if not isinstance(value, bool):
        raise TypeError(f"{name} should be a boolean value, but got {name}={value}")
    return value


class Sampler:
    """Indices of samples, one after another. Subclasses implement `__iter__`, and `__len__` if the end is known."""

    __class_getitem__ = classmethod(types.GenericAlias)

    def __init__(self, data_source=None):
        pass

    def __iter__(self):
        raise NotImplementedError(f"{type(self).__name__} has no `__iter__`: a subclass of Sampler says the order")


class SequentialSampler(Sampler):
    """All samples in their original order."""

    def __init__(self, data_source):
        self.data_source = data_source

    def __iter__(self):
        return iter(range(len(self.data_source)))

    def __len__(self):
        return len(self.data_source)


class RandomSampler(Sampler):
    """Samples in random order: each once per pass, or with replacement. Without a generator, a pass draws a seed for one of its own, so
    that the numbers that a program draws later do not depend on how many samples there are."""

    # Draws with replacement are made in batches, because a program may request more than it ever takes.
    _DRAWN_AT_ONCE = 1024

    def __init__(self, data_source, replacement=False, num_samples=None, generator=None):
        self.data_source, self.generator = data_source, generator
        self.replacement = _checked_truth("replacement", replacement)
        self._num_samples = num_samples if num_samples is None else _checked_number("num_samples", num_samples)

    @property
    def num_samples(self):
        """The number of samples that are taken."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self):
        count, left = len(self.data_source), self.num_samples
        generator = self.generator
        if generator is None:
            generator = _core.Generator().manual_seed(_core.empty([], dtype=_core.int64).random_().item())
        place = _place_of(generator)
        if count == 0 and left:
            raise ValueError("RandomSampler: there are samples to take, and the dataset has none")
        while left:
            if self.replacement:
                drawn = _core.randint(count, [min(left, self._DRAWN_AT_ONCE)], **place).tolist()
            else:
                drawn = _core.randperm(count, **place).tolist()[:left]
            left -= len(drawn)
            yield from drawn

    def __len__(self):
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """Given indices in random order."""

    def __init__(self, indices, generator=None):
        self.indices, self.generator = indices, generator

    def __iter__(self):
        for place in _core.randperm(len(self.indices), **_place_of(self.generator)).tolist():
            yield self.indices[place]

    def __len__(self):
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """Samples drawn by weights, which need not sum to 1."""

    def __init__(self, weights, num_samples, replacement=True, generator=None):
        self.num_samples = _checked_number("num_samples", num_samples)
        self.replacement = _checked_truth("replacement", replacement)
        device = None if generator is None else generator.device
        self.weights = weights.to(device=device, dtype=_core.float64) if isinstance(weights, _core.Tensor) \
            else _core.tensor(list(weights), dtype=_core.float64, device=device)
        if self.weights.dim() != 1:
            raise ValueError(f"weights should be a 1d sequence but given weights have shape {tuple(self.weights.shape)}")
        self.generator = generator

    def __iter__(self):
        named = {} if self.generator is None else {"generator": self.generator}
        yield from _core.multinomial(self.weights, self.num_samples, self.replacement, **named).tolist()

    def __len__(self):
        return self.num_samples


class BatchSampler(Sampler):
    """The indices of another sampler, in lists of one length."""

    def __init__(self, sampler, batch_size, drop_last):
        self.sampler = sampler
        self.batch_size, self.drop_last = _checked_number("batch_size", batch_size), _checked_truth("drop_last", drop_last)

    def __iter__(self):
        numbers = iter(self.sampler)
        while batch := list(itertools.islice(numbers, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self):
        count = len(self.sampler)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)
