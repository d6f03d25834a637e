"""The function that PyTorch's compiler calls with a graph, and the function that it returns."""

import functools

import torch

import thalweg
from thalweg import _core

from . import Refused, _attention as attention, _channels as channels, _draws as draws, _layouts as layouts, _losses as losses, _one_query as one_query, _pools as pools, _report as report, _resampled as resampled, _writes as writes
from ._capture import Captures
from ._graph import Importer, takes
from ._inlined import inlined, without_tokens
from ._nodes import is_on_gpu
from ._streams import external
from ._versions import adapter

# What `torch.compile(mode=...)` may say, and whether graphs are captured. No mode chooses other algorithms.
MODES = {None: False, "default": False, "max-autotune-no-cudagraphs": False, "reduce-overhead": True, "max-autotune": True}


def register_by_name(function):
    """Registers a backend as `thalweg`, if PyTorch does not know it yet."""
    if "thalweg" not in torch._dynamo.list_backends(exclude_tags=()):
        adapter().register_backend(function, name="thalweg")


def compile_graph(gm, example_inputs, *, mode=None, options=None):
    """Returns a function that runs a graph of Dynamo, with its gradient."""
    if mode not in MODES:
        raise Refused(f"mode={mode!r} is unknown; the modes are {', '.join(str(known) for known in MODES)}")
    options = dict(options or {})
    is_captured = options.pop("triton.cudagraphs", MODES[mode])
    if not isinstance(is_captured, bool):
        raise Refused(f'the option "triton.cudagraphs" is True or False, and not {is_captured!r}')
    if options:
        raise Refused(f'the backend "thalweg" has the option "triton.cudagraphs" and no other, but got {sorted(options)}')
    names, gm = adapter(), attention.replaced(gm)
    captures = Captures(names) if is_captured else None
    compilers = [functools.partial(compile_flat, kind=kind, captures=captures) for kind in ("forward", "backward", "inference")]
    if is_captured:
        return divided(compilers, decompositions, rewritten)(gm, example_inputs)
    from ._code import Code, tag

    with names.caching(tag()):
        return divided([names.cached(Code, compiler) for compiler in compilers], decompositions, rewritten)(gm, example_inputs)


def divided(compilers, decompositions, rewrite):
    """Returns a backend that traces a graph with decompositions, divides it into a forward and a backward pass, and compiles these by functions,
    of which the third is for inference. `rewrite` changes the graph before it is divided."""
    backend = adapter().aot(*compilers, decompositions, rewrite)

    def compiled(gm, example_inputs):
        with resampled.whole():
            return backend(gm, example_inputs)

    return compiled


@functools.cache
def decompositions():
    """Returns PyTorch's decompositions of the operators that the table lacks."""
    from ._decompositions import OWN

    known = {**adapter().decomposition_table, **adapter().core_aten_decompositions()}
    made = {operator: function for operator, function in known.items() if not takes(operator)}
    # This one does not return what its backward operator reads.
    made.pop(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default, None)
    return {**made, **OWN}


def rewritten(gm, is_on_gpu=is_on_gpu):
    """Changes the graph of a forward and a backward pass, or of inference, before it is divided: layouts, pools, draws, attention without a
    gradient, losses and batch norms."""
    for part in (layouts, pools, draws, one_query):
        gm = part.rewritten(gm, is_on_gpu)
    return channels.rewritten(losses.rewritten(gm))


def compile_flat(gm, example_inputs, *, kind, captures=None):
    """Returns a graph of ATen's operators as a program, which takes a list of inputs and empties it."""
    from ._code import Code

    gm = inlined(gm)
    gm = channels.resolved(rewritten(gm) if kind == "inference" else gm)
    writes.in_place(gm.graph)
    writes.early(gm.graph)
    gm = without_tokens(gm)
    given_away = adapter().given_away() if kind == "backward" else []
    importer = Importer(gm, adapter().is_left_out)
    description = importer.description()
    if captures is None:
        description.given_away = [description.inputs[place] for place in given_away]
    streams = importer.streams if importer.uses_streams else None
    code = Code(kind, description, importer.device, streams, (importer.taken, importer.passed_on))
    adapter().record(f"thalweg_{kind}_graph", code.text())
    if captures is None:
        report.note(code.report())
        return code
    call, reason = captures.of(code, gm, example_inputs, kind, importer.device)
    report.note(code.report(captured=reason or True))
    call._boxed_call = True
    return call


def program(description, device, streams=None, may_repeat=True):
    """Returns a function that runs the program of a description, for tensors of PyTorch on a device; `streams` are those of its graph,
    if it uses others than that of the call. Without `may_repeat` each call runs the steps."""
    is_gpu = device.type == "cuda" and torch.cuda.is_available()
    index = device.index or 0
    own = thalweg.device("cuda", index) if is_gpu else thalweg.device("sim", 0)
    where = device if is_gpu else torch.device("cpu")

    def addresses(tensors):
        return list(map(data_ptr, tensors))

    data_ptr, is_alone = torch.Tensor.data_ptr, adapter().is_alone
    exchange = {"dtypes": dtypes(), "empty_strided": adapter().empty_strided(where), "alias": torch.Tensor.as_strided, "addresses": addresses, "is_alone": is_alone, "is_in_place": is_gpu}
    options = {name: getattr(description, name) for name in ("constants", "kept", "varying", "given_away")}
    options["may_repeat"] = may_repeat and description.may_repeat
    made = _core.Program(*description.parts(), device=own, exchange=exchange, **options)

    raw_stream = adapter().raw_stream

    def call_on_current_stream(inputs):
        follow_settings()
        return made(inputs, external(index, raw_stream(index)))

    def call_on_streams(inputs):
        former, stream = streams.begin()
        try:
            with thalweg.cuda.stream(stream):
                return made(inputs)
        finally:
            streams.end(former)

    if not is_gpu:
        return call_on_streams if streams else made
    return adapter().on_device(call_on_streams if streams else call_on_current_stream, device)


def follow_settings():
    """Copies those of PyTorch's settings of a GPU that change results."""
    wanted = adapter().settings()
    if wanted != _settings.get("applied"):
        thalweg.backends.cuda.matmul.allow_tf32, thalweg.backends.cudnn.allow_tf32 = wanted[:2]
        thalweg.use_deterministic_algorithms(wanted[2])
        _settings["applied"] = wanted


_settings = {}


@functools.cache
def dtypes():
    """Returns the dtypes that both libraries have, in pairs."""
    names = [dtype._name for dtype in _core._dtypes()]
    return [(getattr(torch, name), getattr(thalweg, name)) for name in names if hasattr(torch, name)]
