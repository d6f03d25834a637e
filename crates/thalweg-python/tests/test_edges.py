"""Edge cases of operators: bools with other bytes, poles, bounds, mixed dtypes, `out` tensors of another shape.

The numbers are PyTorch's."""

import math
import warnings

import thalweg as th
from support import close, raises


def test_truth_values_of_any_byte_are_true():
    x = th.tensor([2, 255, 0, 1], dtype=th.uint8).view(th.bool)
    assert x.sum().item() == 3 and x.count_nonzero().item() == 3
    assert x.logical_not().tolist() == [False, False, True, False]
    assert (x == th.tensor([True, True, False, True])).all().item()
    assert (x.to(th.int32) + 0).tolist() == [1, 1, 0, 1]
    assert th.where(x, 1.0, 0.0).tolist() == [1.0, 1.0, 0.0, 1.0]
    assert x[th.tensor([1, 2])].logical_not().tolist() == [False, True]
    # A view of the bytes, which are not rewritten.
    assert x.view(th.uint8).tolist() == [2, 255, 0, 1]


def test_gradients_at_poles():
    x = th.tensor([0.0, -1.0, -2.0, 0.5, math.inf], dtype=th.float64, requires_grad=True)
    th.digamma(x).sum().backward()
    close(x.grad[3:].tolist(), [math.pi ** 2 / 2, 0.0])
    assert all(value > 1e10 for value in x.grad[:3].tolist())
    assert th.polygamma(1, th.tensor([math.inf, 0.0, 1.0])).tolist()[:2] == [0.0, math.inf]
    close(th.polygamma(1, th.tensor(1.0)).item(), math.pi ** 2 / 6)


def test_logit_with_bounds():
    x = th.tensor([-0.5, 0.05, 0.1, 0.5, 0.9, 1.5, math.nan], dtype=th.float64, requires_grad=True)
    y = th.logit(x, 0.1)
    y.sum().backward()
    close(y.tolist(), [math.log(0.1 / 0.9)] * 3 + [0.0] + [math.log(0.9 / 0.1)] * 2 + [math.nan])
    close(x.grad.tolist(), [0.0, 0.0, 1 / 0.09, 4.0, 1 / 0.09, 0.0, math.nan])


def test_integers_stay_integers_above_a_threshold():
    x = th.tensor([1, 2, 3], dtype=th.int16)
    y = th.nn.functional.threshold(x, 1.5, 7.5)
    assert (y.dtype, y.tolist()) == (th.int16, [7, 2, 3])
    with raises(NotImplementedError, "not implemented for 'Bool'"):
        th.threshold(x.bool(), 0, 0)


def test_anomaly_mode_would_look_for_nan():
    assert (th.is_anomaly_enabled(), th.is_anomaly_check_nan_enabled()) == (False, True)
    with th.autograd.set_detect_anomaly(True, check_nan=False):
        assert (th.is_anomaly_enabled(), th.is_anomaly_check_nan_enabled()) == (True, False)
    assert (th.is_anomaly_enabled(), th.is_anomaly_check_nan_enabled()) == (False, True)


def test_dtypes_that_differ_are_refused():
    with raises(RuntimeError, "heaviside is not yet implemented for tensors with different dtypes."):
        th.heaviside(th.tensor([1.0]), th.tensor([1]))
    assert th.heaviside(th.tensor([0, 3]), th.tensor([5, 5])).tolist() == [5, 1]


def test_operators_in_place_leave_others_their_say():
    class Other:
        def __radd__(self, other):
            return "said"

    x = th.ones(2)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
        assert getattr(x, f"__i{name}__")(Other()) is NotImplemented, name
    y = x
    y += Other()
    assert y == "said"
    with raises(TypeError, "unsupported operand type"):
        x -= Other()


