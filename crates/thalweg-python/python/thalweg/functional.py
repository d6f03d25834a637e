"""Functions of `torch` under the module in which PyTorch defines them (`torch.functional`)."""

import sys

__all__ = (
    "atleast_1d", "atleast_2d", "atleast_3d", "align_tensors", "broadcast_shapes", "broadcast_tensors", "cartesian_prod", "block_diag", "cdist",
    "chain_matmul", "einsum", "istft", "lu", "norm", "meshgrid", "pca_lowrank", "split", "stft", "svd_lowrank", "tensordot", "unique",
    "unique_consecutive", "unravel_index")


def __getattr__(name):
    if name in __all__:
        return getattr(sys.modules[__package__], name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
