"""Storages as objects, and pinned memory."""

import copy
import pickle

import thalweg as th
from thalweg import testing
from thalweg.utils.data import DataLoader, TensorDataset

from support import raises, saved


def test_a_storage_gives_its_memory_back_while_its_tensors_stay():
    x = th.arange(1024, dtype=th.float32)
    view, storage, before = x[8:16], x.untyped_storage(), th.cuda.memory_allocated()
    assert storage.nbytes() == len(storage) == 4096 and storage.data_ptr() == x.data_ptr()
    assert storage == view.untyped_storage() and view.storage().size() == 1024 and view.storage()[9] == 9.0
    assert storage.resize_(0) is storage and storage.nbytes() == 0 and storage.data_ptr() == 0
    assert th.cuda.memory_allocated() <= before - 4096 and x.shape == (1024,)
    for use in (lambda: x + 1, x.tolist, view.sum, lambda: x.copy_(th.ones(1024)), lambda: th.add(th.ones(1024), 1, out=x)):
        with raises(RuntimeError, "has given its memory back"):
            use()
    with raises(RuntimeError, "cannot have 8"):
        storage.resize_(8)
    storage.resize_(4096)
    x.copy_(th.arange(1024, dtype=th.float32))
    assert view.tolist() == list(range(8, 16)) and storage.resize_(8192).nbytes() == 8192 and x[-1].item() == 1023.0
    with raises(RuntimeError, "cannot have 4096"):
        storage.resize_(4096)


def test_elements_of_storages():
    storage = th.tensor([1, 2, 3], dtype=th.int16).storage()
    assert storage.tolist() == list(storage) == [1, 2, 3] and storage.dtype is th.int16 and storage.element_size() == 2
    storage[1] = 7
    copy = storage.clone()
    copy.fill_(0)
    assert storage.tolist() == [1, 7, 3] and copy.tolist() == [0, 0, 0] and storage.untyped().tolist() == [1, 0, 7, 0, 3, 0]
    raw = storage.untyped()
    assert raw[2] == 7 and raw[2:4].tolist() == [7, 0] and raw.device == th.get_default_device() and not raw.is_shared()
    assert copy.copy_(storage).tolist() == [1, 7, 3] and th.UntypedStorage(6).copy_(raw).tolist() == raw.tolist()
    assert raw.share_memory_().is_shared() and raw.tolist() == [1, 0, 7, 0, 3, 0] and storage.is_shared()
    assert th.UntypedStorage._new_shared(3).tolist() == [0, 0, 0]
    with raises(RuntimeError, "only available on CPU"):
        th.zeros(2, device="meta").untyped_storage().share_memory_()


def test_memory_that_goes_with_the_storage_needs_its_uses_recorded():
    def program(is_recorded):
        side, x = th.cuda.Stream(), th.ones(1024) * 3
        side.wait_stream(th.cuda.current_stream())
        with th.cuda.stream(side):
            y = x * 2
        if is_recorded:
            x.record_stream(side)
        x.untyped_storage().resize_(0)
        th.cuda.current_stream().wait_stream(side)
        assert y.sum().item() == 6144.0

    testing.check(lambda: program(True), seeds=3)
    try:
        testing.check(lambda: program(False), seeds=3)
    except testing.CheckFailed as failure:
        assert "missing record_stream" in str(failure), failure
    else:
        raise AssertionError("nothing was found")


def test_pinned_memory_of_the_host():
    for make in (th.empty, th.zeros, th.ones, th.rand):
        assert make(4, pin_memory=True, device="cpu").is_pinned() and not make(4, device="cpu").is_pinned()
    x = th.tensor([1.0, 2.0], device="cpu")
    pinned = x.pin_memory()
    assert pinned.is_pinned() and pinned.pin_memory() is pinned and not x.is_pinned() and pinned[1:].is_pinned()
    assert th.tensor([1], device="cpu", pin_memory=True).is_pinned() and pinned.to("cpu", non_blocking=True).tolist() == [1.0, 2.0]
    data = TensorDataset(th.arange(6, device="cpu"), th.arange(6, device="cpu"))
    assert all(part.is_pinned() for batch in DataLoader(data, batch_size=4, pin_memory=True) for part in batch)
    assert not any(part.is_pinned() for batch in DataLoader(data, batch_size=4) for part in batch)


def test_storages_by_dtype():
    storage = th.BoolStorage([True, False])
    assert storage.tolist() == [True, False] and storage.element_size() == 1 and isinstance(storage, th.BoolStorage)
    assert not isinstance(storage, (th.FloatStorage, th.cuda.BoolStorage)) and isinstance(th.ones(2).storage(), th.FloatStorage)
    tensor = th.BoolTensor(storage)
    tensor[1] = True
    assert storage.tolist() == [True, True]
    assert th.FloatStorage().tolist() == [] and th.LongStorage(3).size() == 3
    for write in (lambda: storage[2], lambda: storage.__setitem__(2, True)):
        with raises(IndexError):
            write()


