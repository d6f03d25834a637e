"""Modules of graphs whose code is generated when it is first needed (`torch.fx._lazy_graph_module`): here it is generated at once."""

import contextlib

from .graph_module import GraphModule


class _LazyGraphModule(GraphModule):
    """A module of a graph."""

    @classmethod
    def force_recompile(cls, gm):
        """Does nothing: the code is there."""

    def real_recompile(self):
        """Generates the code."""
        return self.recompile()


def _force_on(module):
    """Does nothing: the code is there."""


_force_skip_lazy_graph_module = contextlib.nullcontext


@contextlib.contextmanager
def _use_lazy_graph_module(should_use):
    """Returns a region that changes nothing."""
    yield


def _make_graph_module(*args, graph_module_cls=None, **kwargs):
    """Returns the module of a graph."""
    return (graph_module_cls or GraphModule)(*args, **kwargs)


def _get_graph_module_cls():
    """Returns the class of modules of graphs."""
    return GraphModule
