"""Graphs of nodes (`torch.fx.graph`): how they are made, changed, checked and printed."""

import contextlib
import copy
import warnings

from ._codegen import (  # noqa: F401
    CodeGen, PythonCode, PyTreeInfo, _format_target, _PyTreeCodeGen, inplace_methods, magic_methods, reflectable_magic_methods)
from .._left_out import attributes as _attributes
from ._names import Builtin as _CustomBuiltin
from ._names import Namespace as _Namespace
from ._names import custom_builtins as _custom_builtins
from ._names import is_from_torch as _is_from_torch  # noqa: F401
from ._names import qualified as _get_qualified_name  # noqa: F401
from ._names import snake_case as _snake_case
from ._names import type_repr as _type_repr  # noqa: F401
from .node import Node, _format_arg, map_arg  # noqa: F401


def _register_custom_builtin(name, import_str, obj):
    """Makes a name known that generated code may use, with the statement that imports it."""
    _custom_builtins._filled()[name] = _CustomBuiltin(import_str, obj)


def _is_magic(name):
    return name.startswith("__") and name.endswith("__")


class _node_list:
    """The nodes of a graph in their order, which may change while they are read."""

    def __init__(self, graph, direction="_next"):
        self.graph, self.direction = graph, direction

    def __len__(self):
        return self.graph._len

    def __iter__(self):
        root = self.graph._root
        node = getattr(root, self.direction)
        while node is not root:
            if not node._erased:
                yield node
            node = getattr(node, self.direction)

    def __reversed__(self):
        return _node_list(self.graph, "_prev" if self.direction == "_next" else "_next")


class _InsertPoint:
    """A place for new nodes, until the region ends."""

    def __init__(self, graph, insert):
        self.graph, self.former, graph._insert = graph, graph._insert, insert

    def __enter__(self):
        pass

    def __exit__(self, *_):
        self.graph._insert = self.former


