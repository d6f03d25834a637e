"""Settings and marks of compiled functions (`torch.compiler`). A compiled function runs as it is written, so most marks change
nothing."""

import contextlib

from . import _artifacts, _capturing, _compiling, _core
from ._compiling import compile  # noqa: F401


def _unchanged(fn=None, *args, **kwargs):
    """Returns the function unchanged, or a decorator that does so."""
    return fn if fn is not None else lambda function: function


allow_in_graph = assume_constant_result = disallow_in_graph = _unchanged


def disable(fn=None, recursive=True, *, reason=None):
    """Returns a function that runs uncompiled in compiled functions, too. Without `recursive`, the function is returned
    unchanged: the functions that it calls may be compiled."""
    if fn is None:
        return lambda function: disable(function, recursive)
    return _compiling.excluded(fn) if recursive and hasattr(fn, "__code__") else fn


def nested_compile_region(fn=None, **options):
    """Returns the function unchanged."""
    return _unchanged(fn)


def substitute_in_graph(original_fn, **options):
    """Returns a decorator that returns its function unchanged."""
    return lambda function: function


def is_compiling():
    """Returns whether a compiled function runs, or a program is being exported."""
    return _is_exporting or _core._is_compiling()


# Whether a program is being exported (`torch.export.export`).
_is_exporting = False


def is_exporting():
    """Returns whether a program is being exported."""
    return _is_exporting


is_dynamo_compiling = is_compiling


def reset():
    """Forgets the programs and the graphs of compiled functions. Kernels stay compiled."""
    _capturing.reset()
    _core._forget_programs()


def save_cache_artifacts():
    """Returns the machine code of all stored kernels as bytes, and a description of the contents; None if there are
    none. The same kernels give the same bytes. Programs are not included, because planning one takes microseconds."""
    return _artifacts.save()


def load_cache_artifacts(serialized_artifacts):
    """Stores the machine code of kernels that `save_cache_artifacts` returned, on this machine or another one, and
    returns a description of the contents. A kernel is found by its source, its options, the architecture and the
    compiler."""
    return _artifacts.load(serialized_artifacts)


def cudagraph_mark_step_begin():
    """Does nothing: the results of compiled functions stay valid."""


def list_backends(exclude_tags=()):
    """Returns the names that `torch.compile` takes as a backend: all except "eager" mean the same one."""
    return list(_compiling.BACKENDS)


def wrap_numpy(fn):
    """Returns the function unchanged."""
    return fn


class set_stance(contextlib.ContextDecorator):
    """A region, or a setting, for the behaviour of compiled functions: under "force_eager" they run uncompiled."""

    def __init__(self, stance="default", **options):
        self.stance = stance
        self._former = _compiling.set_stance(stance)

    def __enter__(self):
        _compiling.set_stance(self.stance)
        return self

    def __exit__(self, *_):
        _compiling.set_stance(self._former)


def keep_tensor_guards_unsafe(guard_entries, keep_parameters=False):
    """Returns True for each entry."""
    return [True] * len(guard_entries)


skip_guard_on_inbuilt_nn_modules_unsafe = skip_guard_on_all_nn_modules_unsafe = skip_guard_on_globals_unsafe = keep_tensor_guards_unsafe
