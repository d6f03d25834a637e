"""Arguments of calls in the order of signatures (`torch.fx.operator_schemas`)."""

import functools
import inspect
import typing

from .. import _core, ops

__all__ = ["ArgsKwargsPair", "check_for_mutable_operation", "get_signature_for_torch_op", "normalize_function", "normalize_module"]


class ArgsKwargsPair(typing.NamedTuple):
    """Arguments of a call."""

    args: tuple
    kwargs: dict


@functools.cache
def _overloads():
    """Returns the overloads of the operator table, by the names of their functions."""
    found = {}
    for entry in ops.table():
        found.setdefault(entry["function"], []).append(entry)
    return found


_DEFAULTS = {"None": None, "True": True, "False": False}


def _default(text):
    if text is None:
        return inspect.Parameter.empty
    import ast
    return _DEFAULTS[text] if text in _DEFAULTS else ast.literal_eval(text)


def _signature(entry):
    parameters = []
    for one in entry["parameters"]:
        kind = inspect.Parameter.KEYWORD_ONLY if one["keyword_only"] else inspect.Parameter.POSITIONAL_OR_KEYWORD
        name = "input" if one["name"] == "self" else f"{one['name']}_" if one["name"] in ("from", "lambda", "in", "is") else one["name"]
        parameters.append(inspect.Parameter(name, kind, default=_default(one["default"])))
    return inspect.Signature(parameters)


def get_signature_for_torch_op(op, return_schemas=False):
    """Returns the signatures of an operator, one for each overload, or None."""
    if inspect.isfunction(op):
        try:
            signatures, schemas = [inspect.signature(op)], [None]
        except ValueError:
            return (None, None) if return_schemas else None
    elif hasattr(op, "_qualified_op_name"):
        return get_signature_for_torch_op(getattr(_core, op.__name__, None), return_schemas)
    else:
        entries = _overloads().get(getattr(op, "__name__", None))
        if entries is None:
            return (None, None) if return_schemas else None
        signatures, schemas = [], []
        for entry in entries:
            try:
                signature = _signature(entry)
            except ValueError:
                continue  # A parameter without a default follows one that has one.
            signatures.append(signature)
            schemas.append(entry["schema"])
    return (signatures, schemas) if return_schemas else signatures


def normalize_function(target, args, kwargs=None, arg_types=None, kwarg_types=None, normalize_to_only_use_kwargs=False):
    """Returns the arguments of a call in the order of the signature, or None if no signature fits."""
    kwargs = kwargs or {}
    for signature in get_signature_for_torch_op(target) or ():
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            continue
        return _ordered(signature, args, kwargs, normalize_to_only_use_kwargs)
    return None


def normalize_module(root, target, args, kwargs=None, normalize_to_only_use_kwargs=False):
    """Returns the arguments of a call of a module in the order of its signature, or None if they do not fit."""
    try:
        module = root.get_submodule(target)
    except AttributeError as error:
        raise RuntimeError(f"Tried to normalize node with target {target} but root did not have that target!") from error
    try:
        return _ordered(inspect.signature(module.forward), args, kwargs or {}, normalize_to_only_use_kwargs)
    except TypeError:
        return None


def _ordered(signature, args, kwargs, only_kwargs):
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    if only_kwargs:
        return ArgsKwargsPair((), dict(bound.arguments))
    places, names = [], {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.KEYWORD_ONLY:
            names[name] = value
        elif kind is inspect.Parameter.VAR_KEYWORD:
            names.update(value)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            places.extend(value)
        else:
            places.append(value)
    return ArgsKwargsPair(tuple(places), names)


def check_for_mutable_operation(target, args, kwargs):
    """Refuses calls that write into their arguments."""
    name = getattr(target, "__name__", "")
    writes = "out" in (kwargs or {})
    if (writes and name in _overloads()) or _core._in_place.get(name) is target:
        schema = next((entry["schema"] for entry in _overloads().get(name, ())), name)
        if writes:
            schema = f"{name}.out{schema[len(name):].replace(') -> Tensor', ', *, Tensor(a!) out) -> Tensor(a!)')}"
        raise RuntimeError(f"Tried to trace mutable operation aten::{schema}. FX only supports functional code, so operations that mutate operands in-place "
                           "(e.g. via `out` arguments) are not supported")
