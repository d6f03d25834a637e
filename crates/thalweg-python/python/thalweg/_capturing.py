"""Compiled functions as graphs: `torch.compile(mode="reduce-overhead")`. A call whose arguments and settings are those of an
earlier one replays the graph of that call, and Python does not run.

So a function is only captured if a replay does what a call would do:

- It reads nothing that changes unnoticed. `_watching.Watch` lists the globals, closures, attributes, modules and tensors that it can
  reach, and is compared before each replay.
- It does nothing but compute with tensors. Its first call of each kind is observed: a call of a C function that is not known to be
  without effects (`print`, `time.time`, `random.random`), or a change of what is watched, refuses the function by name.

What is refused runs compiled, without a graph, and `THALWEG_EXPLAIN=compile` says why. Under `fullgraph=True` it is an error."""

import contextlib
import functools
import operator
import os
import sys
import threading
import weakref

from . import _core
from ._watching import PACKAGE, Observer, Refused, Watch

# The number of kinds of calls of one function that are captured, and of changes of what one of them watches.
MOST_KINDS = 256
MOST_CHANGES = 8
# The number of kinds of calls of one function that are found by their signatures.
MOST_RECENT = 4
# The number of calls that may change what is watched before the function counts as one that does so at each call.
MOST_PREPARING = 3
# The number of calls of `torch.compiler.reset`, which drops all graphs.
_resets = 0
_thread = threading.local()
_CONSTANTS = (int, float, bool, str, bytes, complex, type(None), type(Ellipsis), slice, range)


def reset():
    """Forgets all graphs."""
    global _resets
    _resets += 1


def explain(text):
    """Writes a line of the explanation, if one is wanted."""
    if os.environ.get("THALWEG_EXPLAIN") == "compile":
        print(f"compile: {text}", file=sys.stderr)


@functools.cache
def _tensor_types():
    from .nn.parameter import Buffer, Parameter
    return _core.Tensor, Parameter, Buffer


class _Structure:
    """Arguments or results without their tensors: nested containers with places for them."""

    def __init__(self, what):
        self.what, self.tensors, self.kinds, self.kept = what, [], [], []

    def taken(self, value):
        """Takes the tensors out of a value. Returns a function of a list of tensors that builds the value again."""
        kind = type(value)
        if isinstance(value, _core.Tensor):
            return self._tensor(value)
        self.kinds.append(kind)
        if kind in (tuple, list) or isinstance(value, tuple) and hasattr(kind, "_fields"):
            self.kinds.append(len(value))
            parts = [self.taken(part) for part in value]
            if kind in (tuple, list):
                return lambda tensors: kind([part(tensors) for part in parts])
            return lambda tensors: kind(*[part(tensors) for part in parts])
        if kind is dict or kind.__name__ == "OrderedDict":
            names = list(value)
            self.kinds.append(tuple(names))
            parts = [self.taken(part) for part in value.values()]
            return lambda tensors: kind(zip(names, [part(tensors) for part in parts]))
        if kind in _CONSTANTS or kind.__module__ in ("thalweg", "torch", "thalweg._results"):
            self.kinds.append(repr(value) if kind in (slice, float, complex) else value)
            return lambda tensors: value
        if self.what == "argument":
            # An object is watched, and the same one each time.
            self.kinds.append(id(value))
            self.kept.append(value)
            return lambda tensors: value
        raise Refused(f"it returns a {kind.__qualname__}")

    def _tensor(self, value):
        if type(value) not in _tensor_types() or getattr(value, "__dict__", None):
            raise Refused(f"the {self.what} is a {type(value).__qualname__} with a class or attributes of its own")
        place = next((place for place, other in enumerate(self.tensors) if other is value), len(self.tensors))
        if place == len(self.tensors):
            self.tensors.append(value)
        self.kinds.append(place)
        return lambda tensors: tensors[place]


