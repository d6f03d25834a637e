"""Views and their bases, `set_`, gradients as objects, masks of bytes and other subscripts, and older forms of calls."""

import copy
import gc
import warnings
import weakref

import thalweg as th

from support import raises


def test_a_view_knows_the_object_that_it_was_made_of():
    x = th.arange(12, dtype=th.float32).reshape(3, 4)
    owner = x._base
    assert x._is_view() and owner is not None and owner.shape == (12,)
    x = th.zeros(3, 4)
    assert not x._is_view() and x._base is None and not x.detach()._is_view() and not (x + 1)._is_view()
    views = [x[0], x.T, x[1:, ::2], x.view(12), x.unsqueeze(0), x.expand(2, 3, 4), x.split(1)[2], x.unbind(1)[3], x.diagonal(), x.view(th.int32)]
    for view in views + [view.t() if view.dim() == 2 else view[None] for view in views]:
        assert view._is_view() and view._base is x, view.shape
    with th.no_grad():
        assert x[0]._base is x and x[0][1]._base is x
    assert not x[th.tensor([0, 1])]._is_view() and not x[x > 0]._is_view()
    # The object is freed with its last owner, even if a view of it still exists.
    seen, view = weakref.ref(x), x[0]
    del x, views
    view.zero_()
    gc.collect()
    assert seen() is None and view._is_view() and view._base.shape == (3, 4)


def test_the_gradient_is_one_object_while_it_is_used():
    x = th.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    gradient = x.grad
    gradient.note = "mine"
    assert x.grad is gradient and x.grad.note == "mine"
    x.grad = other = th.zeros(3)
    assert x.grad is other and copy.deepcopy([x, x.grad])[1].tolist() == [0.0] * 3


def test_set_():
    x, source = th.zeros(2), th.arange(6, dtype=th.float32)
    assert x.set_(source) is x and x.data_ptr() == source.data_ptr() and x.shape == (6,)
    x.set_(source.storage(), 1, (2, 2), (2, 1))
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    x[0, 0] = 9
    assert source.tolist() == [0.0, 9.0, 2.0, 3.0, 4.0, 5.0]
    assert x.set_(source.untyped_storage()).shape == (6,) and x.set_().shape == (0,)
    with raises(RuntimeError, "Could not set tensor of type Long to a tensor of type Float"):
        x.set_(th.arange(3))
    with raises(RuntimeError, "Expected a Storage of type Float"):
        x.set_(th.arange(3).storage())
    with raises(RuntimeError, "the devices must match"):
        x.set_(th.empty(3, device="meta"))
    with raises(RuntimeError, "a leaf Variable that requires grad"):
        th.zeros(2, requires_grad=True).set_(source)


def test_masks_of_bytes_are_masks():
    x = th.arange(6.0).reshape(3, 2)
    mask = th.tensor([1, 0, 2], dtype=th.uint8)
    uses = {
        "read": lambda: x[mask].tolist(), "first": lambda: x[:, mask[:2]].tolist(), "index_put": lambda: x.index_put((mask,), th.tensor(9.0)).tolist(),
        "none": lambda: list(th.tensor(3.0)[th.tensor(0, dtype=th.uint8)].shape)}
    expected = {
        "read": [[0.0, 1.0], [4.0, 5.0]], "first": [[0.0], [2.0], [4.0]], "index_put": [[9.0, 9.0], [2.0, 3.0], [9.0, 9.0]], "none": [0]}
    for name, use in uses.items():
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert use() == expected[name], name
        assert any("torch.uint8 is now deprecated" in str(warning.message) for warning in seen), name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x[mask] = 0
        assert x.tolist() == [[0.0, 0.0], [2.0, 3.0], [0.0, 0.0]]
        with raises(IndexError, "does not match the shape of the indexed tensor"):
            x[th.ones(2, dtype=th.uint8)]


def test_an_integer_tensor_without_dimensions_is_a_place():
    x = th.zeros(3, 2)
    x[th.tensor(1)].fill_(4)
    x[th.tensor(2, dtype=th.int32), th.tensor(0)].add_(7)
    assert x.tolist() == [[0.0, 0.0], [4.0, 4.0], [7.0, 0.0]] and x[th.tensor(1)]._base is x


def test_subscripts_that_are_refused():
    x = th.zeros(2, 5, 10)
    for subscript, words in (
            ((0, 5), "index 5 is out of bounds for dimension 1 with size 5"), ((slice(None), None, 0, 12), "index 12 is out of bounds for dimension 2"),
            ((..., -11), "index -11 is out of bounds for dimension 2")):
        with raises(IndexError, words):
            x[subscript]
    with raises(IndexError, "invalid index of a 0-dim tensor"):
        th.tensor(1)[0]
    with raises(RuntimeError, "Index put requires the source and destination dtypes match"):
        x[:, [1]] = th.zeros(2, 1, 10, dtype=th.float64)
    x[x == 0] = th.tensor(3, dtype=th.int64)
    assert x.sum().item() == 300.0
    with raises(RuntimeError, "refers to a single memory location"):
        th.zeros(1).expand(3).add_(1)


