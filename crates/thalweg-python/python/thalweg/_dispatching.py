"""Operators below autograd that modes and classes receive (`__torch_dispatch__`)."""

import contextlib
import copy
import threading
import types as python_types

from . import _core, _external, _torch_functions, ops

Tensor = _core.Tensor


class _Local(threading.local):
    """The modes of a thread, the innermost last."""

    def __init__(self):
        self.modes = []


_local = _Local()


def modes():
    """Returns the open modes of this thread, the innermost last."""
    return _local.modes


@contextlib.contextmanager
def without_innermost():
    """Returns a region without the innermost mode, in which calls still go to the modes."""
    mode = _local.modes.pop()
    former = _core._set_dispatch_modes(len(_local.modes))
    try:
        yield mode
    finally:
        _local.modes.append(mode)
        _core._set_dispatch_modes(former)


def _called(name, args, kwargs):
    """Is called by the extension for each operator while a mode is open."""
    divided = _OF_MODES.get(name)
    if divided is not None:
        # Autograd has recorded the operator.
        result = divided(*(value.detach() if isinstance(value, Tensor) else value for value in args), **kwargs)
        if result is not None:
            return result
    with without_innermost() as mode:
        overload = ops.overload(name)
        kinds = tuple({type(value) for value in _tensors(args, kwargs) if type(value) is not Tensor})
        result = mode.__torch_dispatch__(overload, kinds, args, kwargs)
        return overload(*args, **kwargs) if result is NotImplemented else result


def _tensors(args, kwargs):
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value, {})


def push(mode):
    """Makes a mode the innermost one."""
    if not _local.modes:
        _core._pass_calls_to_modes(_called, True)
    _local.modes.append(mode)
    _core._set_dispatch_modes(len(_local.modes))


def pop():
    """Removes the innermost mode and returns it."""
    mode = _local.modes.pop()
    _core._set_dispatch_modes(len(_local.modes))
    if not _local.modes:
        _core._pass_calls_to_modes(_called, False)
    return mode


# Attributes of tensors that a wrapper answers as it was made.
_PLAIN = {"__get__", "__set__", "size", "dim", "numel", "nelement", "stride", "storage_offset", "is_contiguous", "is_floating_point", "is_complex",
          "element_size", "data_ptr", "requires_grad_", "__repr__", "__format__", "__len__", "get_device", "retain_grad", "register_hook",
          "__setstate__", "__reduce_ex__", "__deepcopy__", "__bool__", "item", "tolist", "numpy", "to", "as_subclass", "is_leaf", "retains_grad"}


def _matmul(first, second):
    """Returns a product as PyTorch divides it into operators: matrices with many rows, or products of each pair of matrices."""
    ranks = first.dim(), second.dim()
    if max(ranks) <= 2:
        return _operator({(1, 1): "dot", (2, 1): "mv", (2, 2): "mm"}[ranks], first, second) if ranks != (1, 2) else _operator("mv", second.t(), first)
    if ranks[1] <= 2:
        flat = first.reshape(-1, first.shape[-1])
        return _matmul(flat, second).view(*first.shape[:-1], *second.shape[1:])
    from . import _functions
    shape = _functions.broadcast_shapes(first.shape[:-2], second.shape[:-2]) if ranks[0] > 1 else tuple(second.shape[:-2])
    pair = [value.expand(*shape, *value.shape[-2:]).reshape(-1, *value.shape[-2:])
            for value in (first if ranks[0] > 1 else first.unsqueeze(0), second)]
    found = _operator("bmm", *pair)
    return found.view(*shape, *found.shape[1:]) if ranks[0] > 1 else found.view(*shape, found.shape[-1])


def _linear(input, weight, bias=None):
    """Returns a linear function as PyTorch divides it into operators."""
    if bias is None:
        return _matmul(input, weight.t())
    if input.dim() == 2:
        return _operator("addmm", bias, input, weight.t())
    flat = input.reshape(-1, input.shape[-1])
    return _operator("addmm", bias, flat, weight.t()).view(*input.shape[:-1], weight.shape[0])


def _linear_alone(input, weight, bias=None, addend=None):
    """Returns a linear function, or None if its result is added to something."""
    return None if addend is not None else _linear(input, weight, bias)


def _softmax(x, dim, dtype=None):
    """Returns a softmax along one dimension, or None if there are several or the dtype changes."""
    dims = [dim] if isinstance(dim, int) else dim
    return None if len(dims) != 1 or dtype is not None else _operator("_softmax", x, dims[0], False)