@functools.cache
def _readers():
    """Returns the functions that read the settings on which the results of operators depend."""
    import thalweg as torch
    from . import _dispatching, overrides
    from .nn import _calls
    return (_core.is_grad_enabled, _core.is_inference_mode_enabled, lambda: _core.is_autocast_enabled() and torch.get_autocast_dtype("cuda"),
            torch.get_default_dtype, torch.are_deterministic_algorithms_enabled, torch.get_float32_matmul_precision, torch.get_default_device,
            lambda: len(_dispatching.modes()), lambda: len(overrides._get_current_function_mode_stack()),
            _calls._global_forward_hooks.__len__, _calls._global_forward_pre_hooks.__len__)


def _settings():
    """Returns the settings on which the results of operators depend."""
    return tuple([read() for read in _readers()])


def _place(error):
    """Returns the line of the program at which an error arose."""
    frame, found = error.__traceback__, ""
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if not file.startswith(PACKAGE):
            found = f" ({file}:{frame.tb_lineno})"
        frame = frame.tb_next
    return found


def _described(tensor):
    """Returns the properties of a tensor that determine its kernels. Strides are included only if the tensor is not
    contiguous."""
    strides = None if tensor.is_contiguous() else tensor.stride()
    return tuple(tensor.shape), tensor.dtype, strides, tensor.requires_grad, tensor.device


class _Kind:
    """The calls with arguments of one kind: structure, constants, shapes, dtypes and layouts, under the same settings."""

    def __init__(self):
        self.calls, self.changes, self.watch = 0, 0, None
        # The reason why no graph is made, and whether a function that must be one graph may run without it nevertheless.
        self.refusal, self.is_allowed = None, False
        self.same, self.static, self.captured, self.results, self.kept = [], [], None, None, []
        # The recording of its gradients, if there are any.
        self.recording = None
        # The settings, and the signature of arguments without containers.
        self.settings, self.signature = None, None

    def is_ready(self, tensors):
        """Returns whether a replay may replace a call with these tensors."""
        return (self.captured is not None and self.refusal is None and self.resets == _resets
                and all(self.same[place] == id(tensors[place]) for place in self.static) and self.watch.holds())


class _Gradients:
    """The tensors of a call that require a gradient, and those of their properties that a call must not change."""

    def __init__(self, tensors):
        self._tensors = [one for one in tensors if one.requires_grad] if _core.is_grad_enabled() else []
        self._former = self._now()

    def _now(self):
        leaves = [one for one in self._tensors if one.is_leaf]
        gradients = _core._gradient_places(leaves), [one.grad is not None and one.grad._version for one in leaves]
        return [one._version for one in self._tensors], gradients

    def change(self):
        """Returns the changes that the call has made."""
        versions, gradients = self._now()
        if gradients != self._former[1]:
            return "it runs a backward pass"
        return "it writes a tensor that requires a gradient" if versions != self._former[0] else None


