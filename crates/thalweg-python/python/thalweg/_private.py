"""Names from PyTorch's internals that libraries import. A module looks here for a name that it does not have."""

import collections
import copy
import enum
import functools
import math
import os
import typing

from . import _core
from .nn import functional as F

Tensor = _core.Tensor


# ---- Tensors -------------------------------------------------------------------------------------------------------

def _shape_as_tensor(self):
    """Returns the sizes of a tensor as a tensor."""
    return _core.tensor(list(self.shape), dtype=_core.int64)


def _cast_to(dtype):
    return lambda self, non_blocking=False: self.to(dtype)


def _convert_indices_from_coo_to_csr(self, size, *, out_int32=False):
    """Returns the places at which rows begin, from the sorted row of each element."""
    starts = _core.searchsorted(self.contiguous(), _core.arange(size + 1, dtype=self.dtype, device=self.device))
    return starts.to(_core.int32 if out_int32 else _core.int64)


def _convert_indices_from_csr_to_coo(crow_indices, col_indices, *, out_int32=False, transpose=False):
    """Returns the row and column of each element, from the places at which rows begin."""
    rows = _core.arange(len(crow_indices) - 1, device=crow_indices.device).repeat_interleave(crow_indices.diff())
    places = _core.stack([rows, col_indices.to(rows.dtype)]).to(_core.int32 if out_int32 else _core.int64)
    return places.flip(0) if transpose else places


# ---- Modules -------------------------------------------------------------------------------------------------------

def _none_or_dtype(input):
    """Returns the dtype of a tensor, or None for None."""
    if input is None or isinstance(input, Tensor):
        return None if input is None else input.dtype
    raise RuntimeError("input to _none_or_dtype() must be None or torch.Tensor")


def _canonical_mask(mask, mask_name, other_type, other_name, target_type, check_other=True):
    """Returns a mask as numbers that are added to scores: minus infinity for masked keys."""
    if mask is None or mask.is_floating_point():
        return mask
    if mask.dtype is not _core.bool:
        raise AssertionError(f"only bool and floating types of {mask_name} are supported")
    return _core.zeros_like(mask, dtype=target_type).masked_fill_(mask, float("-inf"))


def _in_projection_packed(q, k, v, w, b=None):
    """Returns queries, keys and values from the rows of one weight."""
    biases = (None,) * 3 if b is None else b.chunk(3)
    return [F.linear(x, weight, bias) for x, weight, bias in zip((q, k, v), w.chunk(3), biases)]


def _drawn(name):
    """Returns a function of `nn.init` by its name."""
    def draw(tensor, *args, **kwargs):
        from .nn import init
        return getattr(init, name)(tensor, *args, **kwargs)
    return draw


def _get_clones(module, N):
    from .nn.containers import ModuleList
    return ModuleList([copy.deepcopy(module) for _ in range(N)])


def _get_activation_fn(activation):
    known = {"relu": F.relu, "gelu": F.gelu}
    if activation not in known:
        raise RuntimeError(f"activation should be relu/gelu, not {activation}")
    return known[activation]


def _get_seq_len(src, batch_first):
    return src.shape[0] if src.dim() == 2 else src.shape[1 if batch_first else 0]


def _generate_square_subsequent_mask(sz, device=None, dtype=None):
    from .nn.transformer import Transformer
    return Transformer.generate_square_subsequent_mask(sz, device=device, dtype=dtype)


def _permuted(tensor, permutation, dim=1):
    """Returns a tensor with the parts of a dimension in another order."""
    return tensor.index_select(dim, permutation)


def _addindent(s_, numSpaces):
    """Returns a text whose lines after the first one are indented."""
    return ("\n" + " " * numSpaces).join(s_.split("\n"))


# ---- Optimizers ----------------------------------------------------------------------------------------------------

def _use_grad_for_differentiable(func):
    """Decorates the step of an optimizer: operators are recorded if the optimizer is differentiable."""
    @functools.wraps(func)
    def step(self, *args, **kwargs):
        from .optim.optimizer import recording
        with recording(self.defaults.get("differentiable", False)):
            return func(self, *args, **kwargs)
    return step


def _get_value(x):
    return x.item() if isinstance(x, Tensor) else x


