"""Instances of classes without elements of their own, with gradients above them, against the numbers of PyTorch."""

import copy
import io
import json
import pathlib
import sys

import thalweg as th
from support import close, raises

FOLDER = pathlib.Path(__file__).parent
sys.path.insert(0, str(FOLDER / "programs"))
import wrappers  # noqa: E402


def compared(found, wanted):
    """Fails unless nested values agree, with numbers up to their rounding."""
    if isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted), f"{found} is not {wanted}"
        for one, other in zip(found, wanted):
            compared(one, other)
    elif isinstance(wanted, float):
        close(found, wanted, 2e-5)
    else:
        assert found == wanted, f"{found} is not {wanted}"


def test_programs_with_wrappers():
    wanted = json.loads((FOLDER / "goldens" / "wrappers.json").read_text())
    found = wrappers.results(th)
    for name, *results in found.pop("functions"):
        compared(results, dict((one, rest) for one, *rest in wanted["functions"])[name])
    for name, value in found.items():
        compared(json.loads(json.dumps(value)), wanted[name])


def test_operators_without_a_rule_say_so():
    Wrapped, _ = wrappers.classes(th)
    x = Wrapped(th.arange(3.0), True)
    y = x.cumsum(0)
    assert y.requires_grad and y.elements.tolist() == [0.0, 1.0, 3.0]
    with raises(NotImplementedError, "the gradient of aten.cumsum.default is left out for instances of Wrapped"):
        y.sum().backward()
    z = Wrapped(th.arange(3.0), True) * 1
    w = Wrapped(th.ones(3), True)
    z *= w
    with raises(RuntimeError, "modified by an inplace operation"):
        z.sum().backward()


def test_gradients_of_a_class_do_not_reach_plain_operators():
    Wrapped, _ = wrappers.classes(th)

    class Unwrap(th.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return Wrapped(gradient)
    x = th.ones(2, requires_grad=True)
    with raises(RuntimeError, "a gradient that is a Wrapped has arrived at an operator on plain tensors"):
        Unwrap.apply(x * 2).sum().backward()
    Unwrap.apply(x).sum().backward()
    assert type(x.grad) is Wrapped and x.grad.elements.tolist() == [1.0, 1.0]


class Halves(th.Tensor):
    """A tensor with half its elements' values, whose functions are looked up in a table, and other operators computed."""

    table = {}

    def __new__(cls, elements):
        return th.Tensor._make_wrapper_subclass(cls, elements.shape, dtype=elements.dtype, device=elements.device)

    def __init__(self, elements):
        self.elements = elements

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in cls.table:
            return cls.table[func](*args, **(kwargs or {}))
        with th._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (th.ops.aten.detach.default, th.ops.aten.clone.default):
            return cls(func(args[0].elements))
        return func(*[value.elements * 2 if isinstance(value, cls) else value for value in args], **(kwargs or {}))


Halves.table[th.nn.functional.linear] = lambda x, weight, bias=None: th.nn.functional.linear(x, weight.elements * 2, bias)


def test_classes_with_functions_and_operators_of_their_own():
    weight = th.arange(6.0).view(2, 3)
    layer = th.nn.Linear(3, 2)
    x = th.ones(1, 3)
    layer.weight = th.nn.Parameter(Halves(weight / 2), requires_grad=False)
    assert type(layer.weight) is Halves and isinstance(layer.weight, th.nn.Parameter) and [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    close(layer(x), th.nn.functional.linear(x, weight, layer.bias).tolist())
    close(layer.weight + 1, (weight + 1).tolist())
    close(layer.weight.sum(), weight.sum().item())
    # Copies and files have the class and its parts.
    file = io.BytesIO()
    th.save(layer.state_dict(), file)
    file.seek(0)
    for other in (copy.deepcopy(layer).weight, th.load(file, weights_only=False)["weight"]):
        assert type(other) is Halves and other.elements is not layer.weight.elements and other.elements.tolist() == (weight / 2).tolist()
