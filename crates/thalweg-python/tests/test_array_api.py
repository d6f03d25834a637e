"""The namespace of the array API standard: its requirements beyond tensors. `tests/array_api/skips.txt` is for the standard's own
suite."""

import cmath
import pathlib

import thalweg as th
import thalweg.array_api as xp

from support import raises


def test_the_namespace_is_the_tensors():
    x = th.ones(2)
    assert x.__array_namespace__() is xp and x.__array_namespace__(api_version="2023.12") is xp
    assert type(xp.asarray(x)) is xp.Array and xp.asarray([1.5]).__array_namespace__() is xp
    with raises(ValueError, "2019.12"):
        x.__array_namespace__(api_version="2019.12")


def test_dtypes_are_promoted_without_regard_to_dimensions():
    small, scalar = xp.asarray([1, 2], dtype=xp.int8), xp.asarray(3, dtype=xp.int64)
    assert (small + scalar).dtype == xp.int64 and (th.tensor([1], dtype=th.int8) + th.tensor(3)).dtype == th.int8
    assert (small + xp.asarray([1], dtype=xp.uint16)).dtype == xp.int32
    assert (small + 1).dtype == xp.int8 and (2.5 - xp.asarray([1.0], dtype=xp.float64)).dtype == xp.float64
    assert xp.result_type(xp.float32, xp.complex64, xp.float64) == xp.complex128
    assert xp.sum(xp.asarray([200, 100], dtype=xp.uint8), dtype=xp.uint8).dtype == xp.uint8
    assert not xp.can_cast(xp.float64, xp.float32) and xp.can_cast(xp.uint8, xp.int16) and not xp.can_cast(xp.float32, xp.int64)
    assert xp.isdtype(xp.int8, ("bool", "integral")) and not xp.isdtype(xp.int8, "unsigned integer")


def test_slices_run_backwards():
    x = xp.reshape(xp.arange(12), (3, 4))
    rows = x.tolist()
    assert x[::-1, 3:0:-2].tolist() == [row[3:0:-2] for row in rows[::-1]]
    assert x[..., ::-3].tolist() == [row[::-3] for row in rows] and x[1, ::-1].tolist() == rows[1][::-1]
    assert x[0:1:-1].shape == (0, 4) and x[2:0].shape == (0, 4)
    x[::-2, 0] = xp.asarray([7, 8])
    assert x[:, 0].tolist() == [8, 4, 7]
    assert x.size == 12 and x.T.shape == (4, 3) and x.mT.shape == (4, 3)


def test_masks_without_dimensions():
    x = xp.asarray([1.0, 2.0])
    assert x[xp.asarray(True)].shape == (1, 2) and x[xp.asarray(False)].shape == (0, 2)
    x[xp.asarray(False)] = 5.0
    assert x.tolist() == [1.0, 2.0]
    x[xp.asarray(True)] = 5.0
    assert x.tolist() == [5.0, 5.0]
    with raises(IndexError, "does not fit"):
        x[xp.asarray([True, False, True])]


def test_functions_of_complex_numbers():
    values = [1 + 2j, -0.5 + 0.1j, 3 - 4j, -2 - 0.5j, 1e-3 + 1e-3j, 1e6 + 1j]
    for name in ("exp", "sinh", "cosh", "tanh", "sqrt", "log", "asin", "acos", "atan", "asinh", "acosh", "atanh"):
        numbers = [z for z in values if abs(z) < 100 or name not in ("exp", "sinh", "cosh", "tanh")]
        found = getattr(xp, name)(xp.asarray(numbers, dtype=xp.complex128)).tolist()
        for z, value in zip(numbers, found):
            assert abs(value - getattr(cmath, name)(z)) < 1e-12 * abs(value), (name, z, value)
    infinite = complex(float("-inf"), float("nan"))
    assert xp.real(xp.acosh(xp.asarray(infinite))).item() == float("inf")
    assert complex(xp.exp(xp.asarray(complex(float("-inf"), float("inf"))))) == 0


def test_signs_of_remainders_and_infinite_quotients():
    found = xp.floor_divide(xp.asarray([float("inf"), 1.0]), xp.asarray([2.0, -float("inf")]))
    assert found.tolist() == [float("inf"), 0.0] and xp.signbit(found).tolist() == [False, True]
    zero = xp.remainder(xp.asarray([0.0]), xp.asarray([-2.0]))
    assert xp.signbit(zero).tolist() == [True]


def test_distinct_elements():
    values, indices, inverse, counts = xp.unique_all(xp.asarray([[3, 1], [3, 2]]))
    assert (values.tolist(), indices.tolist(), inverse.tolist(), counts.tolist()) == ([1, 2, 3], [1, 3, 0], [[2, 0], [2, 1]], [1, 1, 2])


def test_matrix_products_of_integers():
    x = xp.asarray([[1, 2], [3, 4]])
    assert (x @ x).tolist() == [[7, 10], [15, 22]] and xp.vecdot(x, x).tolist() == [5, 25]
    assert xp.tensordot(x, x, axes=((0,), (1,))).tolist() == [[7, 15], [10, 22]]
    with raises(ValueError, "do not fit"):
        xp.matmul(x, xp.asarray([1, 2, 3]))


def test_diagonals_outside_of_the_matrix():
    assert xp.eye(2, 3, k=10**30).tolist() == xp.eye(2, 3, k=-(2**63)).tolist() == [[0.0] * 3] * 2
    assert xp.eye(2, 3, k=2).tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]] and xp.eye(2, k=-1).tolist() == [[0.0, 0.0], [1.0, 0.0]]


def test_what_the_suite_skips_has_reasons():
    lines = (pathlib.Path(__file__).parent / "array_api/skips.txt").read_text().splitlines()
    skipped = [line for line in lines if line and not line.startswith("#")]
    assert len(skipped) <= 25 and all(line.startswith("array_api_tests/") and "::test_" in line for line in skipped)
    for place, line in enumerate(lines[:-1]):
        assert line or lines[place + 1].startswith("# "), f"a paragraph without its reason before line {place + 2}"
