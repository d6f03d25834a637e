"""Tensors: making, reading, printing, operators, subscripts, errors."""

import copy
import pickle
import threading
import warnings

import thalweg as th
from support import close, raises


def test_making():
    assert th.tensor([[1, 2], [3, 4]]).dtype is th.int64
    assert th.tensor([1, 2.5]).dtype is th.float32
    assert th.tensor([True, False]).dtype is th.bool
    assert th.tensor(3).shape == () and th.tensor(3).item() == 3
    assert th.tensor([]).dtype is th.float32 and th.tensor([[], []]).shape == (2, 0)
    assert th.tensor([1, 2], dtype=th.float16).tolist() == [1.0, 2.0]
    assert th.tensor([[th.tensor(1.5), 2]]).tolist() == [[1.5, 2.0]]
    assert th.zeros(2, 3).shape == th.zeros((2, 3)).shape == th.zeros([2, 3]).shape == (2, 3)
    assert th.ones(2, dtype=th.int32).tolist() == [1, 1]
    assert th.full((2,), 7).dtype is th.int64 and th.full((2,), 7.0).dtype is th.float32
    assert th.arange(5).tolist() == [0, 1, 2, 3, 4] and th.arange(1, 2, 0.25).tolist() == [1.0, 1.25, 1.5, 1.75]
    assert th.eye(2).tolist() == [[1, 0], [0, 1]] and th.linspace(0, 1, 3).tolist() == [0, 0.5, 1]
    assert th.zeros(2, requires_grad=True).requires_grad
    with raises(ValueError, "expected sequence of length 2 at dim 1 (got 1)"):
        th.tensor([[1, 2], [3]])
    with raises(ValueError, "too many dimensions 'str'"):
        th.tensor(["a"])


def test_devices():
    x = th.ones(2, device="meta")
    assert x.device.type == "meta" and x.is_meta and (x + x).shape == (2,)
    assert th.device("sim:0") == th.device("sim", 0) == th.device("cpu") and str(th.device("cpu")) == "sim:0"
    assert th.ones(2).to("cpu").device.type == "sim"
    with raises(RuntimeError, "unknown kind"):
        th.ones(2, device="tpu")
    with raises(RuntimeError, "tensors are on"):
        th.ones(2, device="sim") + x
    assert th.zeros_like(th.ones(2, device="sim"), device="meta").is_meta
    x = th.ones(2, device="sim")
    assert x.new_zeros(2, device="meta").is_meta and x.new_ones(3, device="meta").is_meta and th.rand_like(x, device="meta").is_meta
    assert th.linspace(x[0], 3.0, 2, device="meta").is_meta and th.ones(2, device="meta").new_full((2,), 3, device="sim").tolist() == [3.0, 3.0]


def test_properties():
    x = th.zeros(2, 3, 4, dtype=th.float64)
    assert x.shape == (2, 3, 4) and isinstance(x.shape, th.Size) and x.shape[1:] == (3, 4) and x.shape.numel() == 24
    assert repr(x.shape) == "torch.Size([2, 3, 4])"
    assert x.size() == x.shape and x.size(-1) == 4 and x.stride() == (12, 4, 1) and x.stride(0) == 12
    assert (x.dim(), x.ndim, x.numel(), x.element_size(), x.nbytes, len(x)) == (3, 3, 24, 8, 192, 2)
    assert x.is_contiguous() and not x.transpose(0, 1).is_contiguous() and x.T.shape == (4, 3, 2) and x.mT.shape == (2, 4, 3)
    assert x.type() == "torch.DoubleTensor" and x.is_floating_point()
    with raises(IndexError, "out of range"):
        x.size(3)


