"""Memory beyond tensors: free memory, limits, snapshots and pools, pinned memory; states of all generators."""

import os
import pickle
import tempfile

import thalweg as th
from thalweg.cuda import memory, profiler, random, streams
from support import raises

MEBIBYTE = 1 << 20


def test_free_memory_and_limits():
    free, total = th.cuda.mem_get_info()
    assert 0 < free <= total and th.cuda.device_memory_used() >= 0
    th.cuda.set_per_process_memory_fraction(1e-9)
    try:
        assert th.cuda.get_per_process_memory_fraction() == 1e-9
        with raises(th.cuda.OutOfMemoryError):
            th.empty(64 * MEBIBYTE, dtype=th.uint8)
    finally:
        th.cuda.set_per_process_memory_fraction(1.0)
    th.empty(64 * MEBIBYTE, dtype=th.uint8)
    with raises(ValueError, "0~1"):
        th.cuda.set_per_process_memory_fraction(1.5)
    with raises(TypeError):
        th.cuda.set_per_process_memory_fraction(1)


def test_statistics_as_dictionaries():
    x = th.empty(MEBIBYTE, dtype=th.uint8)
    nested, flat = th.cuda.memory_stats_as_nested_dict(), th.cuda.memory_stats()
    assert nested["allocated_bytes"]["all"]["current"] == flat["allocated_bytes.all.current"] >= x.nbytes
    assert memory.memory_allocated is th.cuda.memory_allocated and th.cuda.get_allocator_backend() == "native"
    host = th.cuda.host_memory_stats()
    assert "allocated_bytes.current" in host, sorted(host)
    assert th.cuda.host_memory_stats_as_nested_dict()["allocated_bytes"]["current"] == host["allocated_bytes.current"]
    th.cuda.reset_peak_host_memory_stats()
    th.cuda.reset_accumulated_host_memory_stats()


def test_snapshot_has_the_block_of_a_tensor():
    x = th.empty(3 * MEBIBYTE, dtype=th.uint8)
    address = x.data_ptr()
    segments = th.cuda.memory_snapshot()
    found = [segment for segment in segments if segment["address"] <= address < segment["address"] + segment["total_size"]]
    assert len(found) == 1
    blocks = [block for block in found[0]["blocks"] if block["address"] == address]
    assert len(blocks) == 1 and blocks[0]["state"] == "active_allocated" and blocks[0]["size"] >= x.nbytes


def test_pools():
    pool = th.cuda.MemPool()
    assert pool.use_count() == 1 and pool.snapshot() == []
    with th.cuda.use_mem_pool(pool):
        assert pool.use_count() == 2
        inside = th.empty(MEBIBYTE, dtype=th.uint8)
    outside = th.empty(MEBIBYTE, dtype=th.uint8)
    segments = pool.snapshot()
    assert segments == th.cuda.memory_snapshot(pool.id) and all(tuple(segment["segment_pool_id"]) == pool.id for segment in segments)

    def has(tensor):
        return any(segment["address"] <= tensor.data_ptr() < segment["address"] + segment["total_size"] for segment in segments)
    assert has(inside) and not has(outside)
    number = pool.id
    del pool
    with raises(RuntimeError, "there is no pool"):
        th.cuda.memory_snapshot(number)
    with raises(TypeError, "takes a MemPool"):
        th.cuda.use_mem_pool(None)
    with raises(NotImplementedError, "left out"):
        th.cuda.MemPool(allocator=object())


def test_random_states_of_all_devices():
    states = th.cuda.get_rng_state_all()
    assert len(states) == th._core._cuda._device_count()
    drawn = th.rand(4).tolist()
    th.cuda.set_rng_state_all(states)
    assert th.rand(4).tolist() == drawn
    former = th.cuda.initial_seed()
    random.seed_all()
    assert th.cuda.initial_seed() != former
    th.manual_seed(0)


def test_peers_and_profiler():
    assert th.cuda.can_device_access_peer(0, 0) is False
    with raises(RuntimeError):
        th.cuda.can_device_access_peer(0, 1000)
    assert streams.Stream is th.cuda.Stream
    with profiler.profile():
        assert (th.ones(2) + 1).tolist() == [2.0, 2.0]
    assert isinstance(th.cuda.is_tf32_supported(), bool)


