"""Types of sizes in annotations (`torch.nn.common_types`)."""

import typing

from .._core import Tensor

_T = typing.TypeVar("_T")
_maybe_indices_t = _scalar_or_tuple_any_t = typing.Union[_T, typing.Tuple[_T, ...]]
for _name, _element in (("size", int), ("ratio", float)):
    globals()[f"_{_name}_any_t"] = typing.Union[_element, typing.Tuple[_element, ...]]
    for _count in range(1, 7):
        globals()[f"_{_name}_{_count}_t"] = typing.Union[_element, typing.Tuple[(_element,) * _count]]
_size_any_opt_t = typing.Tuple[typing.Optional[int], ...]
_size_2_opt_t, _size_3_opt_t = typing.Tuple[(typing.Optional[int],) * 2], typing.Tuple[(typing.Optional[int],) * 3]
_tensor_list_t = typing.Union[Tensor, typing.List[Tensor]]
