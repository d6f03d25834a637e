"""Functions that subclasses, other classes and modes override, operators that modes receive, and operators that
programs define."""

import copy
import gc

import thalweg as th
from support import close, raises
from thalweg import nn
from thalweg.nn import functional as F
from thalweg.overrides import TorchFunctionMode, handle_torch_function, has_torch_function, is_tensor_like
from thalweg.utils._python_dispatch import TorchDispatchMode
from thalweg.utils.flop_counter import FlopCounterMode


class Logged(th.Tensor):
    seen = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs)


def test_a_subclass_sees_its_functions():
    x = th.ones(2, 3).as_subclass(Logged)
    Logged.seen.clear()
    results = [x + 1, 1 + x, F.gelu(x), x[0], x.T, th.stack([x, x]), th.ones(2, 3) * x, x.max(0).values, nn.functional.linear(x, nn.Parameter(th.ones(4, 3)))]
    assert all(type(result) is Logged for result in results)
    # The names are PyTorch's.
    assert Logged.seen == ["add", "add", "gelu", "__getitem__", "__get__", "stack", "mul", "max", "linear"]
    assert type(x.shape) is th.Size and x.size() == (2, 3) and repr(x[0]).startswith("Logged([1., 1., 1.]")
    with th._C.DisableTorchFunctionSubclass():
        assert type(x + 1) is th.Tensor
    y = x.detach().requires_grad_()
    (y * 2).sum().backward()
    assert y.grad.tolist() == [[2.0] * 3] * 2 and type(nn.Parameter(x)) is Logged and isinstance(nn.Parameter(x), nn.Parameter)


def test_a_plain_subclass_keeps_its_class():
    class Plain(th.Tensor):
        pass
    x = th.arange(3.0).as_subclass(Plain)
    assert type(x + 1) is Plain and type(x.sum()) is Plain and type(copy.deepcopy(x)) is Plain and x.tolist() == [0.0, 1.0, 2.0]


def test_other_classes_take_over():
    class Duck:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return func.__name__, types, kwargs
    assert th.add(Duck(), 1) == ("add", (Duck,), {}) and th.cat([th.ones(1), Duck()], dim=0)[2] == {"dim": 0}
    assert F.relu(Duck())[0] == "relu" and th.ones(2).add(Duck())[0] == "add" and is_tensor_like(Duck())

    def own(x):
        return handle_torch_function(own, (x,), x) if has_torch_function((x,)) else "plain"
    assert own(Duck())[0] == "own" and own(th.ones(1)) == "plain"

    class Refusing(Duck):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return NotImplemented
    with raises(TypeError, "no implementation found for"):
        th.add(Refusing(), 1)


def test_modes_receive_functions():
    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))
    shape = th.Tensor.shape
    with Mode():
        x = th.zeros(2)
        assert (x + x).shape == (2,) and F.relu(x).sum().item() == 0
        with th._C.DisableTorchFunction():
            x.sub(1)
    assert seen == ["zeros", "add", "__get__", "relu", "sum", "item"] and th.Tensor.shape is shape
    x + x
    assert len(seen) == 6


