"""Loops of different lengths on several ranks (`torch.distributed.algorithms.join`).

Before each step the ranks that take it count themselves. Ranks whose loop has ended take part in the collectives of the others' steps, by
the `main_hook` of each object, until none counts.
"""

import abc

from .. import _core


class JoinHook:
    """The collectives of an object on a rank whose loop has ended."""

    def main_hook(self):
        """Takes part in the collectives of a step of the other ranks."""

    def post_hook(self, is_last_joiner):
        """Is called once after the last step of all ranks."""


class _Config:
    """How the objects of a region join, which is that of no region for an object outside of one."""

    def __init__(self, enable=False, throws=False, is_first=False):
        self.enable, self.throws, self.is_first = enable, throws, is_first


class Joinable(abc.ABC):
    """An object with collectives in each step, which calls `Join.notify_join_context` before them."""

    def __init__(self):
        self._join_config = _Config()

    @abc.abstractmethod
    def join_hook(self, **kwargs):
        """Returns the hook of the object."""

    @property
    @abc.abstractmethod
    def join_device(self):
        """The device of the counts."""

    @property
    @abc.abstractmethod
    def join_process_group(self):
        """The group of the ranks."""


class Join:
    """A region for a loop whose lengths differ among ranks."""

    def __init__(self, joinables, enable=True, throw_on_early_termination=False, **kwargs):
        if not joinables:
            raise ValueError("The join context manager requires at least one joinable")
        if any(one.join_process_group is not joinables[0].join_process_group for one in joinables):
            raise ValueError("Using join context manager with multiple process groups")
        self._joinables, self._enable, self._throws = joinables, enable, throw_on_early_termination
        self._hooks = [one.join_hook(**kwargs) for one in joinables]
        for place, one in enumerate(joinables):
            one._join_config = _Config(enable, throw_on_early_termination, place == 0)

    def __enter__(self):
        pass

    def __exit__(self, kind, value, trace):
        try:
            if self._enable and not kind:
                self._follow()
        finally:
            for one in self._joinables:
                one._join_config = _Config()

    def _follow(self):
        """Takes part in the steps of the other ranks."""
        is_last = True
        while _count(self._joinables[0], 0):
            is_last = False
            if self._throws:
                _count(self._joinables[0], 1)
                raise RuntimeError(f"Rank {self._joinables[0].join_process_group.rank()} exhausted all inputs.")
            for hook in self._hooks:
                hook.main_hook()
        for hook in self._hooks:
            hook.post_hook(is_last)

    @staticmethod
    def notify_join_context(joinable):
        """Counts this rank as one that takes a step, if the object is the first of a region. Returns how many do, or None."""
        config = joinable._join_config
        if not (config.enable and config.is_first):
            return None
        active = _count(joinable, 1)
        if config.throws and _count(joinable, 0):
            raise RuntimeError("Detected at least one rank that exhausted inputs. Throwing across all ranks.")
        return active


def _count(joinable, number):
    """Returns the sum of the ranks' numbers."""
    from ..distributed._collectives import all_reduce
    total = _core.full([1], number, dtype=_core.int64, device=joinable.join_device)
    all_reduce(total, group=joinable.join_process_group)
    return int(total.item())
