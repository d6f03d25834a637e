"""`torch.compile`: functions whose loops are fused. The function itself runs as it is written, each time, unless its calls are
captured."""

import functools

from . import _core
from ._ways import Way

BACKENDS = ("inductor", "cudagraphs", "eager", "aot_eager", "thalweg")
MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune", "lite")
# The modes in which calls are captured as graphs.
CAPTURING = ("reduce-overhead", "max-autotune")
STANCES = ("default", "eager_then_compile", "aot_eager_then_compile", "force_eager", "eager_on_recompile", "fail_on_recompile")
# The stance of `torch.compiler.set_stance`: under "force_eager" compiled functions run as they would uncompiled.
_stance = "default"


def set_stance(stance):
    """Sets the stance, and returns the former one."""
    global _stance
    if stance not in STANCES:
        raise RuntimeError(f"invalid torch.compile stance '{stance}': one of {', '.join(STANCES)}")
    former, _stance = _stance, stance
    return former


def stance():
    """Returns the stance."""
    return _stance


def _in_region(begin, function):
    """Returns the function, run between `begin` and the end of the region or part that it begins."""
    @functools.wraps(function)
    def inside(*args, **kwargs):
        begin()
        try:
            result = function(*args, **kwargs)
        except BaseException:
            try:
                _core._end_compiled()
            except Exception:
                pass  # The function's own error is reported.
            raise
        _core._end_compiled()
        return result
    return inside


def compiled(function, captures=False, fullgraph=False, tunes=False, adaptive=True):
    """Returns the function with its loops fused and, if requested, its calls captured as graphs and its products tuned.
    If it is `adaptive`, it runs uncompiled where that is faster."""
    original, function = function, _tuned(function) if tunes else function
    inside = _in_region(_core._begin_compiled, function)
    if captures:
        from ._capturing import captured
        inside = captured(function, inside, fullgraph)

    way = Way(decides=adaptive and not captures)

    @functools.wraps(function)
    def call(*args, **kwargs):
        if _stance == "force_eager":
            return original(*args, **kwargs)
        # Within another compiled function, that one decides.
        is_written = way.compiles is not True and not _core._is_compiling() and not way.chosen()
        return function(*args, **kwargs) if is_written else inside(*args, **kwargs)
    call._torchdynamo_orig_callable = original
    call._captured = inside if captures else None
    return call


def _tuned(function):
    """Returns the function with TunableOp enabled while it runs: products use the algorithm that was measured to be the fastest."""
    from .cuda import tunable

    @functools.wraps(function)
    def call(*args, **kwargs):
        former = tunable.is_enabled()
        tunable.enable(True)
        try:
            return function(*args, **kwargs)
        finally:
            tunable.enable(former)
    return call


def _tunes(options):
    """Returns whether options ask for measured algorithms whose bits may differ."""
    is_fast = options.get("numerics", "eager") == "fast"
    return is_fast and bool(options.get("max_autotune") or options.get("max_autotune_gemm"))


def excluded(function):
    """Returns the function, which runs uncompiled in compiled functions, too."""
    outside = _in_region(_core._begin_uncompiled, function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        return outside(*args, **kwargs) if _core._is_compiling() else function(*args, **kwargs)
    return call


def check(backend, mode, options):
    """Refuses arguments that PyTorch refuses, and backends that are functions, because these expect a graph of
    PyTorch's."""
    if mode is not None and options is not None:
        raise RuntimeError("Either mode or options can be specified, but both can't be specified at the same time.")
    if mode is not None and mode not in MODES:
        raise RuntimeError(f"Unrecognized mode={mode}, should be one of: {', '.join(MODES)}")
    if options is not None and not isinstance(options, dict):
        raise RuntimeError(f"options are a dictionary, not {type(options).__name__}")
    if (options or {}).get("numerics", "eager") not in ("eager", "fast"):
        raise RuntimeError(f"numerics is 'eager', the bits of uncompiled calls, or 'fast', not {options['numerics']!r}")
    if not isinstance(backend, str):
        raise NotImplementedError("torch.compile: a backend that is a function expects an FX graph, and none is made: the function itself runs; leave `backend` out")
    if backend not in BACKENDS:
        raise RuntimeError(f"Invalid backend: {backend!r}, see `torch._dynamo.list_backends()` for available backends.")


def compile(model=None, *, fullgraph=False, dynamic=None, backend="inductor", mode=None, options=None, disable=False):
    """Returns the model or function with its loops fused: `torch.compile`. It computes the same bits. Nothing is traced, so there is
    nothing to break or to trace again: branches, prints, hooks and new sizes need no option, and `dynamic` changes nothing.

    In the modes "reduce-overhead" and "max-autotune", and with the option "triton.cudagraphs", a call that is like an earlier one
    replays a graph, and Python does not run. A function for which that would make a difference runs without a graph; with
    `fullgraph` it is an error. With the options "max_autotune" and "numerics", which is "fast" then, products use the algorithm that
    was measured to be the fastest, whose bits may differ. `THALWEG_EXPLAIN=compile` shows what became one kernel, and what is not captured.

    On a GPU, some 10 to 20 calls find out whether a function is faster compiled or as it is written, which it is if the host takes longer than the
    GPU, and the faster way remains. With the option "adaptive", which is False then, it is always compiled."""
    check(backend, mode, options)
    if model is None:
        return lambda model: compile(
            model, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options, disable=disable)
    if disable or backend == "eager":
        return model
    tunes, adaptive = _tunes(options or {}), (options or {}).get("adaptive", True)
    captures = mode in CAPTURING or backend == "cudagraphs" or bool((options or {}).get("triton.cudagraphs"))
    from .nn.module import Module
    if isinstance(model, Module):
        from .nn.compiled import OptimizedModule
        return OptimizedModule(model, captures, fullgraph, tunes, adaptive)
    if not callable(model):
        raise RuntimeError(f"A module or a function is compiled, not {type(model).__name__}")
    return compiled(model, captures, fullgraph, tunes, adaptive)
