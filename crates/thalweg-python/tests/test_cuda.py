"""Streams, events, graphs and memory, on any device."""

import os
import pickle
import tempfile
import warnings

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
    for name in ("jiterator", "nccl", "gds"):
        with raises(NotImplementedError, f"{name} is left out"):
            getattr(th.cuda, name)()


def test_readings_of_gpus():
    for name in ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate", "list_gpu_processes"):
        read = getattr(th.cuda, name)
        with th.cuda.device("sim:0"), raises(RuntimeError, f"{name}: sim:0 is not a GPU"):
            read()
        with raises(RuntimeError, f"{name}: "):
            read(4096)
        with raises(TypeError, "is not a device"):
            read([])
        if th.cuda.is_available():
            first = read(0)
            assert first.startswith("GPU:0\n") if name == "list_gpu_processes" else 0 <= first < 2_000_000, (name, first)
            assert type(read("cuda:0")) is type(first)
        else:
            with raises(RuntimeError, "libnvidia-ml"):
                read(0)


def test_graphed_functions():
    graphed = th.cuda.make_graphed_callables(lambda x, y: {"sum": x * y, "rest": (x + 1,)},
                                             (th.ones(4, requires_grad=True), th.ones(4)))
    for factor in (1.0, 2.0):
        x, y = th.full((4,), factor, requires_grad=True), th.full((4,), 3.0)
        found = graphed(x, y)
        assert found["sum"].tolist() == [3 * factor] * 4 and found["rest"][0].tolist() == [1 + factor] * 4
        (found["sum"] * 2 + found["rest"][0]).sum().backward()
        assert x.grad.tolist() == [7.0] * 4
    with raises(ValueError, "takes 2 tensors"):
        graphed(x)
    with raises(RuntimeError):
        graphed(th.ones(5), y)


def test_graphed_modules():
    th.manual_seed(0)
    layers = [th.nn.Linear(3, 3), th.nn.Linear(3, 1)]
    plain = [[parameter.detach().clone() for parameter in layer.parameters()] for layer in layers]
    sample = th.zeros(2, 3), th.zeros(2, 3, requires_grad=True)
    graphed = th.cuda.make_graphed_callables(tuple(layers), ((sample[0],), (sample[1],)))
    assert graphed == tuple(layers)
    optimizer = th.optim.SGD([parameter for layer in layers for parameter in layer.parameters()], lr=0.1)
    reference = [th.nn.Linear(3, 3), th.nn.Linear(3, 1)]
    for layer, values in zip(reference, plain):
        for parameter, value in zip(layer.parameters(), values):
            parameter.data = value
    expected = th.optim.SGD([parameter for layer in reference for parameter in layer.parameters()], lr=0.1)
    for step in range(3):
        x = th.full((2, 3), step + 1.0)
        for first, second, rule in ((*layers, optimizer), (*reference, expected)):
            loss = second(first(x).relu()).square().mean()
            rule.zero_grad()
            loss.backward()
            rule.step()
    for layer, other in zip(layers, reference):
        for one, two in zip(layer.parameters(), other.parameters()):
            assert (one - two).abs().max().item() < 1e-6
    layers[0].eval()
    assert layers[0](th.zeros(5, 3)).shape == (5, 3), "outside of training it is the module itself"
    hooked = th.nn.Linear(1, 1)
    hooked.register_forward_hook(lambda *_: None)
    with raises(RuntimeError, "Modules must not have hooks"):
        th.cuda.make_graphed_callables(hooked, (th.ones(1, 1),))

    def failing(x):
        raise KeyError("while it is captured")
    with raises(KeyError, "while it is captured"):
        th.cuda.make_graphed_callables(failing, (th.ones(1),))
    assert (th.ones(1) + 1).item() == 2


def test_nvtx():
    nvtx = th.cuda.nvtx
    assert nvtx.range_push("outer") == 0 and nvtx.range_push("inner") == 1
    assert nvtx.range_pop() == 1 and nvtx.range_pop() == 0
    nvtx.mark("a moment")
    nvtx.range_end(nvtx.range_start("of the process"))
    with nvtx.range("number {}", 3):
        assert nvtx.range_push("in it") == 1
        nvtx.range_pop()

    @nvtx.range("a function")
    def function():
        return nvtx.range_push("in it")
    assert function() == 1
    nvtx.range_pop()
    with raises(TypeError):
        nvtx.range_push(3)


