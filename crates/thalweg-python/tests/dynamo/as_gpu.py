"""Graphs of PyTorch's compiler as it would make them for a GPU: traced on the CPU, with every value on `cuda`.

Without a GPU such graphs compile all the same, and their programs run on the simulated GPU with tensors of the CPU.
"""

import functools
from unittest import mock

import torch
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx

from thalweg.dynamo import _attention, _entry, _graph
from thalweg.dynamo._decompositions import attention_on_cpu, attention_on_cpu_backward
from thalweg.dynamo._inlined import inlined

aten = torch.ops.aten


Function = _graph.Function


class OnCpu(Function):
    """A function of PyTorch that makes its tensors on the CPU."""

    def __call__(self, *values):
        here = torch.utils._pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), (self._args, self._kwargs))
        return Function(self._target, *here)(*values)


_graph.Function = OnCpu


def _attention_of_cpu(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    """Computes the CPU's attention by the decomposition of a GPU's attention, if that accepts the arguments."""
    made = _attention._efficient(query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale)
    return attention_on_cpu(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale) if made is NotImplemented else made[:2]


def _attention_of_cpu_backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None):
    """Computes the gradient of the CPU's attention."""
    tensors, options = (grad_out, query, key, value), {"attn_mask": attn_mask, "scale": scale}
    made = _attention._efficient_backward(*tensors, attn_mask, out, logsumexp, None, None, dropout_p, [True] * 3 + [False], is_causal, scale=scale)
    return attention_on_cpu_backward(*tensors, out, logsumexp, dropout_p, is_causal, **options) if made is NotImplemented else made[:3]


def decompositions():
    """Returns the backend's decompositions, with attention as on a GPU."""
    return {
        **_entry.decompositions(),
        aten._scaled_dot_product_flash_attention_for_cpu.default: _attention_of_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_of_cpu_backward,
    }


def moved(gm):
    """Moves the values of a graph to a GPU, with their strides. Numbers in the model, and values that are computed from
    numbers alone, stay on the CPU."""
    inlined(gm)
    for node in list(gm.graph.nodes):
        # Lists of numbers are on the device that the model is on.
        if node.target is aten.lift_fresh_copy.default and node.meta["val"].dim() > 0:
            with gm.graph.inserting_after(node):
                there = gm.graph.call_function(aten._to_copy.default, (node,), {"device": torch.device("cpu")})
            node.replace_all_uses_with(there, delete_user_cb=lambda user, own=there: user is not own)
            there.meta = dict(node.meta)
    mode = detect_fake_mode([node.meta.get("val") for node in gm.graph.nodes])
    is_there = {}

    def there(value):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")

    for node in gm.graph.nodes:
        names_device = any(isinstance(one, torch.device) for one in (*node.args, *node.kwargs.values()))
        read = node.all_input_nodes
        is_there[node] = node.op != "get_attr" and (names_device or not read or any(is_there[one] for one in read))
        node.args = tuple(torch.device("cuda", 0) if isinstance(one, torch.device) else one for one in node.args)
        node.kwargs = {name: torch.device("cuda", 0) if isinstance(one, torch.device) else one for name, one in node.kwargs.items()}
        if is_there[node] and "val" in node.meta:
            with mode:
                node.meta["val"] = torch.utils._pytree.tree_map_only(torch.Tensor, there, node.meta["val"])
    return gm


def backend(gm, inputs):
    """Compiles a graph of Dynamo for a GPU."""

    def compiler(graph, examples, *, kind):
        return _entry.compile_flat(moved(graph), examples, kind=kind)

    gm = _attention.replaced(gm)
    compilers = [functools.partial(compiler, kind=kind) for kind in ("forward", "backward", "inference")]
    rewrite = functools.partial(_entry.rewritten, is_on_gpu=lambda tensor: True)
    # Attention is traced here, before its values move to a GPU.
    with mock.patch.object(_attention, "is_on_gpu", lambda tensor: True):
        return _entry.divided(compilers, decompositions, rewrite)(gm, inputs)


def traced(function, inputs):
    """Returns the graph of a function of ATen's operators, for inputs on a GPU."""
    with torch._subclasses.fake_tensor.FakeTensorMode():
        fakes = [torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="cuda") for one in inputs]
        return make_fx(function, decomposition_table=_entry.decompositions())(*fakes), fakes