class Captured:
    """A function whose calls are graphs where that is possible."""

    def __init__(self, function, plain, name, fullgraph):
        self.function, self.plain, self.name, self.fullgraph = function, plain, name, fullgraph
        self._threads = threading.local()

    def __call__(self, *args, **kwargs):
        if getattr(_thread, "is_inside", False) or _core._is_compiling():
            return self.plain(*args, **kwargs)
        for kind in self._threads.__dict__.get("recent", ()):
            tensors = kind.signature.tensors(args, kwargs)
            if tensors is not None and kind.settings == _settings() and kind.is_ready(tensors):
                return self._called(kind, tensors, args, kwargs)
        try:
            kind, tensors, build = self._kind(args, kwargs)
        except Refused as refused:
            return self._without(str(refused), args, kwargs)
        if kind.refusal is not None:
            return self._without(kind.refusal, args, kwargs, kind.is_allowed)
        if kind.watch is not None and not kind.watch.holds():
            changed = kind.watch.changed()
            kind.watch, kind.captured, kind.calls, kind.changes = None, None, 0, kind.changes + 1
            explain(f"{self.name}: {changed} has changed, so it is captured again")
            if kind.changes > MOST_CHANGES:
                kind.refusal = f"{changed} changes again and again"
        if kind.calls < 2 and self._is_recompiled(kind):
            return self.plain(*args, **kwargs)
        kind.calls += 1
        if kind.watch is None:
            return self._observed(kind, tensors, args, kwargs)
        return self._replayed(kind, tensors, build, args, kwargs)

    def _is_recompiled(self, kind):
        """Returns whether a new kind of call runs as it is written, as `torch.compiler.set_stance` requested."""
        from . import _compiling
        kinds = self._threads.kinds.values()
        if not any(other.captured for other in kinds if other is not kind):
            return False
        if _compiling.stance() == "fail_on_recompile":
            raise RuntimeError(f"Detected recompile when torch.compile stance is 'fail_on_recompile': {self.name} is called in a new way")
        return _compiling.stance() == "eager_on_recompile"

    def _without(self, reason, args, kwargs, is_allowed=False):
        """Runs the function without a graph, for a reason."""
        if self.fullgraph and not is_allowed:
            raise RuntimeError(f"torch.compile(fullgraph=True): {self.name} cannot be captured, since {reason}")
        told = self.__dict__.setdefault("_told", set())
        if reason not in told and len(told) < MOST_KINDS:
            told.add(reason)
            explain(f"{self.name} runs without a graph, since {reason}")
        return self.plain(*args, **kwargs)

    def _kind(self, args, kwargs):
        """Returns the kind of a call, its tensors, and the function that builds the arguments from tensors."""
        state = self._threads.__dict__
        if state.get("resets") != _resets:
            state.clear()
            state.update(resets=_resets, kinds={})
        structure = _Structure("argument")
        build = structure.taken((args, kwargs))
        tensors = structure.tensors
        if len({tensor.device for tensor in tensors}) > 1:
            raise Refused("its arguments are on several devices")
        if any(0 in tensor.stride() and not tensor.is_contiguous() for tensor in tensors):
            raise Refused("an argument repeats its elements: it is expanded")
        key = (tuple(structure.kinds), tuple([_described(tensor) for tensor in tensors]), _settings())
        try:
            kind = state["kinds"].get(key)
        except TypeError:
            raise Refused("an argument has no hash") from None
        if kind is None:
            if len(state["kinds"]) >= MOST_KINDS:
                raise Refused(f"it has been called in {MOST_KINDS} ways, the limit")
            kind = state["kinds"][key] = _Kind()
            kind.kept, kind.settings = structure.kept, key[2]
            kind.family = (key[0], tuple([(len(shape), *others) for shape, *others in key[1]]), key[2])
        return kind, tensors, build

    def _observed(self, kind, tensors, args, kwargs):
        """Calls the function compiled, and finds out whether it can be captured."""
        kind.same = [id(tensor) for tensor in tensors]
        watch = self._watch(kind)
        if any(not one.is_leaf for one in watch.tensors) and _core.is_grad_enabled():
            kind.refusal, kind.is_allowed = "it reads the result of recorded operators other than as an argument", True
            return self._without(kind.refusal, args, kwargs, kind.is_allowed)
        observer, before = Observer(watch), [_described(tensor) for tensor in tensors]
        places, gradients = _core._places(tensors), _Gradients((*tensors, *watch.tensors))
        with observer:
            results = self.plain(*args, **kwargs)
        kind.refusal = watch.refusal or observer.refusal or gradients.change()
        if _core._places(tensors) != places or [_described(tensor) for tensor in tensors] != before:
            kind.refusal = kind.refusal or "it gives an argument another shape or other memory"
        kind.refusal = kind.refusal or _change_of_containers((args, kwargs), kind.family[0], tensors)
        if kind.refusal is None and not watch.holds():
            # The first calls may prepare what later ones find.
            kind.changes, kind.calls = kind.changes + 1, 0
            if kind.changes >= MOST_PREPARING:
                kind.refusal = f"it changes {watch.changed()} at each call"
            return results
        try:
            structure = _Structure("result")
            structure.taken(results)
            for one in structure.tensors:
                _seen(one, tensors, watch.tensors)
        except Refused as refused:
            kind.refusal = kind.refusal or str(refused)
        if kind.refusal is not None and self.fullgraph:
            return self._without(kind.refusal, args, kwargs)
        kind.watch = watch
        return results

    def _watch(self, kind):
        """Returns the watch of all kinds with the same objects as arguments, or a new one if something has changed."""
        watches, key = self._threads.__dict__.setdefault("watches", {}), tuple(map(id, kind.kept))
        watch = watches.get(key)
        if watch is None or not watch.holds():
            watch = watches[key] = Watch(self.function, kind.kept)
        return watch

    def _replayed(self, kind, tensors, build, args, kwargs):
        """Calls the function as a graph."""
        same = [id(tensor) for tensor in tensors]
        if kind.captured is None or any(kind.same[place] != same[place] for place in kind.static):
            self._register(kind, tensors, build, same)
            self._recall(kind, args, kwargs)
        return self._called(kind, tensors, args, kwargs)

    def _recall(self, kind, args, kwargs):
        """Adds the kind to the recently used ones, which are found by their signatures."""
        recent = self._threads.__dict__.setdefault("recent", [])
        recent[:] = [other for other in recent if other is not kind and other.resets == _resets][-MOST_RECENT + 1:]
        if not any(isinstance(value, (tuple, list, dict)) for value in (*args, *kwargs.values())):
            kind.signature, kind.resets = _core._Signature(args, kwargs), _resets
            recent.append(kind)

    def _called(self, kind, tensors, args, kwargs):
        """Calls the function as a graph, which is captured first if necessary."""
        kind.failed = None
        try:
            results, reason = kind.captured.call(tensors)
        except Exception as error:
            if kind.failed is not error:
                raise
            kind.refusal = str(error).strip().splitlines()[0] + _place(error)
            return self._without(kind.refusal, args, kwargs)
        if reason is not None:
            if self.fullgraph and kind.recording is None:
                raise RuntimeError(f"torch.compile(fullgraph=True): {self.name} cannot be captured, since {reason}")
            kind.is_allowed = kind.recording is not None
            kind.refusal = reason if "it cannot be captured" in reason or "keeps memory" in reason else None
            explain(f"{self.name} runs without a graph, since {reason}")
        return kind.results(results, tensors)

    def _register(self, kind, tensors, build, same):
        """Makes the kind a function of the device's graph trees. Tensors that both calls passed are read at their own
        addresses, without a copy."""
        kind.static = [place for place, (one, other) in enumerate(zip(kind.same, same)) if one == other] if kind.captured is None else []
        kind.same = same
        family = (kind.family, tuple(kind.static), kind.changes)
        families = self._threads.__dict__.setdefault("families", {})
        if family not in families:
            shared = families[family] = _Family(self.function)
            run = functools.partial(_run_family, weakref.ref(shared))
            shared.captured = _core._Captured(self.name, run, kind.static, tensors[0] if tensors else None)
        kind.captured, kind.recording = _Bound(kind, families[family], build, _core.is_grad_enabled()), _recording(kind.watch, tensors)