def test_views_of_another_dtype():
    x = th.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    bits = x.view(th.int32)
    assert bits.tolist() == [[0x3F800000, 0x40000000], [0x40400000, 0x40800000]] and not bits.requires_grad
    assert x.view(dtype=th.uint8).shape == (2, 8) and x.detach().t().view(th.int32).stride() == (1, 2) and x.view(-1, 1).shape == (4, 1)
    bits[0, 0] = 0x40A00000
    assert x.tolist() == [[5.0, 2.0], [3.0, 4.0]] and bits.view(th.float32).tolist() == x.tolist()
    with raises(RuntimeError, "self.stride(-1) must be 1 to view Float as Double (different element sizes), but got 2"):
        x.t().view(th.float64)


def test_options_of_printing():
    """Checks that the printed texts are PyTorch's, except for the device."""
    wide, ramp, z = th.tensor([[1.5, 2.25, -3.0], [1e5, 0.001, 7.0]]), th.arange(12.0).reshape(3, 4) / 7, th.tensor([1 + 2j, 0.5 - 1j])

    def text(x):
        return repr(x).replace(",\n       device='sim:0'", "").replace(", device='sim:0'", "")
    try:
        th.set_printoptions(precision=2)
        assert text(wide) == "tensor([[ 1.50e+00,  2.25e+00, -3.00e+00],\n        [ 1.00e+05,  1.00e-03,  7.00e+00]])"
        assert text(ramp) == "tensor([[0.00, 0.14, 0.29, 0.43],\n        [0.57, 0.71, 0.86, 1.00],\n        [1.14, 1.29, 1.43, 1.57]])"
        assert text(z) == "tensor([1.00+2.j, 0.50-1.j])"
        th.set_printoptions(profile="default", sci_mode=False)
        assert text(wide) == "tensor([[     1.5000,      2.2500,     -3.0000],\n        [100000.0000,      0.0010,      7.0000]])"
        th.set_printoptions(sci_mode=True)
        assert text(th.tensor([1.0, 2.0])) == "tensor([1.0000e+00, 2.0000e+00])" and text(z) == "tensor([1.0000e+00+2.0000e+00j, 5.0000e-01-1.0000e+00j])"
        th.set_printoptions(threshold=5, edgeitems=1, linewidth=20)
        assert text(ramp) == "tensor([[0.0000,\n          ...,\n         0.4286],\n        ...,\n        [1.1429,\n          ...,\n         1.5714]])"
        th.set_printoptions(profile="full")
        assert repr(th.zeros(2000)).count("0.") == 2000
        for wrong in (dict(precision=2000), dict(edgeitems=0)):
            with raises(RuntimeError, "1 or more elements at an edge"):
                th.set_printoptions(**wrong)
        with raises(ValueError, "default, short, full"):
            th.set_printoptions(profile="long")
    finally:
        th.set_printoptions(profile="default")


def test_printing():
    th.set_printoptions(profile="default")
    assert repr(th.tensor([[1.5, 2], [3, 4]], device="sim")) == "tensor([[1.5000, 2.0000],\n        [3.0000, 4.0000]], device='sim:0')"
    assert str(th.float32) == "torch.float32" and repr(th.device("sim")) == "device(type='sim', index=0)"
    assert f"{th.tensor(1.23456):.2f}" == "1.23"
    assert "requires_grad=True" in repr(th.ones(1, requires_grad=True))


