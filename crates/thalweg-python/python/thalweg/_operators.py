"""Functions and methods whose Python arguments or results differ from those of the operator.
PyTorch has its own wrappers for them.

Each function of `METHODS` is also a method of `Tensor`.
"""

import builtins as _builtins
import math

from . import _core

Tensor = _core.Tensor
METHODS = (
    "cdouble", "cfloat", "is_conj", "is_distributed", "is_neg", "is_same_size", "is_signed", "istft", "lu", "nonzero", "orgqr", "stft",
    "unique_consecutive", "unsafe_split_with_sizes")
__all__ = [
    "affine_grid_generator", "cdist", "chain_matmul", "conv_tbc", "frobenius_norm", "get_device", "gru_cell", "is_conj",
    "is_distributed", "is_inference", "is_neg", "is_same_size", "is_signed", "istft", "lstm_cell", "lu", "native_channel_shuffle",
    "nonzero", "norm", "norm_except_dim", "nuclear_norm", "orgqr", "range", "repeat_interleave", "rnn_relu_cell", "rnn_tanh_cell",
    "split", "stft", "unique_consecutive", "unravel_index", "unsafe_split_with_sizes", "vander"]


def _written(result, out):
    """Returns a result, or writes it to `out` and returns `out`."""
    return result if out is None else out.copy_(result) if out.shape == result.shape else out.resize_(result.shape).copy_(result)


def nonzero(input, *, as_tuple=False, out=None):
    """Returns the coordinates of the elements that are not 0: one row for each element, or one tensor for each dimension.
    Blocks."""
    if not as_tuple:
        return _core.nonzero(input, out=out)
    if out is not None:
        raise RuntimeError("nonzero does not support the out kwarg when as_tuple is True")
    return _core.nonzero(input if input.dim() else input.unsqueeze(0)).unbind(1)


def norm(input, p="fro", dim=None, keepdim=False, out=None, dtype=None):
    """Returns a norm of the elements, or along dimensions: `"fro"` is the root of the sum of squares, `"nuc"` the sum of singular values."""
    dims = [dim] if isinstance(dim, int) else dim
    if p == "nuc":
        result = _core.linalg_matrix_norm(input, "nuc", [-2, -1] if dims is None else list(dims), keepdim, dtype=dtype)
    elif isinstance(p, str) and p != "fro":
        raise RuntimeError(f"norm with string p other than 'fro' or 'nuc' is not supported, got {p!r}")
    else:
        result = _core.linalg_vector_norm(input, 2 if p in ("fro", None) else p, dims, keepdim, dtype=dtype)
    return _written(result, out)


def _method_norm(self, p="fro", dim=None, keepdim=False, dtype=None):
    """Returns a norm of the elements, or along dimensions: `"fro"` is the root of the sum of squares, `"nuc"` the sum of singular values."""
    return norm(self, p, dim, keepdim, None, dtype)


def stft(input, n_fft, hop_length=None, win_length=None, window=None, center=True, pad_mode="reflect", normalized=False, onesided=None,
         return_complex=None, align_to_window=None):
    """Returns the discrete Fourier transforms of frames of signals; unless `center` is false, signals are padded so that frames are centred."""
    options = dict(normalized=normalized, onesided=onesided, return_complex=return_complex, align_to_window=align_to_window)
    return _core.stft(input, n_fft, hop_length, win_length, window, center=center, pad_mode=pad_mode, **options)


def istft(input, n_fft, hop_length=None, win_length=None, window=None, center=True, normalized=False, onesided=None, length=None,
          return_complex=False):
    """Returns the signals whose frames have these discrete Fourier transforms."""
    return _core.istft(input, n_fft, hop_length, win_length, window, center, normalized, onesided, length, return_complex)


def unique_consecutive(input, return_inverse=False, return_counts=False, dim=None):
    """Returns the elements, or slices of a dimension, without those that repeat the previous one, and on request the inverse and
    the counts."""
    results = _core.unique_consecutive(input, return_inverse, return_counts, dim)
    wanted = [results[0]] + [results[1]] * return_inverse + [results[2]] * return_counts
    return wanted[0] if len(wanted) == 1 else tuple(wanted)


def repeat_interleave(input=None, repeats=None, dim=None, *, output_size=None):
    """Returns each slice of a dimension repeated the given number of times. With counts alone, returns each index as often as its
    count."""
    if input is None or repeats is None:
        counts = repeats if input is None else input
        places = _core.arange(counts.numel(), device=counts.device, dtype=counts.dtype)
        return _core.repeat_interleave(places, counts, 0, output_size=output_size)
    return _core.repeat_interleave(input, repeats, dim, output_size=output_size)


