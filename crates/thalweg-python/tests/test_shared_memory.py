"""Memory that tensors share with NumPy, other libraries, files and other processes (`torch.multiprocessing`)."""

import ctypes
import gc
import os
import tempfile
import warnings
import weakref

import thalweg as th
import thalweg.multiprocessing as mp
from support import close, raises

ON_SIM = th.device("sim")


def _numpy():
    try:
        import numpy
        return numpy
    except ImportError:
        return None


def test_the_host_reads_and_writes_by_the_address():
    with ON_SIM:
        x = th.arange(6.0).view(2, 3)
        view = x[:, 1:]
        assert view._host_address(False) == x._host_address(False) + 4
        row = (ctypes.c_float * 6).from_address(x._host_address(False))
        # What operators write is there when they return, and what the host writes is there before they begin.
        for step in range(50):
            x.add_(1)
            assert list(row) == [step + 1.0 + place for place in range(6)]
        row[5] = 100.0
        assert view[1, 1].item() == 100.0 and (x * 2)[1, 2].item() == 200.0
        del x
        assert view[1, 1].item() == 100.0 == row[5]


def test_numpy_arrays_share_memory():
    numpy = _numpy()
    if numpy is None:
        return "NumPy is not installed"
    with ON_SIM:
        array = numpy.zeros((3, 4), dtype=numpy.float32)
        x = th.from_numpy(array[:, 1:3])
        array[2, 1] = 5.0
        assert x[2, 0].item() == 5.0 and x.stride() == (4, 1)
        x.add_(1.0)
        assert array.tolist() == [[0, 1, 1, 0], [0, 1, 1, 0], [0, 6, 1, 0]]
        again = x.t().numpy()
        again[1, 0] = 9.0
        assert array[0, 2] == 9.0 and again.shape == (2, 3) and again.strides == (4, 16)
        assert th.as_tensor(array)._host_address(False) == array.ctypes.data and th.as_tensor(array, dtype=th.float64).sum().item() == array.sum()
        # Each keeps the other's memory.
        made = th.arange(3.0)
        alone = made.numpy()
        del made
        gc.collect()
        assert [th.full((3,), 7.0) for _ in range(8)] and alone.tolist() == [0.0, 1.0, 2.0]
        known = weakref.ref(kept := numpy.ones(2))
        over = th.from_numpy(kept)
        del kept
        assert known() is not None and over.tolist() == [1.0, 1.0]
        del over
        th.from_numpy(numpy.ones(1))
        assert known() is None
        # Steps of training on such memory.
        weight = th.from_numpy(parameter := numpy.ones(2, dtype=numpy.float32)).requires_grad_()
        optimizer = th.optim.SGD([weight], lr=0.5)
        (weight * weight).sum().backward()
        optimizer.step()
        assert parameter.tolist() == [0.0, 0.0] and weight.grad.numpy().tolist() == [2.0, 2.0]
        for resized in (th.from_numpy(numpy.zeros(2)), x.new_zeros(2)):
            resized.numpy()
            with raises(RuntimeError, "Trying to resize storage that is not resizable"):
                resized.resize_(100)
        with raises(ValueError, "At least one stride in the given numpy array is negative"):
            th.from_numpy(numpy.zeros(3)[::-1])
        with raises(ValueError, "byte order different"):
            th.from_numpy(numpy.zeros(3, dtype=">f4"))
        with raises(TypeError, "expected np.ndarray (got list)"):
            th.from_numpy([1.0])
        fixed = numpy.arange(3.0)
        fixed.flags.writeable = False
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert th.from_numpy(fixed).add_(1).tolist() == [1.0, 2.0, 3.0] and fixed[0] == 0.0
        assert "not writable" in str(caught[0].message)
        shared = numpy.from_dlpack(th.ones(3))
        assert shared.sum() == 3.0 and th.from_dlpack(array)._host_address(False) == array.ctypes.data


