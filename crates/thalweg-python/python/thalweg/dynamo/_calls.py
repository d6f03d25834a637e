"""ATen's calls as calls of the operator table."""

import functools

import torch

import thalweg
from thalweg import _core

from . import _attention, _draws, _losses, _one_query, _pools, _resampled
from ._nodes import PassedOn, known

aten, prims = torch.ops.aten, torch.ops.prims

# Parameters that say where and how a result is stored: a program has one device, and its tensors are strided.
IGNORED = {"device", "layout", "pin_memory", "generator", "non_blocking"}

_TABLE = frozenset(_core._operator_names())


def name_of(operator):
    """Returns the name of an ATen operator with its overload, as the table has it."""
    schema = operator._schema
    return schema.name.removeprefix("aten::") + (f".{schema.overload_name}" if schema.overload_name else "")


@functools.cache
def parameters_of(name):
    """Returns the names of an entry's parameters."""
    _, parameters, _ = _core._overload_schema(name)
    return [parameter["name"] for parameter in parameters]


@functools.cache
def is_view(name):
    """Returns whether results of an entry are views of its arguments."""
    _, _, results = _core._overload_schema(name)
    return any(result["alias"] for result in results)


def takes(operator):
    """Returns whether calls of an operator are calls of the table."""
    if not isinstance(operator, torch._ops.OpOverload):
        return False
    if operator in REWRITTEN or operator is aten._native_batch_norm_legit_functional.default:
        return True
    return operator.namespace == "aten" and name_of(operator) in _TABLE


def _same(name, **renamed):
    """Returns a rule that calls another entry, with renamed parameters."""
    return lambda named: (name, {renamed.get(parameter, parameter): value for parameter, value in named.items()})


def _convert(named):
    return "_to_copy", {"self": named["a"], "dtype": named["dtype"]}


def _with_vectors(name, flag, *kept):
    """Returns the rule of a decomposition of matrices whose vectors are left out by a flag, which the table's entry has not."""

    def rule(named):
        if not named.get(flag, True):
            raise PassedOn("the table's operator always computes the vectors")
        return name, {parameter: named[parameter] for parameter in kept if parameter in named}

    return rule


def _first_clone(named):
    return "clone", {"self": named["self"]}


def _padded_backward(by, axes):
    """Returns the rule of the gradient of an operator that pads images by their own elements."""

    def rule(named):
        shape = known(named["self"].meta["val"].shape)
        if len(shape) != axes + 2:
            raise PassedOn("its images are not a batch")
        before = known(named["padding"])[0::2][::-1]
        return "thalweg::resample_backward", {"self": named["grad_output"], "by": by, "size": shape[2:], "scale": [1.0] * axes, "before": before}

    return rule


# Operators whose results on the CPU have other shapes or meanings than on a GPU, which the table has.
OTHER_ON_CPU = {
    aten._embedding_bag.default,
    aten._embedding_bag_forward_only.default,
    aten._embedding_bag_per_sample_weights_backward.default,
}


# The calls that have another name in the table.
REWRITTEN = {
    aten._unsafe_view.default: _same("view"),
    aten._reshape_alias.default: lambda named: ("as_strided", named),
    aten._unsafe_index.Tensor: _same("index.Tensor"),
    aten._unsafe_index_put.default: _same("index_put"),
    aten.lift_fresh_copy.default: _first_clone,
    aten.lift_fresh.default: _first_clone,
    # Here nothing is conjugated or negated when it is read: these compute their results.
    aten._conj.default: _same("conj_physical"),
    aten._conj_physical.default: _same("conj_physical"),
    aten._neg_view.default: _same("neg"),
    prims.convert_element_type.default: _convert,
    prims.device_put.default: lambda named: ("clone", {"self": named["a"]}),
    prims.view_of.default: lambda named: ("alias", {"self": named["a"]}),
    # Their defaults differ.
    aten._linalg_svd.default: lambda named: _with_vectors("linalg_svd", "compute_uv", "A", "full_matrices", "driver")({"full_matrices": False, **named}),
    aten._linalg_eigh.default: lambda named: _with_vectors("linalg_eigh", "compute_v", "self", "UPLO")({"self": named["A"], **named}),
    **_attention.RULES,
    **_losses.RULES,
    **_draws.RULES,
    **_pools.RULES,
    **_one_query.RULES,
    **_resampled.RULES,
}
for _axes in (1, 2, 3):
    REWRITTEN[getattr(aten, f"replication_pad{_axes}d_backward").default] = _padded_backward(3, _axes)
