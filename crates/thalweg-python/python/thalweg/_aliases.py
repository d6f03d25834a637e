"""Other names of operators, as PyTorch has them, and methods that are made of a few operators."""

from . import _core

Tensor = _core.Tensor

# Names of functions and methods; a method in place follows where the operator has one.
_ALIASES = {
    "absolute": "abs", "adjoint": "mH", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctan2": "atan2", "arctanh": "atanh", "clip": "clamp", "fix": "trunc", "ger": "outer", "greater": "gt", "greater_equal": "ge",
    "less": "lt", "less_equal": "le", "matrix_power": "linalg_matrix_power", "moveaxis": "movedim", "negative": "neg", "not_equal": "ne",
}
_FUNCTIONS = {"concat": "cat", "concatenate": "cat", "row_stack": "vstack"}
# Functions of `torch` that work in place.
_IN_PLACE = (
    "abs_", "acos_", "acosh_", "arccos_", "arccosh_", "arcsin_", "arcsinh_", "arctan_", "arctanh_", "asin_", "asinh_", "atan_", "atanh_",
    "ceil_", "celu_", "clamp_", "clamp_max_", "clamp_min_", "clip_", "cos_", "cosh_", "deg2rad_", "erf_", "erfc_", "exp_", "exp2_", "expm1_",
    "fill_", "fix_", "floor_", "frac_", "gcd_", "i0_", "index_put_", "lcm_", "ldexp_", "log_", "log10_", "log1p_", "log2_", "logit_",
    "nan_to_num_", "neg_", "negative_", "rad2deg_", "reciprocal_", "relu_", "round_", "rrelu_", "rsqrt_", "selu_", "sigmoid_", "sin_",
    "sinc_", "sinh_", "sqrt_", "square_", "tan_", "tanh_", "threshold_", "trunc_", "xlogy_", "zero_")


def _random_(self, *limits, generator=None):
    """Draws integers from [0, to) or [from, to), in place; without limits from all that the dtype holds exactly."""
    if len(limits) > 2:
        raise TypeError(f"random_() takes at most 2 limits, not {len(limits)}")
    low = limits[0] if len(limits) == 2 else 0
    high = limits[-1] if limits and limits[-1] is not None else None
    if high is None:
        exact = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8, "bool": 1}
        bits = exact.get(self.dtype._name, 8 * self.dtype.itemsize - self.dtype.is_signed)
        # An end beyond int64 cannot be said; the last number is then not drawn.
        high = min(2**bits + (self.dtype.is_floating_point), 2**63 - 1)
    if low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    drawn = _core.randint(low, high, list(self.shape), dtype=_core.int64, device=self.device, generator=generator)
    return self.copy_(drawn)


def _fill_diagonal_(self, fill_value, wrap=False):
    """Sets the main diagonal to a number, in place; with `wrap` that of each block of rows of a tall matrix."""
    if self.dim() < 2:
        raise RuntimeError("dimensions must larger than 1")
    if self.dim() > 2 and len(set(self.shape)) > 1:
        raise RuntimeError("all dimensions of input must be of equal length")
    size, rows = min(self.shape), self.shape[0]
    if wrap and self.dim() == 2 and rows > self.shape[1] + 1:
        blocks = -(-rows // (self.shape[1] + 1))
        for block in range(blocks):
            self[block * (self.shape[1] + 1):].diagonal().fill_(fill_value)
    elif size:
        self.as_strided((size,), (sum(self.stride()),), self.storage_offset()).fill_(fill_value)
    return self


def chain_matmul(*matrices, out=None):
    """Returns the product of matrices, in the order that takes the fewest multiplications."""
    if len(matrices) == 1:
        return matrices[0]
    return _core.linalg_multi_dot(list(matrices), **({} if out is None else {"out": out}))


def vander(x, N=None, increasing=False):
    """Returns the matrix of powers of a vector's elements, a row each, the highest first."""
    if x.dim() != 1:
        raise RuntimeError("x must be a one-dimensional tensor.")
    powers = _core.linalg_vander(x, N=N)
    return powers if increasing else powers.flip(-1)


def _unique(self, sorted=True, return_inverse=False, return_counts=False, dim=None):
    """Returns the distinct elements, or the distinct places of a dimension; the host waits for their number."""
    from ._functions import unique
    return unique(self, sorted, return_inverse, return_counts, dim)


def add(namespace):
    """Adds the names to a namespace of functions, and to `Tensor`."""
    for alias, name in {**_ALIASES, **_FUNCTIONS}.items():
        namespace[alias] = namespace.get(name) or getattr(_core, name)
    for alias, name in _ALIASES.items():
        setattr(Tensor, alias, Tensor.__dict__.get(name) if callable(getattr(Tensor, name)) else _from_property(name))
        if hasattr(Tensor, f"{name}_"):
            setattr(Tensor, f"{alias}_", getattr(Tensor, f"{name}_"))
    for name in _IN_PLACE:
        namespace[name] = getattr(Tensor, name)
    Tensor.random_ = _random_
    Tensor.unique = _unique
    Tensor.fill_diagonal_ = _fill_diagonal_
    namespace["vander"], namespace["chain_matmul"] = vander, chain_matmul
    # Conjugates are computed at once: no tensor has that of another's memory.
    Tensor.is_conj = lambda self: False
    Tensor.is_neg = lambda self: False
    Tensor.ndimension = Tensor.dim
    Tensor.is_signed = lambda self: self.dtype.is_signed
    Tensor.is_same_size = lambda self, other: self.shape == other.shape
    Tensor.is_cpu = property(lambda self: not self.is_cuda and not self.is_meta, doc="Whether the tensor is on the simulated GPU.")


def _from_property(name):
    def method(self):
        return getattr(self, name)
    method.__doc__ = f"Returns `x.{name}`."
    return method
