"""Functions that the backward pass runs again (`torch.utils.checkpoint`)."""

import contextlib
import warnings

from .. import _core

CheckpointError = _core._CheckpointError
_defaults = {"early_stop": True}


def detach_variable(inputs):
    """Returns a tuple with each tensor outside of the graph, a leaf that requires a gradient where it did."""
    if not isinstance(inputs, tuple):
        raise RuntimeError(f"Only tuple of tensors is supported. Got Unsupported input type: {type(inputs).__name__}")
    return tuple(value.detach().requires_grad_(value.requires_grad) if isinstance(value, _core.Tensor) else value for value in inputs)


@contextlib.contextmanager
def set_checkpoint_early_stop(enable):
    """A region whose checkpointed functions are, or are not, left as soon as backward has what it needs."""
    former = _defaults["early_stop"]
    _defaults["early_stop"] = bool(enable)
    try:
        yield
    finally:
        _defaults["early_stop"] = former


def checkpoint(function, *args, use_reentrant=None, preserve_rng_state=True, determinism_check="default", debug=False,
               context_fn=None, early_stop=True, **kwargs):
    """Calls a function without keeping what its operators save for backward: the backward pass runs it again.

    It is PyTorch's `use_reentrant=False`; with `use_reentrant=True` too, whose limits are not here.
    """
    if context_fn is not None or debug:
        raise NotImplementedError("checkpoint: context_fn and debug are left out")
    if determinism_check not in ("default", "none"):
        raise ValueError(f"determinism_check should be one of ('default', 'none') but got {determinism_check}")
    if use_reentrant is None:
        warnings.warn("checkpoint: the use_reentrant parameter should be passed explicitly; here it is as use_reentrant=False",
                      stacklevel=2)
    values = [*args, *kwargs.values()]
    names = list(kwargs)
    places = [place for place, value in enumerate(values) if isinstance(value, _core.Tensor)]
    tensors = [values[place] for place in places]
    first = list(values)
    for place in places:
        values[place] = None

    def run(inputs):
        # The first call has the caller's own objects; what is kept for the second has no tensor.
        given = list(first) if first else list(values)
        if not first:
            for place, tensor in zip(places, inputs):
                given[place] = tensor
        first.clear()
        count = len(given) - len(names)
        return function(*given[:count], **dict(zip(names, given[count:])))
    stops = early_stop and _defaults["early_stop"]
    return _core._checkpoint(run, tensors, preserve_rng_state, determinism_check == "default", stops)


def checkpoint_sequential(functions, segments, input, use_reentrant=None, **kwargs):
    """Calls the modules of a sequence one behind the other, cut into checkpointed segments; the last one keeps what it saves."""
    if use_reentrant is None:
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