def _recording(watch, tensors):
    """Returns the recording of gradients of the calls with these tensors, if there are any."""
    inputs = [place for place, one in enumerate(tensors) if one.requires_grad]
    leaves = [one for one in watch.tensors if one.requires_grad]
    if not _core.is_grad_enabled() or not inputs and not leaves:
        return None
    return _core._Recording(inputs, leaves, watch.tensors, (*tensors, *leaves)[0])


class _Family:
    """A function with arguments of one structure, and of any shapes: its graphs share a pool."""

    def __init__(self, function):
        self.function, self.captured, self.bound = function, None, None


def _run_family(family, tensors):
    """Calls the function of a family, which its graphs do not keep alive."""
    family = family()
    return family.bound.run(family.function, tensors)


def _change_of_containers(arguments, kinds, tensors):
    """Returns the changes that a call has made to the lists and dictionaries among its arguments, which held these
    tensors before."""
    structure = _Structure("argument")
    try:
        structure.taken(arguments)
    except Refused as refused:
        return str(refused)
    same = len(structure.tensors) == len(tensors) and all(map(operator.is_, structure.tensors, tensors))
    return None if same and tuple(structure.kinds) == kinds else "it changes a list or a dictionary among its arguments"


def _uncached_autocast():
    """Returns an autocast region like the current one, whose casts are not kept after its end."""
    from .amp import autocast, get_autocast_dtype
    if not _core.is_autocast_enabled():
        return contextlib.nullcontext()
    return autocast("cuda", dtype=get_autocast_dtype("cuda"), cache_enabled=False)


