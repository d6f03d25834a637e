"""Shapes and dtypes of the values of a graph (`torch.fx.passes.shape_prop`)."""

import traceback
import typing

from ... import _core
from .. import Interpreter
from ..node import map_aggregate

__all__ = ["ShapeProp", "TensorMetadata"]


class TensorMetadata(typing.NamedTuple):
    """The properties of a tensor that do not depend on its elements."""

    shape: typing.Any
    dtype: typing.Any
    requires_grad: bool
    stride: tuple
    memory_format: typing.Any
    is_quantized: bool
    qparams: dict


def _extract_tensor_metadata(result, include_contiguity=True):
    """Returns the properties of a tensor that do not depend on its elements."""
    formats = (_core.contiguous_format, _core.channels_last, _core.channels_last_3d) if include_contiguity else ()
    own = next((one for one in formats if result.is_contiguous(memory_format=one)), None)
    return TensorMetadata(result.shape, result.dtype, result.requires_grad, result.stride(), own, result.is_quantized, {})


class ShapeProp(Interpreter):
    """Runs a graph and remembers shape and dtype of each value in `meta["tensor_meta"]` of its node."""

    def __init__(self, gm, fake_mode=None):
        super().__init__(gm)
        self.fake_mode, self.fake_module, self.real_module = fake_mode, None, self.module

    def run_node(self, n):
        """Returns the value of a node, and remembers its shape."""
        try:
            result = super().run_node(n)
        except Exception as error:
            traceback.print_exc()
            raise RuntimeError(f"ShapeProp error for: node={n.format_node()} with meta={n.meta}") from error
        is_found = False

        def described(part):
            nonlocal is_found
            if not isinstance(part, _core.Tensor):
                return part
            is_found = True
            return _extract_tensor_metadata(part)
        meta = map_aggregate(result, described)
        if is_found:
            n.meta["tensor_meta"] = meta
        n.meta["type"] = type(result)
        return result

    def propagate(self, *args):
        """Runs the graph with arguments, and returns its result."""
        return super().run(*args)
