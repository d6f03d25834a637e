"""Names of PyTorch that this package leaves out.
They can be imported, used in annotations and passed to `isinstance`, and raise a `NotImplementedError` with the reason when they
are used.

`MODULES` has modules that are missing entirely, `NAMES` the names that are missing in existing modules.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import types

_EAGER = "programs run eagerly, or are captured into graphs (`cuda.graph`)"
_RANKS = "it is in the Rust crate only (`thalweg::distributed`)"
_SPARSE = "sparse tensors have the layouts COO and CSR, and the functions that graph networks call"
_QUANTIZED = "there are no quantized tensors"
_NOT_YET = "the operator is not in the table"
_INSIDE = "it is internal to PyTorch, and Thalweg has none of it"

# Modules that are left out with all their contents, by their names under `thalweg`.
MODULES = {
    **dict.fromkeys((
        "_dynamo", "_dynamo.compiled_autograd", "_inductor", "_inductor.config", "_export", "_functorch", "_higher_order_ops", "_subclasses", "_lazy", "_numpy",
        "_jit_internal", "onnx", "jit", "package", "_lobpcg", "_guards"), _EAGER),
    **dict.fromkeys((
        "distributed.algorithms", "distributed.elastic", 
        "distributed.nn", "distributed.optim", "distributed.pipelining", "distributed.rpc", "distributed.rpc.api", 
        "distributed._composable",
        "distributed._shard", "distributed._state_dict_utils", "distributed._symmetric_memory", "distributed._tools",
        "distributed.autograd", "distributed.rendezvous", "distributed.utils", "distributed.collective_utils",
        "distributed.logging_handlers", "distributed.launcher", "cuda.nccl"), _RANKS),
    "sparse": _SPARSE, "masked.maskedtensor": "there are no masked tensors",
    **dict.fromkeys(("quantization", "ao", "nn.quantized", "nn.quantizable", "nn.intrinsic", "nn.qat"), _QUANTIZED),
    **dict.fromkeys((
        "_C", "_refs", "_prims", "_decomp", "_dispatch", "_utils_internal", "_logging", "_linalg_utils", "_classes",
        "_meta_registrations", "_library", "_custom_ops", "_weights_only_unpickler", "_namedtensor_internals", "_python_dispatcher",
        "utils._sympy", "utils._triton", "utils._cxx_pytree",
        "utils._stats", "_tensor_str", "_tensor", "utils.backcompat", "utils.bottleneck"), _INSIDE),
    **dict.fromkeys(("utils.cpp_extension", "cuda.jiterator"), "kernels of one's own are written in Rust"),
    "utils.mobile_optimizer": "there are no phones among the devices", "utils.model_dump": _EAGER,
    "utils.data.datapipes": "there are no pipes of data: say `Dataset` or `IterableDataset`",
    "utils.data.graph": "there are no pipes of data: say `Dataset` or `IterableDataset`",
    "nn.utils._expanded_weights": "transforms of functions are left out",
    "nn.utils._per_sample_grad": "transforms of functions are left out",
    "numa": "threads are those of the device",
}

# Names that are left out of modules that exist.
NAMES = {
    "masked": dict.fromkeys(("MaskedTensor", "masked_tensor", "as_masked_tensor", "is_masked_tensor"), "there are no masked tensors"),
    "autograd.profiler": dict.fromkeys(
        ("EventList", "FunctionEvent", "emit_itt", "load_nvprof", "parse_nvprof_trace", "KinetoStepTracker"),
        "the profiler is `thalweg.profiler.profile`"),
    "nn": dict.fromkeys(("Container", "NLLLoss2d"), _NOT_YET) | {"CrossMapLRN2d": "it is a former layer: use LocalResponseNorm"},
    "nn.modules": {"CrossMapLRN2d": "it is a former layer: use LocalResponseNorm"},
    "nn.functional": dict.fromkeys(("scaled_grouped_mm", "scaled_mm", "ScalingType", "SwizzleType"), _NOT_YET),
    "utils.data": dict.fromkeys((
        "IterDataPipe", "MapDataPipe", "DFIterDataPipe", "DataChunk", "argument_validation", "runtime_validation",
        "guaranteed_datapipes_determinism", "non_deterministic"), "there are no pipes of data: say `Dataset` or `IterableDataset`"),
    "export": dict.fromkeys((
        "AdditionalInputs", "Constraint", "CustomDecompTable", "ExportBackwardSignature", "FlatArgsAdapter", "ModuleCallEntry", "UnflattenedModule"),
        "graphs are recorded from one call, have no backward pass, and keep the operators of the table"),
    "": {
        **dict.fromkeys(("sparse_bsr_tensor", "sparse_bsc_tensor", "sparse_compressed_tensor"), _SPARSE),
        **dict.fromkeys(("quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic", "per_tensor_affine"), _QUANTIZED),
        **dict.fromkeys(("QInt32Storage", "QInt8Storage", "QUInt2x4Storage", "QUInt4x2Storage", "QUInt8Storage"), _QUANTIZED),
        **dict.fromkeys(("SymInt", "SymFloat", "SymBool", "ScriptObject", "Graph", "CompilationUnit"), _EAGER),
        **dict.fromkeys(("PyTorchFileReader", "PyTorchFileWriter"), "files are read and written by `load` and `save`"),
        **dict.fromkeys((
            "_scaled_mm_v2", "_segment_reduce"), _NOT_YET),
        "hash_tensor": "there is no reduction by exclusive or", "native_norm": "it is the norm of sparse tensors alone: say `norm`",
        "slice_inverse": _INSIDE, **dict.fromkeys(("saddmm", "sspaddmm", "resize_as_sparse_"), _SPARSE),
    },
    "distributed.tensor.experimental": {
        "context_parallel": "attention over a sequence that is divided among ranks is written with collectives",
        **dict.fromkeys(("local_map", "register_sharding"), "functions of one's own compute with `to_local` and `DTensor.from_local`")},
    "distributed": dict.fromkeys(("ProcessGroupNCCL", "ProcessGroupGloo", "ProcessGroupMPI", "ProcessGroupUCC"), _RANKS),
}


class _LeftOut(type):
    """The metaclass of names that are left out: calling one raises."""

    def __call__(cls, *args, **kwargs):
        error = NotImplementedError(cls._refusal)
        error.is_left_out = True
        raise error

    def __getattr__(cls, name):
        if name.startswith("_"):
            raise AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'")
        return placeholder(f"{cls._full}.{name}", cls._reason)

    def __repr__(cls):
        return f"<{cls._full}, which is left out: {cls._reason}>"

    def __iter__(cls):
        raise NotImplementedError(cls._refusal)

    def __getitem__(cls, item):
        return cls

    def __or__(cls, other):
        return types.UnionType if other is cls else _union(cls, other)

    def __ror__(cls, other):
        return _union(other, cls)


def _union(one, other):
    import typing
    return typing.Union[one, other]


_made = {}


def _named(full, reason):
    """Returns a function that returns the placeholder of a name that is left out, for any arguments."""
    return lambda *args, **kwargs: placeholder(full, reason)


def placeholder(full, reason):
    """Returns the placeholder of a name that is left out. There is one per name."""
    if full not in _made:
        module, _, name = full.rpartition(".")
        # A warning or an exception is one, for filters and `except`.
        bases = (Warning,) if name.endswith("Warning") else (Exception,) if name.endswith(("Error", "Exception")) else ()
        _made[full] = _LeftOut(name, bases, {
            "__module__": module, "__qualname__": name, "__doc__": f"Left out: {reason}.", "__all__": [], "_full": full, "_reason": reason,
            "_refusal": f"{full} is left out: {reason}"})
    return _made[full]


# Existing modules without a `__getattr__` of their own, of which a few names are left out.
_WITHOUT_ATTRIBUTES = (
    "autograd.gradcheck", "compiler", "func", "nn.attention", "nn.parallel", "nn.utils", "random", "serialization", "utils._pytree",
    "utils.checkpoint", "utils.dlpack", "utils.hooks", "linalg", "fft")

# Existing modules that are imported on first access.
LATER = {
    "_dynamo", "_prims_common", "_utils", "utils._mode_utils", "utils.collect_env", "autograd.profiler", "multiprocessing", "distributions",
    "_ops", "_vmap_internals", "autograd.forward_ad", "distributed", "export", "fx", "hub", "library", "ops", "utils._python_dispatch",
    "nn.utils.stateless", "utils.benchmark", "utils.data", "utils.flop_counter", "utils._foreach_utils", "nested", "quasirandom", "utils.weak"}


def attributes(module, names=None):
    """Returns the `__getattr__` of an existing module, for its names and submodules that are left out."""
    own = module.partition(".")[2]
    names = NAMES.get(own, {}) if names is None else names

    def __getattr__(name):
        full = f"{own}.{name}" if own else name
        if full in MODULES or full in LATER:
            return importlib.import_module(f"{module}.{name}")
        if name in names:
            return placeholder(f"{module}.{name}", names[name])
        if name == "__all__":
            return [public for public, value in vars(sys.modules[module]).items() if not public.startswith("_") and not isinstance(value, types.ModuleType)]
        if not name.startswith("__"):
            from ._private import found
            exists, value = found(own, name)
            if exists:
                return value
            from ._mirrors import is_listed
            if is_listed(full) and f"torch.{own}" in sys.modules:
                return importlib.import_module(f"torch.{full}")
        if not name.startswith("_"):
            from ._left_out_names import reason_of as reason_of_name
            reason = reason_of_name(own, name)
            if reason is not None:
                return placeholder(f"{module}.{name}", reason)
        raise AttributeError(f"module '{module}' has no attribute '{name}'")
    return __getattr__


def rest(module):
    """Returns the `__getattr__` of a module that is left out in part: every missing name has a placeholder, which raises when it
    is used."""
    def __getattr__(name):
        if name.startswith("__"):
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        return below(module, name)
    return __getattr__


def below(module, name):
    """Returns a submodule of a module that is left out, a name that is answered without it, or the placeholder of a name."""
    own = f"{module}.{name}".partition(".")[2]
    probes = _probed(module.partition(".")[2])
    if name in probes:
        return probes[name]
    if own in MODULES or own in _GIVEN or _probed(own):
        return importlib.import_module(f"{module}.{name}")
    # The missing names of a module that exists in part are PyTorch internals.
    return placeholder(f"{module}.{name}", reason_of(own) or _INSIDE)


class _Module(types.ModuleType):
    """A module that is left out: every name has a placeholder, which raises when it is used."""

    def __getattr__(self, name):
        return rest(self.__name__)(name)

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(f"{self.__name__} is left out: {self._reason}")


def reason_of(name):
    """Returns the reason why a module is left out, by its name under `thalweg`. Returns None if it is not left out."""
    while name:
        if name in MODULES:
            return MODULES[name]
        name = name.rpartition(".")[0]
    return None


def _do_nothing(*args, **kwargs):
    """Does nothing."""


def _false(*args, **kwargs):
    """Returns False."""
    return False


def _unchanged(fn=None, *args, **kwargs):
    """Returns the function unchanged, or a decorator that does so."""
    return fn if fn is not None else lambda function: function


def _marked(*args, **kwargs):
    """Returns a decorator that leaves functions unchanged, for marks of a compiler."""
    return lambda function: function


def _maybe_remove_batch_dim(name, batched_output, vmap_level, batch_size, out_dim):
    """Returns the result of a map: a tensor of all slices, or the value itself if it is not mapped."""
    from ._c_functions import _remove_batch_dim
    return batched_output if out_dim is None else _remove_batch_dim(batched_output, vmap_level, batch_size, out_dim)


def _of(module, name):
    """Returns a function that calls one of an existing module, which is imported then."""
    return lambda *args, **kwargs: getattr(importlib.import_module(f"{__package__}.{module}"), name)(*args, **kwargs)


class _Setting(contextlib.ContextDecorator):
    """A region or decorator that would change settings of a module that is left out. It changes nothing."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


