"""Worker processes of loaders (`torch.utils.data._utils.worker`)."""

import copy
import io
import os
import random
import sys
import threading
import traceback
import types

from .... import _core
from .... import random as generators
from ....nn.parameter import Parameter
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
    """The message of a worker whose part of a dataset without indices has ended."""

    def __init__(self, worker):
        self.worker = worker


class _Resume:
    """The message that a new pass begins. The worker answers with the same."""

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


def _seed(base_seed, worker_id, is_forked):
    seed = base_seed + worker_id
    random.seed(seed)
    if is_forked:
        # Generators from before the fork belong to devices that are not there.
        vars(sys.modules[__name__.partition(".")[0]]).pop("default_generator", None)
        generators._is_forked = True
    generators.manual_seed(seed)
    if "numpy" in sys.modules:
        import numpy
        numpy.random.seed(_generate_state(base_seed, worker_id))
    return seed


# ---- Across a fork -------------------------------------------------------------------------------------------------


class _Frozen:
    """A tensor as bytes, which a copy makes a tensor of the process's own device."""

    def __init__(self, tensor):
        self._kind, self._requires_grad, self._is_meta = type(tensor), tensor.requires_grad, tensor.device.type == "meta"
        self._shape, self._dtype = tuple(tensor.shape), tensor.dtype
        self._bytes = None if self._is_meta else bytes(tensor.detach().cpu()._bytes())

    def __deepcopy__(self, memo):
        if self._is_meta:
            made = _core.empty(list(self._shape), dtype=self._dtype, device="meta")
        else:
            made = _core._from_bytes(self._bytes, list(self._shape), self._dtype, None)
        made = made.requires_grad_() if self._requires_grad else made
        if self._kind is not _core.Tensor:
            made = self._kind._of(made) if hasattr(self._kind, "_of") else made.as_subclass(self._kind)
        memo[id(self)] = made
        return made


def _freeze(tensor, memo):
    frozen = memo[id(tensor)] = _Frozen(tensor)
    return frozen


def _kept(value, memo):
    return value


def _kept_kinds():
    """Returns classes whose objects both processes have: copies of them are needless, or impossible."""
    kinds = [types.ModuleType, type(threading.Lock()), io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.FileIO, types.GeneratorType]
    return kinds + ([sys.modules["numpy"].ndarray] if "numpy" in sys.modules else [])


def _copied(values):
    """Returns copies of objects, which refer to each other as these do. One that cannot be copied is the object itself."""
    former = dict(copy._deepcopy_dispatch)
    copy._deepcopy_dispatch.update(dict.fromkeys(_kept_kinds(), _kept))
    found, seen = [], {}
    try:
        for value in values:
            # What a failed copy has seen is half made.
            seen_now = dict(seen)
            try:
                found.append(copy.deepcopy(value, seen_now))
                seen = seen_now
            except Exception:
                found.append(value)
        return found
    finally:
        copy._deepcopy_dispatch.clear()
        copy._deepcopy_dispatch.update(former)


def frozen(values):
    """Returns objects for a forked process, in which tensors are bytes: its parent's device is not there."""
    former = _core.Tensor.__deepcopy__
    of_parameters = vars(Parameter).get("__deepcopy__")
    _core.Tensor.__deepcopy__ = Parameter.__deepcopy__ = _freeze
    try:
        return _copied(values)
    finally:
        _core.Tensor.__deepcopy__, Parameter.__deepcopy__ = former, of_parameters


def _thawed(values):
    """Returns objects in a forked process, with tensors on a device of its own."""
    _core._start_in_child()
    return _copied(values)


# ---- The process ---------------------------------------------------------------------------------------------------


def _worker_loop(options, indices, results, worker_id, is_forked):
    """Runs in a worker: takes indices and sends batches, until it receives None or the program has ended."""
    global _worker_info
    try:
        parent = os.getppid()
        values = options["dataset"], options["collate_fn"], options["init"]
        dataset, collate_fn, init = _thawed(values) if is_forked else values
        seed = _seed(options["seed"], worker_id, is_forked)
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