def test_tunable():
    tunable = th.cuda.tunable
    assert not tunable.is_enabled()
    tunable.enable()
    assert tunable.is_enabled()
    tunable.enable(False)
    tunable.tuning_enable(False)
    assert not tunable.is_enabled() and not tunable.tuning_is_enabled()
    tunable.tuning_enable()
    former = tunable.get_max_tuning_iterations(), tunable.get_max_tuning_duration()
    tunable.set_max_tuning_iterations(7)
    tunable.set_max_tuning_duration(11)
    assert (tunable.get_max_tuning_iterations(), tunable.get_max_tuning_duration()) == (7, 11)
    tunable.set_max_tuning_iterations(former[0])
    tunable.set_max_tuning_duration(former[1])
    assert tunable.get_results() == () and dict(tunable.get_validators())
    with tempfile.TemporaryDirectory() as folder:
        name = folder + "/results.csv"
        assert tunable.write_file(name) and tunable.read_file(name)
        with raises(RuntimeError):
            tunable.read_file(folder + "/none.csv")
        assert not tunable.write_file(folder + "/none/none.csv")
    # Set twice, the path is written once; after it is unset, it is not written.
    for wanted in (True, True, False):
        tunable.write_file_on_exit(wanted)
    with raises(OverflowError):
        tunable.set_max_tuning_iterations(-1)


def test_unscaled_gradients():
    def trained(unscales):
        parameter = th.nn.Parameter(th.tensor([1.0, 2.0]))
        optimizer = th.optim.SGD([parameter], lr=0.5)
        scaler = th.amp.GradScaler(init_scale=8.0, growth_interval=100)
        for factor in (1.0, float("inf"), 3.0):
            optimizer.zero_grad()
            scaler.scale((parameter * factor).sum()).backward()
            if unscales:
                scaler.unscale_(optimizer)
                assert parameter.grad.tolist() == [factor, factor]
                with raises(RuntimeError, "unscale_() has already been called on this optimizer since the last update()."):
                    scaler.unscale_(optimizer)
                th.nn.utils.clip_grad_norm_([parameter], 1e6)
            scaler.step(optimizer)
            with raises(RuntimeError, "unscale_() is being called after step()."):
                scaler.unscale_(optimizer)
            with raises(RuntimeError, "step() has already been called since the last update()."):
                scaler.step(optimizer)
            scaler.update()
        return parameter.tolist(), scaler.get_scale()
    assert trained(False) == trained(True) == ([-1.0, 0.0], 4.0)


