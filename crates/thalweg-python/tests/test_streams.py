"""Regions of streams, devices and pools in any order and until the end of their thread, events, and their visibility in other
threads."""

import array
import contextlib
import os
import subprocess
import sys
import threading

import thalweg as th
from thalweg import testing
from thalweg.cuda import MemPool, use_mem_pool

from support import raises


def in_process(text):
    """Returns the output of a program, and its exit status."""
    ran = subprocess.run([sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(th.__file__))}, capture_output=True, text=True)
    return ran.stdout.strip() if ran.returncode == 0 else f"{ran.returncode}: {ran.stderr}"


def test_a_thread_may_end_inside_of_regions():
    program = """
import threading, thalweg as th
kept = []
def prefetch(stream):
    with th.cuda.stream(stream):
        yield 1
def work(kind):
    if kind == "generator":
        kept.append(prefetch(th.cuda.Stream()))
        next(kept[-1])
    elif kind == "capture":
        with th.cuda.stream(th.cuda.Stream()):
            th.cuda.CUDAGraph().capture_begin(capture_error_mode="thread_local")
            th.ones(2)
    elif kind == "set":
        th.cuda.set_stream(th.cuda.Stream())
    else:
        th.cuda.Stream().__enter__()
th.ones(2)
for kind in ("generator", "stream", "capture", "set"):
    thread = threading.Thread(target=work, args=(kind,))
    thread.start()
    thread.join()
del kept[:]
assert th.cuda.current_stream() == th.cuda.default_stream()
work("generator"), work("stream"), work("set")
print("end", (th.ones(2) + 1).tolist())
"""
    assert in_process(program) == "end [2.0, 2.0]"


def in_pool(pool, tensor):
    return any(segment["address"] <= tensor.data_ptr() < segment["address"] + segment["total_size"] for segment in pool.snapshot())


def large():
    return th.empty(3 << 20, dtype=th.uint8)


def test_regions_end_in_any_order():
    default, side, pools = th.cuda.default_stream(), th.cuda.Stream(), (MemPool(), MemPool())
    stream, pool, device = th.cuda.stream(side), use_mem_pool(pools[0]), th.cuda.device(0 if th.cuda.is_available() else "sim:0")
    for region in (stream, pool, device):
        region.__enter__()
    stream.__exit__(None, None, None)
    assert th.cuda.current_stream() == default and in_pool(pools[0], large())
    device.__exit__(None, None, None)
    pool.__exit__(None, None, None)
    assert not in_pool(pools[0], large())
    outer, inner = use_mem_pool(pools[0]), use_mem_pool(pools[1])
    outer.__enter__(), inner.__enter__(), outer.__exit__(None, None, None)
    assert in_pool(pools[1], large())
    inner.__exit__(None, None, None)
    assert not in_pool(pools[1], large())
    # One object, entered twice; and the end of a region ends the settings made in it.
    with side, side:
        assert th.cuda.current_stream() == side
        th.cuda.set_stream(th.cuda.Stream())
    assert th.cuda.current_stream() == default
    th.cuda.set_stream(side)
    with th.cuda.stream(default):
        assert th.cuda.current_stream() == default
    assert th.cuda.current_stream() == side
    th.cuda.set_stream(default)


def test_a_region_that_another_thread_leaves_is_not_that_threads():
    side, stack = th.cuda.Stream(), contextlib.ExitStack()
    stack.enter_context(th.cuda.stream(side))
    seen = []

    def leave():
        with th.cuda.stream(side):
            stack.close()
            seen.append(th.cuda.current_stream() == side)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert seen == [True] and th.cuda.current_stream() == side
    th.cuda.set_stream(th.cuda.default_stream())


def test_no_device_is_a_region_without_one():
    before = th.cuda.current_stream()
    for nothing in (-1, None):
        with th.cuda.device(nothing):
            assert th.cuda.current_stream() == before
    with th.cuda.stream(None):
        assert th.cuda.current_stream() == before


