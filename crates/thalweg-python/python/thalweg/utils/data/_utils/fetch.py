"""Batches of a dataset (`torch.utils.data._utils.fetch`)."""

import itertools


class Fetcher:
    """Makes the batches of a dataset."""

    def __init__(self, dataset, is_iterable, auto_collation, collate_fn, drop_last):
        self.dataset, self.auto_collation, self.collate_fn, self.drop_last = dataset, auto_collation, collate_fn, drop_last
        self.dataset_iter = iter(dataset) if is_iterable else None
        self.ended = False

    def fetch(self, numbers):
        """Returns the batch of indices, or the next one of a dataset without indices."""
        if self.dataset_iter is None:
            if not self.auto_collation:
                return self.collate_fn(self.dataset[numbers])
            if callable(getattr(self.dataset, "__getitems__", None)):
                return self.collate_fn(self.dataset.__getitems__(numbers))
            return self.collate_fn([self.dataset[number] for number in numbers])
        if self.ended:
            raise StopIteration
        if not self.auto_collation:
            return self.collate_fn(next(self.dataset_iter))
        rows = list(itertools.islice(self.dataset_iter, len(numbers)))
        if len(rows) < len(numbers):
            self.ended = True
            if not rows or self.drop_last:
                raise StopIteration
        return self.collate_fn(rows)


class _DatasetKind:
    """The kinds of datasets: with and without indices. Libraries have loaders of their own, which name a kind."""

    Map, Iterable = 0, 1

    @staticmethod
    def create_fetcher(kind, dataset, auto_collation, collate_fn, drop_last):
        """Returns the object that makes the batches of a dataset."""
        return Fetcher(dataset, kind == _DatasetKind.Iterable, auto_collation, collate_fn, drop_last)