def test_notebooks_show_memory():
    pool = th.cuda.MemPool()
    with th.cuda.use_mem_pool(pool):
        x = th.empty(3 << 20, dtype=th.uint8)
    segments = pool.snapshot()
    shown = segments._repr_html_()
    assert isinstance(segments, list) and shown.count("<svg") == len(segments) == 1
    assert "3.0 MiB active_allocated" in shown and "tensors have 3.0 MiB of it" in shown
    assert th.cuda.memory.Segments([])._repr_html_().startswith("<p>0 segments of 0 B")
    strange = [{**segments[0], "segment_type": "<b>"}]
    assert "<b>" not in th.cuda.memory.Segments(strange)._repr_html_()
    summary = th.cuda.memory_summary()
    assert isinstance(summary, str) and summary._repr_html_().startswith("<pre>") and "Allocated memory" in summary._repr_html_()
    assert x.numel() == 3 << 20 and th.cuda.memory_snapshot()._repr_html_().startswith("<p>")


def traced(kind, snapshot):
    return [event for trace in snapshot["device_traces"] for event in trace if event["action"] == kind]


def test_history_has_lines_of_python():
    memory._record_memory_history(max_entries=1000)
    try:
        memory._set_memory_metadata({"step": 1})
        x = th.empty(5 * MEBIBYTE, dtype=th.uint8)
        address = x.data_ptr()
        memory._set_memory_metadata("")
        memory._annotate_tensor(x, "weights")
        y = x + 1
        snapshot = memory._snapshot()
        block = next(block for segment in snapshot["segments"] for block in segment["blocks"] if block["address"] == address)
        assert block["frames"][0]["name"] == "test_history_has_lines_of_python" and block["frames"][0]["filename"] == __file__
        made = next(event for event in traced("alloc", snapshot) if event["addr"] == address)
        assert made["size"] >= x.nbytes and made["frames"][0]["line"] == block["frames"][0]["line"] > 0
        assert made["user_metadata"] == '{"step":1}'
        assert any(event["addr"] == address and event["user_metadata"] == "weights" for event in traced("annotate", snapshot))
        del x, y
        th.cuda.synchronize()
        assert any(event["addr"] == address for event in traced("free_requested", memory._snapshot()))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "snapshot.pickle")
            memory._dump_snapshot(path)
            with open(path, "rb") as file:
                written = pickle.load(file)
        assert {"segments", "device_traces", "allocator_settings", "external_annotations"} <= set(written)
        assert any(event["addr"] == address for event in traced("alloc", written))
    finally:
        memory._record_memory_history(enabled=None)
    assert not traced("alloc", memory._snapshot())
    later = th.empty(5 * MEBIBYTE, dtype=th.uint8)
    assert all(not block.get("frames") for segment in memory._snapshot()["segments"] for block in segment["blocks"]), later


def test_history_refuses():
    with raises(RuntimeError, "'state', 'all'"):
        memory._record_memory_history("everything")
    with raises(TypeError, "context must be a str"):
        memory._record_memory_history(context=3)
    with raises(ValueError, "max_entries"):
        memory._record_memory_history(max_entries=-1)
    with raises(ValueError, "no action `sleep`"):
        memory._record_memory_history(skip_actions=["sleep"])
    memory._record_memory_history("all", context=None, skip_actions=["alloc"])
    try:
        x = th.empty(MEBIBYTE, dtype=th.uint8)
        assert not traced("alloc", memory._snapshot()), x
    finally:
        memory._record_memory_history(None)
    memory._record_memory_history(True, trace_alloc_max_entries=10, trace_alloc_record_context=True)
    memory._record_memory_history(False)


def test_settings_of_the_allocator():
    memory._set_allocator_settings("max_split_size_mb:256")
    try:
        assert memory._snapshot()["allocator_settings"]["max_split_size"] == 256 * MEBIBYTE
        with raises(ValueError, "max_split_size"):
            memory._set_allocator_settings("max_split_sizes_mb:256")
    finally:
        memory._set_allocator_settings("max_split_size_mb:1048576")


def test_frees_have_stacks_where_they_are_asked_for():
    def drops(tensors):
        tensors.clear()

    for context, frees in (("state", False), ("alloc", False), ("all", True)):
        th.cuda.memory._record_memory_history(context=context)
        try:
            drops([th.ones(300)])
            assert ("drops" in str(th.cuda.memory._snapshot()["device_traces"])) is frees, context
        finally:
            th.cuda.memory._record_memory_history(None)
