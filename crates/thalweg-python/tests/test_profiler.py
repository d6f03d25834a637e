"""`profiler`: the contents of a recording, the schedule, and the file."""

import gzip
import json
import os
import tempfile

import thalweg as th
from support import raises
from thalweg.profiler import ProfilerAction, ProfilerActivity, profile, record_function, schedule, tensorboard_trace_handler


def step():
    return (th.ones(8, 8) @ th.ones(8, 8)).relu()


def test_a_region():
    step()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as prof:
        with record_function("one step"):
            step()
        record_function("another")(step)()
    counts = {row.key: row.count for row in prof.key_averages()}
    assert counts["relu"] == 2 and sum(counts.values()) >= 8, counts
    relu = next(row for row in prof.key_averages() if row.key == "relu")
    events = prof.events()
    ran = [event for event in events if event.device_type is th.autograd.DeviceType.CUDA]
    call = next(event for event in events if event.name == "relu" and event.device_type is th.autograd.DeviceType.CPU)
    assert call.kernels and call.kernels[0] in ran and call.device_time_total > 0 and call.cpu_time > 0
    assert [event.time_range.start for event in events] == sorted(event.time_range.start for event in events)
    assert relu.device_time_total > 0 and relu.cpu_time_total >= relu.self_cpu_time_total > 0
    table = prof.key_averages().table(sort_by="cuda_time_total", row_limit=1)
    assert len(table.strip().splitlines()) == 2, table
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        prof.export_chrome_trace(path)
        with open(path) as file:
            events = json.load(file)["traceEvents"]
    names = [event.get("name") for event in events if event.get("cat") == "user_annotation"]
    assert names == ["one step", "another"] and any(event.get("cat") == "kernel" for event in events)


def test_steps_by_a_schedule():
    plan = schedule(wait=1, warmup=1, active=2, repeat=2, skip_first=1)
    none, warmup, record, save = ProfilerAction.NONE, ProfilerAction.WARMUP, ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE
    assert [plan(number) for number in range(10)] == [none, none, warmup, record, save, none, warmup, record, save, none]
    ready = []
    with tempfile.TemporaryDirectory() as folder:
        write = tensorboard_trace_handler(folder, "worker")

        def on_trace_ready(prof):
            ready.append((prof.step_num, {row.key: row.count for row in prof.key_averages()}["relu"]))
            write(prof)
        with profile(schedule=plan, on_trace_ready=on_trace_ready) as prof:
            for _ in range(10):
                step()
                prof.step()
        assert ready == [(4, 2), (8, 2)] and len(os.listdir(folder)) == 2
        for name in sorted(os.listdir(folder)):  # by the time in their names: the last is what `prof` still holds
            with open(os.path.join(folder, name)) as file:
                events = json.load(file)["traceEvents"]
            assert sum(str(event.get("name")).startswith("ProfilerStep#") and event["cat"] == "user_annotation" for event in events) == 2
        tensorboard_trace_handler(folder, "small", use_gzip=True)(prof)
        (name,) = (name for name in os.listdir(folder) if name.endswith(".gz"))
        with gzip.open(os.path.join(folder, name)) as file:
            assert json.load(file)["traceEvents"] == events


def test_memory_and_backward_nodes():
    weight = th.ones(1 << 18, requires_grad=True)
    with profile(profile_memory=True) as prof:
        (weight * 3.0).sum().backward()
        weight.grad = None
    rows = {row.key: row for row in prof.key_averages()}
    # The product's megabyte is allocated inside `mul`, and freed outside of it.
    assert rows["mul"].self_device_memory_usage == 1 << 20, rows["mul"]
    assert rows["MulBackward0"].device_memory_usage >= 1 << 20 and rows["SumBackward0"].count == 1
    assert sum(row.self_device_memory_usage for row in rows.values()) == 0, rows
    assert "MiB" in prof.key_averages().table(sort_by="self_cuda_memory_usage")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        prof.export_chrome_trace(path)
        with open(path) as file:
            events = [event for event in json.load(file)["traceEvents"] if event["name"] == "[memory]"]
    assert sum(event["args"]["Bytes"] for event in events) == 0 and all(event["args"]["Device Type"] == 1 for event in events)
    totals = [event["args"]["Total Allocated"] for event in events]
    for before, event, after in zip(totals, events[1:], totals[1:]):
        assert after == before + event["args"]["Bytes"]
    with profile() as prof:
        step()
    assert "MiB" not in str(prof.key_averages())


def test_emit_nvtx():
    from thalweg.autograd.profiler import emit_nvtx
    with emit_nvtx() as emitter:
        assert th.cuda.nvtx.range_push("within no operator") == 0
        with record_function("a region"):
            assert th.cuda.nvtx.range_push("within the region") == 2
            th.cuda.nvtx.range_pop()
        step()
        assert th.cuda.nvtx.range_pop() == 0
        with raises(RuntimeError, "not reentrant"):
            emitter.__enter__()
    with record_function("a region"):
        assert th.cuda.nvtx.range_push("alone") == 0 and th.cuda.nvtx.range_pop() == 0
    assert th.cuda.nvtx.range_pop() == -1


def test_what_it_refuses():
    prof = profile()
    with raises(AssertionError, "nothing was recorded yet"):
        prof.key_averages()
    with profile():
        with raises(RuntimeError, "records already"):
            profile().start()
    with profile() as prof:
        step()
    with raises(ValueError, "device_time_total"):
        prof.key_averages().table(sort_by="colour")
    with raises(AssertionError, "Invalid profiler schedule"):
        schedule(wait=0, warmup=0, active=0)


def test_short_code_is_timed():
    from thalweg.utils import benchmark
    calls = []
    timer = benchmark.Timer("call(x)", setup="x = torch.ones(2)", globals={"call": lambda x: calls.append(x.shape)}, label="a call", sub_label="row", description="column")
    found = timer.timeit(3)
    assert len(calls) == 3 + 2 and calls[0] == (2,) and found.number_per_run == 3 and found.mean == found.median == found.raw_times[0] / 3
    runs = timer.blocked_autorange(min_run_time=0.001)
    assert sum(runs.raw_times) >= 0.001 and "a call: row" in repr(runs)
    table = str(benchmark.Compare([runs]))
    assert table.startswith("[a call]\n") and "column" in table and "row" in table
    one = benchmark.Measurement(2, [2.0, 4.0, 6.0, 8.0])
    assert (one.median, one.mean, one.iqr) == (2.5, 2.5, 1.5) and one.has_warnings
