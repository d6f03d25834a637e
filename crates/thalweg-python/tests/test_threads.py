"""Several threads at once: independent computations are right, shared reads are right, and concurrent changes result in one of
the values that were set. With the interpreter lock, threads are switched as often as the interpreter allows; a free-threaded
build runs them in parallel."""

import copy
import contextlib
import pathlib
import subprocess
import sys
import threading

import thalweg as th
from support import raises
from thalweg.utils.checkpoint import checkpoint
from thalweg.utils.hooks import RemovableHandle

THREADS = 6


@contextlib.contextmanager
def often_switched():
    """Makes the interpreter switch threads as often as possible."""
    former = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(former)


def together(function, count=THREADS):
    """Calls `function(number)` in `count` threads that start together. Returns the results by number, or raises the first
    exception."""
    results, failures, start = [None] * count, [], threading.Barrier(count)

    def run(number):
        try:
            start.wait()
            results[number] = function(number)
        except BaseException as failure:
            failures.append(failure)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    with often_switched():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    return results


def test_a_free_threaded_interpreter_stays_without_its_lock():
    if not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled():
        return "the interpreter has its lock"
    program = "import sys; sys.path.insert(0, sys.argv[1]); import thalweg; sys.exit(sys._is_gil_enabled())"
    package = str(pathlib.Path(th.__file__).parent.parent)
    # Importing a module that needs the lock causes a warning and enables the lock.
    subprocess.run([sys.executable, "-W", "error", "-c", program, package], check=True)


def test_threads_compute_with_tensors_of_their_own():
    def work(number):
        x = th.arange(64, dtype=th.float64) + number
        for _ in range(30):
            y = (x * 2 + 1).reshape(8, 8)
            assert (y @ th.eye(8, dtype=th.float64)).sum().item() == sum(2 * (value + number) + 1 for value in range(64))
            assert y[1, 2:4].tolist() == [2.0 * (10 + number) + 1, 2.0 * (11 + number) + 1]
        return x.sum().item()
    assert together(work) == [sum(value + number for value in range(64)) for number in range(THREADS)]


def test_threads_read_one_tensor():
    x = th.arange(24, dtype=th.float32, requires_grad=True)
    expected = repr(x)

    def work(_):
        for _ in range(40):
            assert x.shape == (24,) and x.dtype is th.float32 and x.requires_grad and x.is_leaf and x.stride() == (1,)
            assert (x + x).detach().tolist() == [2.0 * value for value in range(24)]
            assert x.view(4, 6)[2].sum().item() == 87.0 and repr(x) == expected and x.grad is None
            assert x.to(th.float32) is x and x.contiguous() is x
    together(work)


def test_data_is_replaced_while_others_read_it():
    x = th.zeros(2)
    values = {number: th.full([2 + number % 2], float(number)) for number in range(THREADS)}

    def work(number):
        for step in range(150):
            if number % 2:
                x.data = values[number]
                x.requires_grad_(step % 2 == 0)
            else:
                seen = (x * 1).tolist()
                assert len(set(seen)) == 1 and (seen[0] == 0.0 or len(seen) == 2 + int(seen[0]) % 2), seen
                assert tuple(x.shape) in ((2,), (3,)) and len(x.data) in (2, 3) and isinstance(x.requires_grad, bool)
                x.to(th.float64), x.detach(), copy.deepcopy(x) if x.is_leaf else None
    together(work)
    assert x.tolist() in [values[number].tolist() for number in range(1, THREADS, 2)]

    def detach(number):
        for _ in range(100):
            y.detach_()
            y.data = values[number]
            assert y.numel() in (2, 3)
    y = th.zeros(2, requires_grad=True) * 2
    together(detach)
    assert y.grad_fn is None


def test_threads_write_in_place():
    x = th.zeros(THREADS + 2, dtype=th.float64)

    def work(number):
        for _ in range(40):
            x.add_(1)
            x[number:number + 1].add_(1)
    together(work)
    assert x.tolist() == [40.0 * (THREADS + 1)] * THREADS + [40.0 * THREADS] * 2


def test_shapes_change_while_others_read_them():
    x, y = th.arange(6, dtype=th.float32).reshape(2, 3), th.arange(6, dtype=th.float32)

    def work(number):
        for step in range(200):
            if number == 0:
                x.transpose_(-1, -2)
            elif number == 1:
                x.unsqueeze_(0)
                x.squeeze_(0)
            elif number == 2:
                y.resize_(4 if step % 2 else 6)
            else:
                # A call may refuse a shape that changes while it runs, but it never computes with a shape that did not exist.
                try:
                    assert sorted(x.flatten().tolist()) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0] and len(x.shape) in (2, 3)
                except RuntimeError:
                    pass
                try:
                    assert len((y + 1).tolist()) in (4, 6)
                except RuntimeError:
                    pass
    together(work)
    # Results for a shape that was changing are not cached for later calls.
    for size in (4, 6):
        y.resize_(size)
        y.copy_(th.arange(size))
        assert together(lambda _: (y + 1).tolist()) == [[value + 1.0 for value in range(size)]] * THREADS


