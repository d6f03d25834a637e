"""Worker processes of loaders (`torch.utils.data._utils.worker`)."""

import os
import random
import sys
import traceback

from .... import multiprocessing
from .... import random as generators
from .fetch import Fetcher

_worker_info = None
# How often a worker looks whether the program is still there, in seconds.
MP_STATUS_CHECK_INTERVAL = 5.0


class WorkerInfo:
    """The worker of a dataset: its number, how many there are, its seed and its copy of the dataset."""

    __initialized = False

    def __init__(self, **values):
        for name, value in values.items():
            setattr(self, name, value)
        self.__keys = tuple(values)
        self.__initialized = True

    def __setattr__(self, name, value):
        if self.__initialized:
            raise RuntimeError(f"Cannot assign attributes to {type(self).__name__} objects")
        super().__setattr__(name, value)

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)}' for name in self.__keys)})"


def get_worker_info():
    """Returns the worker that runs in this process, or None in the program itself."""
    return _worker_info


class _Ended:
    """The message that a worker has reached the end of its part of a dataset without indices."""

    def __init__(self, worker):
        self.worker = worker


class _Resume:
    """The message that a new pass begins. The worker replies with the same message."""

    def __init__(self, seed=None):
        self.seed = seed


_IterableDatasetStopIteration, _ResumeIteration = _Ended, _Resume


class Failure:
    """An exception of a worker, as text, with the indices of its batch."""

    def __init__(self, error, where, indices=None):
        self.kind, self.where = type(error), where
        self.text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.indices = indices

    def reraise(self):
        """Raises the exception here, with the lines of the worker."""
        at = "" if self.indices is None else f" It was fetching the batch of indices {_shown(self.indices)}."
        text = f"Caught {self.kind.__name__} {self.where}.{at}\nOriginal {self.text}"
        if self.kind is KeyError:
            raise KeyError(_Text(text))
        try:
            error = self.kind(text)
        except TypeError:
            raise RuntimeError(text) from None
        raise error


class _Text(str):
    """The message of a `KeyError`, with its lines."""

    def __repr__(self):
        return str(self)


def _shown(indices):
    text = repr(indices)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _generate_state(base_seed, worker_id):
    """Returns the seed of NumPy's generator in a worker: numbers that follow from that of the pass and the worker's."""
    import numpy
    words = [worker_id, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
    return numpy.random.SeedSequence(words).generate_state(4).tolist()


def _seed(base_seed, worker_id):
    seed = base_seed + worker_id
    random.seed(seed)
    generators.manual_seed(seed)
    if "numpy" in sys.modules:
        import numpy
        numpy.random.seed(_generate_state(base_seed, worker_id))
    return seed


# ---- The process ---------------------------------------------------------------------------------------------------


def _worker_loop(options, indices, results, worker_id):
    """Runs in a worker: takes indices and sends batches, until it receives None or the program has ended."""
    global _worker_info
    try:
        parent = os.getppid()
        # Batches outlive a worker that ends.
        multiprocessing.send_values()
        dataset, collate_fn, init = options["dataset"], options["collate_fn"], options["init"]
        seed = _seed(options["seed"], worker_id)
        _worker_info = WorkerInfo(id=worker_id, num_workers=options["count"], seed=seed, dataset=dataset)
        failure, fetcher = None, None
        try:
            if init is not None:
                init(worker_id)
            fetcher = Fetcher(dataset, options["is_iterable"], options["auto_collation"], collate_fn, options["drop_last"])
        except Exception as error:
            failure = Failure(error, f"in DataLoader worker process {worker_id}")
        _serve(options, indices, results, worker_id, dataset, collate_fn, fetcher, failure, parent)
    except (KeyboardInterrupt, BrokenPipeError, EOFError):
        pass
    finally:
        results.close()


def _serve(options, indices, results, worker_id, dataset, collate_fn, fetcher, failure, parent):
    import queue
    has_ended = False
    while True:
        try:
            message = indices.get(timeout=MP_STATUS_CHECK_INTERVAL)
        except queue.Empty:
            if os.getppid() != parent:
                return
            continue
        if message is None:
            return
        if isinstance(message, _Resume):
            results.send((None, message))
            has_ended = False
            try:
                fetcher = Fetcher(dataset, options["is_iterable"], options["auto_collation"], collate_fn, options["drop_last"])
            except Exception as error:
                failure = Failure(error, f"in DataLoader worker process {worker_id}")
            continue
        place, numbers = message
        if has_ended:
            continue
        if failure is not None:
            batch, failure = failure, None
        else:
            batch, has_ended = _fetched(fetcher, numbers, worker_id, options["is_iterable"])
        try:
            results.send((place, batch))
        except (TypeError, AttributeError, ValueError, RuntimeError) as error:
            results.send((place, Failure(error, f"in DataLoader worker process {worker_id}", numbers)))


def _fetched(fetcher, numbers, worker_id, is_iterable):
    """Returns a batch, or the message of its failure or of the end, and whether it is the end."""
    try:
        return fetcher.fetch(numbers), False
    except StopIteration:
        if is_iterable:
            return _Ended(worker_id), True
        raise
    except Exception as error:
        return Failure(error, f"in DataLoader worker process {worker_id}", None if is_iterable else numbers), False