_CONTROL_FLOW = {name: _of("_control_flow", name) for name in ("associative_scan", "cond", "map", "scan", "while_loop")}

# Names that programs read, call or set in these modules at import time.
_GIVEN = {
    "_tensor_str": {"PRINT_OPTS": None}, "_library.infer_schema": {"infer_schema": _of("library", "infer_schema")},
    # Marks for a compiler of scripts, which programs put on their functions.
    "_jit_internal": dict.fromkeys(("_copy_to_script_wrapper", "_overload", "_overload_method", "export", "ignore", "unused"), _unchanged) | {
        "is_scripting": _false, "is_tracing": _false},
    "_dynamo.decorators": {"disable": _unchanged}, "_export.wrappers": {"mark_subclass_constructor_exportable_experimental": _unchanged},
    "_dynamo.compiled_autograd": {"reset": _do_nothing},
    "_inductor.config": {"patch": _Setting}, "_inductor.decomposition": {"register_decomposition": _marked}, "_decomp": {"register_decomposition": _marked},
    "_inductor.utils": {"GPU_TYPES": ["cuda", "mps", "xpu", "mtia"]},
    "_logging": {"set_logs": _do_nothing}, "_logging.scribe": {"open_source_signpost": _do_nothing},
    "_functorch.vmap": {"_maybe_remove_batch_dim": _maybe_remove_batch_dim},
    "_higher_order_ops": _CONTROL_FLOW, **{f"_higher_order_ops.{name}": {name: one} for name, one in _CONTROL_FLOW.items()},
    # A decorator of the functions of ranks, which writes their errors to files of a launcher.
    "distributed.elastic.multiprocessing.errors": {"record": _unchanged},
    # Registrations at the import of a library, which change nothing.
    "onnx": {"is_in_onnx_export": _false, "register_custom_op_symbolic": _do_nothing, "unregister_custom_op_symbolic": _do_nothing},
    "onnx.symbolic_helper": {"parse_args": _marked, "quantized_args": _marked},
    "_utils_internal": {"IS_FBSOURCE": False, "get_writable_path": lambda path: path},
    "distributed.autograd": {"is_available": _false}, "distributed.rpc.api": {"_require_initialized": _unchanged}, "distributed.rpc": {"is_available": _false, "_is_current_rpc_agent_set": _false},
    "_dynamo._trace_wrapped_higher_order_op": {"TransformGetItemToIndex": contextlib.nullcontext},
    "utils._triton": {"has_triton": _false, "has_triton_package": _false},
    "cuda.jiterator": {
        name: _named(f"{__package__}.cuda.jiterator.{name}", MODULES["cuda.jiterator"])
        for name in ("_create_jit_fn", "_create_multi_output_jit_fn")},
}


def _probed(own):
    """Returns the names of an internal module of PyTorch by which libraries query what a call is made inside of."""
    from ._probes import NAMES
    return NAMES.get(own, {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules that are left out."""

    def find_spec(self, fullname, path=None, target=None):
        package, _, name = fullname.partition(".")
        if package != __package__ or reason_of(name) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        made = _Module(spec.name)
        made._reason = reason_of(spec.name.partition(".")[2])
        made.__doc__ = f"Left out: {made._reason}."
        made.__dict__.update(_GIVEN.get(spec.name.partition(".")[2], {}) | _probed(spec.name.partition(".")[2]))
        made.__all__ = []
        return made

    def exec_module(self, module):
        """Does nothing: there is no code."""


def install():
    """Makes the modules importable. Their finder comes after all others."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.append(_Finder())
    for name in MODULES:
        parent = sys.modules.get(f"{__package__}.{name}".rpartition(".")[0])
        if parent is not None and not hasattr(parent, "__path__"):
            # Submodules are imported only from packages.
            parent.__path__ = []
    for name in _WITHOUT_ATTRIBUTES:
        module = sys.modules[f"{__package__}.{name}"]
        module.__getattr__ = attributes(module.__name__)
