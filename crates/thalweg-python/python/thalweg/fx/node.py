"""Nodes of graphs (`torch.fx.node`): each is a call, an input, an attribute or the result of a program."""

import builtins
import math
import operator
import typing

from .. import _core
from .._names import _assert
from ._names import qualified as _get_qualified_name
from ._names import type_repr as _type_repr
from .immutable_collections import immutable_dict, immutable_list

Target = typing.Union[typing.Callable, str]
BaseArgumentTypes = typing.Union[str, int, float, bool, complex, _core.dtype, _core.Tensor, _core.device]
base_types = (str, int, float, bool, complex, _core.dtype, _core.Tensor, _core.device, type(_core.preserve_format))
Argument = typing.Any

_operations = {"placeholder", "call_method", "call_module", "call_function", "get_attr", "output", "root"}
# Functions whose calls are kept although their results have no users.
_side_effectful_functions = set()


def has_side_effect(fn):
    """Marks a function whose calls are kept although their results have no users."""
    _side_effectful_functions.add(fn)
    return fn


def map_aggregate(a, fn):
    """Returns a nested argument with a function applied to each element that is not a list, tuple, dictionary or slice."""
    if type(a) is tuple:
        return tuple([map_aggregate(part, fn) for part in a])
    if isinstance(a, tuple):
        parts = [map_aggregate(part, fn) for part in a]
        return type(a)(*parts) if hasattr(a, "_fields") else tuple(parts)
    if isinstance(a, list):
        return immutable_list([map_aggregate(part, fn) for part in a])
    if isinstance(a, dict):
        return immutable_dict([(key, map_aggregate(part, fn)) for key, part in a.items()])
    if isinstance(a, slice):
        return slice(map_aggregate(a.start, fn), map_aggregate(a.stop, fn), map_aggregate(a.step, fn))
    return fn(a)


def map_arg(a, fn):
    """Returns a nested argument with a function applied to each node in it."""
    assert callable(fn), "map_arg(a, fn): fn is not callable"
    return map_aggregate(a, lambda part: fn(part) if isinstance(part, Node) else part)


def _format_arg(arg, max_list_len=math.inf):
    """Returns an argument as text, with `%` before the names of nodes."""
    if hasattr(arg, "_custom_fx_repr_fn"):
        return arg._custom_fx_repr_fn()
    if isinstance(arg, (list, tuple)):
        shown = [_format_arg(part, max_list_len) for place, part in enumerate(arg) if place < max_list_len]
        text = ", ".join(shown) + (f", ...[total_len={len(arg)}]" if len(arg) > max_list_len else "")
        if isinstance(arg, list):
            return f"[{text}]"
        return f"({text},)" if len(arg) == 1 else f"({text})"
    if isinstance(arg, dict):
        return "{" + ", ".join(f"{key}: {_format_arg(part, max_list_len)}" for key, part in arg.items()) + "}"
    return f"%{arg}" if isinstance(arg, Node) else str(arg)


def _fix_name(target):
    return getattr(target, "__name__", None)