def _default_to_fused_or_foreach(params, differentiable, use_fused=False):
    """Returns that neither fused nor grouped steps are the default of an optimizer of a program."""
    return False, False


def _view_as_real(params, *state_and_grads):
    for number, one in enumerate(params):
        if one.is_complex():
            params[number] = _core.view_as_real(one)
            for entry in state_and_grads:
                entry[number] = _core.view_as_real(entry[number])


def _get_scalar_dtype(is_fused=None):
    return _core.float64 if _core.get_default_dtype() is _core.float64 and not is_fused else _core.float32


def _unchanged(function=None, *args, **kwargs):
    """Returns the function unchanged, or a decorator that does so."""
    return function if function is not None else lambda given: given


# ---- Mixed precision, processes, files -----------------------------------------------------------------------------

class OptState(enum.Enum):
    """The last work of a scaler of gradients for an optimizer since its last update."""

    READY, UNSCALED, STEPPED = 0, 1, 2


def _refresh_per_optimizer_state():
    """Returns the state of a scaler for an optimizer at the start of a step."""
    return {"stage": OptState.READY, "found_inf_per_device": {}}


class ManagerWatchdog:
    """Looks whether the process that started this one is still there."""

    def __init__(self):
        self._parent = os.getppid()

    def is_alive(self):
        return os.getppid() == self._parent


def _sharding_worker_init_fn(worker_init_fn, world_size, rank_id, worker_id):
    """Calls the function with which a worker of a loader starts. There are no pipes of data, which would be divided among workers."""
    if worker_init_fn is not None:
        worker_init_fn(worker_id)


def _amp_cast(value, device_type, dtype):
    from .amp import _cast
    return _cast(value, dtype)


def _resolve_process_group(group_name):
    from . import distributed
    return distributed.distributed_c10d._get_default_group()


def _clipped_sigmoid(x):
    limits = _core.finfo(x.dtype)
    return x.sigmoid().clamp(min=limits.tiny, max=1.0 - limits.eps)


def _is_zipfile(f):
    """Returns whether a file begins as files of `save` do. The file stays where it is."""
    place = f.tell()
    start = f.read(4)
    f.seek(place)
    return start == b"PK\x03\x04"


def _is_open(*args, **kwargs):
    return False


def _do_nothing(*args, **kwargs):
    """Does nothing."""


def _called(read):
    """Returns a name whose value a function computes when it is asked for."""
    read.is_read = True
    return read


def _at(module, name):
    """Returns a name of another module, which is read when it is asked for."""
    def read():
        import importlib
        return getattr(importlib.import_module(f"{__package__}.{module}"), name)
    return _called(read)


_OPTIMIZERS = {
    "_use_grad_for_differentiable": _use_grad_for_differentiable, "_get_value": _get_value, "_stack_if_compiling": _core.stack,
    "_default_to_fused_or_foreach": _default_to_fused_or_foreach, "_view_as_real": _view_as_real, "_get_scalar_dtype": _get_scalar_dtype,
    "_dispatch_sqrt": lambda x: x.sqrt() if isinstance(x, Tensor) else math.sqrt(x),
    "_disable_dynamo_if_unsupported": _unchanged, "_to_scalar": _get_value, "StateDict": dict, "_device_dtype_check_for_fused": _do_nothing,
    "_get_capturable_supported_devices": lambda supports_xla=True: ["cuda", "xpu", "hpu"]}