_DISTANCES = {"use_mm_for_euclid_dist_if_necessary": None, "use_mm_for_euclid_dist": 1, "donot_use_mm_for_euclid_dist": 2}


def cdist(x1, x2, p=2.0, compute_mode="use_mm_for_euclid_dist_if_necessary"):
    """Returns the p-norms of the differences between each row of one matrix and each row of another."""
    if compute_mode not in _DISTANCES:
        raise ValueError(f"{compute_mode} is not a valid value for compute_mode: say one of {', '.join(_DISTANCES)}")
    return _core.cdist(x1, x2, p, _DISTANCES[compute_mode])


def chain_matmul(*matrices, out=None):
    """Returns the product of matrices, in the order of multiplication that takes the fewest operations."""
    if len(matrices) == 1 and isinstance(matrices[0], (list, tuple)):
        matrices = matrices[0]
    return _written(matrices[0] if len(matrices) == 1 else _core.linalg_multi_dot(list(matrices)), out)


def vander(x, N=None, increasing=False):
    """Returns the matrix of the powers of each number, with the highest exponent first unless `increasing`."""
    count = x.numel() if N is None else N
    if x.dim() != 1:
        raise RuntimeError("x must be a one-dimensional tensor.")
    if count < 0:
        raise RuntimeError("N must be non-negative.")
    powers = x.unsqueeze(1) ** _core.arange(count, device=x.device)
    return powers if increasing else powers.flip(1)


def lu(A, pivot=True, get_infos=False, out=None):
    """Returns the factors L and U of matrices in one matrix, and the pivots."""
    results = _core.linalg_lu_factor_ex(A, pivot=pivot)
    if out is not None:
        for target, result in zip(out, results):
            _written(result, target)
    return tuple(results) if get_infos else (results[0], results[1])


def split(tensor, split_size_or_sections, dim=0):
    """Returns the parts of a dimension, each of the given size, or of the sizes in a list."""
    return _core.split(tensor, split_size_or_sections, dim)


def unsafe_split_with_sizes(input, split_sizes, dim=0):
    """Returns the parts of a dimension with these sizes."""
    return _core.split_with_sizes(input, split_sizes, dim)


def range(start=0, end=None, step=1, *, out=None, dtype=None, layout=None, device=None, pin_memory=False, requires_grad=False):
    """Returns the numbers from `start` to `end`, including the end. `arange` is preferred."""
    start, end = (0, start) if end is None else (start, end)
    if step == 0 or (end - start) / step < 0:
        raise RuntimeError("step must be nonzero" if step == 0 else "upper bound and lower bound inconsistent with step sign")
    count = math.floor((end - start) / step) + 1
    places = _core.arange(count, dtype=_core.float64, device=device) * step + start
    return _written(places.to(_core.get_default_dtype() if dtype is None else dtype), out).requires_grad_(requires_grad)


def unravel_index(indices, shape):
    """Returns the coordinates of flat indices into a tensor of the given shape, with one tensor per dimension."""
    if indices.is_floating_point() or indices.is_complex() or indices.dtype is getattr(_core, "bool"):
        raise TypeError(f"expected 'indices' to be integer dtype, but got {indices.dtype}")
    if not isinstance(shape, (int, list, tuple)):
        raise TypeError(f"expected 'shape' to be int or sequence of ints, but got {type(shape)}")
    for size in [] if isinstance(shape, int) else shape:
        if not isinstance(size, int):
            raise TypeError(f"expected 'shape' sequence to only contain ints, but got {type(size)}")
    sizes = [shape] if isinstance(shape, int) else [int(size) for size in shape]
    if any(size < 0 for size in sizes):
        raise ValueError(f"'shape' cannot have negative values, but got {tuple(sizes)}")
    places = []
    for size in reversed(sizes):
        places.append(indices % size)
        indices = indices.div(size, rounding_mode="floor")
    return tuple(reversed(places))


def frobenius_norm(input, dim, keepdim=False, *, out=None):
    """Returns the root of the sum of squares over dimensions."""
    return norm(input, 2, dim, keepdim, out)


def nuclear_norm(input, dim=None, keepdim=False, *, out=None):
    """Returns the sum of singular values over two dimensions."""
    if isinstance(dim, bool):
        dim, keepdim = None, dim
    return norm(input, "nuc", dim, keepdim, out)


