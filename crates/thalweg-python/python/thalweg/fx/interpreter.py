"""Graphs that run node by node (`torch.fx.Interpreter`), and graphs that are made by such runs (`Transformer`)."""

import inspect

from .. import _core
from . import traceback
from ._symbolic_trace import Tracer
from .graph import Graph
from .graph_module import GraphModule
from .node import map_aggregate, map_arg
from .proxy import Proxy

__all__ = ["Interpreter", "Transformer"]


class Interpreter:
    """Runs a graph node by node. Subclasses override the methods for one kind of node, or for every node."""

    def __init__(self, module, garbage_collect_values=True, graph=None):
        self.module, self.graph = module, module.graph if graph is None else graph
        self.submodules = dict(module.named_modules())
        self.env, self.name, self.garbage_collect_values, self.extra_traceback = {}, "Interpreter", garbage_collect_values, True
        self.user_to_last_uses = self._last_uses() if garbage_collect_values else {}

    def _last_uses(self):
        """Returns the nodes whose values are last used by a node, by that node."""
        last, users = {}, {}
        for node in reversed(self.graph.nodes):
            for part in node.all_input_nodes:
                if part not in last:
                    last[part] = node
                    users.setdefault(node, []).append(part)
        return users

    def run(self, *args, initial_env=None, enable_io_processing=True):
        """Runs the graph with arguments and returns its result. `initial_env` has the values of nodes that do not run."""
        self.env = {} if initial_env is None else initial_env
        if enable_io_processing:
            args = self.graph.process_inputs(*args)
        self.args_iter = iter(args)
        for node in self.graph.nodes:
            if node in self.env:
                continue
            try:
                self.env[node] = self.run_node(node)
            except Exception as error:
                if self.extra_traceback:
                    self._explain(error, node)
                raise
            for part in self.user_to_last_uses.get(node, ()):
                self.env.pop(part, None)
            if node.op == "output":
                result = self.env[node]
                return self.graph.process_outputs(result) if enable_io_processing else result
        return None

    @staticmethod
    def _explain(error, node):
        """Adds the node and its line to the message of an error."""
        text = f"While executing {node.format_node()}"
        text = f"{error.args[0]}\n\n{text}" if error.args else str(text)
        text += f"\nOriginal traceback:\n{node.stack_trace}"
        error.args = (text, *error.args[1:])
        if isinstance(error, KeyError):
            raise RuntimeError(*error.args) from error

    def boxed_run(self, args_list):
        """Runs the graph with a list of arguments, which is emptied, so that their memory can be reused."""
        args = list(args_list)
        args_list.clear()
        return self.run(*args)

    def _set_current_node(self, node):
        return traceback.set_current_meta(node)

    def run_node(self, n):
        """Returns the value of a node."""
        with self._set_current_node(n):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            assert isinstance(args, tuple) and isinstance(kwargs, dict)
            return getattr(self, n.op)(n.target, args, kwargs)

    def placeholder(self, target, args, kwargs):
        """Returns the value of an input."""
        if target.startswith("*"):
            return list(self.args_iter)
        try:
            return next(self.args_iter)
        except StopIteration:
            if args:
                return args[0]
            raise RuntimeError(f"Expected positional argument for parameter {target}, but one was not passed in!") from None

    def get_attr(self, target, args, kwargs):
        """Returns the value of an attribute."""
        return self.fetch_attr(target)

    def call_function(self, target, args, kwargs):
        """Returns the value of a call of a function."""
        assert not isinstance(target, str)
        return target(*args, **kwargs)

    def call_method(self, target, args, kwargs):
        """Returns the value of a call of a method."""
        receiver, *rest = args
        assert isinstance(target, str)
        return getattr(receiver, target)(*rest, **kwargs)

    def call_module(self, target, args, kwargs):
        """Returns the value of a call of a module."""
        return self.fetch_attr(target)(*args, **kwargs)

    def output(self, target, args, kwargs):
        """Returns the result."""
        return args[0]

    def fetch_attr(self, target):
        """Returns an attribute of the module, by its path."""
        value, path = self.module, target.split(".")
        for place, name in enumerate(path):
            if not hasattr(value, name):
                raise RuntimeError(f"Node referenced nonexistent target {'.'.join(path[:place + 1])}")
            value = getattr(value, name)
        return value

    def fetch_args_kwargs_from_env(self, n):
        """Returns the values of a node's arguments."""
        args, kwargs = self.map_nodes_to_values(n.args, n), self.map_nodes_to_values(n.kwargs, n)
        return args, kwargs

    def map_nodes_to_values(self, args, n):
        """Returns nested arguments with values in the place of nodes."""
        def value(part):
            if part not in self.env:
                raise RuntimeError(f"Node {n} referenced nonexistent value {part}! Run Graph.lint() to diagnose such issues")
            return self.env[part]
        return map_arg(args, value)


class _TransformerTracer(Tracer):
    """The tracer of a transformed graph, in which every module is called as a whole."""

    def __init__(self, graph, originals):
        super().__init__()
        self.graph, self.tensor_attrs, self._originals = graph, {}, originals

    def is_leaf_module(self, m, module_qualified_name):
        return True

    def create_arg(self, a):
        if isinstance(a, _core.Tensor) and id(a) in self._originals:
            return self.create_node("get_attr", self._originals[id(a)], (), {})
        return super().create_arg(a)


class Transformer(Interpreter):
    """Makes a new graph by running an old one with symbolic values. Subclasses override the methods that make the new
    nodes."""

    def __init__(self, module):
        super().__init__(module)
        self.new_graph = Graph()
        self.new_graph.set_codegen(module.graph._codegen)
        names = {id(value): name for source in (module.named_parameters, module.named_buffers) for name, value in source()}
        self.tracer = _TransformerTracer(self.new_graph, names)
        self.tracer.root = module

    def placeholder(self, target, args, kwargs):
        """Returns the symbolic value of an input."""
        default = next(iter(args)) if args else inspect.Signature.empty
        node = self.new_graph.placeholder(target, default_value=... if default is inspect.Signature.empty else default)
        return Proxy(node, self.tracer)

    def get_attr(self, target, args, kwargs):
        """Returns the symbolic value of an attribute."""
        return self.tracer.create_proxy("get_attr", target, args, kwargs)

    def call_module(self, target, args, kwargs):
        """Returns the symbolic value of a call of a module."""
        assert isinstance(target, str)
        submodule = self.fetch_attr(target)
        return self.tracer.call_module(submodule, submodule.forward, args, kwargs)

    def call_function(self, target, args, kwargs):
        """Returns the symbolic value of a call of a function."""
        assert callable(target)
        return self.tracer.create_proxy("call_function", target, args, kwargs)

    def transform(self):
        """Returns the module of the new graph."""
        with traceback.preserve_node_meta():
            result = super().run(enable_io_processing=False)
        if result is not None:
            def node(part):
                return part.node if isinstance(part, Proxy) else part
            old = self.graph.output_node()
            made = self.new_graph.output(map_aggregate(result, node), type_expr=old.type)
            made.meta.update(old.meta)
        return GraphModule(self.module, self.new_graph)


