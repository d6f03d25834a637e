"""Counts of floating-point operations (`torch.utils.flop_counter`): those of matrix products, convolutions and attention."""

import collections
import functools
import math

from ._python_dispatch import TorchDispatchMode

# The formulas, by operator. Each takes the shapes of the call's tensors in their places, and `out_shape`.
flop_registry = {}


def _shapes(value):
    from .._core import Tensor
    if isinstance(value, Tensor):
        return value.shape
    return type(value)([_shapes(part) for part in value]) if type(value) in (list, tuple) else value


def register_flop_formula(targets, get_raw=False):
    """Returns a decorator that makes a function the formula of operators. With `get_raw` it gets tensors instead of shapes."""
    def register(formula):
        own = formula
        if not get_raw:
            @functools.wraps(formula)
            def own(*args, out_val=None, **kwargs):
                given = {name: _shapes(value) for name, value in kwargs.items()}
                return formula(*map(_shapes, args), out_shape=_shapes(out_val), **given)
        for target in targets if isinstance(targets, (list, tuple)) else [targets]:
            flop_registry[target] = own
        return formula
    return register


def mm_flop(a_shape, b_shape, *args, out_shape=None, **kwargs):
    """Returns the operations of a matrix product."""
    return 2 * a_shape[0] * a_shape[1] * b_shape[1]


def addmm_flop(self_shape, a_shape, b_shape, out_shape=None, **kwargs):
    """Returns the operations of a matrix product that is added to a matrix."""
    return mm_flop(a_shape, b_shape)


def bmm_flop(a_shape, b_shape, out_shape=None, **kwargs):
    """Returns the operations of products of a batch of matrices."""
    return a_shape[0] * mm_flop(a_shape[1:], b_shape[1:])


def baddbmm_flop(self_shape, a_shape, b_shape, out_shape=None, **kwargs):
    """Returns the operations of products of a batch of matrices that are added to others."""
    return bmm_flop(a_shape, b_shape)


def _matmul_flop(a_shape, b_shape, *args, out_shape=None, **kwargs):
    return 2 * math.prod(out_shape) * a_shape[-1]


def _linear_flop(input_shape, weight_shape, *args, out_shape=None, **kwargs):
    return 2 * math.prod(input_shape) * weight_shape[0]


def conv_flop_count(x_shape, w_shape, out_shape, transposed=False):
    """Returns the operations of a convolution."""
    places = (x_shape if transposed else out_shape)[2:]
    return 2 * x_shape[0] * math.prod(places) * math.prod(w_shape)


def conv_flop(x_shape, w_shape, _bias=None, _stride=None, _padding=None, _dilation=None, transposed=False, *args, out_shape=None, **kwargs):
    """Returns the operations of a convolution."""
    return conv_flop_count(x_shape, w_shape, out_shape, transposed=transposed is True)


def _conv_nd_flop(x_shape, w_shape, *args, out_shape=None, **kwargs):
    return conv_flop_count(x_shape, w_shape, out_shape)


def sdpa_flop_count(query_shape, key_shape, value_shape):
    """Returns the operations of attention."""
    *batch, rows, size = query_shape
    count = math.prod(batch)
    return 2 * count * rows * key_shape[-2] * (size + value_shape[-1])


def sdpa_flop(query_shape, key_shape, value_shape, *args, out_shape=None, **kwargs):
    """Returns the operations of attention."""
    return sdpa_flop_count(query_shape, key_shape, value_shape)


_BUILT_IN = {
    "mm": mm_flop, "addmm": addmm_flop, "bmm": bmm_flop, "baddbmm": baddbmm_flop, "matmul": _matmul_flop, "linear": _linear_flop,
    "convolution": conv_flop, "_convolution": conv_flop, "conv1d": _conv_nd_flop, "conv2d": _conv_nd_flop, "conv3d": _conv_nd_flop,
    "scaled_dot_product_attention": sdpa_flop, "mv": _matmul_flop, "dot": _matmul_flop}
for _name, _formula in _BUILT_IN.items():
    register_flop_formula([f"aten.{_name}", f"thalweg.{_name}"])(_formula)


def _formula_of(overload, custom):
    packet = getattr(overload, "_packet", overload)
    for key in (overload, packet, str(packet)):
        if key in custom:
            return custom[key]
        if key in flop_registry:
            return flop_registry[key]
    return None


class FlopCounterMode(TorchDispatchMode):
    """A region in which the operations of operators are counted, in backward passes too as far as modes see them, for each module."""

    def __init__(self, mods=None, depth=2, display=True, custom_mapping=None):
        super().__init__()
        self.depth, self.display = depth, display
        self.flop_counts = collections.defaultdict(lambda: collections.defaultdict(int))
        self._custom, self._path, self._modules, self._handles = {}, ["Global"], [], []
        for target, formula in (custom_mapping or {}).items():
            own = formula if getattr(formula, "_get_raw", False) else _of_shapes(formula)
            self._custom[target] = own

    def get_total_flops(self):
        """Returns the number of operations."""
        return sum(self.flop_counts["Global"].values())

    def get_flop_counts(self):
        """Returns the numbers of operations by module and operator."""
        return {module: dict(counts) for module, counts in self.flop_counts.items()}

    def get_table(self, depth=None):
        """Returns the numbers of operations as a table."""
        depth = 999999 if depth is None and self.depth is None else self.depth if depth is None else depth
        total = max(self.get_total_flops(), 1)
        rows = []
        for module in sorted(self.flop_counts):
            level = module.count(".") + 1 if module != "Global" else 0
            if level > depth:
                continue
            own = sum(self.flop_counts[module].values())
            rows.append((" " * level + module, _shown(own, total), f"{100 * own / total:.2f}%"))
            rows += [(f"{' ' * level} - {operator}", _shown(count, total), f"{100 * count / total:.2f}%")
                     for operator, count in self.flop_counts[module].items()]
        rows = [("Module", "FLOP", "% Total"), *rows]
        widths = [max(len(row[place]) for row in rows) for place in range(3)]
        lines = [f"{row[0].ljust(widths[0])}  {row[1].rjust(widths[1])}  {row[2].rjust(widths[2])}" for row in rows]
        return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])

    def __enter__(self):
        from ..nn import _calls
        self.flop_counts.clear()
        self._handles = [_calls.register_module_forward_pre_hook(self._begin), _calls.register_module_forward_hook(self._end, always_call=True)]
        super().__enter__()
        return self

    def __exit__(self, *args):
        super().__exit__(*args)
        for handle in self._handles:
            handle.remove()
        if self.display:
            print(self.get_table(self.depth))

    def _begin(self, module, inputs):
        self._path.append(self._name_of(module))

    def _name_of(self, module):
        parent = self._modules[-1] if self._modules else None
        name = type(module).__name__
        if parent is not None:
            found = next((key for key, child in parent.named_modules() if child is module and key), None)
            name = f"{self._path[-1]}.{found}" if found else name
        self._modules.append(module)
        return name

    def _end(self, module, inputs, output):
        self._path.pop()
        self._modules.pop()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        formula = _formula_of(func, self._custom)
        if formula is not None:
            count = formula(*args, **kwargs, out_val=result)
            for module in set(self._path):
                self.flop_counts[module][func._packet] += count
        return result


def _of_shapes(formula):
    @functools.wraps(formula)
    def own(*args, out_val=None, **kwargs):
        return formula(*map(_shapes, args), out_shape=_shapes(out_val), **{name: _shapes(value) for name, value in kwargs.items()})
    return own


def _shown(count, total):
    for suffix, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if total >= size:
            return f"{count / size:.3f}{suffix}"
    return str(count)