def test_gradients_are_set_while_others_read_them():
    x = th.zeros(3, requires_grad=True)
    gradients = [th.full([3], float(number)) for number in range(THREADS)]

    def work(number):
        for _ in range(150):
            x.grad = gradients[number]
            seen = x.grad
            assert seen is None or len(set(seen.tolist())) == 1
            if number == 0:
                x.grad = None
    together(work)
    assert x.grad is None or x.grad.tolist() in [gradient.tolist() for gradient in gradients]


def test_hooks_are_added_while_gradients_flow():
    x = th.ones(2, requires_grad=True)
    calls = [0] * THREADS

    def work(number):
        if number == 0:
            for _ in range(40):
                (x * 2).sum().backward()
            return []
        kept = []
        for _ in range(30):
            def count(gradient):
                calls[number] += 1
            x.register_hook(count).remove()
            kept.append(x.register_hook(count))
            x.register_post_accumulate_grad_hook(lambda leaf: None).remove()
        return kept
    kept = [handle for handles in together(work) for handle in handles]
    assert x.grad.tolist() == [80.0, 80.0] and len(kept) == 30 * (THREADS - 1)
    calls[:] = [0] * THREADS
    (x * 2).sum().backward()
    assert calls == [0] + [30] * (THREADS - 1)
    together(lambda number: [handle.remove() for handle in kept[number::THREADS]])
    calls[:] = [0] * THREADS
    (x * 2).sum().backward()
    assert calls == [0] * THREADS


def test_hooks_of_modules_are_added_while_it_is_called():
    layer = th.nn.Linear(2, 2)
    x = th.ones(1, 2)
    called = []

    def work(number):
        if number == 0:
            for _ in range(40):
                layer(x)
            return []
        handles = []
        for place in range(20):
            layer.register_forward_hook(lambda *_: None).remove()
            entry = (number, place)
            handles.append(layer.register_forward_hook(lambda *_, entry=entry: called.append(entry), prepend=number % 2 == 1))
            layer.register_forward_pre_hook(lambda module, args: (args[0] + 0,)).remove()
        return handles
    handles = [handle for found in together(work) for handle in found]
    assert len({handle.id for handle in handles}) == len(handles) == 20 * (THREADS - 1)
    called.clear()
    layer(x)
    assert sorted(called) == [(number, place) for number in range(1, THREADS) for place in range(20)]
    # The hooks of one thread are in the order of their registration, or reversed if they were prepended; all prepended ones
    # come first.
    for number in range(1, THREADS):
        places = [place for thread, place in called if thread == number]
        assert places == sorted(places, reverse=number % 2 == 1)
    in_front = [number % 2 == 1 for number, _ in called]
    assert in_front == sorted(in_front, reverse=True)
    for handle in handles:
        handle.remove()
    numbers = [number for found in together(lambda _: [RemovableHandle({}).id for _ in range(200)]) for number in found]
    assert len(set(numbers)) == len(numbers)


def test_threads_run_backward():
    weight = th.zeros(4, dtype=th.float64, requires_grad=True)

    def work(number):
        for _ in range(30):
            (weight * (number + 1)).sum().backward()
    together(work)
    assert weight.grad.tolist() == [30.0 * sum(range(1, THREADS + 1))] * 4

    x = th.full([3], 2.0, dtype=th.float64, requires_grad=True)
    loss = (x * x * x).sum()

    def again(_):
        for _ in range(10):
            gradient, = th.autograd.grad(loss, x, retain_graph=True)
            assert gradient.tolist() == [12.0] * 3
    together(again)


def test_one_thread_gets_what_a_capsule_holds():
    def work(_):
        try:
            return th.from_dlpack(capsule).tolist()
        except TypeError:
            return None
    for _ in range(20):
        capsule = th.ones(2).__dlpack__()
        assert sorted(together(work), key=bool) == [None] * (THREADS - 1) + [[1.0, 1.0]]


