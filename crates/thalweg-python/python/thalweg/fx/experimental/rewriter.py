"""Traces of programs whose assertions become nodes (`torch.fx.experimental.rewriter`)."""

import ast
import copy
import functools
import inspect
import textwrap
import types

from ...nn.module import Module
from .._symbolic_trace import Tracer
from ..annotate import annotate

__all__ = ["AST_Rewriter", "RewritingTracer"]


class AST_Rewriter(ast.NodeTransformer):
    """Rewrites functions: assertions become calls of `torch._assert`, and types of variables become calls of `annotate`."""

    def rewrite(self, fn):
        """Returns a rewritten function."""
        tree = ast.parse(textwrap.dedent(inspect.getsource(fn)))
        tree.body[0].decorator_list = []
        tree = ast.fix_missing_locations(self.visit(tree))
        from ... import _assert
        name, made = tree.body[0].name, {}
        exec(compile(tree, "", "exec"), {**fn.__globals__}, made)
        # The function is looked up in its own module, where wrapped functions are replaced.
        fn.__globals__.update(__assert__=_assert, __annotate__=annotate)
        rewritten = types.FunctionType(made[name].__code__, fn.__globals__, name, fn.__defaults__)
        functools.update_wrapper(rewritten, fn)
        del rewritten.__wrapped__
        return rewritten

    def visit_Assert(self, node):
        """Returns the call that an assertion becomes."""
        message = node.msg or ast.Constant(value="", kind=None)
        return ast.copy_location(ast.Expr(value=ast.Call(func=ast.Name("__assert__", ast.Load()), args=[node.test, message], keywords=[])), node)

    def visit_AnnAssign(self, node):
        """Returns the assignment that one with a type becomes."""
        call = ast.Call(func=ast.Name("__annotate__", ast.Load()), args=[node.value, node.annotation], keywords=[])
        return ast.copy_location(ast.Assign(targets=[node.target], value=call), node)


class RewritingTracer(Tracer):
    """Traces a module whose functions were rewritten."""

    def trace(self, root, concrete_args=None):
        """Returns the graph of a module or function."""
        return super().trace(_rewritten(root), concrete_args)



def _rewritten(fn):
    if not isinstance(fn, Module):
        return AST_Rewriter().rewrite(fn)

    def with_forward(module):
        class RewrittenModule(Module):
            def __init__(self, original):
                super().__init__()
                for name, value in vars(original).items():
                    self.__dict__[name] = copy.copy(with_forward(value) if isinstance(value, Module) else value)
                for name, child in original._modules.items():
                    self._modules[name] = child if child is None or child.__module__.startswith(("torch.nn", "thalweg.nn")) else with_forward(child)
        RewrittenModule.forward = AST_Rewriter().rewrite(type(module).forward)
        return RewrittenModule(module)
    return with_forward(fn)
