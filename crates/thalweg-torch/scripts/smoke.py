"""Checks that the allocator works inside this machine's PyTorch. Each check runs in a separate process, in both tiers.

    python3 smoke.py [--tier 1|2] [check ...]

Prints one JSON object a line: {"check", "tier", "ok", "seconds", ...}; the exit status is the number of failures.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback

TIERS = (1, 2)


def eager(torch, thalweg_torch, tier):
    x = torch.randn(512, 512, device="cuda")
    y = (x @ x).sum().item()
    assert abs(y - (x.cpu() @ x.cpu()).sum().item()) < 1.0
    for power in range(1, 24):
        z = torch.full((1 << power,), 3.0, device="cuda")
        assert z.sum().item() == 3.0 * (1 << power)
    parameters = [torch.nn.Linear(256, 256).cuda() for _ in range(8)]
    optimizer = torch.optim.AdamW([p for m in parameters for p in m.parameters()], fused=True)
    for _ in range(5):
        h = torch.randn(64, 256, device="cuda")
        for module in parameters:
            h = module(h).relu()
        h.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()


def statistics(torch, thalweg_torch, tier):
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before == 64 << 20
    del x
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= 64 << 20
    assert torch.cuda.max_memory_reserved() >= 64 << 20
    stats, ours = torch.cuda.memory_stats(), thalweg_torch.memory_stats()
    for key in ("allocated_bytes.all.peak", "reserved_bytes.all.current", "num_ooms", "active.small_pool.allocated"):
        assert stats[key] == ours[key], key
    assert torch.cuda.memory_reserved("cuda:0") == torch.cuda.memory_reserved(0) == torch.cuda.memory_reserved()
    for device, error in (("cpu:0", ValueError), ("meta", ValueError), (99, RuntimeError)):
        for function in (torch.cuda.memory_stats, torch.cuda.reset_peak_memory_stats):
            try:
                function(device)
                raise AssertionError(f"{function} took {device}")
            except error:
                pass
    assert thalweg_torch.settings("cuda:0") == thalweg_torch.settings(None) == thalweg_torch.settings()
    torch.cuda.empty_cache()
    text = torch.cuda.memory_summary()
    assert "eserved memory" in text, text
    return {"keys": len(stats), "reserved": torch.cuda.memory_reserved()}


def exceptions(torch, thalweg_torch, tier):
    """Checks that freeing a tensor while an exception is being handled does not clear that exception."""
    torch.cuda.memory._record_memory_history()
    source = "def raising(make):\n    return (\n        make(),\n        int('mine'),\n    )\n"
    names = {}
    # The free is on another line than the allocation, of a file whose name is not UTF-8.
    exec(compile(source, b"\xff\xfe.py".decode("utf-8", "surrogateescape"), "exec"), names)
    try:
        names["raising"](lambda: torch.empty(1000, device="cuda"))
    except ValueError as error:
        assert "mine" in str(error), error


def snapshot(torch, thalweg_torch, tier):
    torch.cuda.memory._record_memory_history(max_entries=1000)
    x = torch.empty(12345, device="cuda")
    y = x + 1
    del x
    taken = torch.cuda.memory._snapshot()
    frames = [block["frames"] for segment in taken["segments"] for block in segment["blocks"] if block.get("frames")]
    actions = [entry["action"] for trace in taken["device_traces"] for entry in trace]
    assert actions.count("alloc") == 2 and "free_completed" in actions, actions
    assert any("smoke.py" in frame["filename"] for stack in frames for frame in stack), frames
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(file)
        ours = os.path.join(folder, "ours.pickle")
        thalweg_torch._dump_snapshot(ours)
        sizes = os.path.getsize(file), os.path.getsize(ours)
    torch.cuda.memory._record_memory_history(enabled=None)
    del y
    return {"segments": len(taken["segments"]), "events": len(actions), "files": sizes}


def out_of_memory(torch, thalweg_torch, tier):
    messages = []
    for _ in range(3):
        try:
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
            raise AssertionError("a terabyte was found")
        except torch.OutOfMemoryError as error:
            messages.append(str(error))
    held = []
    try:
        while True:
            held.append(torch.empty(2 << 30, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        messages.append(str(error))
    count = len(held)
    del held
    # The run goes on.
    x = torch.randn(1000, 1000, device="cuda")
    assert torch.isfinite((x @ x).sum()).item()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.1)
    assert abs(torch.cuda.get_per_process_memory_fraction() - 0.1) < 1e-3
    try:
        torch.empty(int(0.2 * torch.cuda.get_device_properties(0).total_memory), dtype=torch.uint8, device="cuda")
        raise AssertionError("the fraction was passed")
    except torch.OutOfMemoryError as error:
        messages.append(str(error))
    assert torch.ones(10, device="cuda").sum().item() == 10
    return {"blocks_of_2_GiB": count, "message": messages[0], "full": messages[3], "fraction": messages[4]}


def streams(torch, thalweg_torch, tier):
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    for kind in ("record_stream", "record_use", "region"):
        for step in range(50):
            with torch.cuda.stream(side):
                x = torch.full((1 << 20,), float(step), device="cuda")
                made = side.record_event()
            main.wait_event(made)
            if kind == "region":
                with thalweg_torch.record_use_region():
                    x.record_stream(main)
                    y = x + 1
            else:
                y = x + 1
                x.record_stream(main) if kind == "record_stream" else thalweg_torch.record_use(x, main)
            del x
            with torch.cuda.stream(side):
                z = torch.full((1 << 20,), -1.0, device="cuda")
            assert y[-1].item() == step + 1, (kind, step)
            del z
    return {"peak": torch.cuda.max_memory_reserved()}


def region(torch, thalweg_torch, tier):
    # Memory of another stream that is used through a tensor that is not plain, and dropped while the use is under way.
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, device=inner.device, dtype=inner.dtype)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
            return function(*(x.inner if isinstance(x, cls) else x for x in arguments), **(keywords or {}))

    side, main, count = torch.cuda.Stream(), torch.cuda.current_stream(), 1 << 20
    indices, offsets = torch.arange(count, device="cuda")[None], torch.tensor([0, 1000, count], device="cuda")
    kinds = {
        "sparse": (lambda x: torch.sparse_coo_tensor(indices, x, (count,)), lambda whole: (whole * 2)._values()),
        "nested": (lambda x: torch.nested.nested_tensor_from_jagged(x, offsets), lambda whole: (whole * 2).values()),
        "wrapper": (Wrapper, lambda whole: whole * 2),
    }
    for kind, (wrap, double) in kinds.items():
        for step in range(1, 20):
            with torch.cuda.stream(side):
                x = torch.full((count,), float(step), device="cuda")
                made = side.record_event()
            main.wait_event(made)
            with thalweg_torch.record_use_region():
                x.record_stream(main)
                whole = wrap(x)
                torch.cuda._sleep(1 << 22)
                y = double(whole)
            del x, whole
            with torch.cuda.stream(side):
                z = torch.full((count,), -1.0, device="cuda")
            assert (y == 2 * step).all().item(), (kind, step)
            del z


def external_streams(torch, thalweg_torch, tier):
    # Streams that are destroyed while memory of theirs is cached, or alive: a driver that is called with one of them then crashes.
    cudart = torch.cuda.cudart()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((2 << 30) / total)
    for step in range(6):
        handle = ctypes.c_void_p()
        assert cudart.cudaStreamCreate(ctypes.addressof(handle)) == 0
        external = torch.cuda.ExternalStream(handle.value)
        with torch.cuda.stream(external):
            x = torch.full((1 << 30,), step, dtype=torch.uint8, device="cuda")
            y = torch.full((1 << 20,), step, dtype=torch.uint8, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(external)
        with torch.cuda.stream(side):
            y += 1
        y.record_stream(side)
        external.synchronize()
        if step % 2:
            del x
        assert cudart.cudaStreamDestroy(handle.value) == 0
        if not step % 2:
            del x
        # There is no room for it but where x was.
        z = torch.full((3 << 29,), 7, dtype=torch.uint8, device="cuda")
        assert y[-1].item() == step + 1 and z[-1].item() == 7
        del y, z
        torch.cuda.empty_cache()


def green_context(torch, thalweg_torch, tier):
    try:
        from torch.cuda.green_contexts import SUPPORTED, GreenContext
    except ImportError:
        SUPPORTED = False
    if not SUPPORTED:
        return {"skipped": "this PyTorch has no green contexts"}
    cuda = ctypes.CDLL("libcuda.so.1")

    def current():
        context = ctypes.c_void_p()
        assert cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0
        return context.value

    count = 1 << 24
    torch.cuda.init()
    green = GreenContext.create(num_sms=16, device_id=0)
    green.set_context()
    pushed = current()
    # The first allocation of all makes the primary context.
    outside = torch.ones(count, device="cuda")
    assert current() == pushed
    green.pop_context()
    assert outside.sum().item() == count
    primary = current()
    side = torch.cuda.Stream()
    for step in range(1, 6):
        with torch.cuda.stream(side):
            recorded = torch.full((count << 2,), float(step), device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        before = torch.full((count << 2,), float(step), device="cuda")
        green = GreenContext.create(num_sms=16, device_id=0)
        green.set_context()
        pushed = current()
        assert pushed != primary
        x = torch.full((count << 2,), float(step), device="cuda")
        torch.cuda._sleep(1 << 22)
        # To PyTorch it is one default stream: nothing is recorded.
        y = x[-count:] + outside + before[-count:] - recorded[-count:]
        recorded.record_stream(torch.cuda.current_stream())
        del x, before
        if step % 2:
            del recorded
            with torch.cuda.stream(side):
                torch.full((count << 2,), -3.0, device="cuda")
        torch.cuda.empty_cache()
        # What the primary context's default stream has freed is not taken here before it is done with it, nor the other way round.
        z = torch.full((count << 2,), -1.0, device="cuda")
        assert current() == pushed
        green.pop_context()
        assert current() == primary
        del z
        w = torch.full((count << 2,), -2.0, device="cuda")
        assert (y == step + 1).all().item() and (w == -2).all().item()
        del w, y
        if not hasattr(green, "Stream"):
            continue
        stream = green.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1 << 22)
            y = outside * step
        outside.record_stream(stream)
        torch.cuda.current_stream().wait_stream(stream)
        y.record_stream(torch.cuda.current_stream())
        assert (y == step).all().item()
        stream.synchronize()
        outside = torch.ones(count, device="cuda")
        del y, stream, green
        # Where it is still there, it was recorded for a stream that is not.
        recorded = None
        torch.cuda.empty_cache()


def late(torch, thalweg_torch, tier):
    torch.cuda.init()
    torch.cuda.set_device(0)
    if tier == 1:
        try:
            thalweg_torch.enable(tier=1)
        except thalweg_torch.Refused as refused:
            assert thalweg_torch.enabled() is None and torch.ones(1, device="cuda").item() == 1
            return {"refused": str(refused)}
        raise AssertionError("it was not refused")
    assert thalweg_torch.enable(tier=tier).tier == tier
    x = torch.ones(1000, device="cuda")
    assert x.sum().item() == 1000 and torch.cuda.memory_allocated() == thalweg_torch.memory_allocated() > 0


late.enables = True


def graph(torch, thalweg_torch, tier):
    model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).cuda()
    x = torch.randn(32, 128, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
        z = (y * 2).sum()
    for _ in range(5):
        x.copy_(torch.randn(32, 128, device="cuda"))
        graph.replay()
        scratch = torch.randn(1 << 20, device="cuda")
        assert torch.allclose(z, (model(x) * 2).sum(), rtol=1e-4, atol=1e-4)
        del scratch
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=graph.pool()):
        w = model(x) + 1
    second.replay()
    del graph, second, w, y, z
    callables = torch.cuda.make_graphed_callables(model, (x.clone().requires_grad_(),))
    callables(x.clone().requires_grad_()).sum().backward()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()


def compiled(torch, thalweg_torch, tier):
    function = torch.compile(lambda a, b: (a @ b).relu().sum(-1))
    a, b = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    assert torch.allclose(function(a, b), (a @ b).relu().sum(-1), rtol=1e-3, atol=1e-3)


def reduce_overhead(torch, thalweg_torch, tier):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).cuda()
    if tier == 1:
        try:
            torch.compile(model, mode="reduce-overhead")
        except thalweg_torch.Refused as refused:
            return {"refused": str(refused)}
        raise AssertionError("it was not refused")
    fast = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in range(12):
        x = torch.randn(32 if step % 3 else 16, 64, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        y = fast(x)
        assert torch.allclose(y, model(x), rtol=1e-3, atol=1e-3), step
        y.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    # Two paths from one root: the pool is put back to a checkpoint.
    with torch.no_grad():
        one = torch.compile(lambda x: x * 2 + 1, mode="reduce-overhead")
        two = torch.compile(lambda x: (x * x).cos(), mode="reduce-overhead")
        three = torch.compile(lambda x: (x - 3).exp(), mode="reduce-overhead")
        for step in range(12):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.randn(256, device="cuda")
            first = one(x)
            second = (two if step % 2 else three)(first)
            expected = ((x * 2 + 1) ** 2).cos() if step % 2 else (x * 2 - 2).exp()
            assert torch.allclose(second, expected, rtol=1e-3, atol=1e-3), step
    return {"skips": dict(torch._dynamo.utils.counters["inductor"]).get("cudagraph_skips", 0)}


def benchmark(torch, thalweg_torch, tier):
    if tier == 1:
        try:
            torch.backends.cudnn.benchmark = True
        except thalweg_torch.Refused as refused:
            return {"refused": str(refused)}
        raise AssertionError("it was not refused")
    torch.backends.cudnn.benchmark = True
    module = torch.nn.Conv2d(16, 32, 3, padding=1).cuda()
    for size in (32, 48, 64):
        module(torch.randn(4, 16, size, size, device="cuda")).sum().backward()
    torch.cuda.synchronize()


def mem_pool(torch, thalweg_torch, tier):
    if tier == 1:
        return {"skipped": "PyTorch's hooks have no pools of a program's own; see the check mem_pool_source"}
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(1 << 20, device="cuda")
        assert pool.use_count() == 2
    y = torch.ones(1 << 20, device="cuda")
    segments = pool.snapshot()
    address = x.data_ptr()
    assert any(s["address"] <= address < s["address"] + s["total_size"] for s in segments)
    assert not any(s["address"] <= y.data_ptr() < s["address"] + s["total_size"] for s in segments)
    assert all(tuple(s["segment_pool_id"]) == tuple(pool.id) for s in segments)
    assert (x + y).sum().item() == 2 << 20
    del x, pool
    torch.cuda.empty_cache()


def threads(torch, thalweg_torch, tier):
    failures = []

    def work(number):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for step in range(200):
                    size = 1 << (number + step) % 18
                    x = torch.full((size,), float(number), device="cuda")
                    y = x * 2
                    if step % 20 == 0:
                        assert y.sum().item() == 2.0 * number * size
        except Exception:
            failures.append(traceback.format_exc())

    running = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    [thread.start() for thread in running]
    [thread.join() for thread in running]
    assert not failures, failures[0]


def _receive(conf, queue, answers):
    import torch

    import thalweg_torch

    thalweg_torch.enable(tier=2, conf=conf)
    x = queue.get()
    work = torch.full((4096, 4096), 1 / 4096, device="cuda")
    for _ in range(100):
        work = work @ work
    y = x * work[0, 0] * 4096
    # It goes while the work that reads it has not even begun.
    del x
    answers.put(y.sum().item())
    answers.close()
    answers.join_thread()


def _share(torch, tier, conf):
    if tier == 1:
        return {"skipped": "PyTorch's hooks share no memory between processes"}
    context = torch.multiprocessing.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    x = torch.arange(1000, device="cuda", dtype=torch.float32)
    child = context.Process(target=_receive, args=(conf, queue, answers))
    child.start()
    queue.put(x)
    child.join(60)
    assert child.exitcode == 0, f"the receiver ended with {child.exitcode}; its report is on the standard error"
    answer = answers.get(timeout=10)
    assert answer == 499500.0, answer


PLAIN = "expandable_segments:False"


def ipc(torch, thalweg_torch, tier):
    return _share(torch, tier, PLAIN)


ipc.conf = PLAIN


def ipc_pages(torch, thalweg_torch, tier):
    # Each page is a descriptor that the receiver fetches, which the machine may forbid.
    return _share(torch, tier, "")


class _Numbers:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return float(index)


def fork(torch, thalweg_torch, tier):
    kept = torch.ones(1000, device="cuda")
    loader = torch.utils.data.DataLoader(_Numbers(), batch_size=8, num_workers=2)
    total = sum(batch.cuda().sum().item() for batch in loader)
    assert total == sum(range(64)), total
    child = os.fork()
    if child == 0:
        # The child drops a tensor of its parent's, and leaves as a worker does.
        del kept
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert kept.sum().item() == 1000


def profiler(torch, thalweg_torch, tier):
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        x = torch.randn(1 << 20, device="cuda")
        (x * 2).sum().item()
    most = max(event.device_memory_usage for event in profile.key_averages())
    if tier == 2:
        assert most >= 4 << 20, most
    return {"most": most}


def devices(torch, thalweg_torch, tier):
    count = torch.cuda.device_count()
    if count < 2:
        return {"skipped": "there is one GPU"}
    one, two = "cuda:0", "cuda:1"
    x = torch.arange(1 << 20, dtype=torch.float32, device=one)
    assert torch.equal(x.to(two).to(one), x)
    # Memory that grew after peer access was opened, used by the other device's stream until after it was freed.
    for value in range(20):
        y = torch.full((8 << 20,), float(value), device=one)
        moved = y.to(two, non_blocking=True)
        del y
        assert (moved == value).all().item()
    # A model over two devices.
    layers = [torch.nn.Linear(256, 256, device=device) for device in (one, two, one)]
    optimizer = torch.optim.AdamW([p for layer in layers for p in layer.parameters()])
    for _ in range(5):
        h = torch.randn(512, 256, device=one)
        for layer, device in zip(layers, (one, two, one)):
            h = layer(h.to(device)).relu()
        h.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    parts = [torch.full((1 << 20,), float(index + 1), device=index) for index in range(count)]
    torch.cuda.nccl.all_reduce(parts)
    expected = count * (count + 1) / 2
    assert all((part == expected).all().item() for part in parts)
    # Each device has figures and a limit of its own.
    for index in range(count):
        before = torch.cuda.memory_allocated(index)
        z = torch.empty(32 << 20, dtype=torch.uint8, device=index)
        assert torch.cuda.memory_allocated(index) - before == 32 << 20
        del z
    if tier == 2:
        torch.cuda.set_per_process_memory_fraction(0.01, 1)
        try:
            torch.empty(8 << 30, dtype=torch.uint8, device=two)
            raise AssertionError("there was memory beyond the limit")
        except torch.OutOfMemoryError as error:
            assert "GPU 1" in str(error), error
        torch.empty(8 << 30, dtype=torch.uint8, device=one)
    return {"devices": count, "peers": torch.cuda.can_device_access_peer(0, 1)}


def leftovers(torch, thalweg_torch, tier):
    # Tensors, a graph and a stream that live to the end of the interpreter, in whatever order it takes them down.
    global _kept
    x = torch.randn(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    thread = threading.Thread(target=lambda: time.sleep(0.05) or x.sum())
    thread.daemon = True
    thread.start()
    _kept = [x, y, graph, torch.cuda.Stream(), thread]


def mem_pool_source(torch, thalweg_torch, tier):
    source = thalweg_torch.mem_pool_source()
    assert thalweg_torch.mem_pool_source() is source
    pool = torch.cuda.MemPool(source.allocator())
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(8 << 20, device="cuda")
    text = source.thalweg_library.text("thalweg_memory_stats", 0).decode()
    held = int(next(line.split()[1] for line in text.splitlines() if line.startswith("allocated_bytes.all.current")))
    assert held >= 32 << 20, held
    assert x.sum().item() == 8 << 20
    return {"from_thalweg": held}


CHECKS = [
    eager,
    exceptions,
    statistics,
    snapshot,
    out_of_memory,
    streams,
    region,
    external_streams,
    green_context,
    late,
    graph,
    compiled,
    reduce_overhead,
    benchmark,
    mem_pool,
    threads,
    ipc,
    ipc_pages,
    fork,
    profiler,
    devices,
    leftovers,
]


def run_one(name, tier):
    import torch

    import thalweg_torch

    if name == "mem_pool_source":
        return mem_pool_source(torch, thalweg_torch, tier)
    function = next(function for function in CHECKS if function.__name__ == name)
    if getattr(function, "enables", False):
        return function(torch, thalweg_torch, tier)
    chosen = thalweg_torch.enable(tier=tier, conf=getattr(function, "conf", ""))
    assert chosen.tier == tier
    return function(torch, thalweg_torch, tier)


def child(name, tier):
    try:
        result = {"ok": True, **(run_one(name, tier) or {})}
    except Exception:
        result = {"ok": False, "error": traceback.format_exc()[-3000:]}
    print("RESULT " + json.dumps(result), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tier", type=int, choices=TIERS)
    parser.add_argument("--child", nargs=2)
    parser.add_argument("checks", nargs="*")
    options = parser.parse_args()
    if options.child:
        child(options.child[0], int(options.child[1]))
        return 0
    failures = 0
    names = [function.__name__ for function in CHECKS]
    jobs = [(name, tier) for tier in ([options.tier] if options.tier else TIERS) for name in names]
    jobs.append(("mem_pool_source", 0))
    for name, tier in jobs:
        if options.checks and name not in options.checks:
            continue
        start = time.time()
        command = [sys.executable, os.path.abspath(__file__), "--child", name, str(tier)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
            result = json.loads(lines[-1][7:]) if lines else {"ok": False}
            if done.returncode != 0:
                result.update(ok=False, status=done.returncode)
            if not result["ok"] or "thalweg:" in done.stderr:
                result["stderr"] = done.stderr[-2500:]
        except subprocess.TimeoutExpired as expired:
            result = {"ok": False, "error": "it took more than 300 s", "stderr": str(expired.stderr)[-2000:]}
        failures += not result["ok"]
        print(json.dumps({"check": name, "tier": tier, "seconds": round(time.time() - start, 1), **result}), flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
