"""The functions of `torch.sparse` that accept dense tensors; there are no sparse tensors."""

from . import _core
from ._left_out import rest

mm, addmm = _core.mm, _core.addmm


class check_sparse_tensor_invariants:
    """The switch for checks of sparse tensors. It is stored and has no effect."""

    _is_on = False

    def __init__(self, enable=True):
        self._wanted, self._former = enable, None

    @staticmethod
    def is_enabled():
        """Returns the switch."""
        return check_sparse_tensor_invariants._is_on

    @staticmethod
    def enable():
        """Sets the switch."""
        check_sparse_tensor_invariants._is_on = True

    @staticmethod
    def disable():
        """Unsets the switch."""
        check_sparse_tensor_invariants._is_on = False

    def __enter__(self):
        self._former = check_sparse_tensor_invariants._is_on
        check_sparse_tensor_invariants._is_on = self._wanted

    def __exit__(self, *_):
        check_sparse_tensor_invariants._is_on = self._former

    def __call__(self, function):
        def wrapped(*args, **kwargs):
            with type(self)(self._wanted):
                return function(*args, **kwargs)
        return wrapped

__getattr__ = rest(__name__)
