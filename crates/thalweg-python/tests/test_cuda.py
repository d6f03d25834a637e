"""Streams, events, graphs and memory, on whatever device there is."""

import thalweg as th
from support import raises


def test_streams_and_events():
    stream = th.cuda.Stream()
    assert th.cuda.current_stream() == th.cuda.default_stream() != stream
    start, end = th.cuda.Event(enable_timing=True), th.cuda.Event(enable_timing=True)
    x = th.ones(1000)
    stream.wait_stream(th.cuda.current_stream())
    with th.cuda.stream(stream):
        assert th.cuda.current_stream() == stream
        start.record()
        y = x * 2
        end.record()
    assert th.cuda.current_stream() == th.cuda.default_stream()
    y.record_stream(th.cuda.current_stream())
    end.wait()
    end.synchronize()
    assert end.query() and stream.query() and start.elapsed_time(end) >= 0 and y.sum().item() == 2000
    th.cuda.synchronize()


def test_graphs():
    x = th.zeros(4)
    x + 1  # its kernel is loaded before the capture
    graph = th.cuda.CUDAGraph()
    with th.cuda.graph(graph):
        y = x + 1
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [value + 1] * 4
    with raises(RuntimeError):
        with th.cuda.graph(th.cuda.CUDAGraph()):
            y.item()
    assert (x + 1).tolist() == [6.0] * 4
    with raises(RuntimeError, "without a preceding successful capture"):
        th.cuda.CUDAGraph().replay()


def test_memory():
    before = th.cuda.memory_allocated()
    x = th.empty(1 << 20, dtype=th.uint8)
    assert th.cuda.memory_allocated() == before + (1 << 20) and th.cuda.memory_reserved() >= 1 << 20
    th.cuda.reset_peak_memory_stats()
    del x
    assert th.cuda.memory_allocated() == before and th.cuda.max_memory_allocated() == before + (1 << 20)
    th.cuda.empty_cache()
    assert th.cuda.memory_stats()["allocated_bytes.all.current"] == before and "Allocated" in th.cuda.memory_summary()


def test_devices():
    assert th.cuda.is_available() == (th.get_default_device().type == "cuda") or th.cuda.is_available()
    properties = th.cuda.get_device_properties()
    assert properties.total_memory > 0 and th.cuda.get_device_name() == properties.name
    with th.cuda.device(0):
        assert th.cuda.current_device() == 0
    for name in ("nvtx", "tunable", "MemPool"):
        with raises(AttributeError, "left out"):
            getattr(th.cuda, name)