class Node:
    """A node of a graph. `op` is its kind, `target` the function that it calls or the name that it refers to, `args`
    and `kwargs` are its arguments."""

    def __init__(self, graph, name, op, target, args, kwargs, return_type=None):
        if op not in _operations:
            raise AssertionError(f"op must be one of {sorted(_operations)}, got {op}")
        if op == "call_function":
            if not callable(target):
                raise ValueError(f"Node [graph = {graph}, name = '{name}'] target {target} has type {type(target)} but a Callable is expected")
        elif not isinstance(target, str):
            raise ValueError(f"Node [graph = {graph}, name = '{name}'] target {target} has type {type(target)} but a str is expected")
        self.graph, self.name, self.op, self.target, self.type = graph, name, op, target, return_type
        self.users, self._input_nodes, self._args, self._kwargs = {}, {}, (), {}
        self._prev = self._next = self
        self._erased, self._repr_fn, self.meta, self._position = False, None, {}, 0
        self._update_args_kwargs(args, kwargs)

    # ---- The place among the others -------------------------------------------------------------------------------

    @property
    def next(self):
        """The node after this one."""
        return self._next

    @property
    def prev(self):
        """The node before this one."""
        return self._prev

    def prepend(self, x):
        """Moves a node before this one."""
        assert self.graph == x.graph, "Attempting to move a Node into a different Graph"
        if self is x:
            return
        x._remove_from_list()
        before = self._prev
        before._next, x._prev, x._next, self._prev = x, before, self, x
        self.graph._is_numbered = False

    _prepend = prepend

    def append(self, x):
        """Moves a node after this one."""
        if self._next is not x:
            self._next.prepend(x)

    def _remove_from_list(self):
        self._prev._next, self._next._prev = self._next, self._prev

    @property
    def _sort_key(self):
        """The place of the node, which grows along the graph."""
        self.graph._number()
        return (self._position,)

    def __lt__(self, other):
        return self._sort_key < other._sort_key

    def __gt__(self, other):
        return self._sort_key > other._sort_key

    def __le__(self, other):
        return self is other or self < other

    def __ge__(self, other):
        return self is other or self > other

    # ---- Arguments ------------------------------------------------------------------------------------------------

    @property
    def args(self):
        """The positional arguments."""
        return self._args

    @args.setter
    def args(self, args):
        self._update_args_kwargs(args, self._kwargs)

    @property
    def kwargs(self):
        """The keyword arguments."""
        return self._kwargs

    @kwargs.setter
    def kwargs(self, kwargs):
        self._update_args_kwargs(self._args, kwargs)

    def _update_args_kwargs(self, args, kwargs):
        """Replaces the arguments, and enters this node among the users of the nodes in them."""
        for former in self._input_nodes:
            former.users.pop(self, None)
        self._input_nodes = {}

        def used(part):
            if isinstance(part, Node):
                self._input_nodes.setdefault(part)
                part.users.setdefault(self)
            return part
        self._args, self._kwargs = map_aggregate(tuple(args), used), map_aggregate(dict(kwargs), used)

    @property
    def all_input_nodes(self):
        """The nodes among the arguments, each once."""
        return list(self._input_nodes)

    def update_arg(self, idx, arg):
        """Replaces a positional argument."""
        args = list(self.args)
        args[idx] = arg
        self.args = tuple(args)

    def insert_arg(self, idx, arg):
        """Inserts a positional argument."""
        assert 0 <= idx <= len(self.args), "insert_args index must be between 0 and len(self.args)"
        self.args = (*self.args[:idx], arg, *self.args[idx:])

    def update_kwarg(self, key, arg):
        """Replaces a keyword argument."""
        self.kwargs = {**self.kwargs, key: arg}

    @property
    def stack_trace(self):
        """The lines of the program that the node comes from, if they were recorded."""
        return self.meta.get("stack_trace", None)

    @stack_trace.setter
    def stack_trace(self, trace):
        self.meta["stack_trace"] = trace

    def replace_input_with(self, old_input, new_input):
        """Replaces a node among the arguments by another one."""
        self._replace_input_with(old_input, new_input)

    def _replace_input_with(self, old_input, new_input):
        for hook in getattr(self.graph.owning_module, "_replace_hooks", None) or ():
            hook(old=old_input, new=new_input.name if isinstance(new_input, Node) else new_input, user=self)

        def replaced(part):
            return new_input if part is old_input else part
        self._update_args_kwargs(map_arg(self._args, replaced), map_arg(self._kwargs, replaced))

    def replace_all_uses_with(self, replace_with, delete_user_cb=None, *, propagate_meta=False):
        """Replaces this node by another one in the arguments of its users, and returns those. `delete_user_cb` may leave some out."""
        if propagate_meta:
            assert not replace_with.meta, (
                "Called node.replace_all_uses_with(replace_with, propagate_meta=True), but replace_with already has .meta keys")
            replace_with.meta.update(self.meta)
        replaced = []
        for user in list(self.users):
            if delete_user_cb is None or delete_user_cb(user):
                replaced.append(user)
                user._replace_input_with(self, replace_with)
        return replaced

    # ---- Properties -----------------------------------------------------------------------------------------------

    def is_impure(self, impure_random=True):
        """Returns whether the node has an effect besides its result, and is kept without users."""
        if self.op in ("placeholder", "output"):
            return True
        if self.op == "call_function":
            name = getattr(self.target, "__name__", "")
            writes = "out" in self.kwargs or (name.endswith("_") and not name.endswith("__") and not name.startswith("_"))
            return self.target in _side_effectful_functions or (writes and self.target.__module__ != "builtins")
        if self.op == "call_method":
            return self.target.endswith("_") and not self.target.endswith("__")
        if self.op == "call_module":
            assert self.graph.owning_module is not None, "self.graph.owning_module not set for purity check"
            return getattr(self.graph.owning_module.get_submodule(self.target), "_is_impure", False)
        return False

    def normalized_arguments(self, root, arg_types=None, kwarg_types=None, normalize_to_only_use_kwargs=False):
        """Returns the arguments in the order of the target's signature, or None if they cannot be ordered."""
        from .operator_schemas import normalize_function, normalize_module
        if self.op == "call_function":
            return normalize_function(self.target, self.args, self.kwargs, arg_types, kwarg_types, normalize_to_only_use_kwargs)
        if self.op == "call_module":
            return normalize_module(root, self.target, self.args, self.kwargs, normalize_to_only_use_kwargs)
        return None

    # ---- Text -----------------------------------------------------------------------------------------------------

    def __repr__(self):
        return self._repr_fn(self) if self._repr_fn else self.name

    @staticmethod
    def _pretty_print_target(target):
        """Returns a target as it is printed: functions have their modules."""
        if isinstance(target, str):
            return target
        module = getattr(target, "__module__", None)
        if module is not None:
            name = _fix_name(target)
            if name is None:
                return _get_qualified_name(target)
            if module == "builtins":
                return f"builtins.{name}"
            if module == "_operator":
                return f"operator.{name}"
        return _get_qualified_name(target)

    def format_node(self, placeholder_names=None, maybe_return_typename=None, *, include_tensor_metadata=False):
        """Returns the node as a line of text."""
        kind = f"{_type_repr(self.type)} " if self.type else ""
        head = f"%{self.name} : {kind}[num_users={len(self.users)}] = {self.op}[target="
        if self.op == "placeholder":
            if placeholder_names is not None:
                placeholder_names.append(self.target + (f": {_type_repr(self.type)}" if self.type else ""))
            default = f"(default={self.args[0]})" if self.args else ""
            return f"{head}{self.target}]{default}"
        if self.op == "get_attr":
            return f"{head}{self._pretty_print_target(self.target)}]"
        if self.op == "output":
            if self.type and maybe_return_typename:
                maybe_return_typename[0] = f" -> {_type_repr(self.type)}"
            return f"return {self.args[0]}"
        return f"{head}{self._pretty_print_target(self.target)}](args = {_format_arg(self.args)}, kwargs = {_format_arg(self.kwargs)})"

    def _rename(self, candidate):
        """Gives the node a name that is like a candidate."""
        if candidate != self.name:
            self.name = self.graph._graph_namespace.create_name(candidate, None)
            self.graph._graph_namespace._rename_object(self, self.name)

    def __setattr__(self, name, value):
        if name == "name" and hasattr(self, "name"):
            for hook in getattr(getattr(self.graph, "owning_module", None), "_replace_hooks", None) or ():
                for user in self.users:
                    hook(old=self, new=value, user=user)
            self.graph._graph_namespace._rename_object(self, value)
        object.__setattr__(self, name, value)


Node.__module__ = __name__
has_side_effect(builtins.print)
has_side_effect(_assert)
has_side_effect(operator.setitem)
