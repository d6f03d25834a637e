"""Passes over loaders whose batches are made by worker processes."""

import itertools
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing import connection

from .... import _core
from . import worker
from .fetch import _DatasetKind
from .pin_memory import pin_memory


def _start(options, indices, results, worker_id, is_torch):
    """Runs in a new process: makes this package `torch` if the parent has done so, and serves batches."""
    if is_torch and "torch" not in sys.modules:
        from .... import install_as_torch
        install_as_torch()
    worker._worker_loop(options, indices, results, worker_id)


class Workers:
    """The worker processes of a loader, with a queue of indices and a pipe of batches for each."""

    def __init__(self, loader, seed):
        context = loader.multiprocessing_context or multiprocessing.get_context()
        options = {
            "dataset": loader.dataset, "collate_fn": loader.collate_fn, "init": loader.worker_init_fn, "seed": seed, "count": loader.num_workers,
            "is_iterable": loader._dataset_kind == _DatasetKind.Iterable, "auto_collation": loader._auto_collation, "drop_last": loader.drop_last}
        is_torch = sys.modules.get("torch") is sys.modules[__name__.partition(".")[0]]
        self.processes, self.queues, self.pipes = [], [], []
        for number in range(loader.num_workers):
            queue = context.Queue()
            queue.cancel_join_thread()
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(target=_start, args=(options, queue, sending, number, is_torch), daemon=True)
            process.start()
            sending.close()
            self.processes.append(process)
            self.queues.append(queue)
            self.pipes.append(receiving)

    def close(self):
        """Ends the processes."""
        for queue in self.queues:
            try:
                queue.put(None)
            except (ValueError, OSError):
                pass
        for process, pipe in zip(self.processes, self.pipes):
            pipe.close()
            process.join(timeout=worker.MP_STATUS_CHECK_INTERVAL)
            if process.is_alive():
                process.terminate()
        for queue in self.queues:
            queue.close()
        self.processes, self.queues, self.pipes = [], [], []