def test_operators():
    x, y = th.tensor([1.0, 2.0, 3.0]), th.tensor([4.0, 5.0, 6.0])
    close(x + y, [5, 7, 9])
    close(1 + x, [2, 3, 4])
    close(x - 1, [0, 1, 2])
    close(1 - x, [0, -1, -2])
    close(2 * x, [2, 4, 6])
    close(x / y, [0.25, 0.4, 0.5])
    close(6 / x, [6, 3, 2])
    close(x ** 2, [1, 4, 9])
    close(2 ** x, [2, 4, 8])
    close(x // 2, [0, 1, 1])
    close(7 // x, [7, 3, 2])
    close(x % 2, [1, 0, 1])
    close(7 % x, [0, 1, 1])
    close(-x, [-1, -2, -3])
    close(abs(-x), [1, 2, 3])
    close(x @ y, 32)
    assert (x < y).tolist() == [True] * 3 and (x == th.tensor([1.0, 0.0, 3.0])).tolist() == [True, False, True]
    assert (2 < x).tolist() == [False, False, True] and not (x == None) and x != "text"  # noqa: E711
    mask = th.tensor([True, False])
    assert (mask & True).tolist() == [True, False] and (~mask).tolist() == [False, True] and (mask ^ mask).tolist() == [False, False]
    assert (th.tensor([1, 2]) << 2).tolist() == [4, 8]
    x += 1
    x *= y
    close(x, [8, 15, 24])
    before = x
    x **= 2
    assert x is before
    with raises(TypeError, "unsupported operand"):
        x + "text"
    with raises(TypeError):
        x @ 3


def test_numbers():
    assert float(th.tensor(2.5)) == 2.5 and int(th.tensor([3.7])) == 3 and [10, 20, 30][th.tensor(1)] == 20
    assert bool(th.tensor([1])) and not th.tensor(0.0) and 2 in th.tensor([1, 2]) and 5 not in th.tensor([1, 2])
    assert th.tensor(True).item() is True and type(th.tensor(3).item()) is int
    with raises(RuntimeError, "ambiguous"):
        bool(th.ones(2))
    with raises(RuntimeError, "cannot be converted to Scalar"):
        th.ones(2).item()
    with raises(TypeError, "0-d"):
        len(th.tensor(1))
    with raises(TypeError):
        [1, 2][th.tensor(1.0)]


def test_overloads_by_kind_and_name():
    x = th.tensor([[3.0, 1.0], [2.0, 4.0]])
    assert x.sum().item() == 10 and x.sum(0).tolist() == [5, 5] and x.sum(dim=(0, 1)).item() == 10
    assert th.sum(input=x, dim=1, keepdim=True).shape == (2, 1) and x.mean(axis=0, keepdims=True).shape == (1, 2)
    values, indices = x.max(1)
    assert values.tolist() == [3, 4] and indices.tolist() == [0, 1]
    assert x.max(dim=0).values.tolist() == [3, 4] and x.max().item() == 4 and th.max(x, -x).tolist() == x.tolist()
    assert x.sort(descending=True).indices.tolist() == [[0, 1], [1, 0]]
    assert th.add(x, x, alpha=2).tolist() == (3 * x).tolist() and x.add(1, alpha=2).tolist() == (x + 2).tolist()
    assert x.permute(1, 0).tolist() == x.permute((1, 0)).tolist() == x.t().tolist() and x.view(-1).shape == x.reshape(4).shape
    assert th.where(x > 2, x, 0.0).tolist() == [[3, 0], [0, 4]] and x.where(x > 2, -x).tolist() == [[3, -1], [-2, 4]]
    assert x.clamp(min=2).tolist() == [[3, 2], [2, 4]] and x.clamp(max=th.tensor(2.0)).tolist() == [[2, 1], [2, 2]]
    assert x.split(1)[1].tolist() == [[2, 4]] and [part.shape[1] for part in x.split([1, 1], dim=1)] == [1, 1]
    assert x.std(0, unbiased=False).tolist() == [0.5, 1.5] and x.to(th.int64).tolist() == [[3, 1], [2, 4]]
    assert th.div(x, 2, rounding_mode="floor").tolist() == [[1, 0], [1, 2]]
    assert x.to(dtype=th.float64, device="sim").dtype is th.float64 and x.to(th.ones(1, dtype=th.int32)).dtype is th.int32
    assert x.float() is x and x.long().dtype is th.int64 and x.contiguous() is x
    assert th.einsum("ij,jk->ik", x, x).tolist() == (x @ x).tolist() and th.norm(x).item() == x.square().sum().sqrt().item()
    assert th.unique(th.tensor([2, 1, 2])).tolist() == [1, 2]
    assert x.add(th.tensor(1)).tolist() == x.add(1).tolist() and x.narrow(0, th.tensor(1), 1).tolist() == [[2, 4]]
    out = th.empty(2, 2)
    assert th.add(x, x, out=out) is out and out.tolist() == (2 * x).tolist()
    with raises(TypeError, "received an invalid combination of arguments - got (str)"):
        x.sum("dim")
    with raises(TypeError, "nonsense=int"):
        x.sum(nonsense=1)
    with raises(TypeError):
        th.add(x)
    with raises(TypeError):
        x.add(x, x, x)
    with raises(TypeError):
        x.sum(0, dim=0)
    with raises(IndexError, "Dimension out of range"):
        x.sum(2)
    with raises(TypeError, "generator=object"):
        th.rand(2, generator=object())


def test_subscripts():
    x = th.arange(24).view(2, 3, 4)
    assert x[1, 2, 3].item() == 23 and x[-1].shape == (3, 4) and x[0, :, ::2].tolist() == [[0, 2], [4, 6], [8, 10]]
    assert x[..., 0].shape == (2, 3) and x[None].shape == (1, 2, 3, 4) and x[:, None, 1:].shape == (2, 1, 2, 4)
    assert x[x > 20].tolist() == [21, 22, 23] and x[th.tensor([1, 0]), 0].shape == (2, 4) and x[:, [2, 0]].shape == (2, 2, 4)
    assert x[th.tensor([1]), :, th.tensor([2])].tolist() == [[14, 18, 22]] and x[True].shape == (1, 2, 3, 4)
    y = th.zeros(3, 4)
    y[1] = 5
    y[:, 0] = th.tensor([1.0, 2.0, 3.0])
    y[y == 0] = -1
    y[2, 1:3] = [7, 8]
    assert y.tolist() == [[1, -1, -1, -1], [2, 5, 5, 5], [3, 7, 8, -1]]
    assert [row.tolist() for row in y[:2, :2]] == [[1, -1], [2, 5]]
    with raises(IndexError, "out of bounds"):
        x[2]
    with raises(IndexError, "too many indices"):
        x[0, 0, 0, 0]
    with raises(TypeError, "valid indices"):
        x["text"]


def test_errors_are_pytorchs():
    with raises(RuntimeError):
        th.ones(2) + th.ones(3)
    with raises(RuntimeError):
        th.ones(2, 3) @ th.ones(2, 3)
    assert issubclass(th.cuda.OutOfMemoryError, RuntimeError)
    with raises(th.cuda.OutOfMemoryError):
        th.empty(1 << 50, dtype=th.uint8, device="sim")
    with raises(RuntimeError, "a bug of Thalweg"):
        th._core._panic()
    for name in ("onnx", "quantize_per_tensor"):
        with raises(NotImplementedError, f"{name} is left out"):
            getattr(th, name)()


def test_copies_and_pickles():
    x = th.tensor([[1.0, 2.0]], requires_grad=True)
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), x.detach().clone().requires_grad_()):
        assert other.tolist() == x.tolist() and other.requires_grad and other.data_ptr() != x.data_ptr()
    parameter = copy.deepcopy(th.nn.Parameter(x))
    assert type(parameter) is th.nn.Parameter and pickle.loads(pickle.dumps(parameter)).tolist() == x.tolist()
    assert pickle.loads(pickle.dumps((th.float16, th.device("sim:0")))) == (th.float16, th.device("sim:0"))


