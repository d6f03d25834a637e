"""Functions of complex numbers at extreme points, against PyTorch's results (`goldens/complex.bin.gz`)."""

import cmath
import gzip
import math
import pathlib
import struct

import complex_points as points
import thalweg as th
from support import close

GOLDENS = pathlib.Path(__file__).resolve().parent / "goldens/complex.bin.gz"


def results():
    """Yields dtype, function, points and PyTorch's results."""
    data, at = gzip.decompress(GOLDENS.read_bytes()), 0
    for dtype in points.DTYPES:
        z = points.points(dtype)
        kind, size = ("d", 16) if dtype == "complex128" else ("f", 8)
        for function in points.FUNCTIONS:
            parts = struct.unpack_from(f"<{2 * len(z)}{kind}", data, at)
            at += len(z) * size
            yield dtype, function, z, [complex(a, b) for a, b in zip(parts[::2], parts[1::2])]
    assert at == len(data)


def size(z):
    """Returns the greater magnitude of a number's parts, or NaN if one is NaN."""
    return math.nan if z != z else max(abs(z.real), abs(z.imag))


def agree(found, expected, whole, tolerance, zeros_have_signs):
    """Returns whether a part of a number equals PyTorch's: its kind, its sign, and its digits to a precision relative to the
    entire number."""
    if math.isnan(expected) or math.isinf(expected):
        return math.isnan(found) if math.isnan(expected) else found == expected
    if expected == 0.0 and found == 0.0:
        return not zeros_have_signs or math.copysign(1.0, found) == math.copysign(1.0, expected)
    return abs(found - expected) <= tolerance * (abs(expected) + (0.1 * whole if math.isfinite(whole) else 0.0))


def test_functions_are_pytorchs_at_extreme_points():
    wrong, counted = [], 0
    for dtype, function, z, expected in results():
        # Near 1, PyTorch's arccos is accurate to ten digits.
        tolerance = 2e-6 if dtype == "complex64" else 1e-9 if function == "acos" else 1e-13
        found = points.called(th, function, th.tensor(z, dtype=getattr(th, dtype))).tolist()
        for point, ours, theirs in zip(z, found, expected):
            if function in points.FINITE and not (size(point) < 1e9 and size(theirs) < 1e30):
                continue
            counted += 1
            # On the real axis, PyTorch's arccos has a zero with another sign than C99 requires. Next to NaN and an undefined
            # angle, C99 leaves the signs of zeros open.
            signs = function in points.EXACT and function != "acos" and not (math.isnan(theirs.real) or math.isnan(theirs.imag))
            pairs = ((ours.real, theirs.real), (ours.imag, theirs.imag))
            if not all(agree(one, other, size(theirs), tolerance, signs) for one, other in pairs):
                wrong.append(f"{dtype} {function}({point}) = {ours}, not {theirs}")
    assert counted > 6000 and not wrong, f"{len(wrong)} of {counted}:\n" + "\n".join(wrong[:40])


def test_gradients_are_derivatives():
    # The derivative of a holomorphic function, by a difference along each axis, conjugated.
    z = th.tensor([0.3 + 0.4j, -1.5 + 0.7j, 2.0 - 3.0j, -0.2 - 0.9j], dtype=th.complex128, requires_grad=True)
    for function in points.EXACT + ("expm1", "log1p", "sinc", "silu", "sigmoid"):
        value = points.called(th, function, z)
        gradient, = th.autograd.grad(value, z, th.ones_like(value))
        for step in (1e-6, 1e-6j):
            with th.no_grad():
                high, low = (points.called(th, function, z + sign * step) for sign in (1, -1))
                slope = ((high - low) / (2 * step)).conj()
            assert th.allclose(gradient, slope, rtol=1e-6, atol=1e-7), f"{function} {gradient.tolist()} {slope.tolist()}"


