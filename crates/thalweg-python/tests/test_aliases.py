"""Aliases of operators, constructors by dtype, and functions about dtypes and shapes."""

import thalweg as th
from support import raises
from thalweg import _aliases


def test_aliases():
    x = th.tensor([[-1.5, 2.5], [0.5, -3.0]])
    assert th.clip(x, -1, 1).tolist() == x.clamp(-1, 1).tolist() and x.absolute().tolist() == x.abs().tolist()
    assert th.concat([x, x], dim=1).shape == (2, 4) and th.row_stack([x, x]).shape == (4, 2) and x.adjoint().tolist() == x.T.tolist()
    assert th.greater(x, 0).tolist() == [[False, True], [True, False]] == x.not_equal(-1.5).logical_and(x.not_equal(-3)).tolist()
    assert th.matrix_power(th.eye(2) * 3, 2).tolist() == [[9, 0], [0, 9]] and x.moveaxis(0, 1).tolist() == x.T.tolist()
    assert x.negative_().clip_(max=1).tolist() == [[1, -2.5], [-0.5, 1]]
    y = th.tensor([-1.0, 4.0])
    assert th.relu_(y) is y and y.tolist() == [0, 4] and th.sqrt_(y).tolist() == [0, 2]
    assert th.nn.functional.relu_(th.tensor([-1.0])).tolist() == [0]
    for alias, name in _aliases._ALIASES.items():
        assert hasattr(th, alias) and hasattr(th.Tensor, alias) and hasattr(th, name), alias


def test_shapes_in_place():
    x = th.arange(6).view(2, 3)
    assert x.t_() is x and x.shape == (3, 2) and x.unsqueeze_(0).shape == (1, 3, 2) and x.transpose_(0, 2).shape == (2, 3, 1)
    assert x.squeeze_().tolist() == [[0, 1, 2], [3, 4, 5]] and x.ndimension() == 2 and x.is_same_size(th.ones(2, 3))
    with raises(RuntimeError, "a leaf Variable that requires grad"):
        th.ones(2, 2, requires_grad=True).t_()


def test_draws_in_place():
    th.manual_seed(0)
    whole = th.empty(1000, dtype=th.int64).random_(3, 6)
    assert set(whole.tolist()) == {3, 4, 5}
    assert set(th.empty(100, dtype=th.uint8).random_(2).tolist()) == {0, 1}
    assert th.empty(100, dtype=th.int8).random_().min().item() >= 0 and th.empty(100).random_().max().item() > 2**20
    assert set(th.empty(100, dtype=th.bool).random_().tolist()) == {False, True}
    with raises(RuntimeError, "'from' to be less than 'to'"):
        whole.random_(3, 3)


def test_constructors():
    assert th.LongTensor([1, 2]).dtype is th.int64 and th.FloatTensor(2, 3).shape == (2, 3) and th.BoolTensor().shape == (0,)
    assert isinstance(th.ones(1), th.FloatTensor) and not isinstance(th.ones(1), (th.LongTensor, th.cuda.FloatTensor))
    assert th.Tensor(2, 3).shape == (2, 3) and th.Tensor(3).shape == (3,) and th.Tensor([3]).tolist() == [3]
    assert th.Tensor(th.Size([2, 1])).shape == (2, 1) and th.Tensor([[th.tensor(4)]]).tolist() == [[4]]
    with raises(TypeError, "the sizes as integers"):
        th.Tensor([1], [2])
    with raises(TypeError, "the sizes as integers"):
        th.Tensor(2, -1)


def test_dtypes_and_shapes():
    assert th.promote_types(th.int8, th.uint8) is th.int16 and th.promote_types(th.float16, th.bfloat16) is th.float32
    assert th.result_type(th.ones(2, dtype=th.int32), 1.5) is th.float32 and th.result_type(th.ones(1, dtype=th.int8), th.tensor(3)) is th.int8
    assert th.result_type(1, 2.0) is th.float32 and th.can_cast(th.int64, th.float16) and not th.can_cast(th.float64, th.int64)
    assert th.broadcast_shapes((2, 1), (3,), 1) == (2, 3) and th.broadcast_shapes() == ()
    with raises(RuntimeError, "cannot be broadcast"):
        th.broadcast_shapes((2,), (3,))


def test_random_states():
    with th.random.fork_rng():
        first = th.rand(3).tolist()
    assert th.rand(3).tolist() == first
    assert th.seed() == th.initial_seed() != th.seed()


def test_tensors_of_other_libraries():
    class Other:
        """A stand-in for other libraries: an object that exports a capsule."""

        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()
    other = Other(th.tensor([[1.0, 2.0]]))
    x = th.nn.Parameter(th.zeros(1, 2))
    with th.no_grad():
        x.copy_(other)
    assert x.tolist() == [[1, 2]] == th.tensor(other).tolist() == th.as_tensor(other, dtype=th.int64).tolist()
    with raises(TypeError, "must be Tensor, not <class 'str'>"):
        th.zeros(1).copy_("1")