def test_buffers_and_files():
    with ON_SIM:
        data = bytearray(16)
        x = th.frombuffer(data, dtype=th.int32, offset=4, count=2)
        x.fill_(-1)
        assert data == b"\0" * 4 + b"\xff" * 8 + b"\0" * 4
        data[4] = 0
        assert x[0].item() == -256
        with raises(ValueError, "must be a multiple of element size (4)"):
            th.frombuffer(bytearray(5), dtype=th.int32)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "numbers")
            th.from_file(path, shared=True, size=4, dtype=th.float32).copy_(th.arange(4.0))
            private = th.from_file(path, shared=False, size=4)
            private.mul_(10)
            assert private.tolist() == [0.0, 10.0, 20.0, 30.0] and th.from_file(path, size=4).tolist() == [0.0, 1.0, 2.0, 3.0]
            assert th.UntypedStorage.from_file(path, True, 16).filename == path
            with raises(RuntimeError, "is smaller than the required mapping size <160>"):
                th.from_file(path, size=40)


class Adding(mp.Process):
    """A process whose tensor is an attribute."""

    def __init__(self, tensor):
        super().__init__()
        self.tensor = tensor

    def run(self):
        self.tensor.add_(10)


COUNTS = th.zeros(2, device="sim")


def _work(shared, private, queue, done):
    shared += 1
    private += 1
    queue.put((shared[:2], private.sum().item()))
    done.wait(60)


def _train(model, steps):
    optimizer = th.optim.SGD(model.parameters(), lr=0.125)
    for _ in range(steps):
        optimizer.zero_grad()
        model(th.ones(1, 2)).sum().backward()
        optimizer.step()


def _count(place):
    th.manual_seed(3)
    COUNTS[place] = float(place + 1)


def _end(process):
    process.join(120)
    assert process.exitcode == 0, process.exitcode


def test_processes_share_tensors():
    with ON_SIM:
        for method in ("fork", "spawn"):
            context = mp.get_context(method)
            shared, private = th.zeros(3).share_memory_(), th.ones(2)
            assert shared.is_shared() and shared[1:].is_shared() and not private.is_shared() and shared.untyped_storage().is_shared()
            queue, done = context.Queue(), context.Event()
            process = context.Process(target=_work, args=(shared, private, queue, done))
            process.start()
            part, total = queue.get(timeout=120)
            assert total == 4.0 and shared.tolist() == [1.0, 1.0, 1.0]
            # A tensor that was received is over the sender's memory. A spawned process shares all that it is given, as in PyTorch.
            part.fill_(5.0)
            assert shared.tolist() == [5.0, 5.0, 1.0] and private.is_shared() is (method == "spawn")
            done.set()
            _end(process)
            assert private.tolist() == ([1.0, 1.0] if method == "fork" else [2.0, 2.0])
            model = th.nn.Linear(2, 1).share_memory()
            before = model.weight.detach().clone()
            process = context.Process(target=_train, args=(model, 4))
            process.start()
            _end(process)
            close(before - model.weight, [[0.5, 0.5]])
            assert model.weight.grad is None


def test_forked_processes_have_what_they_reach():
    with ON_SIM:
        COUNTS.zero_().share_memory_()
        former = mp.get_start_method()
        mp.set_start_method("fork", force=True)
        try:
            shared = th.ones(2).share_memory_()
            for process in (Adding(shared), mp.Process(target=_count, args=(1,))):
                process.start()
                _end(process)
        finally:
            mp.set_start_method(former, force=True)
        assert shared.tolist() == [11.0, 11.0] and COUNTS.tolist() == [0.0, 2.0]
        with raises(RuntimeError, "Cowardly refusing to serialize non-leaf tensor which requires_grad"):
            mp.reduction.ForkingPickler.dumps(th.ones(1, requires_grad=True) * 2)


def test_a_hook_does_not_keep_its_module():
    class Scaled(th.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = th.nn.Parameter(th.ones(2))
            self.seen = []
            self.weight.register_hook(lambda gradient: self.seen.append(gradient.tolist()))
            self.handle = self.weight.register_post_accumulate_grad_hook(lambda weight: self.seen.append(weight is self.weight))

    module = Scaled()
    (module.weight * 3).sum().backward()
    module.handle.remove()
    (module.weight * 3).sum().backward()
    assert module.seen == [[3.0, 3.0], True, [3.0, 3.0]]
    known = weakref.ref(module)
    del module
    gc.collect()
    assert known() is None


def test_the_node_of_a_leaf_names_it():
    weight, x = th.nn.Parameter(th.ones(2)), th.ones(2, requires_grad=True)
    nodes = [node for node, _ in (weight * x).grad_fn.next_functions]
    assert nodes[0].variable is weight and nodes[1].variable.data_ptr() == x.data_ptr()
