"""The rest of PyTorch 2.11's public names that this package leaves out, with their reasons.

It is read when a name is not found. `_left_out.py` has the modules that are missing entirely, and the names that programs ask for.
"""

_SCRIPT = "there is no TorchScript: programs run eagerly"
_QUANTIZED = "there are no quantized tensors"
_SPARSE = "sparse tensors have no copies of their parts"
_OTHER_LIBRARY = "it is part of a library of PyTorch's that is not used here"
_REMOVED = "PyTorch has removed it as well, and refuses calls"
_INSIDE = "it is internal to PyTorch, and Thalweg has none of it"
_FILES = "files are read and written by `load` and `save`"
_SHARDED = "parameters are gathered when they are used, and nothing is gathered ahead"

# For each reason the names, by the modules that PyTorch has them in.
_GROUPS = {
    _SCRIPT: {
        "": """
            AVG SUM AggregationType AliasDb AnyType Argument ArgumentSpec AwaitType BenchmarkConfig BenchmarkExecutionStats Block BoolType BufferDict
            CallStack Capsule ClassType Code CompleteArgumentSpec ComplexType ConcreteModuleType ConcreteModuleTypeBuilder DeepCopyMemoTable
            DeserializationStorageContext DeviceObjType DictType EnumType ErrorReport ExecutionPlan FloatType FunctionSchema FutureType Gradient
            GraphExecutorState IODescriptor InferredType IntType InterfaceType JITException ListType LiteScriptModule LockingLogger LoggerBase ModuleDict
            Node NoneType NoopLogger NumberType OperatorInfo OptionalType ParameterDict PyObjectType RRefType ScriptClass ScriptClassFunction
            ScriptDict ScriptDictIterator ScriptDictKeyIterator ScriptList ScriptListIterator ScriptMethod ScriptModuleSerializer ScriptObjectProperty
            SerializationStorageContext StaticModule StreamObjType StringType SymBoolType SymIntType TensorType ThroughputBenchmark TracingState TupleType
            Type UnionType Use Value bit cpp get_file_path import_ir_module import_ir_module_from_buffer merge_type_from_type_comment parse_ir
            parse_schema parse_type_comment unify_type_list fork wait prepare_multiprocessing_environment init_num_threads classes""",
    },
    _QUANTIZED: {
        "": """
            choose_qparams_optimized dequantize empty_quantized  
            fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation fbgemm_linear_int8_weight fbgemm_linear_int8_weight_fp32_activation
            fbgemm_linear_quantize_weight fbgemm_pack_gemm_matrix_fp16 fbgemm_pack_quantized_matrix fused_moving_avg_obs_fake_quant int_repr
            per_channel_affine per_channel_affine_float_qparams per_channel_symmetric per_tensor_symmetric q_per_channel_axis q_per_channel_scales
            q_per_channel_zero_points q_scale q_zero_point qscheme quantized_batch_norm quantized_gru quantized_gru_cell quantized_lstm
            quantized_lstm_cell quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d quantized_rnn_relu_cell quantized_rnn_tanh_cell""",
    },
    _SPARSE: {"": "ccol_indices_copy   hsmm hspmm  row_indices_copy "},
    _OTHER_LIBRARY: {
        "": """
            cudnn_affine_grid_generator cudnn_batch_norm cudnn_convolution_add_relu cudnn_grid_sampler cudnn_is_acceptable miopen_batch_norm
            miopen_convolution miopen_convolution_add_relu miopen_convolution_relu miopen_convolution_transpose miopen_ctc_loss
            miopen_depthwise_convolution miopen_rnn mkldnn_adaptive_avg_pool2d mkldnn_convolution mkldnn_linear_backward_weights mkldnn_max_pool2d
            mkldnn_max_pool3d mkldnn_rnn_layer profiler_allow_cudagraph_cupti_lazy_reinit_cuda12""",
        "backends.cuda": """
            allow_fp16_bf16_reduction_math_sdp cuBLASModule cuFFTPlanCache cuFFTPlanCacheAttrContextProp cuFFTPlanCacheManager cufft_plan_cache
            fp16_bf16_reduction_math_sdp_allowed""",
        "nn.attention": """
            WARN_FOR_UNFUSED_KERNELS activate_flash_attention_impl current_flash_attention_impl list_flash_attention_impls
            register_flash_attention_impl restore_flash_attention_impl""",
    },
    _REMOVED: {"": "eig lstsq matrix_rank solve symeig"},
    "dimensions have no names": {"": "align_tensors", "functional": "align_tensors"},
    _INSIDE: {
        "": """
             DispatchKey DispatchKeySet ExcludeDispatchKeyGuard FatalError PRIVATE_OPS StorageBase  USE_GLOBAL_DEPS
            USE_RTLD_GLOBAL_WITH_LIBTORCH autocast_decrement_nesting autocast_increment_nesting classproperty get_autocast_ipu_dtype get_autocast_xla_dtype
            is_autocast_ipu_enabled is_autocast_xla_enabled read_vitals  set_autocast_cpu_dtype set_autocast_cpu_enabled
            set_autocast_dtype set_autocast_enabled set_autocast_gpu_dtype set_autocast_ipu_dtype set_autocast_ipu_enabled set_autocast_xla_dtype
            set_autocast_xla_enabled set_vital sym_constrain_range sym_constrain_range_for_size sym_fresh_size vitals_enabled  
               TYPE_CHECKING""",
        "autograd.gradcheck": "get_numerical_jacobian_wrt_specific_input",
        "autograd.graph": "set_warn_on_accumulate_grad_stream_mismatch",
        "autograd.profiler": "EnforceUnique MemRecordsAcc",
        "compiler": """
            config keep_portable_guards_unsafe load_cache_artifacts load_compiled_function save_cache_artifacts set_enable_guard_collectives
            skip_all_guards_unsafe""",
        "distributed": "QueueEmptyError breakpoint",
        "fft": "Tensor", "linalg": "common_notes", "nn": "factory_kwargs",
        "func": "", "library": "fallthrough_kernel get_kernel",
        "nn.functional": """
            GRID_SAMPLE_INTERPOLATION_MODES GRID_SAMPLE_PADDING_MODES TYPE_CHECKING assert_int_or_pair reproducibility_notes sparse_support_notes
            tf32_notes""",
        "nn.parallel": "gather parallel_apply replicate scatter", "nn.utils": "", "random": "default_generator",
        "utils": "cmake_prefix_path set_module",
        "utils._pytree": "DumpableContext FlattenFunc FromDumpableContextFn PyTreeSpec ToDumpableContextFn UnflattenFunc is_structseq_instance",
        "utils.checkpoint": """
            CheckpointFunction CheckpointPolicy DefaultDeviceType GraphExecGroup SAC_IGNORED_OPS SelectiveCheckpointContext check_backward_validity
            create_selective_checkpoint_contexts""",
        "utils.data": "runtime_validation_disabled", "utils.dlpack": "DLDeviceType", "utils.hooks": "unserializable_hook warn_if_has_hooks",
    },
    _FILES: {
        "serialization": """
              StorageType check_module_version_greater_or_equal  
               mkdtemp normalize_storage_type register_package 
              skip_data storage_to_tensor_type validate_cuda_device validate_hpu_device""",
    },
    _SHARDED: {"distributed.fsdp": "UnshardHandle share_comm_ctx"},
}
_reasons = {}


def _filled():
    if not _reasons:
        for reason, modules in _GROUPS.items():
            for module, names in modules.items():
                _reasons.update(((module, name), reason) for name in names.split())
    return _reasons


def reason_of(module, name):
    """Returns the reason why a name of a module is left out, or None."""
    return _filled().get((module, name))


def modules():
    """Returns the modules that have such names."""
    return {module for module, _ in _filled()}
