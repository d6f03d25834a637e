"""The graphs that the backend has compiled, for `compiled()`."""

import collections
import os
import sys
import threading

_graphs = []
_lock = threading.Lock()


class CompiledGraph:
    """A compiled graph: its kind, the number of its calls that are ours, and those that were passed on to PyTorch, with reasons.

    `captured` is None if no capture was asked for, true if the graph is captured as a CUDA graph, and otherwise the reason why it is
    not. `is_loaded` says whether the graph is from PyTorch's cache.
    """

    def __init__(self, kind, taken, passed_on, captured=None, is_loaded=False):
        self.kind, self.taken, self.passed_on = kind, taken, collections.Counter(passed_on)
        self.captured, self.is_loaded = captured, is_loaded

    def __repr__(self):
        text = f"<{self.kind}: {self.taken} calls taken, {sum(self.passed_on.values())} passed on"
        text += ", from the cache" if self.is_loaded else ""
        if self.captured is not None:
            text += ", captured" if self.captured is True else f", not captured: {self.captured}"
        for (operator, reason), count in sorted(self.passed_on.items()):
            text += f"\n    {count} × {operator}: {reason}"
        return text + ">"


def note(graph):
    """Adds a graph to the list, and writes it to standard error with `THALWEG_EXPLAIN=compile`."""
    with _lock:
        _graphs.append(graph)
    if "compile" in os.environ.get("THALWEG_EXPLAIN", "").split(","):
        print(f'the backend "thalweg" compiled {graph}', file=sys.stderr)


def compiled():
    """Returns the graphs that were compiled since the process began, or since `torch.compiler.reset()`, in order."""
    with _lock:
        return list(_graphs)


def forget():
    """Forgets the graphs of `compiled()`. Compiled functions stay as they are."""
    with _lock:
        _graphs.clear()
