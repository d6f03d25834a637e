"""Graphs of captured work, and functions whose forward and backward passes are graphs (`torch.cuda.graphs`)."""

import types

from .. import _core
from .._html import paragraph, table
from ..nn.module import Module

_inner = _core._cuda

CUDAGraph = _inner.CUDAGraph
graph_pool_handle = _inner.graph_pool_handle
is_current_stream_capturing = _inner.is_current_stream_capturing


class Audit:
    """The result of `audit`: whether a region can be captured, and all obstacles. Notebooks show it as a table."""

    def __init__(self, found):
        self._text = found.pop("text")
        self.is_capturable = found["is_capturable"]
        self.obstacles = [types.SimpleNamespace(**obstacle) for obstacle in found["obstacles"]]
        self.counts = types.SimpleNamespace(**found["counts"])
        self.code, self.host_time_saved = found["code"], found["host_time_saved"]

    def __repr__(self):
        return self._text

    def _repr_html_(self):
        title = "The region can be captured." if self.is_capturable else f"{len(self.obstacles)} obstacles to a capture."
        counts = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in vars(self.counts).items() if number)
        rows = [(one.operator, one.line or "", one.kind, one.count, one.code or "", one.detail, one.repair) for one in self.obstacles]
        return paragraph(f"{title} It submits {counts or 'nothing'}.") + (
            table(("operator", "line", "obstacle", "times", "error", "what", "repair"), rows) if rows else "")


def audit(function, *, stream=None, capture_error_mode="global"):
    """Runs a function without arguments once, eagerly, and returns all obstacles to capturing it with `graph`, with the Python
    lines and the usual fix. Blocks until the device is idle. An exception of the function propagates."""
    return Audit(_inner._audit(function, stream, capture_error_mode))


class graph:
    """A region whose work is captured into a graph instead of being run."""

    def __init__(self, cuda_graph, pool=None, stream=None, capture_error_mode="global", *, check_input_liveness=True):
        # Replays always check whether the inputs are still alive, even if that was not requested.
        self._graph = cuda_graph
        self._options = (pool, capture_error_mode, stream)

    def __enter__(self):
        _inner.synchronize()
        self._graph._capture_begin_aside(*self._options)

    def __exit__(self, kind, *_):
        if kind is None:
            self._graph.capture_end()
        else:
            self._graph._capture_abandon()


def _flat(value):
    """Returns the tensors of nested tuples, lists and dictionaries, and a function that puts other tensors in their places."""
    if isinstance(value, _core.Tensor):
        return [value], lambda tensors: tensors[0]
    if isinstance(value, dict):
        tensors, build = _flat(list(value.values()))
        names = list(value)
        return tensors, lambda others: dict(zip(names, build(others)))
    if isinstance(value, (tuple, list)):
        parts = [_flat(part) for part in value]
        # Only the number of tensors in each part is kept, not the tensors.
        counted, kind = [(len(own), make) for own, make in parts], type(value)

        def build(tensors):
            built, start = [], 0
            for count, make in counted:
                built.append(make(tensors[start:start + count]))
                start += count
            return kind(*built) if hasattr(kind, "_fields") else kind(built)
        return [tensor for own, _ in parts for tensor in own], build
    if value is None:
        return [], lambda tensors: None
    raise TypeError(f"make_graphed_callables: arguments and results are tensors, or nested lists of them, not {type(value).__name__}")


class _Graphed:
    """A function to be graphed: how it is called during the capture and afterwards."""

    def __init__(self, function, sample):
        if not isinstance(sample, tuple):
            raise TypeError("In the beta API, sample_args for each callable must be a tuple of Tensors")
        self.module = function if isinstance(function, Module) else None
        if self.module is not None:
            for kind in ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks"):
                if getattr(self.module, kind):
                    raise RuntimeError("Modules must not have hooks registered at the time they are passed. However, registering hooks on "
                                       "modules after passing them through make_graphed_callables is allowed.")
            self.function = self.module.forward
        else:
            self.function = function
        self.sample, self._build = _flat(sample)
        self._build_results = None

    def described(self):
        """Returns the description that a capture needs."""
        parameters = [] if self.module is None else [one for one in self.module.parameters() if one.requires_grad]
        buffers = [] if self.module is None else list(self.module.buffers())
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return name if self.module is None else type(self.module).__name__, self.captured, parameters, buffers, self.module

    def captured(self, tensors):
        """Calls the original function."""
        results, self._build_results = _flat(self.function(*self._build(list(tensors))))
        return results

    def replaying(self, graphed):
        """Returns the function that replays the graphs."""
        module, original = self.module, self.function
        was_training = None if module is None else module.training

        def call(*args, **kwargs):
            if module is not None and module.training != was_training:
                return original(*args, **kwargs)
            if kwargs:
                raise TypeError(f"a graphed callable takes the tensors of its sample by their places, and no {', '.join(kwargs)}")
            tensors, _ = _flat(args)
            if len(tensors) != len(self.sample):
                raise ValueError(f"a graphed callable takes {len(self.sample)} tensors, as it was captured, not {len(tensors)}")
            # Floats are converted to the dtype of the sample, as PyTorch does when it copies them: under autocast a function's
            # result is rounded.
            tensors = [given.to(taken.dtype) if given.dtype is not taken.dtype and given.is_floating_point() and taken.is_floating_point() else given
                       for given, taken in zip(tensors, self.sample)]
            return self._build_results(graphed.call(tensors))
        return call


def make_graphed_callables(callables, sample_args, num_warmup_iters=3, allow_unused_input=False, pool=None):
    """Returns functions or modules whose forward and backward passes replay graphs: one, or a tuple of several that a step calls
    in this order. Inputs must have the shapes of the samples."""
    if _core.is_autocast_enabled() and _core.is_autocast_cache_enabled():
        raise RuntimeError("make_graphed_callables does not support the autocast caching. Please set `cache_enabled=False`.")
    is_one = not isinstance(callables, tuple)
    if is_one:
        callables, sample_args = (callables,), (sample_args,)
    if len(callables) != len(sample_args):
        raise ValueError(f"make_graphed_callables: {len(callables)} callables and {len(sample_args)} samples")
    graphed = [_Graphed(function, sample) for function, sample in zip(callables, sample_args)]
    made = _core._make_graphed_callables([one.described() for one in graphed], [one.sample for one in graphed], num_warmup_iters,
                                         allow_unused_input, pool)
    found = []
    for one, replays in zip(graphed, made):
        call = one.replaying(replays)
        if one.module is not None:
            object.__setattr__(one.module, "forward", call)
            call = one.module
        found.append(call)
    return found[0] if is_one else tuple(found)