_ONE = "abs acos acosh asin asinh atan atanh ceil cos cosh digamma erf erfc exp exp2 expm1 floor lgamma log log10 log1p log2 neg "
_ONE += "reciprocal round rsqrt sign signbit sin sinh sqrt tan tanh trunc bitwise_not isfinite"
for _name in _ONE.split():
    REWRITTEN[getattr(prims, _name).default] = _same(_name)
for _name in "add sub mul eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor remainder fmod pow".split():
    _entry = "pow.Tensor_Tensor" if _name == "pow" else f"{_name}.Tensor"
    REWRITTEN[getattr(prims, _name).default] = _same(_entry, a="self", b="other")
for _name in "maximum minimum atan2 hypot nextafter".split():
    REWRITTEN[getattr(prims, _name).default] = _same(_name, a="self", b="other")


def named_arguments(operator, args, kwargs):
    """Returns the arguments of a call by the names of their parameters, without those that are defaults."""
    parameters = operator._schema.arguments
    named = dict(zip((parameter.name for parameter in parameters), args)) | kwargs
    defaults = {parameter.name: parameter.default_value for parameter in parameters if parameter.has_default_value()}
    return {name: value for name, value in named.items() if not (name in defaults and type(defaults[name]) is type(value) and defaults[name] == value)}


def entry_of(operator, args, kwargs, is_number):
    """Returns the name of the table's entry for a call, and the entry's arguments in their order.

    `is_number(value)` says whether an argument is a number, or a node with one.
    """
    if not isinstance(operator, torch._ops.OpOverload):
        raise PassedOn("it is not an operator of ATen")
    if torch.Tag.nondeterministic_seeded in operator.tags and not _is_without_draws(operator, args, kwargs):
        raise PassedOn("it draws random numbers from PyTorch's generator")
    if not takes(operator):
        raise PassedOn("the table has no such operator")
    named = named_arguments(operator, args, kwargs)
    name = name_of(operator)
    if operator in REWRITTEN:
        name, named = REWRITTEN[operator](named)
    if name not in _TABLE:
        raise PassedOn("the table has no such operator")
    name = with_number(name, named, is_number)
    operands = [value for value, parameter in zip(args, operator._schema.arguments) if str(parameter.type) == "Tensor"]
    if operands and all(is_number(operand) for operand in operands):
        raise PassedOn("its operands are numbers")
    order = parameters_of(name)
    for parameter in set(named) - set(order):
        if parameter not in IGNORED:
            raise PassedOn(f"the table's operator has no `{parameter}`")
        del named[parameter]
    if named.get("layout") not in (None, torch.strided):
        raise PassedOn("its result is not strided")
    count = max((order.index(parameter) + 1 for parameter in named if parameter not in IGNORED), default=0)
    # An ellipsis is a parameter's default.
    return name, [... if parameter in IGNORED else named.get(parameter, ...) for parameter in order[:count]]


def _is_without_draws(operator, args, kwargs):
    """Returns whether an operator that may draw does not: attention without dropout."""
    named = named_arguments(operator, args, kwargs)
    return "attention" in operator._schema.name and not named.get("dropout_p")


def _with_number(name, named):
    """Returns the overload of an entry for numbers, and the parameter that is one; None where there is no such overload."""
    other = name.replace(".Tensor_Tensor", ".Tensor_Scalar") if name.endswith("Tensor_Tensor") else name.replace(".Tensor", ".Scalar")
    second = "exponent" if "exponent" in named else "other"
    return (other, second) if other != name and other in _TABLE and second in named else (None, None)


def number_argument(operator, args, kwargs):
    """Returns the argument of a call in whose place the table takes a number, too; None if there is none."""
    if not isinstance(operator, torch._ops.OpOverload):
        return None
    named = named_arguments(operator, args, kwargs)
    return named.get(_with_number(name_of(operator), named)[1])


def with_number(name, named, is_number):
    """Returns the overload for numbers, if the second operand of a call of tensors is a number."""
    other, second = _with_number(name, named)
    return other if other is not None and is_number(named[second]) else name


def constant(value):
    """Returns a constant of a graph as the table takes it."""
    if isinstance(value, torch.dtype):
        own = getattr(thalweg, str(value).removeprefix("torch."), None)
        if own is None or not getattr(own, "_is_held", False):
            raise PassedOn(f"there are no tensors of {value}")
        return own
    if isinstance(value, torch.memory_format):
        return getattr(thalweg, str(value).removeprefix("torch."))
    if isinstance(value, (torch.device, torch.layout)):
        return None
    if isinstance(value, (list, tuple)):
        return [constant(element) for element in value]
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return value
    raise PassedOn(f"an argument is of the type {type(value).__name__}")
