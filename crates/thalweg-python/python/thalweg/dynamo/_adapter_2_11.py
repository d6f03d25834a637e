"""The names of PyTorch 2.11 that are not public, and that the backend uses. 2.15 has the same."""

import contextlib
import dataclasses

import torch
import torch._functorch.partitioners
import torch._inductor.config
from torch._C import DispatchKey
from torch._C._dynamo.guards import TensorGuards
from functorch.compile import min_cut_rematerialization_partition
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._decomp.decompositions import upsample_compute_output_size as resized
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache as NotStored
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._guards import TracingContext
from torch._inductor.compiler_bisector import BACKENDS, BisectSubsystem, CompilerBisector
from torch._inductor.output_code import OutputCode

from ._old_values import old_values_saved

__all__ = [
    "NotStored", "OutputCode", "aot", "cached", "caching", "captured", "core_aten_decompositions", "decomposition_table", "empty_strided", "given_away", "is_alone",
    "is_left_out", "keeps_draws", "kernel_of", "on_device", "raw_stream", "reason_against_capture", "record", "register_backend", "resized", "running_backward", "same_forms",
    "settings", "with_kernels",
]  # fmt: skip

# What the bisector of compilers leaves out, one after the other: calls of the table.
BACKENDS.setdefault("thalweg", [BisectSubsystem("calls")])


# Returns the `CUstream` of a GPU's current stream as a number; None in a build without CUDA.
raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def is_left_out(description):
    """Returns whether the bisector leaves a call to PyTorch."""
    return CompilerBisector.disable_subsystem("thalweg", "calls", description)


# Functions of single elements and of rows that are calls of the table, and so parts of fused loops. PyTorch's compilers decompose them, so that
# its partitioner, which decides what is saved and what is computed again, knows only their parts.
_LOOPS = """
    celu elu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid_forward mish softplus softshrink
    elu_backward glu_backward hardshrink_backward hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward log_sigmoid_backward
    mish_backward softplus_backward softshrink_backward
    linalg_vector_norm _log_softmax _log_softmax_backward_data native_layer_norm native_layer_norm_backward _safe_softmax _softmax _softmax_backward_data
"""


# Normalizations of channels and their gradients. They are not computed again. But neither is what is computed from their statistics far from their
# inputs, nor must a cast of their inputs be saved, as PyTorch's partitioner believes of functions outside of loops.
_NORMALIZATIONS = {
    torch.ops.aten.native_group_norm, torch.ops.aten.native_group_norm_backward,
    torch.ops.aten._native_batch_norm_legit_functional, torch.ops.aten.native_batch_norm_backward,
}  # fmt: skip


@contextlib.contextmanager
def _loops_are_fused():
    """Returns a region in which PyTorch's partitioner takes the functions of `_LOOPS` for parts of fused loops."""
    partitioners = torch._functorch.partitioners
    former, aten = partitioners.get_default_op_list, torch.ops.aten
    loops = {getattr(aten, name) for name in _LOOPS.split() if hasattr(aten, name)} | {torch.ops.thalweg_graph.normalized_channels, torch.ops.thalweg_graph.kept}

    def kinds():
        own = former()
        return dataclasses.replace(own, recomputable_ops=own.recomputable_ops | loops, fusible_ops=own.fusible_ops | loops | _NORMALIZATIONS)

    partitioners.get_default_op_list = kinds
    try:
        yield
    finally:
        partitioners.get_default_op_list = former


def _saved_early(graph, results):
    """Moves calls that only saved values need to the last one of their arguments, which may then be let go. PyTorch's partitioner leaves a
    part of the backward pass that it moves to the forward pass, such as the cast of a saved value, at the end."""
    wanted = {node for node in graph.output_node().args[0][:results] if isinstance(node, torch.fx.Node)}
    for node in reversed(graph.nodes):
        if node in wanted:
            wanted.update(node.all_input_nodes)
    if any(isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "streams" for node in graph.nodes):
        return
    places, tails = {node: (place, 0) for place, node in enumerate(graph.nodes)}, dict(enumerate(graph.nodes))
    for place, node in enumerate(list(graph.nodes)):
        last = max(node.all_input_nodes, key=places.get, default=None)
        if node.op == "call_function" and node not in wanted and not node.is_impure() and last is not None and last.op != "placeholder":
            first = places[last][0]
            # What was moved to the same place before may be an argument, too.
            tails[first].append(node)
            tails[first], places[node] = node, (first, place)


def aot(forward, backward, inference, decompositions, rewrite):
    """Returns a backend that compiles the graphs of the forward and the backward pass by the given functions. `rewrite` changes the
    graph of both before it is divided."""

    def partition(joint, inputs, **options):
        with _loops_are_fused():
            passes = min_cut_rematerialization_partition(rewrite(joint), inputs, **options)
        _saved_early(passes[0].graph, options["num_fwd_outputs"])
        old_values_saved(*passes, options["num_fwd_outputs"])
        passes[0].recompile()
        return passes

    return aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        decompositions=decompositions,
        keep_inference_input_mutations=True,
    )


def kernel_of(operator):
    """Returns PyTorch's own kernel of an operator that records its gradient."""
    return lambda *args, **kwargs: operator._op_dk(DispatchKey.Autograd, *args, **kwargs)


