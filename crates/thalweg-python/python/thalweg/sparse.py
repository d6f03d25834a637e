"""Functions of sparse tensors (`torch.sparse`)."""

from . import _core, _typed
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
def _of_kind(name):
    """Returns a former constructor of sparse tensors of one dtype (`torch.sparse.FloatTensor`)."""
    def make(*given):
        from ._sparse import sparse_coo_tensor
        if not 1 <= len(given) <= 3 or not isinstance(given[-1 if len(given) == 1 else 1], (_core.Tensor, tuple)):
            raise TypeError(f"sparse.{name}() takes a size, or indices, values and a size")
        if len(given) == 1:
            given = _core.empty([len(given[0]), 0], dtype=_core.int64), _core.empty([0]), given[0]
        return sparse_coo_tensor(*given, dtype=getattr(_core, _typed.NAMES[name]))
    make.__name__, make.__doc__ = name, f"Returns a sparse tensor of {name.removesuffix('Tensor').lower()} numbers from indices, values and a size."
    return make


def spdiags(diagonals, offsets, shape, layout=None):
    """Returns the sparse matrix of a shape with these rows on the diagonals of these offsets; the element of column j is in place j of its row."""
    from ._sparse import sparse_coo_tensor
    diagonals = diagonals.unsqueeze(0) if diagonals.dim() == 1 else diagonals
    offsets = offsets.reshape(-1)
    if diagonals.dim() != 2 or offsets.shape[0] != diagonals.shape[0]:
        raise RuntimeError(f"Number of diagonals ({diagonals.shape[0]}) does not match the number of offsets ({offsets.shape[0]})")
    columns = _core.arange(min(diagonals.shape[1], shape[1]), device=diagonals.device)
    rows = columns - offsets.to(columns.device).unsqueeze(1)
    row, column = ((rows >= 0) & (rows < shape[0])).nonzero().unbind(1)
    made = sparse_coo_tensor(_core.stack([rows[row, column], column]), diagonals[row, column], tuple(shape)).coalesce()
    return made.to_sparse_csr() if str(layout) == "torch.sparse_csr" else made


for _name in _typed.NAMES:
    if _name not in ("BoolTensor", "BFloat16Tensor"):
        globals()[_name] = _of_kind(_name)
__getattr__ = rest(__name__)
