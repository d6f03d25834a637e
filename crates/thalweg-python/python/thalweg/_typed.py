"""Constructors by dtype (`torch.LongTensor`, `torch.cuda.FloatTensor`), which older programs use."""

from . import _core
from ._results import Size

# The words that names of classes have for dtypes.
KINDS = {dtype._name: dtype._scalar_type for dtype in _core._dtypes() if dtype._has_classes}
NAMES = {f"{kind}Tensor": dtype for dtype, kind in KINDS.items() if not getattr(_core, dtype).is_complex}


class _Kind(type):
    """The tensors of one dtype on a GPU, or on the host's side, for `isinstance`."""

    def __new__(cls, name, bases, body):
        if bases:
            raise TypeError(f"type 'torch.{bases[0].__name__}' is not an acceptable base type")
        return super().__new__(cls, name, bases, body)

    def __instancecheck__(cls, instance):
        return isinstance(instance, _core.Tensor) and instance.dtype is cls.dtype and instance.is_cuda is cls._on_gpu


def add(namespace, module, device):
    """Adds the constructors to a namespace. Their tensors are created on the given device, or on the current one if it is
    None."""
    for name, dtype in NAMES.items():
        namespace[name] = _constructor(name, getattr(_core, dtype), module, device)


def classes(*namespaces):
    """Returns the constructors of namespaces."""
    return {namespace[name] for namespace in namespaces for name in NAMES}


def _constructor(name, dtype, module, device):
    def __new__(cls, *data):
        if len(data) == 1 and hasattr(data[0], "untyped"):
            from ._storage import tensor_over
            return tensor_over(data[0], dtype)
        if len(data) == 1 and not isinstance(data[0], (int, Size)):
            return _core.tensor(data[0], dtype=dtype, device=device)
        sizes = data[0] if len(data) == 1 and isinstance(data[0], Size) else data or (0,)
        return _core.empty(list(sizes), dtype=dtype, device=device)
    return _Kind(name, (), {
        "__new__": __new__, "__module__": module, "__qualname__": name, "dtype": dtype, "_on_gpu": device is not None,
        "is_cuda": device is not None, "is_sparse": False, "is_xpu": False,
        "__doc__": f"Makes a tensor of {dtype}: of data, or of sizes with elements that are not written."})