def test_sizes_may_be_tensors():
    three = th.tensor(3)
    assert th.ones(three).shape == (3,) and th.zeros(three, 2).shape == (3, 2) and th.randn((2, three)).shape == (2, 3)
    assert th.Size([three, 1]) == (3, 1) and type(th.Size([1]) * 2) is th.Size and type((1,) + th.Size([2])) is th.Size
    for sizes in ([1.5], "ab", th.ones(2), [None]):
        with raises(TypeError, "takes an iterable of 'int'"):
            th.Size(sizes)
    with raises(TypeError, "can only concatenate tuple"):
        th.Size([1]) + [2]


def test_older_forms_of_calls():
    x, y, z = th.full((2,), 1.0), th.full((2,), 2.0), th.full((2,), 3.0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert th.addcmul(x, 0.5, y, z).tolist() == [4.0, 4.0] and x.addcdiv(3, y, z).tolist() == [3.0, 3.0]
        assert th.add(x, 10, y).tolist() == [21.0, 21.0] and th.addmv(0.5, x, 2, th.eye(2), y).tolist() == [4.5, 4.5]
        assert x.clone().addmv_(0.5, th.eye(2), y).tolist() == [2.5, 2.5]
    assert len(seen) == 5 and "is deprecated" in str(seen[0].message)
    with raises(TypeError, "invalid combination of arguments"):
        th.addcmul(x, 0.5, y)
    assert th.add(True, True).tolist() is True and th.add(1, 2.5).item() == 3.5


def test_functions_of_elements():
    x = th.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert x.clone().map2_(th.tensor([1.0, 2.0]), x, lambda a, b, c: a + b * c).tolist() == [[2.0, 6.0], [6.0, 12.0]]
    with raises(TypeError, "must be real number"):
        x.apply_(lambda value: "text")
    with raises(TypeError, "is not callable"):
        x.map_(x, "text")


def test_complex_numbers_that_are_close():
    x = th.tensor([1 + 1j, float("nan"), float("inf")])
    y = th.tensor([1 + 1.0000001j, float("nan"), float("inf")])
    assert th.isclose(x, y).tolist() == [True, False, True] and th.isclose(x, y, equal_nan=True).tolist() == [True, True, True]
    assert not th.isclose(x, y, rtol=0, atol=0)[0].item() or x[0].item() == y[0].item()


def test_parts_of_complex_numbers_are_set():
    x = th.zeros(2, dtype=th.complex64)
    x.real, x.imag = th.tensor([1.0, 2.0]), 3
    assert x.tolist() == [1 + 3j, 2 + 3j]


def test_a_subclass_stays_in_the_graph():
    class Own(th.Tensor):
        pass

    x = th.ones(2, requires_grad=True)
    y = (x * 3).as_subclass(Own)
    assert type(y) is Own
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_what_is_wrong_with_a_call_is_said():
    x = th.ones(2)
    with raises(RuntimeError, "Expected out tensor to have scalar type Long but got scalar type Float"):
        th.nonzero(x, out=th.empty(0))
    for words, call in (
            ("there are no tensors of torch.complex32", lambda: th.randn(2, 3, dtype=th.complex32)),
            ("unfold(): argument 'dimension' (position 1) must be int, not str", lambda: x.unfold("a", 1, 1)),
            ("unfold() missing 2 required positional arguments: \"size\", \"step\"", lambda: x.unfold(0)),
            ("unfold() got an unexpected keyword argument 'width'", lambda: x.unfold(0, width=2)),
            ("unfold() takes 3 positional arguments but 4 were given", lambda: x.unfold(0, 1, 1, 1))):
        with raises(TypeError, words):
            call()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert th.addcmul(x, 2j, x, x).tolist() == th.addcmul(x, x, x, value=2j).tolist() == [1 + 2j] * 2


def test_given_tensors_have_the_dtype_of_the_result():
    x, places = th.arange(6.0).reshape(2, 3), th.empty(0, dtype=th.int64)
    found = th.max(x, 1, out=(th.empty(0), places))
    assert found.indices is places and places.tolist() == [2, 2] and th.return_types.max((x, places)).indices is places
    for call in (lambda out: th.mm(x, x.T, out=out), lambda out: th.argmax(x, 1, out=out), lambda out: th.sort(x, out=(th.empty(0), out))):
        with raises(RuntimeError, "Expected out tensor to have dtype"):
            call(th.empty(0, dtype=th.float64))
    assert th.exp(x, out=th.empty(0, dtype=th.float64)).dtype is th.float64 and th.logspace(0, 1, 2, out=th.empty(0)).tolist() == [1.0, 10.0]