class _MultiProcessingDataLoaderIter:
    """One pass over a loader with worker processes. Batches come in the order of their indices."""

    def __init__(self, loader):
        self._loader, self._dataset, self._num_workers = loader, loader.dataset, loader.num_workers
        self._base_seed = _core.empty([], dtype=_core.int64).random_(generator=loader.generator).item()
        self._workers_status = []
        self._started = Workers(loader, self._base_seed)
        self._is_closed = False
        self._reset(loader, first_iter=True)

    @property
    def _workers(self):
        return self._started.processes

    @property
    def _index_queues(self):
        return self._started.queues

    def __iter__(self):
        return self

    def __len__(self):
        return len(self._loader._index_sampler)

    def _reset(self, loader, first_iter=False):
        """Begins a pass."""
        self._num_yielded, self._sampler_iter = 0, iter(loader._index_sampler)
        self._sent, self._next, self._outstanding = 0, 0, 0
        self._numbers, self._made, self._tasks = {}, {}, [0] * self._num_workers
        self._workers_status = [True] * self._num_workers
        self._turn = itertools.cycle(range(self._num_workers))
        if not first_iter:
            for queue in self._started.queues:
                queue.put(worker._Resume())
            waiting = set(range(self._num_workers))
            while waiting:
                number, (place, message) = self._received()
                if isinstance(message, worker._Resume):
                    waiting.discard(number)
        for _ in range(loader.prefetch_factor * self._num_workers):
            self._send_one()

    def _send_one(self):
        """Sends the next indices to the next worker that has not ended."""
        try:
            numbers = next(self._sampler_iter)
        except StopIteration:
            return
        for _ in range(self._num_workers):
            number = next(self._turn)
            if self._workers_status[number]:
                break
        else:
            return
        self._started.queues[number].put((self._sent, numbers))
        self._numbers[self._sent] = (number, numbers)
        self._tasks[number] += 1
        self._outstanding += 1
        self._sent += 1

    def _received(self):
        """Returns the next message of any worker, with the worker's number. Raises if one has ended, or if it takes too long."""
        limit = time.monotonic() + self._loader.timeout if self._loader.timeout > 0 else None
        while True:
            pipes = {pipe: number for number, pipe in enumerate(self._started.pipes) if self._workers_status[number]}
            wait = worker.MP_STATUS_CHECK_INTERVAL if limit is None else max(limit - time.monotonic(), 0)
            ready = connection.wait(list(pipes), wait)
            if not ready and limit is not None and time.monotonic() >= limit:
                raise RuntimeError(f"DataLoader timed out after {self._loader.timeout} seconds{self._awaited()}")
            for pipe in ready:
                try:
                    return pipes[pipe], pipe.recv()
                except (EOFError, OSError):
                    self._died(pipes[pipe])
            # A process that a worker has started may hold its pipe open.
            for number in () if ready else pipes.values():
                if not self._started.processes[number].is_alive():
                    self._died(number)

    def _awaited(self):
        own = self._numbers.get(self._next)
        return "" if own is None or self._loader._dataset_kind == _DatasetKind.Iterable else f" while worker {own[0]} fetched the batch of indices {worker._shown(own[1])}"

    def _died(self, number):
        """Raises for a worker that has ended."""
        process = self._started.processes[number]
        process.join(timeout=1.0)
        code = process.exitcode
        place = next((place for place in sorted(self._numbers) if self._numbers[place][0] == number and place not in self._made), None)
        what = "" if place is None or self._loader._dataset_kind == _DatasetKind.Iterable else f" while it fetched the batch of indices {worker._shown(self._numbers[place][1])}"
        pid = process.pid
        self._shutdown_workers()
        if code is not None and code < 0:
            raise RuntimeError(f"DataLoader worker (pid {pid}) is killed by signal: {signal.strsignal(-code)}. It was worker {number}{what}.")
        raise RuntimeError(f"DataLoader worker (pid(s) {pid}) exited unexpectedly with exit code {code}. It was worker {number}{what}.")

    def __next__(self):
        while True:
            if self._is_closed:
                raise StopIteration
            while self._next < self._sent and self._next in self._made and self._made[self._next] is None:
                self._forget(self._next)
            if self._next < self._sent and self._next in self._made:
                return self._yielded()
            if self._outstanding == 0:
                self._finished()
                raise StopIteration
            number, (place, message) = self._received()
            if isinstance(message, worker._Resume):
                continue
            self._outstanding -= 1
            if isinstance(message, worker._Ended):
                self._ended(number, place)
                continue
            self._made[place] = (message,)
            if not self._loader.in_order and place != self._next:
                return self._yielded(place)

    def _ended(self, number, place):
        """Forgets the indices that a worker has been sent after its part of the dataset has ended."""
        self._workers_status[number] = False
        for other, (owner, _) in list(self._numbers.items()):
            if owner == number and other not in self._made:
                self._made[other] = None
                self._outstanding -= other != place
        if not self._loader.persistent_workers:
            self._started.queues[number].put(None)
        self._send_one()

    def _forget(self, place):
        self._made.pop(place)
        self._numbers.pop(place, None)
        if place == self._next:
            self._next += 1

    def _yielded(self, place=None):
        place = self._next if place is None else place
        message, = self._made[place]
        if place == self._next:
            self._forget(place)
        else:
            self._numbers.pop(place, None)
            self._made[place] = None
        self._send_one()
        if isinstance(message, worker.Failure):
            message.reraise()
        self._num_yielded += 1
        return pin_memory(message) if self._loader.pin_memory else message

    def _finished(self):
        if not self._loader.persistent_workers:
            self._shutdown_workers()

    def _shutdown_workers(self):
        """Ends the worker processes."""
        if not self._is_closed:
            self._is_closed = True
            self._started.close()

    def __del__(self):
        if not getattr(self, "_is_closed", True) and os is not None and sys is not None and not sys.is_finalizing():
            self._shutdown_workers()
