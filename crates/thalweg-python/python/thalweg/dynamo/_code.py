"""A compiled graph, which PyTorch's cache of graphs can store and load in another process."""

import copyreg
import functools
import hashlib
import os
import pathlib
import pickle

import thalweg
from thalweg import _core

from . import _report as report
from ._entry import adapter, program
from ._forms import Forms, resolve

copyreg.pickle(_core.Place, lambda place: (_core.Place, (place.number,)))


@functools.cache
def tag():
    """Returns the part of the key of compiled graphs in the cache: the versions of the table and of the importer."""
    sources = sorted(pathlib.Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    return f"thalweg {thalweg.__version__} {os.path.getsize(_core.__file__)} {digest}"


class Code(adapter().OutputCode):
    """A graph as a description of a program, and the program, which a process that has loaded it makes at the first call."""

    def __init__(self, kind, description, device, streams, counts):
        self._kind, self._description, self._device, self._streams, self._counts = kind, description, device, streams, counts
        # The forms of the inputs of the first call, and the program for other ones, whose calls are not repeated.
        self._forms, self._steps = None, None
        # In the process that compiles, a program that cannot be made is an error of the compilation.
        self._call = program(description, device, streams)
        # PyTorch's wrappers take over the attributes of the object, not of its class.
        self._boxed_call = True

    def __call__(self, inputs):
        if self._call is None:
            self._call = program(self._description, self._device, self._streams)
        if self._forms is None:
            return self._first(inputs)
        others = self._forms.others(inputs)
        if others and self._kind == "backward":
            others = self._forms.restored(others, inputs)
        if not others:
            return self._call(inputs)
        if self._steps is None:
            self._steps = program(self._description, self._device, self._streams, may_repeat=False)
        return self._steps(inputs)

    def _first(self, inputs):
        """Calls the program, and notes the forms of the inputs."""
        if self._kind == "backward":
            resolve(inputs)
        slots, varying = self._description.inputs, set(self._description.varying)
        forms = Forms(inputs, [slot in varying for slot in slots])
        results = self._call(inputs)
        self._forms = forms
        return results

    def report(self, **about):
        """Returns the graph's entry of `compiled()`."""
        return report.CompiledGraph(self._kind, *self._counts, **about)

    def text(self):
        """Returns the steps as lines."""
        return "\n".join(f"{kind} {parts[0]}: {node}" for kind, parts, node in self._description.steps)

    # ---- The cache ------------------------------------------------------------------------------------------------------

    def __getstate__(self):
        return {**self.__dict__, "_call": None, "_forms": None, "_steps": None}

    def prepare_for_serialization(self):
        """Checks that the graph may be stored, which one with streams or with functions of the program may not."""
        functions = [parts[0] for kind, parts, _ in self._description.steps if kind == "external"]
        try:
            pickle.dumps((functions, self._streams))
        except Exception as reason:
            raise adapter().NotStored(f"a function of the graph cannot be stored: {reason}") from reason

    def post_compile(self, example_inputs, constants, graph_kwargs):
        """Notes that the graph was loaded."""
        report.note(self.report(is_loaded=True))

    def set_triton_bundle(self, triton_bundle):
        """Does nothing: a program has no kernels of Triton."""
