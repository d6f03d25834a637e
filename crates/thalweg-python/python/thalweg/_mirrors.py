"""Modules of PyTorch 2.11 whose names this package has elsewhere, under PyTorch's name (`torch.nn.utils.clip_grad`). They have the names of the
package that they are in. All other names of theirs have placeholders, which raise when they are used."""

import functools
import importlib.abc
import importlib.machinery
import sys
import types

# The modules of each package, after its name (`.` for `torch` itself).
_MODULES = """
    .: _VF _appdirs _awaits _compile _custom_op _environment _opaque_base _size_docs _sources _storage_docs _streambase _strobelight _tensor_docs
        _thread_safe_fork _torch_docs contrib monitor nativert
    _custom_op: autograd impl
    _prims_common: wrappers
    _strobelight: cli_function_profiler compile_time_profiler
    accelerator: _utils memory
    autograd: profiler_legacy profiler_util
    autograd._functions: tensor utils
    backends: _coreml _nnapi
    backends._coreml: preprocess
    backends._nnapi: prepare serializer
    backends.xeon: run_cpu
    compiler: _cache config
    contrib: _tensorboard_vis
    cpu.amp: autocast_mode grad_scaler
    cuda: _device_limits _gpu_trace _memory_viz _pin_memory_utils _sanitizer gds green_contexts sparse
    cuda.amp: autocast_mode common grad_scaler
    distributed: _checkpointable _composable_state _dist2 _functional_collectives_impl _local_tensor _mesh_layout _meta_registrations _ops _pycute
        _serialization _sharded_tensor _sharding_spec argparse_util c10d_logger config debug flight_recorder remote_device
    distributed._local_tensor: _c10d
    distributed._ops: device_mesh
    distributed._pycute: int_tuple layout typing
    distributed._tensor: api
    distributed.checkpoint: _async_executor _async_process_executor _async_thread_executor _checkpointer _consolidate_hf_safetensors
        _dedup_save_plans _dedup_tensors _experimental _extension _fsspec_filesystem _hf_utils _nested_dict _pg_transport _sharded_tensor_utils
        _state_dict_stager _storage_utils _traverse _version api default_planner filesystem format_utils hf_storage logger logging_handlers
        metadata optimizer planner planner_helpers quantized_hf_storage resharding staging state_dict_loader state_dict_saver stateful storage
        utils
    distributed.checkpoint._experimental: barriers builder checkpoint_process checkpoint_reader checkpoint_writer checkpointer config staging
        types utils
    distributed.debug: _debug_handlers _frontend _handlers _store
    distributed.flight_recorder: components fr_trace
    distributed.flight_recorder.components: builder config_manager fr_logger loader types utils
    distributed.fsdp: _common_utils _debug_utils _dynamo_utils _exec_order_utils _flat_param _fsdp_extensions _fully_shard _init_utils
        _limiter_utils _optim_utils _runtime_utils _shard_utils _state_dict_utils _trace_utils _traversal_utils _unshard_param_utils _wrap_utils
        sharded_grad_scaler
    distributed.fsdp._fully_shard: _fsdp_api _fsdp_collectives _fsdp_common _fsdp_init _fsdp_param _fsdp_param_group _fsdp_state _fully_shard
    distributed.tensor: _api _collective_utils _decompositions _dispatch _dtensor_spec _nonlinear_redux _op_schema _ops _random _redistribute
        _sharding_prop _shards_wrapper _tp_conv _utils debug device_mesh
    distributed.tensor._ops: _common_rules _conv_ops _einsum_strategy _embedding_ops _mask_buffer _math_ops _matrix_ops _pointwise_ops _random_ops
        _tensor_ops _view_ops single_dim_strategy strategy_validation utils
    distributed.tensor.debug: _comm_mode _op_coverage _visualize_sharding
    distributed.tensor.experimental: _attention _context_parallel _func_map _register_sharding _tp_transform
    distributed.tensor.experimental._context_parallel: _attention _cp_custom_ops _load_balancer _sharding_rules
    distributed.tensor.parallel: _data_parallel_utils api ddp fsdp input_reshard loss style
    export: _draft_export _leakage_detection_utils _patches _remove_auto_functionalized_pass _remove_effect_tokens_pass _safeguard
        _state_dict_utils _swap _tree_utils _unlift _wrapper_utils custom_obj custom_ops decomp_utils experimental passes pt2_archive unflatten
    export.experimental: _utils
    export.pt2_archive: _package _package_weights constants
    fx: _graph_pickler
    fx.experimental: _backward_state _config _constant_symnode _dynamism accelerator_partitioner const_fold debug graph_gradual_typechecker
        merge_matmul meta_tracer migrate_gradual_types normalize partitioner_utils recording refinement_types schema_type_annotation sym_node
        symbolic_shapes unification unify_refinements validator
    fx.experimental.migrate_gradual_types: constraint constraint_generator constraint_transformation operation transform_to_z3 util z3_types
    fx.experimental.unification: core dispatch match more multipledispatch unification_tools utils variable
    fx.experimental.unification.multipledispatch: conflict core dispatcher utils variadic
    fx.passes: _tensorify_python_scalars annotate_getitem_nodes backends dialect fake_tensor_prop graph_drawer graph_manipulation
        graph_transform_observer net_min_base operator_support param_fetch pass_manager regional_inductor regional_inductor_invoke_subgraph
        reinplace runtime_assert split_utils splitter_base tools_common
    fx.passes.backends: cudagraphs
    fx.passes.dialect: common
    fx.passes.dialect.common: cse_pass
    fx.passes.infra: partitioner
    fx.passes.utils: fuser_utils matcher_with_name_node_map_utils source_matcher_utils
    masked: _docs _ops
    mps: event profiler
    mtia: _utils memory mtia_graph
    multiprocessing: _atfork pool queue reductions spawn
    nativert: backends
    nativert.backends: _lower_utils _lowered_aoti_module
    nested: _internal
    nested._internal: nested_int nested_tensor ops sdpa
    nn: backends cpp
    nn.attention: _fa3 _fa4 _registry _utils experimental varlen
    nn.attention.experimental: _paged_attention _scaled_dot_product_attention_quantized
    nn.backends: thnn
    nn.modules: _functions
    nn.parallel: _functions comm parallel_apply replicate
    nn.utils: _deprecation_utils clip_grad convert_parameters init
    optim: _functional _multi_tensor sparse_adam
    profiler: _memory_profiler _pattern_matcher _utils itt profiler python_tracer
    signal.windows: windows
    utils: _appending_byte_serializer _config_module _content_store _cpp_embed_headers _cpp_extension_versioner _debug_mode _exposed_in _filelock
        _functools _get_clean_triton _helion _ordered_set _pallas _runtime_estimation _strobelight _thunk _traceback _typing_utils _zip
        backend_registration bundled_inputs cpp_backtrace file_baton hipify jit mkldnn module_tracker serialization show_pickle
        throughput_benchmark viz
    utils._strobelight: cli_function_profiler
    utils.benchmark: op_fuzzers utils
    utils.benchmark.utils: _stubs common compare compile cpp_jit fuzzer sparse_fuzzer timer valgrind_wrapper
    utils.benchmark.utils.valgrind_wrapper: timer_interface
    utils.data: backward_compatibility graph_settings
    utils.data._utils: signal_handling
    utils.hipify: constants cuda_to_hip_mappings hipify_python version
    utils.jit: log_extract
    utils.serialization: config
    utils.tensorboard: _convert_np _embedding _onnx_graph _proto_graph _pytorch_graph _utils writer
    utils.viz: _cycles
    xpu: _gpu_trace _utils graphs memory random streams
"""