NAMES = {
    "": {"_shape_as_tensor": _shape_as_tensor, "_convert_indices_from_coo_to_csr": _convert_indices_from_coo_to_csr,
         "_convert_indices_from_csr_to_coo": _convert_indices_from_csr_to_coo, "_grouped_mm": _at("nn._grouped", "grouped_mm"),
         "_scaled_mm": _at("nn._grouped", "_scaled_mm")} | {
        f"_cast_{name}": _cast_to(dtype) for name, dtype in {
            "Byte": _core.uint8, "Char": _core.int8, "Double": _core.float64, "Float": _core.float32, "Int": _core.int32, "Long": _core.int64,
            "Short": _core.int16, "Half": _core.float16}.items()},
    "_tensor": {"_rebuild_from_type_v2": _at("_objects", "_tensor_of_class")},
    "nn.functional": {"_canonical_mask": _canonical_mask, "_none_or_dtype": _none_or_dtype, "_in_projection_packed": _in_projection_packed},
    "nn.init": {f"_no_grad_{name}_": _drawn(f"{own}_") for name, own in (
        ("uniform", "uniform"), ("normal", "normal"), ("trunc_normal", "trunc_normal"), ("fill", "constant"), ("zero", "zeros"))},
    "nn.modules.transformer": {
        "_get_clones": _get_clones, "_get_activation_fn": _get_activation_fn, "_get_seq_len": _get_seq_len,
        "_generate_square_subsequent_mask": _generate_square_subsequent_mask},
    "nn.modules.conv": {"_ConvTransposeMixin": _at("nn.layers", "_ConvTranspose")},
    "nn.modules.pooling": {f"_{name}Nd": _at("nn.pooling", f"_{name.removesuffix('Pool') if 'Adaptive' in name else name}") for name in (
        "MaxPool", "AvgPool", "MaxUnpool", "LPPool", "AdaptiveAvgPool", "AdaptiveMaxPool")},
    "nn.modules.rnn": {"apply_permutation": _permuted},
    "nn.modules.normalization": {"_shape_t": int | list | tuple},
    "nn.modules.module": {"_addindent": _addindent}, "nn.modules.container": {"_addindent": _addindent, "OrderedDict": collections.OrderedDict},
    "optim.optimizer": _OPTIMIZERS,
    **{f"optim.{name}": _OPTIMIZERS for name in ("adam", "adamw", "sgd", "adamax", "adadelta", "adagrad", "nadam", "radam", "rmsprop", "rprop", "asgd")},
    "optim.swa_utils": {"_group_tensors_by_device_and_dtype": _at("utils._foreach_utils", "_group_tensors_by_device_and_dtype")},
    "amp.grad_scaler": {"OptState": OptState, "_refresh_per_optimizer_state": _refresh_per_optimizer_state},
    "utils.data": {"_DatasetKind": _at("utils.data._utils.fetch", "_DatasetKind")},
    "utils.data._utils.worker": {
        "ManagerWatchdog": ManagerWatchdog, "_IterableDatasetStopIteration": _at("utils.data._utils.worker", "_Ended"),
        "_ResumeIteration": _at("utils.data._utils.worker", "_Resume")},
    "utils.data.dataloader": {
        "_sharding_worker_init_fn": _sharding_worker_init_fn, "_collate_fn_t": typing.Callable, "_worker_init_fn_t": typing.Callable},
    "multiprocessing": {"_set_thread_name": _do_nothing},
    "amp.autocast_mode": {"_cast": _amp_cast},
    "autograd": {"_profiler_enabled": _is_open, "_disable_profiler": _do_nothing},
    "distributed": {name: _at("distributed", own) for name, own in (
        ("_all_gather_base", "all_gather_into_tensor"), ("_reduce_scatter_base", "reduce_scatter_tensor"))},
    "distributed.distributed_c10d": {"_pg_map": {}, "_resolve_process_group": _resolve_process_group},
    "cuda": {"_initialized": _called(lambda: _core._cuda._gpu_count() > 0)},
    "distributions.kl": {"_KL_REGISTRY": _at("distributions.kl", "_REGISTRY")},
    "distributions.transforms": {"_clipped_sigmoid": _clipped_sigmoid},
    "fx.graph_module": {"_USER_PRESERVED_ATTRIBUTES_KEY": "_user_preserved_attributes"},
    "fx._pytree": {f"_{name}_flatten_spec": _at("fx._pytree", own) for name, own in (
        ("dict", "_dict"), ("list", "_sequence"), ("tuple", "_sequence"), ("namedtuple", "_sequence"))},
    "fx.graph": {"Argument": _at("fx.node", "Argument")},
    "serialization": {"_is_zipfile": _is_zipfile},
    "random": {"default_generator": _called(lambda: _core._default_generator())},
}


def found(module, name):
    """Returns whether a module has a name, and the name's value."""
    names = NAMES.get(module, {})
    if name not in names:
        return False, None
    value = names[name]
    return True, value() if hasattr(value, "is_read") else value
