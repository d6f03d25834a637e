"""Functions that the backward pass runs again (`torch.utils.checkpoint`)."""

import contextlib
import enum
import functools
import sys
import warnings

from .. import _core
from . import _pytree

CheckpointError = _core._CheckpointError
_defaults = {"early_stop": True, "debug": None}


def detach_variable(inputs):
    """Returns a tuple with each tensor detached from the graph. A tensor that requires a gradient becomes a leaf that does."""
    if not isinstance(inputs, tuple):
        raise RuntimeError(f"Only tuple of tensors is supported. Got Unsupported input type: {type(inputs).__name__}")
    return tuple(value.detach().requires_grad_(value.requires_grad) if isinstance(value, _core.Tensor) else value for value in inputs)


def check_backward_validity(inputs):
    """Warns if no input of a checkpointed function requires a gradient."""
    if not any(isinstance(value, _core.Tensor) and value.requires_grad for value in inputs):
        warnings.warn("None of the inputs have requires_grad=True. Gradients will be None", stacklevel=2)


def get_device_states(*args):
    """Returns the numbers of the GPUs of tensors, and the states of their default generators. Other tensors have the generator of
    `get_rng_state`."""
    from ..cuda import get_rng_state
    numbers = list(dict.fromkeys(value.device.index for value in _pytree.tree_leaves(args) if isinstance(value, _core.Tensor) and value.is_cuda))
    return numbers, [get_rng_state(number) for number in numbers]


def set_device_states(devices, states, *, device_type=None):
    """Sets the states of the default generators of GPUs."""
    from ..cuda import set_rng_state
    for number, state in zip(devices, states):
        set_rng_state(state, number)


@contextlib.contextmanager
def set_checkpoint_early_stop(enable):
    """Returns a region that sets whether checkpointed functions stop as soon as the backward pass has what it needs."""
    former = _defaults["early_stop"]
    _defaults["early_stop"] = bool(enable)
    try:
        yield
    finally:
        _defaults["early_stop"] = former


@contextlib.contextmanager
def set_checkpoint_debug_enabled(enabled):
    """Returns a region that sets whether errors of checkpointed functions list their calls. With None, the argument `debug` of each
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
        """Returns a region in which each saved tensor records the line that saves it."""
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


# Functions that return what makes a region like the one that a call is in, for the second run, or None.
regions_again = []


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
    around = [again for made in regions_again if (again := made()) is not None]
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
            for again in () if is_first else around:
                regions.enter_context(again())
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


# ---- Policies for each operator ------------------------------------------------------------------------------------


class CheckpointPolicy(enum.Enum):
    """Whether the result of an operator is kept for the second run of a checkpointed function, or computed again."""

    MUST_SAVE, PREFER_SAVE, MUST_RECOMPUTE, PREFER_RECOMPUTE, MUST_CPU_OFFLOAD = range(5)


class SelectiveCheckpointContext:
    """The object that a policy receives: it tells which of the two runs calls the policy."""

    def __init__(self, *, is_recompute):
        self.is_recompute = is_recompute


SAC_IGNORED_OPS = set()


class _Policies:
    """The two regions of a checkpointed function, of which the first keeps results and the second returns them."""

    def __init__(self, policy, allow_cache_entry_mutation):
        self.policy, self.is_mutable, self.kept = policy, allow_cache_entry_mutation, {}

    def saves(self, is_recompute, func, args, kwargs):
        """Returns whether the policy keeps the result of an operator."""
        chosen = self.policy(SelectiveCheckpointContext(is_recompute=is_recompute), func, *args, **kwargs)
        if isinstance(chosen, bool):
            return chosen
        return chosen in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


def create_selective_checkpoint_contexts(policy_fn_or_list, allow_cache_entry_mutation=False):
    """Returns the two regions for `context_fn` by which the results of some operators are kept: those in a list, or those that
    `policy_fn(ctx, op, *args, **kwargs)` names."""
    from ..ops import OpOverload
    if isinstance(policy_fn_or_list, list):
        for op in policy_fn_or_list:
            if not isinstance(op, OpOverload):
                text = "Please update the OpOverloadPacket to a specific OpOverload." if type(op).__name__ == "OpOverloadPacket" else ""
                raise ValueError(f"Expected op in `op_list` to be an OpOverload but got: {op} of type {type(op)}. {text}")
        listed = list(policy_fn_or_list)
        policies = _Policies(lambda ctx, op, *args, **kwargs: op in listed, allow_cache_entry_mutation)
    elif callable(policy_fn_or_list):
        policies = _Policies(policy_fn_or_list, allow_cache_entry_mutation)
    else:
        raise TypeError("policy_fn_or_list must be either a function or a list of ops.")

    keeping, returning = _regions()
    return keeping(policies), returning(policies)


@functools.cache
def _regions():
    """Returns the classes of the regions of the first and the second run."""
    from ._python_dispatch import TorchDispatchMode

    class _Keeping(TorchDispatchMode):
        """The region of the first run."""

        def __init__(self, policies):
            super().__init__()
            self._policies = policies

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if self._policies.saves(False, func, args, kwargs or {}):
                self._policies.kept.setdefault(func, []).append(_kept(result))
            return result

    class _Returning(TorchDispatchMode):
        """The region of the second run."""

        def __init__(self, policies):
            super().__init__()
            self._policies = policies

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if not self._policies.saves(True, func, args, kwargs or {}):
                return func(*args, **(kwargs or {}))
            results = self._policies.kept.get(func)
            if results is None:
                raise RuntimeError(f"{func} encountered during backward, but not found in storage: the policy of the second run is not that of the first")
            if not results:
                raise RuntimeError("Trying to backward an extra time. You are only allowed to backward once on any region computed under selective activation "
                                   "checkpoint.")
            return _returned(results.pop(0), self._policies.is_mutable)
    return _Keeping, _Returning


def _kept(result):
    """Returns results outside their graph, with their versions."""
    if isinstance(result, _core.Tensor):
        return result.detach(), result._version
    return type(result)(_kept(part) for part in result) if isinstance(result, (list, tuple)) else (result, None)


def _returned(kept, is_mutable):
    if isinstance(kept, tuple) and len(kept) == 2 and (kept[1] is None or isinstance(kept[1], int)):
        value, version = kept
        if version is not None and value._version != version and not is_mutable:
            raise RuntimeError("Tensor cached during selective activation checkpoint has been mutated")
        return value
    return type(kept)(_returned(part, is_mutable) for part in kept)
