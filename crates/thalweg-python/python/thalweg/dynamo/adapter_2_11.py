"""The names of PyTorch 2.11 that are not public, and that the backend uses."""

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["FakeTensor", "aot", "core_aten_decompositions", "decomposition_table", "is_number_symbol", "register_backend"]


def aot(forward, backward, inference, decompositions):
    """Returns a backend that compiles the graphs of the forward and the backward pass by the given functions."""
    return aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions,
        keep_inference_input_mutations=True,
    )


def is_number_symbol(value):
    """Returns whether a value is an integer, a float or a truth that is not known before the call."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


