"""Flattening of nested arguments by a structure that is known beforehand (`torch.fx._pytree`)."""

import collections

from .._left_out import attributes as _attributes
from ..utils._pytree import LeafSpec, PyTree, TreeSpec

FlattenFuncSpec = FlattenFuncExactMatchSpec = collections.abc.Callable
SUPPORTED_NODES, SUPPORTED_NODES_EXACT_MATCH = {}, {}


def register_pytree_flatten_spec(cls, flatten_fn_spec, flatten_fn_exact_match_spec=None):
    """Sets the function that flattens instances of a class by a structure."""
    SUPPORTED_NODES[cls] = flatten_fn_spec
    SUPPORTED_NODES_EXACT_MATCH[cls] = flatten_fn_exact_match_spec


def _deregister_pytree_flatten_spec(cls):
    del SUPPORTED_NODES[cls], SUPPORTED_NODES_EXACT_MATCH[cls]


def tree_flatten_spec(pytree, spec):
    """Returns the leaves of a nested value that has a known structure."""
    if isinstance(spec, LeafSpec) or spec.is_leaf():
        return [pytree]
    flatten = SUPPORTED_NODES.get(spec.type)
    if flatten is None:
        raise RuntimeError(
            f"{type(pytree)} does not have a flatten_fn_spec associated with it. Please register one with torch.fx._pytree.register_pytree_flatten_spec. "
            "If you have serialized your model, make sure that any custom pytrees have been registered before loading it.")
    children = spec.children() if callable(getattr(spec, "children", None)) else spec.children_specs
    return [leaf for child, own in zip(flatten(pytree, spec), children) for leaf in tree_flatten_spec(child, own)]


def _dict(values, spec):
    return [values[key] for key in spec.context]


def _ordered(values, spec):
    return [values[key] for key in spec.context]


def _sequence(values, spec):
    count = spec.num_children
    return [values[place] for place in range(count)]


register_pytree_flatten_spec(dict, _dict, lambda values, spec: len(values) == spec.num_children)
register_pytree_flatten_spec(list, _sequence, lambda values, spec: len(values) == spec.num_children)
register_pytree_flatten_spec(tuple, _sequence, lambda values, spec: len(values) == spec.num_children)
register_pytree_flatten_spec(collections.namedtuple, _sequence, lambda values, spec: len(values) == spec.num_children)
register_pytree_flatten_spec(collections.OrderedDict, _ordered, lambda values, spec: len(values) == spec.num_children)

__all__ = ["PyTree", "TreeSpec", "register_pytree_flatten_spec", "tree_flatten_spec"]
__getattr__ = _attributes(__name__)
