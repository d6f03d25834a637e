"""Masked reductions (`thalweg.masked`), compared with reductions over lists of the selected elements."""

import math
import statistics

import thalweg
from support import close, raises

ROWS = [[1.5, -2.0, 3.0, 0.5], [4.0, 0.25, -1.0, 2.0], [7.0, 1.0, 2.5, -3.0]]
MASK = [[True, False, True, True], [False, True, True, False], [False, False, False, False]]


def reduced(function):
    """Returns the results of a function for the selected elements of each row, or NaN for a row without any."""
    chosen = [[value for value, kept in zip(row, mask) if kept] for row, mask in zip(ROWS, MASK)]
    return [function(row) if row else math.nan for row in chosen]


def test_reductions_see_what_the_mask_names():
    x, mask = thalweg.tensor(ROWS, dtype=thalweg.float64), thalweg.tensor(MASK)
    masked = thalweg.masked
    for name, plain, of_nothing in (
            ("sum", sum, 0.0), ("prod", math.prod, 1.0), ("amax", max, -math.inf), ("amin", min, math.inf), ("mean", statistics.fmean, math.nan),
            ("var", statistics.variance, math.nan), ("std", statistics.stdev, math.nan), ("norm", lambda row: math.hypot(*row), 0.0),
            ("logsumexp", lambda row: math.log(sum(map(math.exp, row))), -math.inf), ("median", statistics.median_low, math.nan)):
        expected = [of_nothing if math.isnan(value) else value for value in reduced(plain)]
        arguments = {"ord": 2.0} if name == "norm" else {}
        found = getattr(masked, name)(x, dim=1, mask=mask, **arguments)
        assert thalweg.allclose(found, thalweg.tensor(expected, dtype=thalweg.float64), equal_nan=True), name
        kept = getattr(masked, name)(x, dim=1, keepdim=True, mask=mask, **arguments)
        assert kept.shape == (3, 1), name


def test_results_have_pytorchs_dtypes():
    x, mask = thalweg.tensor([[3, 1, 2]], dtype=thalweg.int16), thalweg.tensor([[False, True, True]])
    masked = thalweg.masked
    assert (masked.sum(x, mask=mask).item(), masked.sum(x).dtype) == (3, thalweg.int64)
    assert (masked.amax(x, 1, mask=mask).tolist(), masked.amax(x, 1).dtype) == ([2], thalweg.int16)
    assert (masked.argmin(x, 1, mask=mask).tolist(), masked.argmin(x, 1).dtype) == ([1], thalweg.int16)
    assert masked.var(x, 1, mask=mask, unbiased=False).dtype is thalweg.float32
    assert masked.cumsum(x, 1, mask=mask).tolist() == [[0, 1, 3]] and masked.cumprod(x, 1, mask=mask).tolist() == [[1, 1, 2]]
    with raises(ValueError, "Could not infer output dtype"):
        masked.mean(x, 1, mask=mask)
    with raises(NotImplementedError, "identity of amax"):
        masked.amax(x.bool(), 1, mask=mask)
    with raises(IndexError, "Dimension out of range"):
        masked.sum(x, 2)
    with raises(RuntimeError, "appears multiple times"):
        masked.sum(x, (0, -2))


def test_normalizations_leave_out_what_the_mask_does():
    x, mask = thalweg.tensor([[1.0, 2.0, 3.0]], requires_grad=True), thalweg.tensor([True, False, True])
    masked = thalweg.masked
    chosen = thalweg.tensor([[1.0, 3.0]])
    close(masked.softmax(x, 1, mask=mask)[:, [0, 2]].tolist(), chosen.softmax(1).tolist())
    close(masked.softmin(x, 1, mask=mask)[:, [0, 2]].tolist(), (-chosen).softmax(1).tolist())
    close(masked.normalize(x, 2.0, 1, mask=mask).tolist(), [[1 / math.sqrt(10), 0.0, 3 / math.sqrt(10)]])
    masked.log_softmax(x, 1, mask=mask)[0, 0].backward()
    assert x.grad[0, 1].item() == 0.0 and x.grad[0, 2].item() < 0.0
