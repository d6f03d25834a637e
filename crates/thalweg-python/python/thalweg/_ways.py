"""The choice of the way in which a compiled function runs: if the host limits its speed, it runs uncompiled.

Fusing loops saves time of the GPU and takes time of the host. Where the GPU waits for the host, a step would take longer compiled than not. Both
ways compute the same bits, so the faster one is found by trying: some calls of each, between two waits for the GPU. The functions that are called
meanwhile are tried together, since their work may be one step's.
"""

import threading
import time
import weakref

from . import _core

# The calls in a row for which nothing is planned before the first measurement, those after each change of the way, and those of a measurement.
_WARM, _CHANGED, _MEASURED = 2, 1, 2
# The seconds of a call from which on one call is a measurement.
_LONG = 0.005
# The measurements of each way; two are enough if one way is faster by this factor in both.
_ROUNDS, _CLEAR = 3, 1.1
# The share of the compiled time that must be saved.
_WORTH = 0.97
# The most calls until kernels are all loaded, those until programs are planned, and calls of other functions until a trial is given up. Where
# sizes are new in every call, plans are part of its time.
_MOST_WARM, _MOST_PLANNED, _MOST_OTHERS = 64, 8, 64


class Way:
    """The way in which a function runs: compiled, uncompiled, or undecided yet."""

    __slots__ = ("compiles", "__weakref__")

    def __init__(self, decides=True):
        self.compiles = None if decides else True

    def chosen(self):
        """Returns whether the call that begins is compiled."""
        if self.compiles is not None:
            return self.compiles
        trial = _THREAD.trial
        if trial is None or not (trial.is_led_by(self) or trial.joins(self)):
            if not _core._waits_for_gpu():
                return True
            trial = _THREAD.trial = Trial(self)
        return trial.called(self)


class Trial:
    """A comparison of both ways, at the calls of the function that began it."""

    def __init__(self, leader):
        self._leader = weakref.ref(leader)
        self._members = weakref.WeakSet([leader])
        # The numbers of kernels that were loaded and of programs that were planned.
        self._known = None, None
        self._others = self._calls = self._warmed = 0
        self._until = None
        self._start = None
        self._compiles = True
        self._times = {True: [], False: []}
        self._measured = _MEASURED

    def is_led_by(self, way):
        """Returns whether the trial counts the calls of this function."""
        return self._leader() is way

    def joins(self, way):
        """Adds a function to the trial, and returns whether it takes part. It does not if the leader is gone, or was
        not called during many calls of other functions."""
        self._others += 1
        if self._leader() is None or self._others > _MOST_OTHERS:
            return False
        self._members.add(way)
        return True

    def called(self, way):
        """Notes a call, and returns whether it is compiled."""
        if self.is_led_by(way):
            self._others = 0
            if _core._is_capturing():
                self._settle(True)
            else:
                self._advance()
        return self._compiles

    def _advance(self):
        self._calls += 1
        if self._until is None and not self._is_warm():
            return
        if self._until is not None and self._calls <= self._until:
            return
        _core._await_gpu()
        if self._start is None:
            self._start, self._calls, self._until = time.perf_counter(), 1, self._measured
            return
        seconds = (time.perf_counter() - self._start) / self._measured
        self._times[self._compiles].append(seconds)
        if seconds > _LONG:
            self._measured = 1
        self._start = None
        self._decide()

    def _is_warm(self):
        """Returns whether the earlier calls have loaded and planned everything that is needed. Until then, measured times
        are meaningless."""
        known = _core._loaded_kernel_count(), _core._compile_counters()[3]
        has_loaded, has_planned = (now != former for now, former in zip(known, self._known))
        if has_loaded and self._warmed < _MOST_WARM or has_planned and self._warmed < _MOST_PLANNED:
            self._calls = 0
        self._known = known
        self._warmed += 1
        if self._calls < _WARM:
            return False
        if not _has_room():
            self._settle(True)
            return False
        return True

    def _decide(self):
        compiled, written = self._times[True], self._times[False]
        if len(compiled) == len(written):
            ratios = [other / own for own, other in zip(compiled, written)]
            is_clear = len(ratios) > 1 and (min(ratios) > _CLEAR or max(ratios) < 1 / _CLEAR)
            if is_clear or len(ratios) == _ROUNDS:
                # The host may be busy with something else meanwhile, which only takes longer.
                self._settle(min(written) >= _WORTH * min(compiled))
                return
        self._compiles = len(compiled) <= len(written)
        self._calls, self._until = 1, _CHANGED

    def _settle(self, compiles):
        self._compiles = compiles
        for way in self._members:
            way.compiles = compiles
        if _THREAD.trial is self:
            _THREAD.trial = None


def _has_room():
    """Returns whether the GPU has room for a step that keeps more memory than a compiled one."""
    free, allocated = _core._free_and_peak_bytes()
    return free > allocated


class _Thread(threading.local):
    trial = None


_THREAD = _Thread()
