"""The graphs that the backend has compiled, for `compiled()`."""

import collections
import threading

_graphs = []
_lock = threading.Lock()


class CompiledGraph:
    """A compiled graph: its kind, the number of its calls that are ours, and those that were passed on to PyTorch, with reasons."""

    def __init__(self, kind, taken, passed_on):
        self.kind, self.taken, self.passed_on = kind, taken, passed_on

    def __repr__(self):
        text = f"<{self.kind}: {self.taken} calls taken, {sum(self.passed_on.values())} passed on"
        for (operator, reason), count in sorted(self.passed_on.items()):
            text += f"\n    {count} × {operator}: {reason}"
        return text + ">"


def note(kind, taken, passed_on):
    """Adds a graph to the list."""
    with _lock:
        _graphs.append(CompiledGraph(kind, taken, collections.Counter(passed_on)))


def compiled():
    """Returns the graphs that were compiled since the process began, or since `torch.compiler.reset()`, in order."""
    with _lock:
        return list(_graphs)


def forget():
    """Forgets the graphs of `compiled()`. Compiled functions stay as they are."""
    with _lock:
        _graphs.clear()