def test_logarithms_of_sums_and_points_between_complex_numbers():
    numbers = [[1 + 2j, -3 + 0.5j, 700 + 1j], [2j, 0.25 - 1j, -0.5 + 3j]]
    z = th.tensor(numbers, dtype=th.complex128)
    for row, found in zip(numbers, th.logsumexp(z, 1).tolist()):
        greatest = max(one.real for one in row)
        wanted = cmath.log(sum(cmath.exp(one - greatest) for one in row)) + greatest
        assert abs(found - wanted) < 1e-12 * abs(wanted)
    assert th.logsumexp(z, (0, 1), keepdim=True).shape == (1, 1) and th.logsumexp(z[:, :0], 1).real.tolist() == [-math.inf] * 2
    assert th.logsumexp(z - math.inf, 1).real.tolist() == [-math.inf] * 2
    weight = 0.25 - 2j
    found = th.lerp(z[0], z[1], th.full([3], weight, dtype=th.complex128)).tolist()
    assert all(abs(one - (x + weight * (y - x))) < 1e-12 * abs(one) for one, x, y in zip(found, *numbers))
    th.autograd.gradcheck(lambda value: (th.logsumexp(value, 0), th.lerp(value[0], value[1], value[0])), z[:, :2].clone().requires_grad_())


def test_norms_of_complex_gradients_are_limited():
    for norm_type, norm in ((2.0, 6.0), (1.0, 10.0), (float("inf"), 5.0)):
        x, y = th.ones(2, dtype=th.complex64, requires_grad=True), th.ones(2, requires_grad=True)
        x.grad, y.grad = th.tensor([3 + 4j, 1j]), th.tensor([3.0, 1.0])
        assert abs(th.nn.utils.clip_grad_norm_([x, y], 1.0, norm_type).item() - norm) < 1e-5
        assert (x.grad - th.tensor([3 + 4j, 1j]) / norm).abs().max() < 1e-6 and (y.grad - th.tensor([3.0, 1.0]) / norm).abs().max() < 1e-6


def test_equations_of_complex_matrices():
    a, b = th.randn(2, 3, 3, dtype=th.complex128), th.randn(2, 3, 2, dtype=th.complex128)
    a[1, 2] = 0
    solution, info = th.linalg.solve_ex(a, b)
    assert info.tolist() == [0, 3] and th.linalg.inv_ex(a).info.tolist() == [0, 3]
    close(a[0] @ solution[0], b[0])
    close(th.linalg.inv_ex(a[0]).inverse @ a[0], th.eye(3, dtype=th.complex128))
    close(a[0] @ th.linalg.lu_solve(*th.linalg.lu_factor(a[0]), b[0]), b[0])
    q = th.linalg.householder_product(*th.geqrf(a[0]))
    close(th.ormqr(*th.geqrf(a[0]), a[0].mH, left=False, transpose=True), a[0].mH @ q.mH)
    rows = a[0] - a[0].mean(1, keepdim=True)
    close(th.cov(a[0]), rows @ rows.mH / 2)
    close(th.corrcoef(a[0]).diagonal(), th.ones(3, dtype=th.complex128))


def test_gradients_of_eigenvalues_of_complex_matrices():
    # The sum of squared eigenvalues is that of all squared elements.
    a = th.randn(3, 3, dtype=th.complex128)
    whole = (a + a.mH).requires_grad_()
    gradient, = th.autograd.grad(th.linalg.eigvalsh(whole).square().sum(), whole, create_graph=True)
    close(gradient, 2 * whole)
    close(th.autograd.grad(gradient.abs().square().sum(), whole)[0], 8 * whole)


def test_powers_have_the_dtype_of_their_operands_with_dimensions():
    one = {dtype: th.ones(1, dtype=dtype) for dtype in (th.float32, th.float64, th.complex64, th.complex128)}
    assert (one[th.float32] ** th.tensor(1j, dtype=th.complex128)).dtype is th.complex64
    assert (one[th.complex64] ** th.tensor(2.0, dtype=th.float64)).dtype is th.complex64
    assert (one[th.complex64] ** th.tensor(2j, dtype=th.complex128)).dtype is th.complex64
    assert (one[th.complex64] ** one[th.complex128]).dtype is th.complex128 and (one[th.float64] ** one[th.complex64]).dtype is th.complex128


def test_a_number_is_the_base_of_powers_in_float64():
    assert th.float_power(0.1, th.ones(1)).item() == 0.1