@contextlib.contextmanager
def with_kernels(operators, replaced):
    """Returns a region in which other functions take the place of the Python functions by which PyTorch replaces operators while it traces:
    `replaced(operator, is_recorded, former)`, or none for `None`. A function that is recorded is called where gradients are."""
    former = {operator: dict(operator.py_kernels) for operator in operators}
    for operator, kernels in former.items():
        for key in kernels.keys() & {DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd}:
            if function := replaced(operator, key is DispatchKey.Autograd, kernels[key]):
                operator.py_kernels[key] = function
            else:
                del operator.py_kernels[key]
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, kernels in former.items():
            operator.py_kernels.clear()
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()


def cached(kind, compiler):
    """Returns a compiler whose results, objects of a subclass of `OutputCode`, PyTorch's cache of graphs may store."""
    return SerializableAOTDispatchCompiler(kind, compiler)


@contextlib.contextmanager
def caching(tag):
    """Returns a region in which compiled graphs are found and stored in PyTorch's cache under a tag, the backward pass with the forward pass."""
    if CompilerBisector.bisection_enabled:
        yield
        return
    whole = f"{torch.compiler.config.cache_key_tag}{tag}"
    with (
        torch.compiler.config.patch(cache_key_tag=whole),
        torch._functorch.config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True),
    ):
        yield


def given_away():
    """Returns the places of the inputs that only the backward pass that is being compiled reads: saved tensors that the forward pass does not
    return, and that share memory with nothing else. PyTorch then knows of none, so that `retain_graph` may keep them."""
    context = TracingContext.try_get()
    known = context.fw_metadata.bw_donated_idxs if context and context.fw_metadata else None
    places = list(known or ())
    if known:
        known.clear()
    return places


def is_alone(tensor):
    """Returns whether nothing else uses the memory of a tensor to which there is one reference. Memory that PyTorch did not allocate may be
    another library's, too."""
    storage = tensor.untyped_storage()
    # A storage is counted for its tensor and for the object that is made here.
    return tensor._use_count() == 1 and torch._C._storage_Use_Count(storage._cdata) == 2 and storage.resizable()


def same_forms(tensors, may_vary):
    """Returns a function that compares other tensors with these: their dtypes, devices, sizes and strides, except for those that may vary, and
    whether they are conjugated or negated when they are read."""
    if not tensors:
        return lambda: True

    def known(numbers):
        return [[None] * one.dim() if varies else list(numbers(one)) for one, varies in zip(tensors, may_vary)]

    sizes, strides = known(torch.Tensor.size), known(torch.Tensor.stride)
    return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


def keeps_draws():
    """Returns whether compiled functions draw the numbers that they draw without compilation."""
    return torch._inductor.config.fallback_random


def settings():
    """Returns whether products and convolutions of float32 may be computed in TF32, and whether algorithms must be deterministic."""
    try:
        reduced = torch._C._get_cublas_allow_tf32(), torch._C._get_cudnn_allow_tf32()
    except RuntimeError:
        # The program uses the newer settings beside these.
        reduced = torch.backends.cuda.matmul.fp32_precision == "tf32", torch.backends.cudnn.conv.fp32_precision == "tf32"
    return *reduced, torch._C._get_deterministic_algorithms()


def empty_strided(device):
    """Returns the function that makes a tensor of a shape, strides and a dtype on a device, which is the current one if it is a GPU."""
    if device.type == "cuda":
        return torch._C._dynamo.guards._empty_strided_cuda
    return lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=device)


def on_device(call, device):
    """Returns a function whose current device is this GPU."""
    index, current = device.index or 0, torch._C._cuda_getDevice

    def run(inputs):
        if current() == index:
            return call(inputs)
        with torch.cuda.device(index):
            return call(inputs)

    return run


def record(name, payload):
    """Adds a text to the artifacts of `TORCH_TRACE`."""
    torch._logging.trace_structured("artifact", metadata_fn=lambda: {"name": name, "encoding": "string"}, payload_fn=lambda: payload)


def reason_against_capture(gm):
    """Returns why a graph cannot be captured as a CUDA graph, or None."""
    from torch._dynamo.backends.cudagraphs import get_device_node_mapping
    from torch._inductor.cudagraph_utils import check_multiple_devices_or_any_cpu_nodes
    from torch._inductor.utils import get_first_incompatible_cudagraph_node

    reason = check_multiple_devices_or_any_cpu_nodes(get_device_node_mapping(gm))
    node = None if reason else get_first_incompatible_cudagraph_node(gm)
    return (reason or "").removeprefix("skipping cudagraphs due to ") or (f"{node.target} cannot be captured" if node is not None else None)


def captured(call, gm, inputs, kind, device):
    """Returns a function that captures a compiled graph in PyTorch's trees of CUDA graphs, and replays it."""
    from torch._dynamo.backends.cudagraphs import find_input_mutations, get_stack_traces
    from torch._inductor.cudagraph_trees import cudagraphify_impl
    from torch._inductor.cudagraph_utils import get_placeholder_info
    from torch._inductor.utils import count_tangents

    context = TracingContext.try_get()
    if kind == "backward":
        static = range(count_tangents(gm))
    else:
        static = context.fw_metadata.static_input_indices if context and context.fw_metadata else []
    return cudagraphify_impl(
        call,
        inputs,
        static,
        device_index=device,
        is_backward=kind == "backward",
        is_inference=kind == "inference",
        stack_traces=get_stack_traces(gm),
        placeholders=get_placeholder_info(gm.graph),
        mutated_input_idxs=find_input_mutations(gm.graph),
    )


def running_backward(device):
    """Notes that a backward pass runs that was not captured, though its forward pass was."""
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(device, create_if_none_exists=False)
    if manager is not None:
        manager.set_to_running_backward()