class Graph:
    """A program as a list of nodes: inputs, attributes, calls and one result."""

    def __init__(self, owning_module=None, tracer_cls=None, tracer_extras=None):
        self._root = Node(self, "", "root", "", (), {})
        self._used_names, self._insert, self._len, self._is_numbered = {}, self._root.prepend, 0, True
        self._graph_namespace = _Namespace()
        self._owning_module, self._owners, self._tracer_cls, self._tracer_extras = owning_module, 0, tracer_cls, tracer_extras
        self._codegen, self._co_fields = CodeGen(), {}

    @property
    def owning_module(self):
        """The module that the graph belongs to, if it is only one."""
        return self._owning_module

    @owning_module.setter
    def owning_module(self, module):
        self._owning_module = module

    @property
    def nodes(self):
        """The nodes, in the order in which they run."""
        return _node_list(self)

    @property
    def output_node_or_none(self):
        """The node of the result, if there is one."""
        return next((node for node in reversed(self.nodes) if node.op == "output"), None)

    def output_node(self):
        """Returns the node of the result."""
        return next(iter(reversed(self.nodes)))

    def find_nodes(self, *, op, target=None, sort=True):
        """Returns the nodes of a kind, with a target for calls of functions."""
        found = [node for node in self.nodes if node.op == op and (target is None or node.target == target)]
        if op == "call_function" and target is None:
            raise RuntimeError("find_nodes: call_function needs a target")
        return found

    def _number(self):
        """Numbers the nodes along the graph."""
        if not self._is_numbered:
            self._is_numbered = True
            for place, node in enumerate(self.nodes):
                node._position = place + 1

    # ---- Making nodes ---------------------------------------------------------------------------------------------

    def _target_to_str(self, target):
        """Returns the start of the name of a node with a target."""
        if callable(target):
            name = target.__name__ if hasattr(target, "__name__") else type(target).__name__
        else:
            name = target
            if _is_magic(name):
                name = name[2:-2]
        return _snake_case(name)

    def create_node(self, op, target, args=None, kwargs=None, name=None, type_expr=None):
        """Returns a new node at the place for new nodes."""
        assert op in ("call_function", "call_method", "get_attr", "call_module", "placeholder", "output"), f"{op} is not an operation of a node"
        args, kwargs = () if args is None else args, {} if kwargs is None else kwargs
        assert isinstance(args, tuple), "args must be a tuple"
        assert isinstance(kwargs, dict), "kwargs must be a dict"
        candidate = name if name is not None else self._target_to_str(target)
        node = Node(self, self._graph_namespace.create_name(candidate, None), op, target, args, kwargs, type_expr)
        self._graph_namespace.associate_name_with_obj(node.name, node)
        self._insert(node)
        self._len += 1
        self._is_numbered = False
        for hook in getattr(self.owning_module, "_create_node_hooks", None) or ():
            hook(node)
        return node

    def placeholder(self, name, type_expr=None, default_value=...):
        """Returns a new input."""
        args = () if default_value is ... else (default_value,)
        return self.create_node("placeholder", name, args=args, type_expr=type_expr)

    def get_attr(self, qualified_name, type_expr=None):
        """Returns a new node for an attribute of the module."""
        module = self.owning_module
        if module is not None and not _has_attribute(module, qualified_name):
            warnings.warn(
                "Attempted to insert a get_attr Node with no underlying reference in the owning GraphModule! Call GraphModule.add_submodule to "
                "add the necessary submodule, GraphModule.add_parameter to add the necessary Parameter, or nn.Module.register_buffer to add the "
                "necessary buffer", stacklevel=2)
        return self.create_node("get_attr", qualified_name, type_expr=type_expr)

    def call_module(self, module_name, args=None, kwargs=None, type_expr=None):
        """Returns a new call of a submodule."""
        if self.owning_module is not None and not _has_attribute(self.owning_module, module_name):
            warnings.warn(
                "Attempted to insert a call_module Node with no underlying reference in the owning GraphModule! Call GraphModule.add_submodule to "
                "add the necessary submodule", stacklevel=2)
        return self.create_node("call_module", module_name, args, kwargs, type_expr=type_expr)

    def call_method(self, method_name, args=None, kwargs=None, type_expr=None):
        """Returns a new call of a method of the first argument."""
        return self.create_node("call_method", method_name, args, kwargs, type_expr=type_expr)

    def call_function(self, the_function, args=None, kwargs=None, type_expr=None, name=None):
        """Returns a new call of a function."""
        return self.create_node("call_function", the_function, args, kwargs, name=name, type_expr=type_expr)

    def output(self, result, type_expr=None):
        """Returns a new node for the result."""
        return self.create_node(op="output", target="output", args=(result,), type_expr=type_expr)

    def node_copy(self, node, arg_transform=lambda x: x):
        """Returns a copy of a node of another graph. `arg_transform` maps the nodes among its arguments to those of this graph."""
        args, kwargs = map_arg(node.args, arg_transform), map_arg(node.kwargs, arg_transform)
        assert isinstance(args, tuple) and isinstance(kwargs, dict)
        made = self.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        made.meta = copy.copy(node.meta)
        return made

    def graph_copy(self, g, val_map, return_output_node=False):
        """Copies the nodes of another graph to the place for new nodes, and returns the result there as an argument."""
        for node in g.nodes:
            if node in val_map:
                continue
            if node.op == "output":
                result = map_arg(node.args[0], lambda part: val_map[part])
                return (result, node) if return_output_node else result
            val_map[node] = self.node_copy(node, lambda part: val_map[part])
        return None

    # ---- Changing -------------------------------------------------------------------------------------------------

    def erase_node(self, to_erase):
        """Removes a node without users."""
        if len(to_erase.users) > 0:
            raise RuntimeError(f"Tried to erase Node {to_erase} but it still had {len(to_erase.users)} users in the graph: {to_erase.users}!")
        if to_erase.graph != self:
            raise RuntimeError(f"Attempting to remove {to_erase} from wrong graph!")
        if to_erase._erased:
            warnings.warn(f"erase_node({to_erase}) on an already erased node", stacklevel=2)
            return
        for hook in getattr(self.owning_module, "_erase_node_hooks", None) or ():
            hook(to_erase)
        to_erase._remove_from_list()
        to_erase._erased = True
        self._len -= 1
        to_erase._update_args_kwargs((), {})

    def inserting_before(self, n=None):
        """Makes the place before a node, or the beginning, the place for new nodes."""
        if n is None:
            return self.inserting_after(self._root)
        assert n.graph == self, "Node to insert before is not in graph."
        return _InsertPoint(self, n.prepend)

    def inserting_after(self, n=None):
        """Makes the place after a node, or the end, the place for new nodes."""
        if n is None:
            return self.inserting_before(self._root)
        assert n.graph == self, "Node to insert after is not in graph."
        return _InsertPoint(self, n.append)

    def process_inputs(self, *args):
        """Returns the inputs of the graph for the arguments of its function."""
        return self._codegen.process_inputs(*args)

    def process_outputs(self, out):
        """Returns the result of the function for the result of the graph."""
        return self._codegen.process_outputs(out)

    def eliminate_dead_code(self, is_impure_node=None):
        """Removes the nodes that have no users and no effect, and returns whether there were any."""
        self.lint()
        kept = is_impure_node or (lambda node: node.is_impure())
        former = len(self.nodes)
        for node in reversed(self.nodes):
            if not kept(node) and len(node.users) == 0:
                self.erase_node(node)
        for node in self.nodes:
            inner = getattr(self.owning_module, node.target, None) if node.op == "get_attr" and "." not in node.target else None
            if isinstance(getattr(inner, "graph", None), Graph) and inner is not self.owning_module:
                inner.graph.eliminate_dead_code(is_impure_node)
        return len(self.nodes) < former

    def set_codegen(self, codegen):
        """Sets the object that generates the code."""
        self._codegen = codegen

    @contextlib.contextmanager
    def on_generate_code(self, make_transformer):
        """Returns a region in which generated code goes through the function that `make_transformer` returns for the present one."""
        former = self._codegen._body_transformer
        self._codegen._body_transformer = make_transformer(former)
        try:
            yield
        finally:
            self._codegen._body_transformer = former

    def _clear_nodes(self):
        for node in reversed(self.nodes):
            node.users.clear()
            self.erase_node(node)

    # ---- Copies ---------------------------------------------------------------------------------------------------

    def __deepcopy__(self, memo=None):
        memo = {} if memo is None else memo
        made = Graph(tracer_cls=self._tracer_cls)
        found = made.graph_copy(self, val_map=memo, return_output_node=True)
        made._codegen = copy.deepcopy(self._codegen)
        if found is not None:
            result, old = found
            output = made.output(result, type_expr=getattr(old, "type", None))
            output.meta = copy.copy(old.meta)
        return made

    # ---- Code, text, checks ---------------------------------------------------------------------------------------

    def python_code(self, root_module, *, verbose=False, include_stride=False, include_device=False, colored=False, expanded_def=False, **_):
        """Returns the graph as Python code, with the globals that the code needs."""
        namespace = _Namespace()

        def shown(node):
            return namespace.create_name(node.name, node)
        formers = {node: node._repr_fn for node in self.nodes}
        try:
            for node in self.nodes:
                node._repr_fn = shown
            return self._python_code(root_module, namespace, verbose=verbose)
        finally:
            for node, former in formers.items():
                node._repr_fn = former

    def _python_code(self, root_module, namespace, *, verbose=False, **_):
        return self._codegen._gen_python_code(self.nodes, root_module, namespace, verbose=verbose)

    def __str__(self):
        names, returned = [], [""]
        lines = [node.format_node(names, returned) for node in self.nodes]
        return "graph():" + "".join(f"\n    {line}" for line in lines if line)

    def print_tabular(self):
        """Prints the nodes as a table."""
        rows = [("opcode", "name", "target", "args", "kwargs"), *(
            (node.op, node.name, str(node.target), str(node.args), str(node.kwargs)) for node in self.nodes)]
        widths = [max(len(row[place]) for row in rows) for place in range(5)]
        rows.insert(1, tuple("-" * width for width in widths))
        print("\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows))

    def lint(self):
        """Raises a `RuntimeError` if the graph is not well formed: names, owners, order, targets."""
        seen, names = set(), set()

        def check(part, user):
            if part.graph is not self:
                raise RuntimeError(f"Argument '{part}' of Node '{user}' does not belong to this Graph, but was used as an argument! If you are "
                                   "copying nodes from another graph, make sure to use ``arg_transform`` on node_copy() to remap values")
            if part not in seen:
                raise RuntimeError(f"Argument '{part}' of Node '{user}' was used before it has been defined! Please check that Nodes in the graph "
                                   f"are topologically ordered\n{self}")
        for node in self.nodes:
            if node.op not in ("placeholder", "call_method", "call_module", "call_function", "get_attr", "output"):
                raise RuntimeError(f"Node {node} had unknown opcode {node.op}!")
            if node.graph is not self:
                raise RuntimeError(f"Node '{node}' does not belong to this Graph!")
            if node not in self._graph_namespace._names:
                raise RuntimeError(f"Node {node} is missing from the namespace of the graph")
            for part in node.all_input_nodes:
                check(part, node)
            seen.add(node)
            if node.name in names:
                raise RuntimeError(f"Node redefined name {node.name}!")
            names.add(node.name)
        if self.owning_module is not None:
            self._lint_targets()

    def _lint_targets(self):
        """Raises a `RuntimeError` if an attribute or a submodule that a node names is not there."""
        for node in self.nodes:
            if node.op not in ("get_attr", "call_module"):
                continue
            here, path = self.owning_module, node.target.split(".")
            for place, name in enumerate(path):
                there = getattr(here, name, None)
                if there is None:
                    raise RuntimeError(f"Node {node} target {node.target} references nonexistent attribute {name} of {'.'.join(path[:place])}")
                here = there
            from ..nn import Module
            if node.op == "call_module" and not isinstance(here, Module):
                raise RuntimeError(f"Node {node} target {node.target} {node.target} does not reference an nn.Module")


def _has_attribute(module, path):
    """Returns whether a module has a submodule, parameter or other attribute."""
    for name in path.split("."):
        if not hasattr(module, name):
            return False
        module = getattr(module, name)
    return module is not None


__all__ = ["CodeGen", "Graph", "PythonCode"]
__getattr__ = _attributes(__name__)