@functools.cache
def _listed():
    found, package = set(), ""
    for word in _MODULES.split():
        if word.endswith(":"):
            package = "" if word == ".:" else word[:-1] + "."
        else:
            found.add(package + word)
    return found


def is_listed(name):
    """Returns whether PyTorch has a module of this name whose contents are elsewhere here."""
    # The former name of `distributed.tensor` has its modules too.
    return name.replace("distributed._tensor.", "distributed.tensor.", 1) in _listed()


class _Mirror(types.ModuleType):
    """A module with the names of the package that it is in."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        package = self.__name__.rpartition(".")[0]
        while isinstance(sys.modules[package], _Mirror):
            package = package.rpartition(".")[0]
        from ._left_out import _INSIDE, _LeftOut, _probed, placeholder
        probes = _probed(self.__name__.partition(".")[2])
        if name in probes:
            return probes[name]
        found = getattr(sys.modules[package], name, None)
        # A submodule of the package is not a name in it, and what the package leaves out, a module of its own may have.
        if found is None or isinstance(found, types.ModuleType) or type(found) is _LeftOut:
            return placeholder(f"{self.__name__}.{name}", _INSIDE)
        return found


class _Loader(importlib.abc.Loader):
    """Makes mirrors."""

    def create_module(self, spec):
        made = _Mirror(spec.name, f"An internal module of PyTorch, with the names of `{spec.name.rpartition('.')[0]}`.")
        made.__all__ = []
        return made

    def exec_module(self, module):
        """Does nothing: there is no code."""


def spec_of(fullname):
    """Returns the spec of a module under PyTorch's name, or None if PyTorch has no such module."""
    if not is_listed(fullname.removeprefix("torch.")):
        return None
    return importlib.machinery.ModuleSpec(fullname, _Loader(), is_package=True)
