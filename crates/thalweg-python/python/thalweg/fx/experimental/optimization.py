"""Fusion of layers in graphs (`torch.fx.experimental.optimization`)."""

import copy

from ...nn import BatchNorm1d, BatchNorm2d, BatchNorm3d, Conv1d, Conv2d, Conv3d, Dropout
from ...nn.utils.fusion import fuse_conv_bn_eval
from .. import Node, symbolic_trace
from ..graph_module import GraphModule


def _parent_name(target):
    """Returns the path of the module around a target, and the last part of the path."""
    parent, _, name = target.rpartition(".")
    return parent, name


def matches_module_pattern(pattern, node, modules):
    """Returns whether a node calls a module of the second class with the result of a module of the first."""
    if len(node.args) == 0:
        return False
    for expected, here in zip(pattern, (node.args[0], node)):
        if not isinstance(here, Node) or here.op != "call_module" or here.target not in modules or type(modules[here.target]) is not expected:
            return False
    return True


def replace_node_module(node, modules, new_module):
    """Replaces the module that a node calls."""
    parent, name = _parent_name(node.target)
    modules[node.target] = new_module
    setattr(modules[parent], name, new_module)


def fuse(model, inplace=False, no_trace=False):
    """Returns a model whose convolutions contain the batch norms after them, for inference."""
    model = model if inplace else copy.deepcopy(model)
    traced = model if no_trace and isinstance(model, GraphModule) else symbolic_trace(model)
    modules, graph = dict(traced.named_modules()), copy.deepcopy(traced.graph)
    for pattern in ((Conv1d, BatchNorm1d), (Conv2d, BatchNorm2d), (Conv3d, BatchNorm3d)):
        for node in graph.nodes:
            if not matches_module_pattern(pattern, node, modules) or len(node.args[0].users) > 1:
                continue
            convolution, norm = modules[node.args[0].target], modules[node.target]
            if norm.track_running_stats:
                replace_node_module(node.args[0], modules, fuse_conv_bn_eval(convolution, norm))
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)
    return GraphModule(traced, graph)


def remove_dropout(model):
    """Returns a model without its dropout layers."""
    traced = symbolic_trace(model)
    modules = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        if node.op == "call_module" and isinstance(modules[node.target], Dropout):
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
    traced.recompile()
    return traced


