"""The first form of `vmap` (`torch._vmap_internals`)."""

from .func import vmap


def _vmap(func, in_dims=0, out_dims=0, allow_none_pass_through=False):
    """Returns a function that calls another one for all slices."""
    return vmap(func, in_dims, out_dims)