def test_buffers():
    x = th.frombuffer(bytes([1, 0, 0, 0, 2, 0, 0, 0]), dtype=th.int32)
    assert x.tolist() == [1, 2] and th.tensor(bytearray(b"ab")).tolist() == [97, 98]
    try:
        import numpy
    except ImportError:
        return "NumPy is not installed"
    for dtype in ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"):
        array = numpy.arange(6).reshape(2, 3).astype(dtype)
        tensor = th.from_numpy(array)
        assert tensor.dtype._name == dtype and tensor.tolist() == array.tolist()
        back = tensor.numpy()
        assert back.dtype == array.dtype and (back == array).all() and back.flags.writeable
        assert (numpy.asarray(tensor) == array).all()
    assert th.from_numpy(numpy.arange(6).reshape(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert (numpy.float32(2) * th.ones(2)).tolist() == [2.0, 2.0]
    with raises(RuntimeError, "requires grad"):
        th.ones(1, requires_grad=True).numpy()
    with raises(TypeError, "bfloat16"):
        th.ones(1, dtype=th.bfloat16).numpy()


def test_threads():
    """Threads compute concurrently, each with its own mode."""
    results = {}

    def work(number):
        with th.no_grad() if number % 2 else th.enable_grad():
            x = th.full((64, 64), float(number), requires_grad=True)
            for _ in range(10):
                y = x @ x
            results[number] = (y.requires_grad, y[0, 0].item())
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert results == {number: (number % 2 == 0, 64.0 * number * number) for number in range(4)}


def test_random():
    th.manual_seed(3)
    first = (th.rand(4).tolist(), th.randn(4).tolist(), th.randint(0, 10, (4,)).tolist(), th.randperm(5).tolist())
    th.manual_seed(3)
    again = (th.rand(4).tolist(), th.randn(4).tolist(), th.randint(0, 10, (4,)).tolist(), th.randperm(5).tolist())
    assert first == again and sorted(first[3]) == [0, 1, 2, 3, 4]
    state = th.get_rng_state()
    drawn = th.rand(3).tolist()
    th.set_rng_state(state)
    assert th.rand(3).tolist() == drawn


def test_classes_of_exceptions_are_those_of_pytorch():
    x = th.arange(6.0).view(2, 3)
    index = [lambda: x.sum(5), lambda: x[9], lambda: x[0, 0, 0], lambda: x.select(0, 9), lambda: x.narrow(0, 5, 1), lambda: x[th.ones(5) > 0],
             lambda: x[th.ones(2)], lambda: x[th.tensor([0, 1]), th.tensor([0, 1, 2])], lambda: x[1.5], lambda: x.softmax(5),
             lambda: x.unsqueeze(9), lambda: x.transpose(0, 5), lambda: th.stack([x], 5), lambda: x.__setitem__(9, 1)]
    for place, call in enumerate(index):
        with raises(IndexError):
            call()
            raise AssertionError(place)
    with raises(ValueError, "step must be greater than zero"):
        x[::-1]
    for call in (lambda: x @ x, lambda: x.view(5), lambda: x + th.ones(5)):
        with raises(RuntimeError):
            call()


def test_tensors_of_out_and_in_place_take_other_shapes():
    x = th.arange(6.0).reshape(2, 3)
    out = th.empty(0)
    assert th.add(x, x, out=out) is out and out.shape == (2, 3) and out.tolist() == (2 * x).tolist()
    values, indices = th.empty(0), th.empty(0, dtype=th.int64)
    th.sort(x, descending=True, out=(values, indices))
    assert values.tolist() == [[2, 1, 0], [5, 4, 3]] and indices.shape == (2, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        th.mul(x[0], 2, out=out)
    assert [one.category for one in caught] == [UserWarning] and out.tolist() == [0, 2, 4]
    assert "An output with one or more elements was resized since it had shape [2, 3]" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with raises(UserWarning, "An output with one or more elements was resized"):
            th.mul(x, 2, out=out)
        th.mul(x, 2, out=out.resize_(0))
    memory = th.arange(4.0)
    with raises(RuntimeError, "some elements of the input tensor"):
        th.add(memory[:3], 1, out=memory[1:])
    assert x.t_() is x and x.shape == (3, 2) and x.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert x.unsqueeze_(0).transpose_(0, 1).shape == (3, 1, 2) and x.squeeze_(1).shape == (3, 2)
    assert x.as_strided_((2,), (1,)).tolist() == [0, 1]