def test_states_of_scalers():
    def stepped(scaler, parameter, optimizer, factor):
        optimizer.zero_grad()
        scaler.scale((parameter * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    parameter = th.nn.Parameter(th.ones(2))
    optimizer = th.optim.SGD([parameter], lr=0.1)
    first, second = th.amp.GradScaler(init_scale=8.0, growth_interval=2), th.amp.GradScaler()
    assert first.state_dict() == {"scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2, "_growth_tracker": 0}
    for _ in range(3):
        stepped(first, parameter, optimizer, 1.0)
    state = first.state_dict()
    assert state["scale"] == 16.0 and state["_growth_tracker"] == 1
    second.load_state_dict(state)
    assert second.get_scale() == 16.0 and second.state_dict() == state
    stepped(second, parameter, optimizer, 1.0)
    assert second.get_scale() == 32.0 and second.state_dict()["_growth_tracker"] == 0
    second.set_backoff_factor(0.25)
    stepped(second, parameter, optimizer, float("inf"))
    assert second.get_scale() == 8.0 and second.get_backoff_factor() == 0.25
    assert th.amp.GradScaler(enabled=False).state_dict() == {}
    with raises(RuntimeError, "The source state dict is empty"):
        first.load_state_dict({})


def test_what_scalers_refuse():
    parameter, half = th.nn.Parameter(th.ones(2)), th.nn.Parameter(th.ones(2, dtype=th.float16))
    optimizer, other, halves = th.optim.SGD([parameter], lr=0.1), th.optim.SGD([th.nn.Parameter(th.ones(1))], lr=0.1), th.optim.SGD([half])
    scaler = th.amp.GradScaler()
    with raises(AssertionError, "Attempted step but _scale is None"):
        scaler.step(optimizer)
    scaler.scale(parameter.sum() + half.sum()).backward()
    with raises(AssertionError, "No inf checks were recorded for this optimizer"):
        scaler.step(other)
    with raises(ValueError, "Attempting to unscale FP16 gradients."):
        scaler.unscale_(halves)
    with raises(AssertionError, "No inf checks were recorded prior to update"):
        scaler.update()
    scaler.step(optimizer)
    with raises(AssertionError, "only be pickled at the beginning"):
        pickle.dumps(scaler)
    with raises(AssertionError, "new_scale should be a float"):
        scaler.update(th.ones(2))
    scaler.update(th.tensor([4.0]))
    assert scaler.get_scale() == 4.0
    again = pickle.loads(pickle.dumps(scaler))
    assert again.state_dict() == scaler.state_dict() and again.scale(th.tensor(1.0)).item() == 4.0


def test_custom_functions_under_autocast():
    seen = []

    class Product(th.autograd.Function):
        @staticmethod
        @th.amp.custom_fwd(device_type="cuda")
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            seen.append(th.is_autocast_enabled())
            return x @ y

        @staticmethod
        @th.amp.custom_bwd(device_type="cuda")
        def backward(ctx, gradient):
            x, y = ctx.saved_tensors
            seen.append((th.is_autocast_enabled(), th.get_autocast_dtype("cuda")))
            return gradient @ y.T, x.T @ gradient

    class Exact(Product):
        @staticmethod
        @th.amp.custom_fwd(device_type="cuda", cast_inputs=th.float32)
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            seen.append((th.is_autocast_enabled(), x.dtype))
            return x @ y
    x = th.ones(2, 2, requires_grad=True)
    with th.autocast("cuda", dtype=th.bfloat16):
        y, z = Product.apply(x, x), Exact.apply(x.bfloat16(), x)
    assert y.dtype is th.bfloat16 and z.dtype is th.float32
    y.sum().backward()
    z.sum().backward()
    assert seen == [True, (False, th.float32), (True, th.bfloat16), (False, th.bfloat16)]
    assert th.get_autocast_dtype() is th.float16 and th.amp.is_autocast_available("cuda")


def test_members_of_streams_and_graphs():
    side = th.cuda.Stream()
    with side as current:
        assert th.cuda.current_stream() == side is current and not side.is_capturing()
    assert th.cuda.current_stream() == th.cuda.default_stream()
    assert side.device_index == side.device.index and side.device_type == 1 and side.stream_id != th.cuda.default_stream().stream_id
    least, greatest = th.cuda.Stream.priority_range()
    assert least >= greatest and th.cuda.Event(blocking=True).query()

    x = th.zeros(4)
    x + 1
    graph = th.cuda.CUDAGraph(keep_graph=True)
    with raises(RuntimeError, "CUDAGraph(keep_graph=True)"):
        graph.instantiate()
    with th.cuda.graph(graph):
        y = x + 1
    x.fill_(2.0)
    graph.replay()
    assert y.tolist() == [3.0] * 4
    graph.instantiate()
    x.fill_(5.0)
    graph.replay()
    assert y.tolist() == [6.0] * 4
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "graph.dot")
        graph.debug_dump(path)
        with open(path) as file:
            assert "digraph" in file.read()
    graph.reset()
    with raises(RuntimeError, "without a preceding successful capture"):
        graph.replay()
    with raises(RuntimeError, "enable_debug_mode"):
        graph.debug_dump("graph.dot")


def test_accelerator():
    free, total = th.accelerator.get_memory_info()
    assert 0 < free <= total and th.accelerator.current_stream() == th.cuda.current_stream()
    assert th.bfloat16 in th.accelerator.get_device_capability()["supported_dtypes"]
    with th.accelerator.device_index(None):
        assert th.accelerator.memory_allocated() == th.cuda.memory_allocated()


def test_audit():
    x = th.ones(4)

    def region(is_waiting):
        y = x + 1
        if is_waiting:
            y.sum().item()
    th.cuda.audit(lambda: region(False))
    clean = th.cuda.audit(lambda: region(False))
    assert clean.is_capturable and clean.obstacles == [] and clean.code is None and clean.counts.kernels == 1
    assert "The region can be captured. It submits 1 kernels" in clean._repr_html_() and "<table" not in clean._repr_html_()
    found = th.cuda.audit(lambda: region(True))
    assert not found.is_capturable and found.code is not None
    wait, = found.obstacles
    assert wait.kind == "data-dependent shape" and wait.operator == "item" and "test_cuda.py:" in wait.line and wait.repair
    assert found._repr_html_().count("<tr>") == 1 + len(found.obstacles) and "test_cuda.py" in repr(found)
    with raises(ZeroDivisionError):
        th.cuda.audit(lambda: 1 / 0)
    with raises(ValueError, "capture_error_mode"):
        th.cuda.audit(lambda: None, capture_error_mode="none")
    with raises(RuntimeError, "default stream"):
        th.cuda.audit(lambda: None, stream=th.cuda.default_stream())


def test_streams_of_other_libraries():
    own = th.cuda.Stream()
    wrapped = th.cuda.ExternalStream(own.cuda_stream)
    assert isinstance(wrapped, th.cuda.Stream) and wrapped.cuda_stream == own.cuda_stream and wrapped.device == own.device
    with th.cuda.stream(wrapped):
        assert th.cuda.current_stream().cuda_stream == own.cuda_stream
        x = th.arange(4) + 1
    th.cuda.current_stream().wait_stream(own)
    assert (x * 2).tolist() == [2, 4, 6, 8]
    assert th.cuda.get_stream_from_external(1).cuda_stream == th.cuda.default_stream().cuda_stream
    if not th.cuda.is_available():
        with raises(RuntimeError, "is not a cuda_stream"):
            th.cuda.ExternalStream(123456789)


def test_small_things_of_pytorch():
    th.set_float32_matmul_precision("medium")
    assert th.get_float32_matmul_precision() == "medium"
    th.set_float32_matmul_precision("highest")
    assert th.get_float32_matmul_precision() == "highest"
    with raises(RuntimeError, "Invalid device string: 'cuda0'"):
        th.device("cuda0")
    with raises(th.OutOfMemoryError, "Tried to allocate more than 1EB memory"):
        th.empty(1 << 61, dtype=th.uint8)
    x = th.ones(2)
    assert x.copy_(th.inf) is x and x.tolist() == [th.inf] * 2 and x.copy_(3).tolist() == [3.0] * 2
    stream, event = th.cuda.Stream(), th.cuda.Event()
    assert repr(stream).startswith("<thalweg.cuda.Stream device=") and repr(event) == "<thalweg.cuda.Event uninitialized>"
    with th.cuda.stream(stream):
        th.cuda._sleep(20_000_000)
        event.record()
    assert not event.query()
    event.synchronize()
    assert event.query() and stream.query()


def test_pools_are_pairs_of_numbers():
    handle, pool = th.cuda.graph_pool_handle(), th.cuda.MemPool()
    assert len(handle) == 2 and handle[0] == pool.id[0] == 0 and handle[1] != pool.id[1]
    assert tuple(handle) == handle and handle != th.cuda.graph_pool_handle() and {handle: 1}[tuple(handle)] == 1
    graph = th.cuda.CUDAGraph()
    with th.cuda.graph(graph, pool=handle):
        th.ones(4) + 1
    assert graph.pool() == handle


def test_an_empty_graph_is_said():
    graph = th.cuda.CUDAGraph()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with th.cuda.graph(graph):
            pass
    assert any("The CUDA Graph is empty" in str(warning.message) for warning in caught)
    graph.replay()


def test_settings_that_each_text_begins_anew():
    def bytes_of(text, elements=21 << 20):
        th.cuda.memory._set_allocator_settings(text)
        th.cuda.empty_cache()
        before = th.cuda.memory_stats()["active_bytes.all.allocated"]
        th.empty(elements, dtype=th.uint8)
        return th.cuda.memory_stats()["active_bytes.all.allocated"] - before

    try:
        assert bytes_of("") == 21 << 20
        assert bytes_of("roundup_power2_divisions:4") == 24 << 20
        assert bytes_of("garbage_collection_threshold:0.5") == 21 << 20
    finally:
        th.cuda.memory._set_allocator_settings("")