def test_given_tensors_of_as_many_elements_keep_their_shape():
    for fill in (lambda out: th.linspace(0, 3, 4, out=out), lambda out: th.arange(0, 4, out=out), lambda out: th.logspace(0, 3, 4, 2.0, out=out)):
        x = th.zeros(2, 3)
        fill(x.narrow(1, 1, 2))
        assert x[:, 0].tolist() == [0.0, 0.0] and x.shape == (2, 3) and x[1, 2].item() in (3.0, 8.0)


def test_integers_are_drawn_within_the_dtype():
    for from_, to, name in ((-1, 5, "from"), (0, 257, "to - 1"), (256, 300, "from")):
        with raises(RuntimeError, f"{name} is out of bounds for unsigned char"):
            th.empty(3, dtype=th.uint8).random_(from_, to)
    th.empty(3, dtype=th.uint8).random_(0, 256)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        th.empty(3, dtype=th.float16).random_(0, 5000)
    assert "to - 1 is out of bounds [-2048, 2048]" in str(found[0].message)


def test_complex_numbers_are_compared_and_raised():
    z = th.tensor([1 + 2j, math.nan + 0j])
    assert th.isclose(z, z).tolist() == [True, False] and th.isclose(z, z, equal_nan=True).tolist() == [True, True]
    assert not th.isclose(z[:1], z[:1] + 1e-3j).item() and th.allclose(z[:1], z[:1] + 1e-7j)
    power = th.float_power(z[:1], 2)
    assert power.dtype is th.complex128
    close([power.real.item(), power.imag.item()], [-3.0, 4.0])


def test_a_range_of_one_number_that_is_given_holds():
    x = th.tensor([-3.0, 0.25, 1.0, 2.0])
    found = th.histogram(x, 2, range=(0.5, 0.5))
    assert found.hist.tolist() == [1.0, 1.0] and found.bin_edges.tolist() == [0.0, 0.5, 1.0]


def test_variances_without_degrees_of_freedom_warn():
    x = th.tensor([1.0, 2.0, 3.0])
    calls = {"var": lambda: th.var(x, correction=3), "std": lambda: x[:1].std(), "var_mean": lambda: th.var_mean(x[:1]),
             "std_mean": lambda: th.std_mean(x, correction=4, dim=0), "cov": lambda: th.cov(x[:1])}
    for name, call in calls.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        assert [str(one.message).split(". ")[0] for one in caught] == [f"{name}(): degrees of freedom is <= 0"], name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert th.var(x[:1], correction=0).item() == 0.0 and th.var(x).item() == 1.0


def test_what_is_made_of_inference_tensors_is_no_view_outside():
    with th.inference_mode():
        x = th.ones(2, 3)
    y = x.view(-1)
    assert y.is_inference() and not y._is_view() and y.is_leaf and not y.requires_grad