def test_dispatch_modes_receive_operators():
    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))
    w = th.randn(3, 3, requires_grad=True)
    x = th.randn(2, 3)
    with Log():
        (x @ w).relu().sum().backward()
        results = F.linear(x[None], w, w[0]), F.conv2d(th.ones(1, 1, 3, 3), w[None, None], padding=1), w.softmax(-1), x[None] @ w
    # The names are PyTorch's, and the numbers are those without a mode.
    assert seen[0] == "aten.mm.default" and "aten.relu.default" in seen and seen.count("aten.mm.default") >= 3
    assert {"aten.addmm.default", "aten.convolution.default", "aten._softmax.default"} <= set(seen)
    for result, same in zip(results, (F.linear(x[None], w, w[0]), F.conv2d(th.ones(1, 1, 3, 3), w[None, None], padding=1), w.softmax(-1), x[None] @ w)):
        assert result.requires_grad and result.shape == same.shape
        close(result.detach(), same.tolist(), 1e-6)
    gradient, w.grad = w.grad, None
    (x @ w).relu().sum().backward()
    assert th.equal(gradient, w.grad)

    class Doubled(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is th.ops.aten.add.Tensor else result
    with Doubled():
        assert (th.ones(2) + th.ones(2)).tolist() == [4.0, 4.0]


def test_operators_of_symbols_reach_dispatch():
    seen = []

    class Wrapped(th.Tensor):
        @staticmethod
        def __new__(cls, elements):
            return th.Tensor._make_wrapper_subclass(cls, elements.shape, dtype=elements.dtype, device=elements.device, requires_grad=True)

        def __init__(self, elements):
            self.elements = elements

        __torch_function__ = th._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return Wrapped(func(*[value.elements if isinstance(value, cls) else value for value in args], **(kwargs or {})))
    x = Wrapped(th.tensor([2.0, 4.0]))
    assert x.requires_grad and th.mul(5, x).elements.tolist() == [10.0, 20.0]
    results = [5 - x, 2 ** x, 8 / x, 9 // x, 9 % x, x // 3, x - 1, th.tensor([1.0, 1.0]) - x]
    assert [result.elements.tolist() for result in results] == [
        [3.0, 1.0], [4.0, 16.0], [4.0, 2.0], [4.0, 2.0], [1.0, 1.0], [0.0, 1.0], [1.0, 3.0], [-1.0, -3.0]]
    assert seen[0] == "mul.Tensor" and "rsub.Scalar" in seen and "pow.Scalar" in seen
    x *= 2
    assert seen[-1].startswith("mul_.")


def test_schemas_say_what_is_written():
    aten = th.ops.aten
    assert aten.add_.Tensor._schema.is_mutable and not aten.add.Tensor._schema.is_mutable
    for name in th._core._operator_names():
        if "::" not in name:
            schema = th.ops.overload(name)._schema
            assert schema.is_mutable == ("!" in str(schema)), name
    first, *_ = aten.add_.Tensor._schema.arguments
    assert first.name == "self" and first.type == "Tensor" and first.alias_info.is_write
    assert aten.sum.dim_IntList._schema.arguments[2].default_value is False and aten.mul.Tensor(th.ones(2), 3).tolist() == [3.0, 3.0]


def test_operations_are_counted():
    net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 2))
    with FlopCounterMode(display=False) as counter, th.no_grad():
        net(th.ones(5, 4))
        F.conv2d(th.ones(2, 3, 8, 8), th.ones(6, 3, 3, 3))
    # The numbers are PyTorch's.
    assert counter.get_total_flops() == 2 * 5 * 4 * 8 + 2 * 5 * 8 * 2 + 2 * 2 * 36 * 6 * 27
    assert sum(counter.get_flop_counts()["Sequential.0"].values()) == 320 and "Sequential" in counter.get_table()


def test_wrappers_receive_operators():
    class Scaled(th.Tensor):
        @staticmethod
        def __new__(cls, elements, scale):
            made = th.Tensor._make_wrapper_subclass(cls, elements.shape, dtype=elements.dtype, device=elements.device)
            made.elements, made.scale = elements, scale
            return made

        __torch_function__ = th._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            args = [value.elements * value.scale if isinstance(value, cls) else value for value in args]
            return func(*args, **(kwargs or {}))
    x = Scaled(th.tensor([1.0, 2.0]), 3.0)
    assert x.shape == (2,) and x.device == th.ones(1).device and (x + 1).tolist() == [4.0, 7.0] and th.mul(x, x).tolist() == [9.0, 36.0]


