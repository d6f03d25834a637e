"""Passes (`torch.fx.passes.infra.pass_base`)."""

import abc
import collections

__all__ = ["PassBase", "PassResult"]


class PassResult(collections.namedtuple("PassResult", ["graph_module", "modified"])):
    """The result of a pass: the module, and whether it was changed."""

    __slots__ = ()


class PassBase(abc.ABC):
    """A pass over a module of a graph, with checks before and after it."""

    def __call__(self, graph_module):
        self.requires(graph_module)
        result = self.call(graph_module)
        self.ensures(graph_module)
        return result

    @abc.abstractmethod
    def call(self, graph_module):
        """Changes the module, and returns a `PassResult`, or None for nothing."""

    def requires(self, graph_module):
        """Checks the module before the pass."""

    def ensures(self, graph_module):
        """Checks the module after the pass."""
