"""Decorators for compilers (`torch.compiler`): programs run eagerly, so each returns its function unchanged."""

import contextlib


def _kept(fn=None, *args, **kwargs):
    """Returns the function unchanged, or a decorator that does so."""
    return fn if fn is not None else lambda function: function


disable = allow_in_graph = assume_constant_result = disallow_in_graph = _kept


def nested_compile_region(fn=None, **options):
    """Returns the function unchanged."""
    return _kept(fn)


def substitute_in_graph(original_fn, **options):
    """Returns a decorator that returns its function unchanged."""
    return lambda function: function


def compile(model=None, **options):
    """Returns the model unchanged, with a warning."""
    from . import compile as own
    return own(model, **options)


def is_compiling():
    """Returns False."""
    return False


is_dynamo_compiling = is_exporting = is_compiling


def reset():
    """Does nothing: nothing is compiled."""


cudagraph_mark_step_begin = reset


def list_backends(exclude_tags=()):
    """Returns an empty list."""
    return []


def wrap_numpy(fn):
    """Returns the function unchanged."""
    return fn


class set_stance(contextlib.ContextDecorator):
    """A region, or a setting, for the behaviour of compiled functions. It changes nothing."""

    def __init__(self, stance="default", **options):
        self.stance = stance

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def keep_tensor_guards_unsafe(guard_entries, keep_parameters=False):
    """Returns True for each entry."""
    return [True] * len(guard_entries)


skip_guard_on_inbuilt_nn_modules_unsafe = skip_guard_on_all_nn_modules_unsafe = skip_guard_on_globals_unsafe = keep_tensor_guards_unsafe
