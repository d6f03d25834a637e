"""Random numbers on a GPU: PyTorch's generator draws a seed for each operator that draws, all of a graph by one call, and the operators
draw from their seeds.

A graph's draws then are calls of the table, whose commands can be queued again: only the seeds change. The numbers have the
distributions of PyTorch's and follow its generator's seed, but are other ones than without compilation, as with PyTorch's own compiler;
with `torch._inductor.config.fallback_random = True` the draws are PyTorch's, with the same numbers. Graphs on the CPU always have
PyTorch's.
"""

import operator

import torch

from ._given import is_dense
from ._versions import adapter

aten = torch.ops.aten

_LIBRARY = torch.library.Library("thalweg_graph", "FRAGMENT")
_LIBRARY.define("draw_state(Tensor like) -> Tensor")
_LIBRARY.define("kept(Tensor seed, Tensor offset, float keep, SymInt count) -> Tensor")
_LIBRARY.define("uniform(Tensor seed, Tensor offset, float low, float high, SymInt count, ScalarType dtype) -> Tensor")
_LIBRARY.define("normal(Tensor seed, Tensor offset, float mean, float deviation, SymInt count, ScalarType dtype) -> Tensor")
ours = torch.ops.thalweg_graph

# The number of sequences whose numbers the elements take in turn.
_THREADS = 1 << 18

# The key of what is known of a node that is the call for the seeds.
SEEDS = "thalweg_seeds"

# Arguments that say how a result is stored, which its value says, too.
_OF_STORAGE = {"dtype", "layout", "device", "pin_memory", "memory_format"}

# The dtypes whose numbers are drawn as float32.
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@torch.library.register_fake("thalweg_graph::draw_state", lib=_LIBRARY)
def _(like):
    return like.new_empty((2,), dtype=torch.int64)


@torch.library.register_fake("thalweg_graph::kept", lib=_LIBRARY)
def _(seed, offset, keep, count):
    return seed.new_empty((count,), dtype=torch.bool)


@torch.library.register_fake("thalweg_graph::uniform", lib=_LIBRARY)
def _(seed, offset, low, high, count, dtype):
    return seed.new_empty((count,), dtype=dtype)


@torch.library.register_fake("thalweg_graph::normal", lib=_LIBRARY)
def _(seed, offset, mean, deviation, count, dtype):
    return seed.new_empty((count,), dtype=dtype)


def _rule(name):
    """Returns the rule of a call of the table, which takes the number of elements as a list."""

    def rule(named):
        count = named.pop("count")
        return f"thalweg::{name}", {**named, "threads": _THREADS, "size": [count]}

    return rule


RULES = {ours.kept.default: _rule("kept"), ours.uniform.default: _rule("uniform"), ours.normal.default: _rule("normal")}


def are_ours(device):
    """Returns whether draws on a device are calls of the table."""
    return device.type == "cuda" and not adapter().keeps_draws()


def state(like):
    """Returns the state of an operator that draws by itself, a seed and an offset. It is a node until `rewritten` replaces it."""
    return ours.draw_state(like)


def rewritten(gm, is_on_gpu):
    """Replaces the draws of a graph on a GPU by calls of the table."""
    graph, found = gm.graph, []
    for node in graph.nodes:
        if node.op == "call_function" and node.target in _DRAWS and is_on_gpu(_value(node)) and _DRAWS[node.target][0](node):
            found.append(node)
    if not found or adapter().keeps_draws():
        return gm
    first = next(node for node in graph.nodes if node.op not in ("placeholder", "get_attr"))
    with graph.inserting_before(first):
        seeds = _call(
            graph, None, aten.randint.low, -(2**63), 2**63 - 1, [2 * len(found)], dtype=torch.int64, device=_device(found[0]), pin_memory=False,
            mode=_mode(found[0]),
        )  # fmt: skip
        seeds.meta[SEEDS] = True
    for place, node in enumerate(found):
        with graph.inserting_before(node):
            _DRAWS[node.target][1](graph, node, seeds, place)
    graph.eliminate_dead_code()
    gm.recompile()
    return gm


# ---- Nodes ----------------------------------------------------------------------------------------------------------------------


def _value(node):
    value = node.meta["val"]
    return value[0] if isinstance(value, (list, tuple)) else value


def _device(node):
    return _value(node).device


def _mode(node):
    return _value(node).fake_mode


def _call(graph, at, target, *args, mode=None, **kwargs):
    """Adds a call with its value, and with the source line that another call has in the model."""
    made = graph.call_function(target, args, kwargs)
    made.meta = dict(at.meta) if at is not None else {}
    given = torch.fx.node.map_arg((args, kwargs), lambda one: one.meta["val"])
    with mode or _mode(at):
        made.meta["val"] = target(*given[0], **given[1])
    return made


def _seed(graph, at, seeds, place):
    """Adds the seed and the offset of a draw."""
    return [_call(graph, at, aten.select.int, seeds, 0, 2 * place + part) for part in range(2)]


def _sizes(graph, at, source, value):
    """Returns the sizes of a value, which are those of a node's value where they are not numbers."""
    return [size if isinstance(size, int) else _call(graph, at, aten.sym_size.int, source, place) for place, size in enumerate(value.shape)]


def _product(graph, at, sizes):
    """Returns the product of sizes: a number, or a node."""
    made = 1
    for size in sizes:
        made = made * size if isinstance(made, int) and isinstance(size, int) else _call(graph, at, operator.mul, made, size)
    return made


