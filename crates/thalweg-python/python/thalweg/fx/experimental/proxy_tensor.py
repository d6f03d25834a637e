"""Functions as graphs of operators (`torch.fx.experimental.proxy_tensor`), recorded from one call as `torch.export` does."""

import inspect

from ... import _core
from ..._left_out import rest as _rest
from ...utils import _pytree
from ..graph import PyTreeInfo, _PyTreeCodeGen
from ..graph_module import GraphModule

Tensor = _core.Tensor


def _names(function, args, leaves):
    """Returns names for the inputs of a graph: those of the function's parameters, where each is one input."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    is_plain = len(leaves) == len(args) <= len(parameters) and all(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters[:len(args)])
    return [f"{one.name}_1" for one in parameters[:len(args)]] if is_plain else [f"arg{place}_1" for place in range(len(leaves))]


def make_fx(f, decomposition_table=None, tracing_mode="real", _allow_non_fake_inputs=False, *, pre_dispatch=False, record_module_stack=False, **options):
    """Returns a function that records a call of `f` and returns its graph. With `tracing_mode="symbolic"` the graph computes with other extents."""
    if tracing_mode not in ("real", "fake", "symbolic"):
        raise AssertionError(f"Unexpected tracing type: {tracing_mode}")

    def record(*args):
        from ...export._trace import Recorder
        recorder = Recorder(tracing_mode == "symbolic")
        leaves, spec = _pytree.tree_flatten(list(args))
        for name, value in zip(_names(f, args, leaves), leaves):
            node = recorder.graph.placeholder(name)
            if isinstance(value, Tensor):
                recorder.name(value, node)
            else:
                node.meta["val"] = value
        with recorder:
            result = f(*args)
        outputs, out_spec = _pytree.tree_flatten(result)
        recorder.graph.output(tuple(recorder.argument(value) for value in outputs) if len(outputs) != 1 or out_spec.num_nodes > 1
                              else recorder.argument(outputs[0]))
        constants = {node: name for node in recorder.graph.nodes if node.op == "placeholder" and (
            name := str(node.target).removeprefix("c_")) in recorder.constants}
        for node, name in constants.items():
            with recorder.graph.inserting_before(node):
                kept = recorder.graph.get_attr(f"_tensor_constant{list(constants).index(node)}")
            node.replace_all_uses_with(kept)
            recorder.graph.erase_node(node)
        root = {f"_tensor_constant{place}": recorder.constants[name] for place, name in enumerate(constants.values())}
        if len(leaves) != len(args) or out_spec.num_nodes > 1:
            names = [f"args_{place}" for place in range(len(args))]
            recorder.graph._codegen = _PyTreeCodeGen(PyTreeInfo(names, spec, out_spec if out_spec.num_nodes > 1 else None))
        return GraphModule(root, recorder.graph)
    return record


__getattr__ = _rest(__name__)
