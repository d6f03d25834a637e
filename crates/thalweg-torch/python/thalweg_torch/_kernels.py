"""Thalweg's kernels for operators of eager PyTorch: `enable_kernels`, `disable_kernels`, `kernels`."""

import pathlib
import typing

from . import _cross_entropy, _state, _tiers


class Kernel(typing.NamedTuple):
    """A class of calls for which Thalweg's kernel is faster than PyTorch's, with the counts of the operator's calls so far."""

    operator: str
    # "rows": a row's points are contiguous. "columns": adjacent points are of different rows. "transposed": a copy that turns one
    # into the other. "planes": planes of channels, whose points count as columns. "list": tensors of a list. A kernel without
    # dtypes has no class: its calls are taken only with `everywhere`.
    form: str
    dtypes: tuple[str, ...]
    # The minimum and maximum number of columns: points of a row, a multiple of 8; for a list the mean number of elements.
    columns: tuple[int, int]
    # The minimum number of elements of the tensor.
    elements: int
    # Speed in % of that of a copy of the same number of bytes, measured on an H100 or H200.
    percent_of_copy: float
    percent_of_copy_pytorch: float
    # Whether the kernel is registered in PyTorch now.
    enabled: bool
    # The numbers of calls that the kernel took, and that went to PyTorch's kernel.
    taken: int
    passed_on: int
    # The reason why PyTorch's kernel is used although this one is enabled; empty if it is not.
    given_up: str

    @property
    def speedup(self):
        """Returns the minimum ratio of its speed to that of PyTorch's kernel."""
        return self.percent_of_copy / self.percent_of_copy_pytorch


def enable_kernels(operators=None, *, everywhere=False, device="cuda"):
    """Registers Thalweg's kernels for operators of PyTorch: softmax, log-softmax, norms, cross entropy and their gradients, reductions,
    copies that transpose, fused Adam and AdamW.

    A call is taken where `kernels()` lists it, and goes to PyTorch's own kernel otherwise. PyTorch keeps tensors, autograd and its allocator
    (or Thalweg's, by `enable`, which must be called first if both are used).

    `operators`: names as in `kernels()`, or None for all of those, and with `everywhere` those that the table does not have.
    `everywhere`: whether calls that are not in the table are taken too, for measurements.
    `device`: "cuda", or "cpu" for tests of the interface without a GPU, where kernels run as loops on the host.

    PyTorch warns once that a kernel was overridden. `disable_kernels()` unregisters the kernels.
    """
    import torch

    keys = {"cuda": "CUDA", "cpu": "CPU"}
    if device not in keys:
        raise ValueError(f"device is {device!r}, but must be 'cuda' or 'cpu'")
    if device == "cuda":
        _tiers.check_build()
    if _tiers.torch_version() < (2, 10):
        raise _tiers.Refused(f"kernels inside PyTorch need PyTorch 2.10 or later, and this is {torch.__version__}")
    names = ",".join([operators] if isinstance(operators, str) else operators or [])
    if operators is not None and not names:
        return
    folder = pathlib.Path(torch.__file__).parent / "lib"
    arguments = str(folder).encode(), keys[device].encode(), names.encode(), int(everywhere)
    _cross_entropy.define()
    with _state.lock:
        _state.kernels_library().call("thalweg_enable_kernels", *arguments)
    with_loss = [kernel for kernel in kernels() if kernel.operator == _cross_entropy.OPERATOR and kernel.enabled]
    if with_loss:
        elements = 0 if everywhere else min(kernel.elements for kernel in with_loss)
        _cross_entropy.enable(keys[device], elements)


def disable_kernels():
    """Unregisters all kernels, so that PyTorch's own are called again. Does nothing if there are none."""
    _cross_entropy.disable()
    with _state.lock:
        _state.kernels_library().call("thalweg_disable_kernels")


def kernels():
    """Returns the table of `Kernel`s: where Thalweg's are faster than PyTorch's, whether they are enabled, and the number of calls that
    they took."""
    with _state.lock:
        text = _state.kernels_library().text("thalweg_kernels").decode()
    return [_kernel(*line.split("\t")) for line in text.splitlines()]


def _kernel(operator, form, dtypes, fewest, most, elements, ours, pytorch, enabled, taken, passed_on, given_up):
    columns = (int(fewest), int(most))
    speeds = (float(ours), float(pytorch))
    counts = (int(taken), int(passed_on))
    return Kernel(operator, form, tuple(dtypes.split(",")) if dtypes else (), columns, int(elements), *speeds, enabled == "1", *counts, given_up)