def norm_except_dim(v, pow=2, dim=0):
    """Returns the norm over all dimensions but one, or over all if `dim` is -1. The others have extent 1 in the result."""
    from .nn.utils.weight_norm import norm_except_dim as norms
    return norms(v, pow, dim)


def affine_grid_generator(theta, size, align_corners):
    """Returns the grid of `grid_sampler` that transforms positions by affine matrices."""
    from .nn.functional import affine_grid
    return affine_grid(theta, size, align_corners)


def native_channel_shuffle(input, groups):
    """Returns the channels of all groups interleaved."""
    return _core.channel_shuffle(input, groups)


def conv_tbc(input, weight, bias, pad=0):
    """Returns the convolution of sequences (time, batch, channels) with weights (kernel positions, input channels, output
    channels)."""
    return _core.conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, 1, pad).permute(2, 0, 1)


def orgqr(input, input2, *, out=None):
    """Returns the matrix of Householder reflectors, as `linalg.householder_product` does."""
    return _core.linalg_householder_product(input, input2, out=out)


def _matrix_rank(input, tol=None, hermitian=False, *, atol=None, rtol=None, out=None):
    """Returns how many singular values are above a bound, which is absolute or relative to the greatest one."""
    if tol is not None:
        atol, rtol = tol, _core.zeros_like(tol) if isinstance(tol, Tensor) else 0.0
    return _core.linalg_matrix_rank(input, atol=atol, rtol=rtol, hermitian=hermitian, out=out)


def _pinv(input, rcond=None, hermitian=False, *, atol=None, rtol=None, out=None):
    """Returns the pseudoinverses of matrices. Singular values up to a bound, absolute or relative to the greatest one, count as
    0."""
    if rcond is not None:
        atol, rtol = _core.zeros_like(rcond) if isinstance(rcond, Tensor) else 0.0, rcond
    return _core.linalg_pinv(input, atol=atol, rtol=rtol, hermitian=hermitian, out=out)


def add_to_linalg(module):
    """Adds the functions of `torch.linalg` to their module."""
    for name, function in {"matrix_rank": _matrix_rank, "pinv": _pinv, "matmul": _core.matmul, "LinAlgError": _core._LinAlgError}.items():
        setattr(module, name, function)
        if function.__module__ == __name__:
            function.__name__ = function.__qualname__ = name


def get_device(input):
    """Returns the number of a tensor's device."""
    return input.get_device()


def is_signed(input):
    """Returns whether a tensor's dtype has a sign."""
    return input.dtype.is_signed


def is_same_size(input, other):
    """Returns whether tensors have the same shape."""
    return input.shape == other.shape


def is_inference(input):
    """Returns whether a tensor was made in inference mode."""
    return Tensor.is_inference(input)


def is_conj(input):
    """Returns False: conjugates are computed immediately."""
    return False


def is_neg(input):
    """Returns False: negated numbers are computed immediately."""
    return False


def is_distributed(input):
    """Returns False: every tensor belongs to one process."""
    return False


def cfloat(self, memory_format=None):
    """Returns the tensor in complex64, or the tensor itself if it has that dtype."""
    return self.to(_core.complex64)


def cdouble(self, memory_format=None):
    """Returns the tensor in complex128, or the tensor itself if it has that dtype."""
    return self.to(_core.complex128)


def _gates(input, hx, w_ih, w_hh, b_ih, b_hh):
    return _core.linear(input, w_ih, b_ih), _core.linear(hx, w_hh, b_hh)


def rnn_tanh_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    """Returns the next state of a recurrent network with tanh."""
    return sum(_gates(input, hx, w_ih, w_hh, b_ih, b_hh)).tanh()


def rnn_relu_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    """Returns the next state of a recurrent network with relu."""
    return sum(_gates(input, hx, w_ih, w_hh, b_ih, b_hh)).relu()


def gru_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    """Returns the next state of gated recurrent units."""
    from .nn.recurrent import GRU, _in_region
    return GRU._cell(None, _core.linear(input, w_ih, b_ih), w_hh, b_hh, _in_region(hx))


def lstm_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    """Returns the next hidden state and cell state of long short-term memory."""
    from .nn.recurrent import LSTM, _in_region
    return LSTM._cell(None, _core.linear(input, w_ih, b_ih), w_hh, b_hh, tuple(map(_in_region, hx)))


for _name in METHODS:
    setattr(Tensor, _name, globals()[_name])
Tensor.norm = _method_norm