def test_the_whole_range_of_int64_is_drawn():
    low, high = th.iinfo(th.int64).min, th.iinfo(th.int64).max
    th.manual_seed(3)
    # Three quarters of the numbers are below 0, and half of those below the middle between the least number and 0.
    x = th.randint(low, 2 ** 62 + 2 ** 61 // 2, (2000,))
    negative = (x < 0).sum().item() / 2000
    assert abs(negative - 2 ** 63 / (2 ** 63 + 2 ** 62 + 2 ** 60)) < 0.05
    assert abs((x < low // 2).sum().item() / (x < 0).sum().item() - 0.5) < 0.06
    assert x.max().item() < 2 ** 62 + 2 ** 60 and th.empty(5, dtype=th.int64).random_(low, high).unique().numel() == 5


def test_integers_of_64_bits_without_a_sign_are_operands():
    x = th.arange(3)
    golden = 0x9E3779B97F4A7C15
    assert (x ^ golden).tolist() == [golden - 2**64, golden - 2**64 - 1, golden - 2**64 + 2]
    assert (x & 0xFFFFFFFFFFFFFFFF).tolist() == [0, 1, 2] and (2**63 + x).tolist() == [2**63 - 2**64 + n for n in range(3)]
    assert (x == 2**63).tolist() == [False] * 3 and (x.float() < 2**63).tolist() == [True] * 3
    close((x / 2**63 * 2.0**63).tolist(), [0.0, 1.0, 2.0])
    close((2**63 / (x + 1)).tolist(), [2.0**63 / n for n in (1, 2, 3)])
    assert (x.double() * 2**63).tolist() == [0.0, 2.0**63, 2.0**64]
    x *= 2**63 + 1
    assert x.tolist() == [0, 2**63 + 1 - 2**64, 2]
    for call in (lambda: x == 2**64, lambda: x != -2**63 - 1, lambda: x < 2**70, lambda: 2**64 * x):
        with raises(OverflowError):
            call()


def test_numbers_are_shifted_by_tensors():
    x = th.arange(4, dtype=th.uint8)
    assert (3 << x).tolist() == [3, 6, 12, 24] and (12 >> x).tolist() == [12, 6, 3, 1] and (1 << x).dtype == th.uint8
    with raises(NotImplementedError):
        2.5 << x
    with raises(NotImplementedError):
        th.bitwise_left_shift(2.5, x)


def test_assigned_numbers_are_converted_as_elements_are():
    for index in (slice(None), 0, th.tensor([0]), th.tensor([True, True, True])):
        x, truth = th.zeros(3, dtype=th.float16), th.zeros(3, dtype=th.bool)
        for number, expected in ((-1e9, -math.inf), (2**40, math.inf)):
            x[index] = number
            assert x[0].item() == expected
        for number in (1j, 0j):
            truth[index] = number
            assert truth[0].item() is bool(number)
    assert (1e40 % th.tensor([1.0])).isnan().all()
    with raises(RuntimeError, "without overflow"):
        th.zeros(3, dtype=th.uint8)[0] = 300


def test_a_view_of_all_elements_has_a_state_of_its_own():
    x = th.ones(2, 3)
    x[...].t_()
    x[...].requires_grad_()
    x[()].unsqueeze_(0)
    assert x.shape == (2, 3) and not x.requires_grad and x[...] is not x
    assert x.flatten(0, 0) is x and x.flatten() is not x
    with raises(RuntimeError, "own gradient"):
        x.grad = x


def test_matrices_without_dimensions_are_transposed():
    assert th.tensor(2.0).mT.item() == 2.0
    with raises(RuntimeError, "1-D tensor"):
        th.ones(1).mT


def test_distances_of_exactly_the_margin_have_no_gradient():
    x = th.tensor([[0.25, -0.75, 1.0]], dtype=th.float64, requires_grad=True)
    th.nn.functional.multi_margin_loss(x, th.tensor([0])).backward()
    close(x.grad, [[-1 / 3, 0.0, 1 / 3]])
    x.grad = None
    th.nn.functional.multilabel_margin_loss(x, th.tensor([[0, -1, 1]])).backward()
    close(x.grad, [[-1 / 3, 0.0, 1 / 3]])


def test_ignored_classes_have_no_gradient():
    nll, shape = th.nn.functional.nll_loss, (2, 3, 2)
    for ignored in (0, 2, -100):
        x = th.ones(shape, dtype=th.float64, requires_grad=True)
        loss = nll(x, th.full((2, 2), ignored), ignore_index=ignored)
        gradient, = th.autograd.grad(loss, x, create_graph=True)
        loss.backward()
        assert math.isnan(loss.item()) and (x.grad == 0).all() and (gradient == 0).all()
        x.grad = None
        nll(x, th.tensor([[1, ignored], [ignored, 1]]), ignore_index=ignored).backward()
        assert x.grad.flatten().nonzero().flatten().tolist() == [2, 9] and x.grad[0, 1, 0].item() == -0.5


def test_gradients_are_clipped_to_nothing():
    x = th.ones(2, requires_grad=True)
    x.grad = th.tensor([3.0, 4.0])
    assert th.nn.utils.clip_grad_norm_([x], 0.0).item() == 5.0 and x.grad.tolist() == [0.0, 0.0]


def test_views_without_elements_begin_anywhere():
    x = th.zeros(2, 0)
    assert x.as_strided([0], [1], 5).shape == (0,) and th.zeros(2).as_strided([1, 0], [1, 1], 5).storage_offset() == 5
    with raises(RuntimeError, "out of bounds"):
        x.as_strided([0], [1], 2**62)

    @th.compile(mode="reduce-overhead")
    def parts(x):
        return x[1], x[:, 1:], x.unbind()[-1], x + 1

    for _ in range(4):
        assert [tuple(part.shape) for part in parts(th.zeros(2, 0))] == [(0,), (2, 0), (0,), (2, 0)]


def test_isin_compares_numbers_in_the_dtype_of_the_tensor():
    for dtype in (th.float16, th.bfloat16, th.float32, th.float64):
        x = th.tensor([0.1, 0.2], dtype=dtype)
        assert th.isin(x, 0.1).tolist() == (x == 0.1).tolist() == [True, False], dtype
        assert th.isin(x, 0.1, invert=True).tolist() == [False, True], dtype
        assert th.isin(0.1, x[:1]).item() and not th.isin(0.1, x[1:]).item(), dtype
    assert th.isin(th.tensor([1], dtype=th.uint8), 257).tolist() == [True]
    assert th.isin(th.tensor([1, 2]), 1.5).tolist() == [False, False]
    for call in (lambda: th.isin(th.tensor([True]), 1), lambda: th.isin(True, th.tensor([1]))):
        with raises(RuntimeError, "Unsupported input type encountered for isin(): Bool"):
            call()


def test_norms_of_singular_and_of_empty_matrices():
    singular = th.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=th.float64)
    for one in (singular, singular * 0, th.stack([singular, th.eye(2, dtype=th.float64)])):
        for order in (1, -1, math.inf, -math.inf, "fro", "nuc"):
            found = th.linalg.cond(one, order).flatten().tolist()
            assert found[0] == math.inf and all(value >= 1 for value in found[1:]), (order, found)
    assert th.linalg.cond(th.zeros(2, 0, 0, dtype=th.complex64)).dtype is th.float32 and th.linalg.cond(th.zeros(0, 0), 1).item() == 0
    for order in (1, 2, math.inf, "fro", "nuc"):
        for shape in ((0, 3), (3, 0), (2, 0, 3)):
            assert th.linalg.matrix_norm(th.zeros(shape), order).tolist() == ([0, 0] if len(shape) == 3 else 0), (order, shape)
    x = th.tensor([[3.0, 4.0j]])
    assert th.linalg.norm(x, dtype=th.complex128).tolist() == 5 and th.linalg.lstsq(th.zeros(2, 0) * 1j, x.mT).solution.shape == (0, 1)
    assert not th.linalg.solve_triangular(th.zeros(1, 1) * 1j, th.ones(1, 1) * 1j, upper=True).isfinite().item()


def test_orthogonal_matrices_of_float64():
    x = th.nn.init.orthogonal_(th.empty(5, 3, dtype=th.float64))
    close((x.mT @ x).flatten().tolist(), th.eye(3).flatten().tolist(), 1e-14)


def test_truth_values_as_subscripts_of_assignments():
    x = th.arange(4).reshape(2, 2)
    x[True] = 2.5
    x[False] = 7
    assert x.tolist() == [[2, 2], [2, 2]] and x.dtype is th.int64


def test_the_step_of_a_slice_is_in_its_stride_whatever_its_length():
    assert th.zeros(2)[::2].stride() == (2,) and th.zeros(3, 4)[:1:5].stride() == (20, 1)
    assert th.zeros(2)[:: 2**62].tolist() == [0]