def test_helpers_of_programs():
    tensors = [th.ones(2, 3), th.zeros(0), th.arange(4.0)]
    parts = th._utils._unflatten_dense_tensors(th._utils._flatten_dense_tensors(tensors), tensors)
    assert all(th.equal(part, tensor) for part, tensor in zip(parts, tensors)) and len(parts) == 3

    @th.utils._device.set_device("meta")
    def made():
        yield th.ones(1)
        yield th.ones(1)
    steps = made()
    assert next(steps).device.type == "meta" and th.ones(1).device.type == "sim" and next(steps).device.type == "meta"
    assert th.utils._device.set_device("meta")(lambda: th.ones(1))().is_meta
    assert [th._prims_common.dtype_to_type(dtype) for dtype in (th.bool, th.int8, th.float16, th.complex64)] == [bool, int, float, complex]
    from thalweg.utils.collect_env import get_pretty_env_info
    assert f"Thalweg version: {th._core.__version__}\n" in get_pretty_env_info()
    x = th.ones(2, requires_grad=True)
    detached, other, mark = th.utils.checkpoint.detach_variable((x * 2, th.ones(1), "mark"))
    assert detached.is_leaf and detached.requires_grad and not other.requires_grad and mark == "mark"
    with raises(RuntimeError, "Only tuple"):
        th.utils.checkpoint.detach_variable([x])
    assert th.load(saved(th.ones(2)), map_location=lambda storage, place: storage.to(device="meta")).is_meta


def test_checks_of_conditions():
    for check, error in ((th._check_index, IndexError), (th._check_value, ValueError), (th._check_type, TypeError),
                         (th._check_not_implemented, NotImplementedError)):
        check(True)
        with raises(error, "own words"):
            check(False, lambda: "own words")
        with raises(TypeError, "callable"):
            check(False, "own words")
    th._check_is_size(3, max=3)
    for size, bound in ((-1, None), (4, 3)):
        with raises(RuntimeError):
            th._check_is_size(size, max=bound)
    th._check_tensor_all(th.tensor([True]))
    with raises(RuntimeError):
        th._check_tensor_all(th.tensor([True, False]))
    with raises(TypeError):
        th.set_warn_always(1)
    x = th.zeros(2, requires_grad=True)
    assert not x.detach().module_load(th.ones(2, dtype=th.float64)).requires_grad
    region = th.set_grad_enabled(True).clone()
    assert isinstance(region, th.set_grad_enabled) and region.mode is True


def test_typed_storages_of_older_programs():
    storage = th.IntStorage([-1, 0, 1])
    assert isinstance(storage, th.IntStorage) and not isinstance(storage, th.FloatStorage) and storage.type() == "torch.IntStorage"
    assert storage.byte().tolist() == [255, 0, 1] and storage.bool().tolist() == [True, False, True] and storage.float().dtype is th.float32
    assert th.ShortStorage.from_buffer(bytearray([1, 2, 3, 4]), "big").tolist() == [258, 772]
    swapped = th.TypedStorage([1, 2], dtype=th.uint8).untyped()
    swapped.byteswap(th.int16)
    assert swapped.tolist() == [2, 1]
    assert th.tensor(storage, dtype=th.int32).tolist() == [-1, 0, 1] and th.IntTensor(storage).data_ptr() == storage.data_ptr()
    assert copy.deepcopy(storage).tolist() == pickle.loads(pickle.dumps(storage)).tolist() == [-1, 0, 1]
    x = th.zeros(4)
    whole, again = copy.deepcopy([x[1:], x.storage(), x.view(th.int32)])[:2]
    whole.fill_(1)
    assert again.tolist() == [0.0, 1.0, 1.0, 1.0]
    for error, words, call in (
            (RuntimeError, "Expected a Storage of type Long", lambda: th.tensor(storage, dtype=th.int64)),
            (RuntimeError, "'dtype' cannot be specified", lambda: th.IntStorage(dtype=th.int32)),
            (RuntimeError, "Too many positional arguments", lambda: th.TypedStorage(0, 0)),
            (TypeError, "Argument type not recognized", lambda: th.UntypedStorage(th.zeros(1))),
            (TypeError, "must be UntypedStorage", lambda: th.TypedStorage(wrap_storage=storage, dtype=th.int32)),
            (IndexError, "out of range for storage of size 3", lambda: storage[3]),
            (NotImplementedError, "Not available for 'meta' device", lambda: th.TypedStorage([1], device="meta")[0])):
        with raises(error, words):
            call()


def test_tensors_become_views_of_other_memory():
    source, tensor = th.arange(6.0), th.zeros(1)
    assert tensor.set_(source) is tensor
    source[0] = 9
    assert tensor.tolist() == [9.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert tensor.set_(source.untyped_storage(), 1, [2, 2]).tolist() == [[1.0, 2.0], [3.0, 4.0]] and tensor.is_set_to(source[1:5].view(2, 2))
    assert tensor.set_(source.storage()).shape == (6,) and tensor.set_(source, 0, (3,), (2,)).tolist() == [9.0, 2.0, 4.0]
    assert tensor.set_().shape == (0,)
    with raises(RuntimeError, "Could not set tensor of type"):
        tensor.set_(th.ones(2, dtype=th.int64))


def test_tensors_of_a_storage_by_pytorchs_names_for_files():
    x = th.arange(6.0)
    made = th._utils._rebuild_tensor_v2(x.storage(), 1, (2, 2), (2, 1), True, {})
    assert made.tolist() == [[1.0, 2.0], [3.0, 4.0]] and made.requires_grad and made.data_ptr() == x.data_ptr() + 4
    assert isinstance(th._utils._rebuild_parameter(x, False, {}), th.nn.Parameter)
