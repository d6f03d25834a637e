"""Regions in which operators are recorded or not (`torch.autograd.grad_mode`)."""

import functools
import inspect
import warnings

from .. import _core
from .._regions import Open


class _GradMode:
    """A region in which operators are recorded or not: a context manager and a decorator."""

    _enabled = True

    def __init__(self):
        self._former = Open()

    def __enter__(self):
        self._former.enter(_core._set_grad_enabled(self._enabled))
        return self

    def __exit__(self, *_):
        _core._set_grad_enabled(self._former.leave())

    def __call__(self, function):
        if inspect.isclass(function):
            warnings.warn("Decorating classes is deprecated and will be disabled in future versions. You should only decorate functions or methods. "
                          "To preserve the current behavior of class decoration, you can directly decorate the `__init__` method and nothing else.",
                          FutureWarning, stacklevel=2)
            function.__init__ = self(function.__init__)
            return function
        if inspect.isgeneratorfunction(function):
            return self._generator(function)

        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            with type(self)._again(self):
                return function(*args, **kwargs)
        return wrapped

    def _generator(self, function):
        """Returns a generator function that wraps another, so that only the code between its yields runs in the region."""
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            made, go, value = function(*args, **kwargs), "send", None
            while True:
                try:
                    with type(self)._again(self):
                        found = getattr(made, go)(value)
                except StopIteration as end:
                    return end.value
                try:
                    go, value = "send", (yield found)
                except GeneratorExit:
                    with type(self)._again(self):
                        made.close()
                    raise
                except BaseException as error:
                    go, value = "throw", error
        return wrapped

    def _again(self):
        return type(self)()

    def clone(self):
        """Returns a region with the same setting."""
        return self._again()


def _usable_bare(cls):
    """Makes `@cls` decorate a function as `@cls()` does."""
    former = cls.__new__

    def new(kind, function=None, *args, **kwargs):
        made = object.__new__(kind)
        if callable(function):
            made.__init__()
            return made(function)
        return made
    del former
    cls.__new__ = new
    return cls


@_usable_bare
class no_grad(_GradMode):
    """A region whose operators are not recorded."""

    _enabled = False


@_usable_bare
class enable_grad(_GradMode):
    """A region whose operators are recorded, also inside `no_grad`."""


class set_grad_enabled(_GradMode):
    """Sets whether operators are recorded. Takes effect immediately; as a context manager, it ends with the region."""

    def __init__(self, mode):
        super().__init__()
        self.mode = self._enabled = bool(mode)
        self._before = _core._set_grad_enabled(self._enabled)

    def __enter__(self):
        self._former.enter(self._before)
        return self

    def _again(self):
        return set_grad_enabled(self._enabled)

    def __call__(self, function):
        _core._set_grad_enabled(self._before)
        return super().__call__(function)


class inference_mode(_GradMode):
    """A region whose operators are not recorded, and whose tensors can never enter graphs. With `mode=False`, the region changes
    nothing."""

    def __new__(cls, mode=True):
        made = object.__new__(cls)
        if callable(mode):
            made.__init__()
            return made(mode)
        return made

    def __init__(self, mode=True):
        super().__init__()
        self.mode = bool(mode)

    def __enter__(self):
        self._former.enter((_core._set_inference_mode(self.mode), _core._set_grad_enabled(not self.mode)))
        return self

    def __exit__(self, *_):
        inference, recorded = self._former.leave()
        _core._set_inference_mode(inference)
        _core._set_grad_enabled(recorded)

    def _again(self):
        return inference_mode(self.mode)


class set_multithreading_enabled:
    """Sets whether a backward pass may use several threads. It always uses one, so nothing changes."""

    _enabled = True

    def __init__(self, mode):
        self._before, self.mode = set_multithreading_enabled._enabled, bool(mode)
        set_multithreading_enabled._enabled = self.mode

    def __enter__(self):
        return None

    def __exit__(self, *_):
        set_multithreading_enabled._enabled = self._before

    def clone(self):
        """Returns a region with the same setting."""
        return set_multithreading_enabled(self.mode)


def is_multithreading_enabled():
    """Returns whether a backward pass may use several threads."""
    return set_multithreading_enabled._enabled


class _unsafe_preserve_version_counter:
    """A region at whose end tensors get back their versions from before, so the backward pass does not notice writes in the
    region."""

    def __init__(self, tensors):
        self.tensors = (tensors,) if isinstance(tensors, _core.Tensor) else tuple(tensors)
        self.prev_versions = tuple(tensor._version for tensor in self.tensors)

    def __enter__(self):
        return None

    def __exit__(self, *_):
        for tensor, version in zip(self.tensors, self.prev_versions):
            tensor._set_version(version)
