"""The function that PyTorch's compiler calls, and what it makes of a graph."""

import functools
import importlib

import torch

import thalweg
from thalweg import _core

from . import Refused, _report as report
from ._graph import Importer, takes

ADAPTERS = {(2, 11): "_adapter_2_11"}

# What `torch.compile(mode=...)` may say. The first two are the same; graphs of CUDA are not captured yet.
MODES = (None, "default", "max-autotune-no-cudagraphs")


@functools.cache
def adapter():
    """Returns the module with the names of the running PyTorch that are not public."""
    if getattr(torch, "__file__", None) == getattr(thalweg, "__file__", ""):
        raise Refused("`torch` is Thalweg in this process; use `torch.compile` without a backend")
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version not in ADAPTERS:
        supported = ", ".join(f"{major}.{minor}" for major, minor in ADAPTERS)
        raise Refused(f'the backend "thalweg" supports PyTorch {supported}, and this is {torch.__version__}')
    return importlib.import_module(f".{ADAPTERS[version]}", __package__)


@functools.cache
def register_by_name(function):
    """Registers a backend as `thalweg`."""
    adapter().register_backend(function, name="thalweg")


def compile_graph(gm, example_inputs, *, mode=None, options=None):
    """Returns a function that runs a graph of Dynamo, with its gradient."""
    if mode not in MODES:
        raise Refused(f'mode={mode!r} captures CUDA graphs, which the backend "thalweg" does not do yet; leave it out')
    if options:
        raise Refused(f'the backend "thalweg" has no options, but got {sorted(options)}')
    compilers = [functools.partial(compile_flat, kind=kind) for kind in ("forward", "backward", "inference")]
    return adapter().aot(*compilers, decompositions)(gm, example_inputs)


@functools.cache
def decompositions():
    """Returns PyTorch's decompositions of the operators that the table lacks."""
    from ._decompositions import OWN

    known = {**adapter().decomposition_table, **adapter().core_aten_decompositions()}
    made = {operator: function for operator, function in known.items() if not takes(operator)}
    # This one does not return what its backward operator reads.
    made.pop(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default, None)
    return {**made, **OWN}


def compile_flat(gm, example_inputs, *, kind):
    """Returns a graph of ATen's operators as a program, which takes a list of inputs and empties it."""
    importer = Importer(gm)
    description = importer.description()
    report.note(kind, importer.taken, importer.passed_on)
    return program(description, importer.device)


def program(description, device):
    """Returns the program of a description, for tensors of PyTorch on a device."""
    is_gpu = device.type == "cuda" and torch.cuda.is_available()
    index = device.index or 0
    own = thalweg.device("cuda", index) if is_gpu else thalweg.device("sim", 0)
    where = device if is_gpu else torch.device("cpu")

    def empty_strided(size, stride, dtype):
        return torch.empty_strided(size, stride, dtype=dtype, device=where)

    def alias(base, size, stride, offset):
        return torch.empty(0, dtype=base.dtype, device=where).set_(base.untyped_storage(), offset, size, stride)

    exchange = {"dtypes": dtypes(), "empty_strided": empty_strided, "alias": alias}
    made = _core.Program(*description.parts(), device=own, constants=description.constants, kept=description.kept, exchange=exchange)

    def call(inputs):
        return made(inputs)

    def call_on_current_stream(inputs):
        stream = thalweg.cuda.ExternalStream(torch.cuda.current_stream(index).cuda_stream)
        with thalweg.cuda.stream(stream):
            return made(inputs)

    # A function, since PyTorch's wrappers take over the attributes of functions alone.
    call._boxed_call = call_on_current_stream._boxed_call = True
    return call_on_current_stream if is_gpu else call


@functools.cache
def dtypes():
    """Returns the dtypes that both libraries have, in pairs."""
    names = [dtype._name for dtype in _core._dtypes()]
    return [(getattr(torch, name), getattr(thalweg, name)) for name in names if hasattr(torch, name)]
