"""Functions that the backward pass runs again (`torch.utils.checkpoint`)."""

import contextlib
import sys
import warnings

from .. import _core

CheckpointError = _core._CheckpointError
_defaults = {"early_stop": True, "debug": None}


def detach_variable(inputs):
    """Returns a tuple with each tensor detached from the graph. A tensor that requires a gradient becomes a leaf that does."""
    if not isinstance(inputs, tuple):
        raise RuntimeError(f"Only tuple of tensors is supported. Got Unsupported input type: {type(inputs).__name__}")
    return tuple(value.detach().requires_grad_(value.requires_grad) if isinstance(value, _core.Tensor) else value for value in inputs)


@contextlib.contextmanager
def set_checkpoint_early_stop(enable):
    """A region that sets whether checkpointed functions stop as soon as the backward pass has what it needs."""
    former = _defaults["early_stop"]
    _defaults["early_stop"] = bool(enable)
    try:
        yield
    finally:
        _defaults["early_stop"] = former


@contextlib.contextmanager
def set_checkpoint_debug_enabled(enabled):
    """A region that sets whether errors of checkpointed functions list their calls. With None, the argument `debug` of each
    decides."""
    former = _defaults["debug"]
    _defaults["debug"] = enabled
    try:
        yield
    finally:
        _defaults["debug"] = former


def noop_context_fn():
    """Returns two regions that change nothing, one for each run of a checkpointed function."""
    return contextlib.nullcontext(), contextlib.nullcontext()


class _Lines:
    """The program lines that call operators while a checkpointed function runs, for its error messages."""

    def __init__(self):
        self.first, self.second = [], []

    @contextlib.contextmanager
    def noted(self, lines):
        """A region in which each saved tensor records the line that saves it."""
        lines.clear()
        former = sys.gettrace()

        def trace(frame, event, _):
            if event == "call" and "thalweg" in frame.f_code.co_filename:
                return None
            if event == "line":
                lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
            return trace
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(former)

    def text(self, error):
        """Returns an error with the lines of both runs."""
        return (f"{error}\n\nAn error happened while unpacking tensors; dumping logs of latest computation because you passed `debug=True` to "
                "`torch.utils.checkpoint.checkpoint()`. You are seeing this error because you passed `debug=True` to checkpoint and tensors to be saved during "
                "the original forward and differ between those saved during recomputation.\n"
                "Lines of the first run:\n  " + "\n  ".join(self.first) + "\nLines of the second run:\n  " + "\n  ".join(self.second))


def checkpoint(function, *args, use_reentrant=None, preserve_rng_state=True, determinism_check="default", debug=False,
               context_fn=noop_context_fn, early_stop=True, **kwargs):
    """Calls a function without saving tensors for the backward pass, which runs the function again.

    This is PyTorch's `use_reentrant=False`. `use_reentrant=True` behaves the same here, without PyTorch's limits.
    """
    if use_reentrant and (context_fn is not noop_context_fn or debug):
        raise ValueError("Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
    if determinism_check not in ("default", "none"):
        raise ValueError(f"determinism_check should be one of ('default', 'none') but got {determinism_check}")
    if use_reentrant is None:
        warnings.warn("checkpoint: the use_reentrant parameter should be passed explicitly; here it is as use_reentrant=False",
                      stacklevel=2)
    context = None if context_fn is noop_context_fn else context_fn()
    lines = _Lines() if (debug if _defaults["debug"] is None else _defaults["debug"]) else None
    values = [*args, *kwargs.values()]
    names = list(kwargs)
    places = [place for place, value in enumerate(values) if isinstance(value, _core.Tensor)]
    tensors = [values[place] for place in places]
    first = list(values)
    for place in places:
        values[place] = None

    def run(inputs):
        # The first call uses the caller's own objects. The values that are kept for the second call contain no tensors.
        given = list(first) if first else list(values)
        if not first:
            for place, tensor in zip(places, inputs):
                given[place] = tensor
        is_first = bool(first)
        first.clear()
        count = len(given) - len(names)
        with contextlib.ExitStack() as regions:
            if context is not None:
                regions.enter_context(context[0 if is_first else 1])
            if lines is not None:
                regions.enter_context(lines.noted(lines.first if is_first else lines.second))
            return function(*given[:count], **dict(zip(names, given[count:])))
    stops = early_stop and _defaults["early_stop"]
    explain = None if lines is None else lines.text
    return _core._checkpoint(run, tensors, preserve_rng_state, determinism_check == "default", stops, explain)


def checkpoint_sequential(functions, segments, input, use_reentrant=None, **kwargs):
    """Calls the modules of a sequence one after another, divided into checkpointed segments. The last segment saves its
    tensors."""
    if use_reentrant is None:
        warnings.warn("checkpoint_sequential: the use_reentrant parameter should be passed explicitly; here it is as use_reentrant=False", stacklevel=2)
        use_reentrant = False
    modules = list(functions.children()) if hasattr(functions, "children") else list(functions)
    size = len(modules) // segments

    def segment(begin, end):
        def forward(value):
            for module in modules[begin:end]:
                value = module(value)
            return value
        return forward
    end = 0
    for begin in range(0, size * (segments - 1), size or 1):
        end = begin + size
        input = checkpoint(segment(begin, end), input, use_reentrant=use_reentrant, **kwargs)
    return segment(end, len(modules))(input)
