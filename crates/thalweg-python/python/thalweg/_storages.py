"""Memory that several tensors share, as files and deep copies preserve it."""

from . import _core


class Shared:
    """The memory of a tensor, including the elements of all its views, as a row of elements of one dtype."""

    def __init__(self, tensor):
        plain, size = tensor.detach(), tensor.dtype.itemsize
        self.dtype = plain.dtype
        self.start = plain._storage_pointer()
        self.row = plain.as_strided([plain._storage_bytes() // size], [1], 0)
        # While this tensor is alive, no other memory has its address.
        self.identity = (str(plain.device), self.start, plain._storage_bytes())


def view(row, size, stride, offset):
    """Returns a tensor over the memory of a row of elements. Autograd does not treat it as a view."""
    return row.as_strided(list(size), list(stride), offset).detach()


def has_memory(tensor):
    """Returns whether a tensor has elements in memory."""
    return tensor.device.type != "meta" and tensor._storage_bytes() > 0


def copied(tensor, memo):
    """Returns a tensor over a copy of another's memory. Tensors that share the memory share the copy, through the memo of
    `copy.deepcopy`."""
    # Another thread may replace the tensor's data meanwhile.
    tensor = tensor.detach()
    if not has_memory(tensor):
        return tensor.clone()
    row, size = copied_bytes(tensor, memo), tensor.dtype.itemsize
    return view(row[:row.numel() // size * size].view(tensor.dtype), tensor.shape, tensor.stride(), tensor.storage_offset())


def copied_bytes(tensor, memo):
    """Returns a copy of a tensor's memory as bytes: one for all tensors and storages over that memory, through the memo of
    `copy.deepcopy`."""
    key = ("storage", tensor._storage_identity())
    if key not in memo:
        # While this tensor is alive, no other memory has its identity.
        memo[("kept", tensor._storage_identity())] = tensor
        memo[key] = tensor._storage_as_bytes().clone()
    return memo[key]


def attributes(tensor):
    """Returns the attributes that a program has set on a tensor."""
    return getattr(tensor, "__dict__", None) or {}


def with_attributes(tensor, values):
    """Returns a tensor with these attributes."""
    for name, value in values.items():
        setattr(tensor, name, value)
    return tensor


def plain_class(tensor):
    """Returns whether a tensor is not an instance of a subclass."""
    return type(tensor) is _core.Tensor