def _order(value):
    """Returns the dimensions of a tensor from the outermost in memory on; `None` if it is contiguous or has gaps."""
    if not all(isinstance(number, int) for number in (*value.shape, *value.stride())) or value.is_contiguous() or not is_dense(value):
        return None
    return sorted(range(value.dim()), key=lambda place: (-value.stride(place), -value.shape[place]))


def _shaped(graph, at, flat, sizes, order):
    """Adds the view of a row of elements with these sizes, whose dimensions are in the given order in memory."""
    if order is None:
        return _call(graph, at, aten.view.default, flat, sizes)
    turned = _call(graph, at, aten.view.default, flat, [sizes[place] for place in order])
    return _call(graph, at, aten.permute.default, turned, [order.index(place) for place in range(len(order))])


# ---- Draws ----------------------------------------------------------------------------------------------------------------------


def _is_drawn(node):
    """Returns whether the table draws numbers of the dtype of a node."""
    value = _value(node)
    are_numbers = all(not isinstance(one, torch.fx.Node) for one in node.args[1:])
    if any(value is not None and name not in _OF_STORAGE for name, value in node.kwargs.items()):
        return False
    is_held = value.dtype in _DTYPES and value.layout is torch.strided and 0 not in [size for size in value.shape if isinstance(size, int)]
    return is_held and (node.target in _OF_SIZES or are_numbers) and (_order(value) is not None or _is_contiguous(value))


def _is_contiguous(value):
    """Returns whether a tensor is known to be contiguous, whatever its sizes are."""
    return torch._prims_common.is_contiguous_or_false(value)


def _is_dropout(node):
    _, p, train = (*node.args, *[None] * 3)[:3]
    return _is_drawn(node) and isinstance(p, float) and 0.0 <= p < 1.0 and train is not False


def _dropout(graph, node, seeds, place):
    """Replaces dropout by a mask and products, which are parts of fused loops. The mask is drawn again in the backward pass."""
    tensor, p = node.args[:2]
    value = _value(node)
    sizes = _sizes(graph, node, tensor, value)
    flat = _call(graph, node, ours.kept.default, *_seed(graph, node, seeds, place), 1.0 - p, _product(graph, node, sizes))
    mask = _shaped(graph, node, flat, sizes, _order(value))
    result = _call(graph, node, aten.mul.Tensor, _call(graph, node, aten.mul.Tensor, tensor, mask), 1.0 / (1.0 - p))
    for user in list(node.users):
        user.replace_all_uses_with((result, mask)[user.args[1]])


def _drawn(graph, node, seeds, place, target, numbers, dtype=None):
    """Adds numbers of a distribution, of the shape and the strides of a node."""
    value = _value(node)
    source = node.args[0] if node.args and isinstance(node.args[0], torch.fx.Node) else None
    given = list(node.args[0]) if node.target in _OF_SIZES else None
    sizes = given if given is not None else _sizes(graph, node, source, value)
    count = _product(graph, node, sizes)
    flat = _call(graph, node, target, *_seed(graph, node, seeds, place), *numbers, count, dtype or value.dtype)
    return _shaped(graph, node, flat, sizes, _order(value))


def _numbers(target, *numbers):
    """Returns the function that replaces a draw with a distribution, whose numbers are these or the arguments after the tensor."""

    def replace(graph, node, seeds, place):
        given = dict(zip(range(len(numbers)), node.args[1:])) if node.target not in _OF_SIZES else {}
        own = [float(given.get(at, number)) for at, number in enumerate(numbers)]
        node.replace_all_uses_with(_drawn(graph, node, seeds, place, target, own))

    return replace


def _bernoulli(graph, node, seeds, place):
    """Replaces trials by comparisons of numbers in [0, 1) with probabilities."""
    probability = node.args[1] if node.target is aten.bernoulli.p and len(node.args) > 1 else node.args[0]
    drawn = _drawn(graph, node, seeds, place, ours.uniform.default, [0.0, 1.0], torch.float32)
    compare = aten.lt.Tensor if isinstance(probability, torch.fx.Node) else aten.lt.Scalar
    kept = _call(graph, node, compare, drawn, probability)
    node.replace_all_uses_with(_call(graph, node, aten._to_copy.default, kept, dtype=_value(node).dtype))


def _state(graph, node, seeds, place):
    node.replace_all_uses_with(_call(graph, node, aten.slice.Tensor, seeds, 0, 2 * place, 2 * place + 2))


# Operators whose sizes are their first argument.
_OF_SIZES = {aten.rand.default, aten.randn.default}

# Operators that draw: whether a node of one is a call of the table, and what replaces it.
_DRAWS = {
    aten.native_dropout.default: (_is_dropout, _dropout),
    aten.rand.default: (_is_drawn, _numbers(ours.uniform.default, 0.0, 1.0)),
    aten.rand_like.default: (_is_drawn, _numbers(ours.uniform.default, 0.0, 1.0)),
    aten.randn.default: (_is_drawn, _numbers(ours.normal.default, 0.0, 1.0)),
    aten.randn_like.default: (_is_drawn, _numbers(ours.normal.default, 0.0, 1.0)),
    aten.uniform.default: (_is_drawn, _numbers(ours.uniform.default, 0.0, 1.0)),
    aten.normal_functional.default: (_is_drawn, _numbers(ours.normal.default, 0.0, 1.0)),
    aten.bernoulli.p: (_is_drawn, _bernoulli),
    aten.bernoulli.default: (_is_drawn, _bernoulli),
    ours.draw_state.default: (lambda node: True, _state),
}