def test_events():
    first, last, plain = th.cuda.Event(enable_timing=True), th.Event("sim", enable_timing=True), th.cuda.Event()
    assert isinstance(th.Event(device="sim"), th.cuda.Event) and plain.query() and plain.cuda_event == 0 and plain.device is None
    with raises(ValueError, "recorded"):
        first.elapsed_time(last)
    first.record(), last.record(), plain.record()
    th.cuda.synchronize()
    assert first.elapsed_time(last) >= 0.0 and first.device == th.get_default_device()
    assert plain.event_id == plain.cuda_event != 0 and plain._as_parameter_.value == plain.cuda_event
    with raises(ValueError, "enable_timing=True"):
        first.elapsed_time(plain)
    for wrong in (lambda: th.cuda.Event(interprocess=True), plain.ipc_handle):
        with raises(NotImplementedError, "left out"):
            wrong()
    with raises(TypeError, "flags and a device"):
        th.cuda.Event(3.5)


def of_host_data(make):
    x = make()
    side = th.cuda.Stream()
    with th.cuda.stream(side):
        y = x * 2
    x.record_stream(side)
    side.synchronize()
    assert y.tolist() == [2.0, 4.0, 6.0]


def test_host_data_has_arrived_when_the_call_returns():
    data = array.array("f", [1.0, 2.0, 3.0])
    for make in (
        lambda: th.tensor([1.0, 2.0, 3.0]), lambda: th.tensor([1.0, 2.0, 3.0], dtype=th.float64), lambda: th.tensor([1, 2, 3]),
        lambda: th.tensor([1 + 0j, 2, 3]).real, lambda: th.as_tensor(data), lambda: th.tensor(data, dtype=th.float64), lambda: th.frombuffer(data, dtype=th.float32),
    ):
        testing.check(lambda: of_host_data(make), seeds=4)
    # What the device makes has not.
    with raises(testing.CheckFailed, "data race"):
        testing.check(lambda: of_host_data(lambda: th.arange(1.0, 4.0)), seeds=4)


def with_external_events(waits=True, signals=True):
    x, side, current = th.zeros(64), th.cuda.Stream(), th.cuda.current_stream()
    ready, done = th.cuda.Event(external=True), th.cuda.Event(external=True)
    side.wait_stream(current)
    graph = th.cuda.CUDAGraph()
    with th.cuda.graph(graph):
        if waits:
            ready.wait()
        y = x * 2
        done.record()
        z = y + 1
    assert done.query()
    for number in (1.0, 2.0):
        with th.cuda.stream(side):
            x.fill_(number)
            ready.record()
        graph.replay()
        with th.cuda.stream(side):
            if signals:
                done.wait()
            assert (y + 10).tolist() == [number * 2 + 10] * 64 or not (waits and signals)
    current.wait_stream(side)
    assert z.tolist() == [5.0] * 64 or not waits


def test_external_events_order_a_graph_with_work_outside():
    with_external_events()
    testing.check(with_external_events, seeds=4)
    with raises(testing.CheckFailed, "data race"):
        testing.check(lambda: with_external_events(waits=False), seeds=4)
    with raises(testing.CheckFailed, "data race"):
        testing.check(lambda: with_external_events(signals=False), seeds=4)


def test_external_events_take_the_time_of_a_part_of_a_graph():
    x = th.ones(64)
    start, end = (th.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    graph = th.cuda.CUDAGraph()
    with th.cuda.graph(graph):
        start.record()
        y = x + 1
        th.cuda.current_stream().record_event(end)
    for _ in range(2):
        graph.replay()
    end.synchronize()
    assert start.elapsed_time(end) >= 0.0 and y.tolist() == [2.0] * 64
    # Outside of captures, it is an ordinary event.
    start.record(), end.record(), end.synchronize()
    assert start.elapsed_time(end) >= 0.0


def test_uses_so_far_keep_less_memory_than_uses_until_the_drop():
    def peak(record):
        th.cuda.synchronize(), th.cuda.empty_cache(), th.cuda.reset_peak_memory_stats()
        side, current = th.cuda.Stream(), th.cuda.current_stream()
        for _ in range(8):
            with th.cuda.stream(side):
                block = th.zeros(4 << 20, dtype=th.uint8)
            current.wait_stream(side)
            block + 1
            getattr(block, record)(current)
            del block
        th.cuda.synchronize()
        return th.cuda.max_memory_reserved()

    assert peak("record_use") <= peak("record_stream")