class _Double(th.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        saved, = ctx.saved_tensors
        return gradient * 2 + saved * 0


def test_threads_run_functions_of_python_in_backward():
    def work(number):
        for _ in range(15):
            x = th.full([2], float(number), requires_grad=True)
            y = checkpoint(lambda value: _Double.apply(value).sin(), x, use_reentrant=False)
            assert y.requires_grad
            _Double.apply(x).sum().backward()
            assert x.grad.tolist() == [2.0, 2.0]
            with raises(ValueError, str(number)):
                x.register_hook(lambda gradient: (_ for _ in ()).throw(ValueError(str(number))))
                (x * 1).sum().backward()
    together(work)


def test_threads_train_models_of_their_own():
    def work(_):
        weight = th.nn.Parameter(th.tensor([1.0, -2.0, 3.0]))
        optimizer = th.optim.AdamW([weight], lr=0.1)
        losses = []
        for _ in range(12):
            loss = (weight * weight).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses
    results = together(work)
    alone = work(0)
    assert all(losses == alone for losses in results) and alone[-1] < alone[0]


def test_threads_share_streams_events_and_generators():
    side, event = th.cuda.Stream(), th.cuda.Event()
    generator = th.Generator().manual_seed(7)

    def work(number):
        drawn = []
        for _ in range(25):
            with th.cuda.stream(side):
                assert th.cuda.current_stream() == side
                x = th.full([8], float(number)) + 1
                event.record()
            th.cuda.current_stream().wait_event(event)
            event.query(), side.query()
            event.synchronize(), side.synchronize()
            assert x.tolist() == [number + 1.0] * 8
            drawn += th.rand(4, dtype=th.float64, generator=generator).tolist()
        return drawn
    drawn = [number for numbers in together(work) for number in numbers]
    # No number was drawn twice, and together they are the numbers that a single thread draws.
    generator.manual_seed(7)
    alone = [number for _ in range(25 * THREADS) for number in th.rand(4, dtype=th.float64, generator=generator).tolist()]
    assert sorted(drawn) == sorted(alone) and len(set(drawn)) == len(drawn)


def test_threads_share_graphs_and_pools():
    x = th.zeros(4)
    x.add_(1)
    x.zero_()
    graph = th.cuda.CUDAGraph()
    with th.cuda.graph(graph):
        x.add_(1)
    together(lambda _: [graph.replay() for _ in range(20)])
    assert x.tolist() == [20.0 * THREADS] * 4

    pool = th.cuda.MemPool()

    def allocate(number):
        for _ in range(15):
            with th.cuda.use_mem_pool(pool):
                y = th.full([1 << 12], float(number))
            assert y[5].item() == number
            pool.snapshot(), pool.use_count()
    together(allocate)
    assert pool.use_count() == 1

    shared = th.cuda.graph_pool_handle()

    def capture(number):
        # Only one capture at a time: captures of other threads are refused meanwhile, as in CUDA.
        with captures:
            own, y = th.cuda.CUDAGraph(), th.full([4], float(number))
            with th.cuda.graph(own, pool=shared, capture_error_mode="thread_local"):
                y.add_(1)
        for _ in range(5):
            own.replay()
        own.pool(), own.reset()
        return y.tolist()
    captures = threading.Lock()
    assert together(capture) == [[number + 5.0] * 4 for number in range(THREADS)]


def test_threads_share_the_object_of_a_region():
    quiet, loud, mixed = th.no_grad(), th.enable_grad(), th.autocast("cuda", dtype=th.bfloat16)
    named, saved = th.profiler.record_function("shared"), th.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
    weight = th.ones(2, 2, requires_grad=True)

    def work(number):
        for _ in range(30):
            with quiet if number % 2 else loud:
                assert th.is_grad_enabled() == (number % 2 == 0)
                with mixed, named, saved:
                    assert th.is_autocast_enabled() and (weight @ weight).dtype is th.bfloat16
                    with quiet:
                        assert not (weight @ weight).requires_grad
                    assert th.is_grad_enabled() == (number % 2 == 0)
            assert th.is_grad_enabled() and not th.is_autocast_enabled()
    together(work)
    for region in (quiet, mixed, named, saved):
        with raises(RuntimeError, "has not entered the region"):
            region.__exit__(None, None, None)


def test_a_scaler_is_made_once():
    scaler = th.GradScaler(init_scale=8.0)
    assert together(lambda _: scaler.scale(th.ones(1)).item()) == [8.0] * THREADS
    made = together(lambda _: id(scaler._scaler()))
    assert len(set(made)) == 1


def test_histories_and_metadata_belong_to_their_threads():
    def work(number):
        for _ in range(20):
            th.cuda.memory._set_memory_metadata(f"thread {number}")
            th.ones(16)
            assert th.cuda.memory._get_memory_metadata() == f"thread {number}"
            th.cuda.memory_stats(), th.cuda.memory_allocated()
    th.cuda.memory._record_memory_history(max_entries=1000)
    try:
        together(work)
        assert {event["user_metadata"] for event in th.cuda.memory._snapshot()["device_traces"][-1]} >= {f"thread {number}" for number in range(THREADS)}
    finally:
        th.cuda.memory._record_memory_history(enabled=None)


def test_threads_share_a_captured_function():
    fast = th.compile(lambda x: x.exp() + 1, mode="reduce-overhead")

    def work(number):
        with th.no_grad():
            for _ in range(10):
                x = th.randn(5)
                assert th.equal(fast(x), x.exp() + 1), number
    with often_switched():
        together(work, 4)


def test_another_thread_reads_what_a_compiled_function_did_not_store():
    from test_compile_widened import agree

    def elsewhere(loss):
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()

    agree(backward=elsewhere, classes=2050)