def test_operators_of_programs():
    @th.library.custom_op("thalweg_tests::scaled", mutates_args=())
    def scaled(x: th.Tensor, factor: float = 2.0) -> th.Tensor:
        return x * factor

    @scaled.register_fake
    def _(x, factor=2.0):
        return th.empty_like(x)
    scaled.register_autograd(lambda ctx, gradient: (gradient * ctx.factor, None),
                             setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]))
    x = th.ones(3, requires_grad=True)
    th.ops.thalweg_tests.scaled(x, 3.0).sum().backward()
    # What a call keeps for its gradient goes with the graph, without the collector of cycles.
    gc.disable()
    bytes_before = th.cuda.memory_allocated()
    for _ in range(3):
        scaled(x * 2, 3.0).sum()
    assert th.cuda.memory_allocated() == bytes_before
    gc.enable()
    assert x.grad.tolist() == [3.0] * 3 and scaled(th.ones(2, device="meta")).shape == (2,)
    assert str(scaled._opoverload._schema) == "thalweg_tests::scaled(Tensor x, float factor=2.0) -> Tensor"
    assert th.ops.thalweg_tests.scaled.default is scaled._opoverload and [one.name for one in scaled._opoverload._schema.arguments] == ["x", "factor"]
    th.library.register_vmap(scaled, lambda info, in_dims, x, factor=2.0: (scaled(x, factor) + info.batch_size, in_dims[0]))
    assert th.func.vmap(lambda x: scaled(x, 3.0))(th.ones(2, 3)).tolist() == [[5.0] * 3] * 2
    # The name of an operator of the table is another operator in a namespace of a program.
    th.library.custom_op("thalweg_tests::mul", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor")
    assert th.ops.thalweg_tests.mul(th.zeros(2)).tolist() == [1.0, 1.0]
    with th.library._scoped_library("thalweg_tests", "FRAGMENT") as library:
        library.define("shifted(Tensor x, int by) -> Tensor")
        library.impl("shifted", lambda x, by: x + by, "CompositeExplicitAutograd")
        assert th.ops.thalweg_tests.shifted(th.zeros(2), 3).tolist() == [3.0, 3.0]
    assert not hasattr(th.ops.thalweg_tests, "shifted")
    close(th.ops.aten.add.Tensor(th.ones(2), th.ones(2), alpha=2), [3.0, 3.0])
    assert "Tensor" in th.ops.aten.add.overloads() and str(th.ops.aten.add.Tensor) == "aten.add.Tensor"


def test_sparse_tensors():
    places, values = th.tensor([[0, 1, 1, 0], [2, 0, 2, 2]]), th.tensor([3.0, 4.0, 5.0, 1.0], requires_grad=True)
    x = th.sparse_coo_tensor(places, values, (2, 3))
    dense = [[0.0, 0.0, 4.0], [4.0, 0.0, 5.0]]
    assert x.is_sparse and x._nnz() == 4 and x.layout is th.sparse_coo and x.to_dense().tolist() == dense
    y = th.randn(3, 2, requires_grad=True)
    for product in (x @ y, th.sparse.mm(x, y), th.spmm(x, y)):
        close(product, (th.tensor(dense) @ y).tolist())
    product.sum().backward()
    close(values.grad, y.sum(1).detach()[places[1]].tolist())
    close(y.grad, th.tensor(dense).sum(0)[:, None].expand(3, 2).tolist())
    whole = x.coalesce()
    assert whole.indices().tolist() == [[0, 1, 1], [2, 0, 2]] and whole.values().tolist() == [4.0, 4.0, 5.0]
    assert (x + x).to_dense().tolist() == (x * 2).to_dense().tolist() and x.t().to_dense().tolist() == th.tensor(dense).t().tolist()
    rows = th.tensor(dense).to_sparse_csr()
    assert rows.crow_indices().tolist() == [0, 1, 3] and rows.col_indices().tolist() == [2, 0, 2] and (rows @ th.ones(3)).tolist() == [4.0, 9.0]
    with raises(NotImplementedError, "cumsum of sparse tensors is left out"):
        x.cumsum(0)
    with raises(RuntimeError, "expected sparse tensor layout"):
        th.ones(2).indices()


def test_each_mode_sees_attributes():
    class Seen(TorchFunctionMode):
        def __init__(self):
            self.names = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.names.append(th._torch_functions.property_name(func) or func.__name__)
            return func(*args, **(kwargs or {}))
    x = th.ones(2, 3)
    with Seen() as outer, Seen() as inner:
        assert x.shape == (2, 3) and x.size(0) == 2 and len(x) == 2 and (x + 1).T.shape == (3, 2)
    assert outer.names == inner.names and inner.names[0] == "shape" and "add" in inner.names and "T" in inner.names


def test_libraries_decorate_functions():
    with th.library._scoped_library("thalweg_tests", "FRAGMENT") as library:
        @th.library.define(library, "doubled(Tensor x) -> Tensor")
        def doubled(x):
            return x * 2
        library.define("tripled(Tensor x) -> Tensor")

        @th.library.impl(library, "tripled", "CompositeExplicitAutograd")
        def tripled(x):
            return x * 3

        @th.library.impl(library, "tripled", "CPU")
        def compiled(x):
            return th.utils.cpp_extension.load(name="tripled", sources=[]).tripled(x)
        assert th.ops.thalweg_tests.doubled(th.ones(1)).item() == 2.0 and th.ops.thalweg_tests.tripled(th.ones(1)).item() == 3.0 and tripled(1) == 3


def test_libraries_enumerate_names_and_replace_functions():
    spaces = {th: {"add", "no_grad", "Tensor"}, th.optim: {"AdamW"}, th.utils.data: {"DataLoader"}, th.functional: {"einsum"}}
    for space, names in spaces.items():
        assert names <= set(space.__all__) and all(hasattr(space, name) for name in space.__all__)
    assert "nn" not in th.__all__ and {"prelu", "softplus", "relu_"} <= set(dir(th.nn.functional))
    operators = th._C._VariableFunctions
    assert "add" in dir(operators) and "float32" not in dir(operators) and all(hasattr(th, name) for name in dir(operators))
    ignored = th.overrides.get_ignored_functions()
    assert {th.is_autocast_enabled, th.zeros, th.set_num_threads} <= ignored and not {th.add, th.einsum, th.get_device} & ignored
    x, target, seen = th.randn(2, 3), th.tensor([0, 2]), []
    modules = {"relu": (th.nn.ReLU(), x), "linear": (th.nn.Linear(3, 2), x), "prelu": (th.nn.PReLU(), x), "cross_entropy": (th.nn.CrossEntropyLoss(), x, target)}
    for name, (module, *given) in modules.items():
        own = getattr(th.nn.functional, name)
        try:
            setattr(th.nn.functional, name, lambda *args, **kwargs: seen.append(name) or own(*args, **kwargs))
            module(*given)
        finally:
            setattr(th.nn.functional, name, own)
    assert seen == list(modules)


def test_products_of_8_bit_floats_with_scales():
    a, b = th.randn(4, 16).to(th.float8_e4m3fn), th.randn(8, 16).to(th.float8_e4m3fn).t()
    whole, rows, columns = th.tensor(0.5), th.rand(4, 1), th.rand(1, 8)
    for scale_a, scale_b in ((whole, whole), (rows, columns)):
        expected = (a.double() * scale_a) @ (b.double() * scale_b) + 1
        close(th._scaled_mm(a, b, scale_a, scale_b, bias=th.ones(8), out_dtype=th.float32).flatten().tolist(), expected.flatten().tolist(), 1e-5)
    with raises(RuntimeError, "cannot be multiplied"):
        th._scaled_mm(a, a, whole, whole)


def test_modes_receive_attributes_that_are_operators():
    class Names(th.overrides.TorchFunctionMode):
        seen = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen.append(func.__self__.__name__)
            return func(*args, **(kwargs or {}))
    x, names = th.tensor([[1 + 2j]]), ["mT", "T", "H", "mH", "real", "imag", "shape"]
    with Names():
        found = [getattr(x, name) for name in names]
    assert Names.seen == names and found[3].item() == 1 - 2j and found[4].item() == 1 and found[5].item() == 2
    assert th.func.vmap(lambda row: row + x.mT.real)(th.zeros(3, 1, 1)).tolist() == [[[1]]] * 3
