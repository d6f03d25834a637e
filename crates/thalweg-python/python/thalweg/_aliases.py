"""Aliases of operators, as in PyTorch, and methods that are composed of a few operators."""

from . import _core

Tensor = _core.Tensor

# Aliases of functions and methods; an in-place method follows if the operator has one.
_ALIASES = {
    "absolute": "abs", "adjoint": "mH", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctan2": "atan2", "arctanh": "atanh", "clip": "clamp", "divide": "div", "fix": "trunc", "ger": "outer", "greater": "gt", "greater_equal": "ge",
    "less": "lt", "less_equal": "le", "matrix_power": "linalg_matrix_power", "moveaxis": "movedim", "negative": "neg", "not_equal": "ne",
}
_FUNCTIONS = {"spmm": "mm", "dsmm": "mm", "concat": "cat", "concatenate": "cat", "row_stack": "vstack"}
# Functions of `torch` that work in place.
_IN_PLACE = (
    "abs_", "acos_", "acosh_", "addmv_", "arccos_", "arccosh_", "arcsin_", "arcsinh_", "arctan_", "arctanh_", "asin_", "asinh_", "atan_", "atanh_",
    "ceil_", "celu_", "clamp_", "clamp_max_", "clamp_min_", "clip_", "as_strided_", "conj_physical_", "cos_", "cosh_", "deg2rad_", "erf_", "erfc_", "exp_", "exp2_", "expm1_",
    "fill_", "fix_", "floor_", "frac_", "gcd_", "i0_", "index_put_", "lcm_", "ldexp_", "log_", "log10_", "log1p_", "log2_", "logit_",
    "nan_to_num_", "neg_", "negative_", "rad2deg_", "reciprocal_", "relu_", "resize_as_", "round_", "rrelu_", "rsqrt_", "selu_", "sigmoid_", "sin_",
    "sinc_", "sinh_", "sqrt_", "square_", "tan_", "tanh_", "threshold_", "trunc_", "xlogy_", "zero_")


def _detach_(input):
    """Takes a tensor out of its graph, in place."""
    return input.detach_()


def _unique(self, sorted=True, return_inverse=False, return_counts=False, dim=None):
    """Returns the distinct elements, or the distinct slices of a dimension. The host waits for their number."""
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
    in_place = _core._in_place
    for name in _IN_PLACE:
        namespace[name] = in_place.get(name) or in_place.get(f"{_ALIASES.get(name[:-1])}_") or getattr(Tensor, name)
    namespace["detach_"] = _detach_
    Tensor.unique = _unique
    Tensor.ndimension = Tensor.dim
    Tensor.is_cpu = property(lambda self: not self.is_cuda and not self.is_meta, doc="Whether the tensor is on the simulated GPU.")


def _from_property(name):
    def method(self):
        return getattr(self, name)
    method.__doc__ = f"Returns `x.{name}`."
    return method
