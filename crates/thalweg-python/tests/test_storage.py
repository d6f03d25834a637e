"""Storages as objects, and pinned memory."""

import thalweg as th
from thalweg import testing
from thalweg.utils.data import DataLoader, TensorDataset

from support import raises


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
    with raises(NotImplementedError, "not shared between processes"):
        raw.share_memory_()


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
