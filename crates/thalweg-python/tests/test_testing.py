"""`thalweg.testing`: comparisons and tensors for tests; and gradient checks."""

import math
import warnings

import thalweg as th
import thalweg.nn as nn
from support import raises


def test_what_is_compared_with_what():
    close = th.testing.assert_close
    with raises(TypeError, "No comparison pair was able to handle inputs of type <class 'str'> and <class 'str'>."):
        close("0", "0")
    with raises(TypeError, "No comparison pair"):
        close(th.ones(2), [1.0, 1.0])
    with raises(TypeError, "No comparison pair"):
        close(nn.Parameter(th.ones(2)), th.ones(2), allow_subclasses=False)
    close(nn.Parameter(th.ones(2)), th.ones(2))
    with raises(AssertionError, "Booleans mismatch: True is not False"):
        close(True, False)
    with raises(ValueError, "but got no atol."):
        close(1.0, 1.0, rtol=0.1)
    with raises(AssertionError, "None mismatch"):
        close(None, 0)
    # The types of all items are compared before any values.
    with raises(TypeError, "item [1]"):
        close([1, "a"], [2, "a"])
    close(th.empty(2, device="meta"), th.empty(2, device="meta"))
    close(1, 1.0, check_dtype=False)


def test_messages_of_values():
    close = th.testing.assert_close
    with raises(AssertionError, "Tensor-likes are not equal!\n\nMismatched elements: 1 / 4 (25.0%)\nGreatest absolute difference: 2 at index (1, 0)\n"
                "Greatest relative difference: 0.4"):
        close(th.tensor([[1, 2], [3, 4]]), th.tensor([[1, 2], [5, 4]]))
    with raises(AssertionError, "Scalars are not close!\n\nExpected 2.0 but got 1.0.\nAbsolute difference: 1.0 (up to 1e-05 allowed)\n"
                "Relative difference: 0.5 (up to 1.3e-06 allowed)"):
        close(th.tensor(1.0), th.tensor(2.0))
    with raises(AssertionError, "Absolute difference: inf (up to"):
        close(math.inf, 1.0)
    with raises(AssertionError, "Missing keys in the actual mapping: ['b']\nAdditional keys in the actual mapping: ['a']"):
        close({"a": 1}, {"b": 1})
    with raises(AssertionError, "0 then Tensor-likes"):
        close(th.ones(2), th.zeros(2), msg=lambda text: f"0 then {text}")


def test_tensors_are_made_of_what_the_dtype_holds():
    def make(*shape, **options):
        return th.testing.make_tensor(*shape, device="sim", **options)
    assert set(make(99, dtype=th.uint8).tolist()) <= set(range(10))
    assert make(9, dtype=th.int8, low=-1e9, high=-127).tolist() == [-128] * 9
    assert make(9, dtype=th.int16, low=-0.9, high=0.9).tolist() == [0] * 9
    assert make(9, dtype=th.uint8, low=255, high=256).tolist() == [255] * 9
    wide = make(999, dtype=th.float16, low=-math.inf, high=math.inf)
    assert bool(wide.isfinite().all()) and wide.abs().max().item() > 30000
    assert make(2, 3, dtype=th.complex64, noncontiguous=True).storage_offset() == 1
    assert bool((make(999, dtype=th.int32, low=-1, high=2, exclude_zero=True) != 0).all())
    for options, text in ((dict(dtype=th.bool, low=-2, high=-1), "but torch.bool only supports [0, 2)"), (dict(dtype=th.float32, low=math.nan), "cannot be NaN"),
                          (dict(dtype=th.float32, low=1, high=0), "`low` must be less than `high`, but got 1 >= 0"),
                          (dict(dtype=th.int32, low=3, high=3), "`low` must be less than `high`"),
                          (dict(dtype=th.int32, requires_grad=True), "is not supported for boolean and integral dtypes")):
        with raises(ValueError, text):
            make(3, **options)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert make(2, dtype=th.float32, low=4, high=4).tolist() == [4.0, 4.0]
    assert [entry.category for entry in found] == [FutureWarning]


def test_generators_are_as_before_a_region():
    with th.testing._utils.freeze_rng_state():
        first = th.rand(3)
    assert th.rand(3).tolist() == first.tolist()
    assert th.testing._utils.wrapper_set_seed(th.rand, 3).tolist() == th.testing._utils.wrapper_set_seed(th.rand, 3).tolist()


def test_gradients_of_what_a_function_holds_are_checked():
    layer, x = nn.Linear(2, 3, dtype=th.float64), th.randn(2, 2, dtype=th.float64, requires_grad=True)
    inputs = (x, *layer.parameters())
    former = [value.tolist() for value in inputs]
    assert th.autograd.gradcheck(lambda *args: layer(args[0]).tanh(), inputs)
    assert th.autograd.gradgradcheck(lambda *args: layer(args[0]).tanh(), inputs)
    assert [value.tolist() for value in inputs] == former
    # The weight passed as an argument is not the one that this function uses, so its Jacobian is 0.
    other = nn.Linear(2, 3, dtype=th.float64)
    assert th.autograd.gradcheck(lambda *args: other(args[0]), inputs)
    with raises(th.autograd.GradcheckError, "Jacobian mismatch for output 0 with respect to input 1"):
        th.autograd.gradcheck(lambda *args: args[0] * (args[1].detach() + 0 * args[1])[0], inputs[:2])
