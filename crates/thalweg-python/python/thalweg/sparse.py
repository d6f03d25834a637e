"""Functions of sparse tensors (`torch.sparse`)."""

from . import _core
from ._left_out import rest

mm = _core.mm


def addmm(mat, mat1, mat2, *, beta=1.0, alpha=1.0):
    """Returns a matrix plus the product of a sparse and a dense one."""
    return mat * beta + mm(mat1, mat2) * alpha


def sum(input, dim=None, dtype=None):
    """Returns the sum of all elements, or along sparse dimensions."""
    return input.sum() if dim is None else input.sum(dim)


def _along(name):
    def call(input, dim, *, dtype=None):
        from ._sparse import _made
        whole = input.to_dense()
        own = input.coalesce()
        filled = _core.full_like(whole, float("-inf")).index_put(list(own.indices().unbind(0)), own.values())
        return _made(own.indices(), getattr(filled, name)(dim)[tuple(own.indices().unbind(0))], input.shape, True)
    call.__name__ = name
    call.__doc__ = f"Returns {name.replace('_', ' of ')} along a dimension of a sparse matrix, over the elements that it has."
    return call


softmax, log_softmax = _along("softmax"), _along("log_softmax")


class check_sparse_tensor_invariants:
    """The switch for checks of sparse tensors. It is stored and has no effect."""

    _is_on = False

    def __init__(self, enable=True):
        self._wanted, self._former = enable, None

    @staticmethod
    def is_enabled():
        """Returns whether the check is enabled."""
        return check_sparse_tensor_invariants._is_on

    @staticmethod
    def enable():
        """Enables the check."""
        check_sparse_tensor_invariants._is_on = True

    @staticmethod
    def disable():
        """Disables the check."""
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

# `torch.sparse.semi_structured` and others can be imported as if they existed.
__path__ = []
__getattr__ = rest(__name__)
