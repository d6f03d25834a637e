"""The names of PyTorch 2.11 that are not public, and that the backend uses."""

from functorch.compile import min_cut_rematerialization_partition
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend

__all__ = ["aot", "core_aten_decompositions", "decomposition_table", "register_backend"]


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