def _log_softmax(x, dim, dtype=None):
    return None if dtype is not None else _operator("_log_softmax", x, dim, False)


def _convolution(x, weight, computed, size, stride, padding, dilation, groups, bias=None, relu=False):
    """Returns the result of a convolution, or None for a gradient."""
    if computed or relu:
        return None
    return _operator("convolution", x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


def _convolution_of_places(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    places = weight.dim() - 2
    if isinstance(padding, str) or x.dim() != weight.dim():
        return None
    listed = [list(value) * (places // len(value)) if isinstance(value, (list, tuple)) else [value] * places for value in (stride, padding, dilation)]
    return _convolution(x, weight, 0, None, *listed, groups, bias)


def _operator(name, *args, **kwargs):
    return ops.overload(name)(*args, **kwargs)


def _cross_entropy(input, target, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0):
    if label_smoothing or target.is_floating_point() or input.dim() > 2:
        raise NotImplementedError("cross_entropy of instances of classes takes classes of rows, without label smoothing")
    return _operator("nll_loss", input.log_softmax(-1), target, weight, reduction, ignore_index)


def _item(x, index):
    """Returns a part of a tensor, by the operators that PyTorch runs for a subscript."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [part for part in parts if not isinstance(part, Tensor)]:
        place = next(place for place, part in enumerate(parts) if part is Ellipsis)
        taken = sum(part is not None for part in parts) - 1
        parts[place:place + 1] = [slice(None)] * (x.dim() - taken)
    dim = 0
    for part in parts:
        if isinstance(part, slice):
            if part != slice(None):
                x = _operator("slice.Tensor", x, dim, part.start, part.stop, 1 if part.step is None else part.step)
        elif part is None:
            x = _operator("unsqueeze", x, dim)
        elif isinstance(part, int) and not isinstance(part, bool):
            x, dim = _operator("select.int", x, dim, part), dim - 1
        elif isinstance(part, Tensor) and len(parts) == 1:
            return _operator("index.Tensor", x, [part])
        else:
            raise NotImplementedError(f"a subscript with {type(part).__name__} of an instance of {type(x).__name__} is left out")
        dim += 1
    return x


# Operators that PyTorch divides into others above classes.
_DIVIDED = {"linear": _linear, "matmul": _matmul, "cross_entropy_loss": _cross_entropy}


# Operators in whose place modes receive those of PyTorch, by functions that return None for calls that they do not divide.
_OF_MODES = {
    "linear": _linear, "thalweg::linear": _linear_alone, "matmul": _matmul, "thalweg::matmul": _matmul, "softmax.int": _softmax,
    "thalweg::softmax": _softmax, "log_softmax.int": _log_softmax, "thalweg::convolution": _convolution, "conv1d": _convolution_of_places,
    "conv2d": _convolution_of_places, "conv3d": _convolution_of_places}


def through_class(cls, func, types, args, kwargs):
    """Returns the result of `__torch_dispatch__` for the operator that a function runs."""
    func = _torch_functions.plain(func)
    name = getattr(func, "__name__", "")
    if name in ("to", "float", "double", "half", "bfloat16", "cuda", "cpu", "long", "int") and isinstance(args[0], cls):
        return _converted(cls, name, types, args, kwargs)
    if name == "__rtruediv__":
        return args[0].reciprocal() * args[1]
    overload = func if isinstance(func, ops.OpOverload) else None
    if overload is None and name not in _PLAIN:
        found, own = _torch_functions.overload_of(name, args, kwargs)
        if found is None and len(args) > 1 and all(type(value) is int for value in args[1:]):
            # A method takes a list of integers as several arguments as well.
            found, own = _torch_functions.overload_of(name, (args[0], list(args[1:])), kwargs)
        args = own if found is not None else args
        overload = None if found is None else ops.overload(found)
    if name in ("__deepcopy__", "_deepcopy"):
        return _copied(*args)
    if name == "__getitem__":
        return _item(*args)
    if overload is None and isinstance(func, python_types.FunctionType) and name not in _PLAIN or name == "backward":
        # A function of Python is made of operators that the class receives.
        return getattr(func, "__wrapped__", func)(*args, **kwargs)
    if overload is None:
        with _torch_functions.SubclassesOff():
            return func(*args, **kwargs)
    return dispatched(cls, overload, types, args, kwargs)


def _copied(x, memo):
    """Returns a copy of an instance of a class, by its own `clone`, with copies of further attributes."""
    if id(x) in memo:
        return memo[id(x)]
    if not x.is_leaf:
        raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment.")
    made = memo[id(x)] = x.detach().clone()
    if type(made) is not type(x):
        raise RuntimeError(f"The default implementation of __deepcopy__() for {type(x).__name__} needs a clone() that returns an instance of the class")
    made.requires_grad_(x.requires_grad)
    for attribute, value in x.__dict__.items():
        if attribute not in made.__dict__:
            made.__dict__[attribute] = copy.deepcopy(value, memo)
    return made


def dispatched(cls, overload, types, args, kwargs):
    """Returns the result of an operator that a class computes, below autograd."""
    divided = _DIVIDED.get(overload._schema.name.partition("::")[2])
    if divided is not None and not _core.is_inference_mode_enabled():
        return divided(*args, **kwargs)
    from . import _derivatives
    if _derivatives.is_recorded(args, kwargs):
        former = _core._set_grad_enabled(False)
        try:
            result = _received(cls, overload, types, args, kwargs)
        finally:
            _core._set_grad_enabled(former)
        return _derivatives.record(overload, args, kwargs, result)
    return _received(cls, overload, types, args, kwargs)


def _received(cls, overload, types, args, kwargs):
    result = cls.__torch_dispatch__(overload, types, args, kwargs)
    if result is NotImplemented:
        raise TypeError(f"Multiple dispatch failed for '{overload}'; all __torch_dispatch__ handlers returned NotImplemented")
    return result


def _converted(cls, name, types, args, kwargs):
    """Returns a tensor with another dtype or on another device, as the operator `_to_copy`."""
    dtypes = {"float": _core.float32, "double": _core.float64, "half": _core.float16, "bfloat16": _core.bfloat16, "long": _core.int64,
              "int": _core.int32}
    options = {key: value for key, value in kwargs.items() if key in ("dtype", "device", "memory_format")}
    if name in dtypes:
        options["dtype"] = dtypes[name]
    elif name in ("cuda", "cpu"):
        options["device"] = _core.device(name)
    for value in args[1:]:
        if isinstance(value, _core.dtype):
            options["dtype"] = value
        elif isinstance(value, (str, _core.device)):
            options["device"] = _core.device(value) if isinstance(value, str) else value
        elif isinstance(value, Tensor):
            options |= {"dtype": value.dtype, "device": value.device}
    here = args[0]
    if options.get("dtype", here.dtype) == here.dtype and options.get("device", here.device) == here.device and not kwargs.get("copy"):
        return here
    return dispatched(cls, ops.overload("_to_copy"), types, (here,), options)


def wrapper(cls, size, strides=None, storage_offset=0, memory_format=None, dtype=None, layout=None, device=None, pin_memory=False,
            requires_grad=False, dispatch_sizes_strides_policy=None, dispatch_device=False, dispatch_layout=False, **_):
    """Returns an instance of a class without elements of its own, with a shape, a dtype and a device: its functions go to `__torch_dispatch__`."""
    if getattr(cls, "__torch_dispatch__", _torch_functions._disabled_torch_dispatch_impl) is _torch_functions._disabled_torch_dispatch_impl:
        raise RuntimeError(f"{cls.__name__}: _make_wrapper_subclass needs a class with __torch_dispatch__")
    dtype = _core.get_default_dtype() if dtype is None else dtype
    if strides is None:
        made = _core.empty(list(size), dtype=dtype, device="meta")
    else:
        made = _core.empty_strided(list(size), list(strides), dtype=dtype, device="meta")
    made = Tensor.__new__(cls, made)
    with _torch_functions.DisableTorchFunction():
        made.requires_grad_(bool(requires_grad))
    made.__dict__["_wrapper_device"] = _core.device(device) if device is not None else _core.get_default_device()
    _external.expected()
    _give_device(cls)
    return made


def _give_device(cls):
    """Makes the device of a wrapper the one that it was made with."""
    if "_has_wrapper_device" in vars(cls):
        return
    original = _torch_functions._original("device")
    # A subclass that has a property of its own keeps it.
    classes = cls.__mro__[:cls.__mro__.index(Tensor)]
    made = _torch_functions._attributes()["device"]
    if all(vars(one).get("device", made) is made for one in classes):
        cls.device = property(lambda self: self.__dict__.get("_wrapper_device") or original.__get__(self))
    cls._has_wrapper_device = True

