"""Types for annotations (`torch.types`)."""

import builtins
import os
import typing

from ._core import Tensor, device, dtype
from ._results import Size

_int, _float, _bool, _complex = builtins.int, builtins.float, builtins.bool, builtins.complex
_symint = SymInt = builtins.int
Number = typing.Union[int, float, bool, complex]
_Number = (int, float, bool, complex)
Device = typing.Union[device, str, int, None]
FileLike = typing.Union[str, os.PathLike, typing.IO[bytes]]
_dtype, _device, _size = dtype, device, typing.Union[Size, typing.List[int], typing.Tuple[int, ...]]
_qscheme = _layout = typing.Any
_TensorOrTensors = _TensorOrTensorsOrGradEdge = typing.Union[Tensor, typing.Sequence[Tensor]]
_dispatchkey = str
Storage = typing.Any
PySymType = (int, float, bool)
IntLikeType = py_sym_types = int
FloatLikeType = float
BoolLikeType = bool