def _numbered(number, results, given):
    return results[number]


def _seen(result, tensors, watched):
    """Returns a function that makes a result from the caller's arguments, if the result is one of them, a view of one,
    or a watched tensor."""
    if any(one is result for one in watched):
        return lambda results, given: result
    for place, one in enumerate(tensors):
        if one is result:
            return lambda results, given: given[place]
        if _core._share_memory(one, result):
            if one.dtype != result.dtype:
                raise Refused("it returns a view of an argument as another dtype")
            offset = result.storage_offset() - one.storage_offset()
            return functools.partial(_view, place, (tuple(result.shape), result.stride(), offset), _leaf_of(result, one))
    return None


def _leaf_of(result, one):
    """Returns whether a view of an argument is outside of its graph, as `detach()` makes it, and, if it is, whether it requires gradients."""
    is_apart = result.is_leaf and (result.requires_grad or one.requires_grad)
    return (result.requires_grad,) if is_apart else ()


def _view(place, layout, leaf, results, given):
    one, (shape, strides, offset) = given[place], layout
    view = (one.detach() if leaf else one).as_strided(shape, strides, one.storage_offset() + offset)
    return view.requires_grad_(*leaf) if leaf else view


class _Bound:
    """The calls of one kind, as a function of tensors."""

    def __init__(self, kind, family, build, records):
        self.kind, self.family, self.build, self.records = kind, family, build, records

    def call(self, tensors):
        """Calls the graph."""
        self.family.bound = self
        return self.family.captured.call(tensors, self.kind.recording)

    def run(self, function, tensors):
        """Calls the function, once to warm up, and once for the capture."""
        from . import set_grad_enabled
        former, _thread.is_inside = getattr(_thread, "is_inside", False), True
        try:
            args, kwargs = self.build(tensors)
            with set_grad_enabled(self.records), _uncached_autocast():
                results = function(*args, **kwargs)
            structure = _Structure("result")
            build = structure.taken(results)
            seen = [_seen(one, tensors, self.kind.watch.tensors) for one in structure.tensors]
            own = [one for one, of in zip(structure.tensors, seen) if of is None]
            numbers = iter(range(len(own)))
            found = [of or functools.partial(_numbered, next(numbers)) for of in seen]
            self.kind.results = lambda results, given: build([one(results, given) for one in found])
            return own
        except Exception as error:
            # What fails outside of the capture is the caller's.
            self.kind.failed = error if _core._cuda.is_current_stream_capturing() else None
            raise
        finally:
            _thread.is_inside = former


def captured(function, plain, fullgraph):
    """Returns a function whose calls are graphs where that is possible."""
    return Captured(function, plain, getattr(function, "__qualname__", None) or type(function).__qualname__, fullgraph)
