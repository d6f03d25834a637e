"""Graphs that are divided into submodules (`torch.fx.passes.split_module`)."""

from ..graph import Graph
from ..graph_module import GraphModule
from ..node import map_arg

__all__ = ["split_module"]


class _Part:
    """The nodes of a submodule: its graph, the values that it takes, and those that it gives to others."""

    def __init__(self, name):
        self.name, self.graph, self.nodes = name, Graph(), {}
        self.inputs, self.outputs = [], []


def split_module(m, root_m, split_callback, qualname_map=None, keep_original_order=False, keep_original_node_name=False, keep_original_input_name=True,
                 *, partition_affix=None, tuple_return=False):
    """Returns a module whose submodules compute the parts of a graph. `split_callback(node)` names the part of each node."""
    parts, part_of = {}, {}
    for node in m.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        part = parts.setdefault(split_callback(node), None) or _Part(
            "submod_" + (f"{partition_affix}_" if partition_affix else "") + str(split_callback(node)))
        parts[split_callback(node)] = part_of[node] = part
    for node in m.graph.nodes:
        for source in node.all_input_nodes:
            part = part_of.get(node)
            if part is part_of.get(source) or source.op == "get_attr":
                continue
            if part is not None and source not in part.inputs:
                part.inputs.append(source)
            giver = part_of.get(source)
            if giver is not None and source not in giver.outputs:
                giver.outputs.append(source)
    for part in parts.values():
        for source in part.inputs:
            part.nodes[source] = part.graph.placeholder(source.name)
            part.nodes[source].meta = dict(source.meta)
    for node, part in part_of.items():
        part.nodes[node] = part.graph.node_copy(node, lambda source, part=part: _read(part, source))
        if qualname_map is not None and node.op == "call_module":
            qualname_map[f"{part.name}.{node.target}"] = node.target
    return GraphModule(_modules(m, parts), _outer(m, parts, part_of, tuple_return))


def _read(part, source):
    """Returns the node of a value in a part; attributes are read where they are used."""
    if source not in part.nodes:
        part.nodes[source] = part.graph.get_attr(source.target)
    return part.nodes[source]


def _modules(m, parts):
    from ...nn.module import Module
    root = Module()
    for name, value in vars(m).items():
        if name in ("_parameters", "_buffers", "_modules"):
            vars(root)[name].update(value)
    for part in parts.values():
        made = tuple(part.nodes[node] for node in part.outputs)
        part.graph.output(made[0] if len(made) == 1 else made)
        root.add_module(part.name, GraphModule(m, part.graph))
    return root


def _outer(m, parts, part_of, tuple_return):
    """Returns the graph that calls the parts, each as soon as its inputs are computed."""
    import operator
    graph, known, waiting = Graph(), {}, list(dict.fromkeys(part_of.values()))

    def call_ready():
        for part in list(waiting):
            if any(source not in known for source in part.inputs):
                continue
            waiting.remove(part)
            call = graph.call_module(part.name, tuple(known[source] for source in part.inputs))
            for place, source in enumerate(part.outputs):
                known[source] = call if len(part.outputs) == 1 else graph.call_function(operator.getitem, (call, place))
    for node in m.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            known[node] = graph.node_copy(node)
    former = -1
    while waiting and former != len(waiting):
        former = len(waiting)
        call_ready()
    if waiting:
        raise RuntimeError(f"cycle exists between partitions: {[part.name for part in waiting]}")
    output = next(node for node in reversed(m.graph.nodes) if node.op == "output")
    graph.output(map_arg(output.args[0], lambda node: known[node]))
    return graph
