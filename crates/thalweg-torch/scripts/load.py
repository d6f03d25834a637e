"""Checks that both tiers work with the PyTorch of this machine, without a GPU: both are installed and queried, and the
second is removed again. Also checks the parts of the package that are pure Python.

    python3 load.py

A mistake in the class (a virtual function too many, or in the wrong place) shows here as a crash. Needs a PyTorch that was built
for CUDA; no driver.
"""

import os
import subprocess
import sys
import tempfile


def native():
    import torch

    import thalweg_torch

    before = torch.cuda.get_allocator_backend()
    enabled = thalweg_torch.enable(tier=2)
    assert torch.cuda.get_allocator_backend() == "thalweg"
    # There is no device yet, and PyTorch's own words say so.
    assert "Invalid device argument 0: did you call init?" in str(raises(RuntimeError, torch._C._cuda_memoryStats, 0))
    assert torch._C._cuda_memorySnapshot(None)["segments"] == []
    assert "in use already" in str(raises(RuntimeError, thalweg_torch.enable))
    enabled.way.remove()
    assert torch.cuda.get_allocator_backend() == before
    return repr(enabled)


def hooks():
    import ctypes

    import torch
    from torch import compile as compile_by_another_name

    import thalweg_torch
    from thalweg_torch import _library

    cudnn, refused = torch.backends.cudnn, thalweg_torch.Refused
    cudnn.benchmark = True
    raises(refused, thalweg_torch.enable, tier=1)
    assert thalweg_torch.enabled() is None and torch.cuda.get_allocator_backend() == "native"
    cudnn.benchmark = False
    enabled = thalweg_torch.enable(tier=1)
    assert torch.cuda.get_allocator_backend() == "pluggable"
    functions = ctypes.CDLL(str(_library.path("libthalweg_hooks.so")))
    assert functions.thalweg_hooks_throw_out_of_memory_error() == 1, "PyTorch's exception was not found"
    assert b"num_ooms 0" in enabled.library.text("thalweg_memory_stats", 0)

    cudnn.benchmark = False
    assert cudnn.benchmark is False
    raises(refused, setattr, cudnn, "benchmark", True)
    raises(refused, cudnn.set_flags, _benchmark=True)
    raises(refused, cudnn.flags(enabled=False, benchmark=True).__enter__)
    assert cudnn.benchmark is False and cudnn.enabled is True
    with cudnn.flags(enabled=False):
        assert cudnn.enabled is False

    def function(x):
        return x + 1

    for arguments in ({"mode": "reduce-overhead"}, {"options": {"triton.cudagraphs": True}}, {"backend": "cudagraphs"}):
        raises(refused, torch.compile, function, **arguments)
        raises(refused, compile_by_another_name, function, **arguments)
    assert torch.compile(function, backend="eager")(torch.ones(1)).item() == 2
    compiled = torch.compile(function)
    torch._inductor.config.triton.cudagraphs = True
    raises(refused, torch.compile, function)
    assert "under PyTorch's allocator hooks" in str(raises(Exception, compiled, torch.ones(1)))
    return repr(enabled)


def statistics():
    """Before CUDA is initialised, and with wrong arguments, our functions are like PyTorch's."""
    import torch

    theirs, record = torch.cuda.memory_allocated, torch.cuda.memory._record_memory_history

    import thalweg_torch

    thalweg_torch.enable(tier=1)
    assert torch.cuda.memory_allocated is not theirs and torch.cuda.memory._record_memory_history is not record
    for device in (None, 0, "cuda:0", 99):
        assert torch.cuda.memory_stats(device) == {} and torch.cuda.max_memory_allocated(device) == 0
    assert torch.cuda.memory_stats_as_nested_dict() == {} and not torch.cuda.is_initialized()
    accelerator = torch.accelerator
    assert accelerator.memory_stats() == accelerator.memory.memory_stats("cuda:0") == {}
    assert accelerator.memory_reserved() == accelerator.max_memory_allocated(0) == 0
    raises(RuntimeError, accelerator.reset_peak_memory_stats, 99)
    raises(RuntimeError, torch.cuda.reset_peak_memory_stats, 99)
    raises(RuntimeError, torch.cuda.reset_peak_memory_stats, -1)
    for function in (torch.cuda.reset_peak_memory_stats, torch.cuda.memory_summary, thalweg_torch.settings):
        raises(ValueError, function, "cpu:0")
        raises(ValueError, function, "meta")
    assert torch.cuda.get_per_process_memory_fraction is thalweg_torch.get_per_process_memory_fraction
    record = torch.cuda.memory._record_memory_history
    wrong = [
        (RuntimeError, {"enabled": "nonsense"}),
        (RuntimeError, {"context": "nonsense"}),
        (RuntimeError, {"stacks": "nonsense"}),
        (RuntimeError, {"skip_actions": ["nonsense"]}),
        (TypeError, {"enabled": 1}),
        (TypeError, {"max_entries": -1}),
        (TypeError, {"max_entries": 1e5}),
        (TypeError, {"max_entrys": 3}),
        (TypeError, {"trace_alloc_max_entries": 3}),
    ]
    for error, arguments in wrong:
        raises(error, record, **arguments)
    for arguments in ((True, True), ("state",), ("all", "alloc", "python", 1000), (False,), (None,)):
        record(*arguments)
    record(True, trace_alloc_max_entries=1000, trace_alloc_record_context=True)
    return "statistics, devices and histories are asked for as PyTorch's are"


def sources():
    import torch

    import thalweg_torch

    source = thalweg_torch.mem_pool_source()
    assert thalweg_torch.mem_pool_source() is source
    raises(thalweg_torch.Refused, thalweg_torch.mem_pool_source, "max_split_size_mb:128")
    for tier in (1, 2, None):
        raises(thalweg_torch.Refused, thalweg_torch.enable, tier=tier)
    assert torch.cuda.get_allocator_backend() == "native"
    return "one source of pools, and PyTorch's allocator stays"


def builds():
    import torch

    from thalweg_torch import Refused, _tiers

    released = torch.__version__
    assert _tiers.is_release(released) and _tiers.pick(None)[0] == 2
    for version in (f"{released.split('+')[0]}a0+f1b2c3d.nv26.2", f"{released.split('+')[0]}.dev20260101+cu130"):
        torch.__version__ = version
        assert _tiers.pick(None)[0] == 1 and _tiers.pick(2)[0] == 2, version
    torch.version.cuda = None
    raises(Refused, _tiers.pick, None)
    return "the native class is for releases, and there is nothing without CUDA"


def fallback():
    """Checks that a shared object that cannot be loaded is replaced by the hooks, with a warning."""
    import shutil
    import threading
    import warnings

    import thalweg_torch
    from thalweg_torch import _library, _tiers

    with tempfile.TemporaryDirectory() as folder:
        for name in ("libthalweg_torch.so", "libthalweg_hooks.so"):
            shutil.copy(_library.path(name), folder)
        version = _tiers.torch_version()
        right = _tiers.native_library()
        os.environ["THALWEG_TORCH_LIBRARIES"] = folder
        with open(os.path.join(folder, right.name), "wb") as file:
            file.write(b"not an object")
        assert "does not load" in str(raises(thalweg_torch.Refused, _tiers.pick, 2))
        os.remove(os.path.join(folder, right.name))
        shutil.copy(_library.path("libthalweg_hooks.so"), os.path.join(folder, right.name))
        assert "does not load" in str(raises(thalweg_torch.Refused, _tiers.pick, 2)), "it does not say what it is for"
        other = (version[0], version[1] + 1)
        shutil.copy(right, os.path.join(folder, f"libthalweg_native_{other[0]}_{other[1]}.so"))
        assert "was built for" in str(raises(thalweg_torch.Refused, _tiers.load_native, other))
        answers = []

        def enable():
            try:
                answers.append(thalweg_torch.enable())
            except RuntimeError as error:
                answers.append(error)

        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            threads = [threading.Thread(target=enable) for _ in range(8)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        told = [str(warning.message) for warning in warned if "does not load" in str(warning.message)]
        assert len(told) == 1 and "hooks are used instead" in told[0], told
        enabled = [answer for answer in answers if not isinstance(answer, RuntimeError)]
        assert len(enabled) == 1 and enabled[0].tier == 1 and len(answers) == 8, answers
        assert all("in use already" in str(answer) for answer in answers if answer is not enabled[0]), answers
    return "an object that does not load, or is for another PyTorch, is not used; of many that enable at once, one does"


def uses():
    """Returns the tensors that are reported after an operator, with made-up streams."""
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    from thalweg_torch import _state, _uses

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, device="cuda", dtype=inner.dtype)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
            return function(*(x.inner if isinstance(x, cls) else x for x in arguments), **(keywords or {}))

    class Open(Wrapper):
        def __tensor_flatten__(self):
            return ["inner"], None

    class Stream:
        device, cuda_stream = torch.device("cuda:0"), 7

    class Library:
        def call(self, name, address, *_stream):
            told.append((name, address))

    stream, told = Stream(), []
    torch.cuda.current_stream = lambda device: stream
    _uses.record_use = lambda tensor, stream: told.append(("thalweg_record_use", address(tensor)))
    _state.library = Library

    def address(tensor):
        return tensor.untyped_storage().data_ptr()

    def after(operator, *tensors):
        """Returns the reports if these were recorded."""
        mode = _uses._mode("torch._dynamo" in sys.modules)()
        for tensor in tensors:
            mode.recorded[address(tensor)] = (StorageWeakRef(tensor.untyped_storage()), {stream})
        told.clear()
        with mode:
            operator()
        return set(told)

    def use(tensor):
        return {("thalweg_record_use", address(tensor))}

    x, y = torch.ones(3), torch.ones(3)
    assert after(lambda: x + 1, x, y) == use(x)
    coo, csr = torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()
    assert after(lambda: coo + coo, coo._values(), y) == use(coo._values())
    assert after(lambda: csr * 2, csr.col_indices(), y) == use(csr.col_indices())
    assert after(lambda: Open(Open(x)) + 1, x, y) == use(x)
    # Its contents are not known, so all have to wait.
    all_of_them = {("thalweg_record_stream", address(x)), ("thalweg_record_stream", address(y))}
    assert after(lambda: Wrapper(x) + 1, x, y) == all_of_them
    # An operator that raises may have used its arguments.
    assert after(lambda: raises(RuntimeError, lambda: x + torch.ones(2)), x) == use(x)

    assert "torch._dynamo" not in sys.modules, "a region imports the compiler"
    # It comes within a region, and is there when the next ones begin.
    assert after(lambda: torch.compile(lambda x: x + 1, backend="eager")(x), x, y) == use(x)
    assert "torch._dynamo" in sys.modules
    add = torch.compile(lambda x: x + 1, backend="eager")
    assert after(lambda: add(x), x, y) == use(x)
    assert after(lambda: x + 1, x, y) == use(x)
    # Nor is it known what a function holds.
    yes = torch.tensor(True)
    assert after(lambda: torch.cond(yes, lambda a: a + 1, lambda a: a - 1, (x,)), x, y) == all_of_them
    return "sparse tensors and wrappers are told of part by part, and the compiler may come or not"


SCRIPT = """
import atexit, os, pickle, sys, threading

class Thing: pass

def late():
    threading.main_thread().join()
    pickle.dumps(Thing())
    print("late", flush=True)

print(sys.argv[1:], os.path.isabs(__file__), sys.path[0] == os.path.dirname(__file__), sys.argv[0], flush=True)
threading.Thread(target=late).start()
atexit.register(lambda: (pickle.dumps(Thing()), print("exit")))
"""


def program():
    """Runs a program as `python` would."""
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        with open(os.path.join(folder, "script.py"), "w") as file:
            file.write(SCRIPT)
        import thalweg_torch

        environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(os.path.abspath(thalweg_torch.__file__)))}
        ours = [sys.executable, "-m", "thalweg_torch", "--tier=1", "--policy", "pytorch"]
        for words in (["script.py", "--tier", "2", "--", "x"], ["-m", "script", "-m", "--", "x"]):
            answers = [
                subprocess.run([*way, *words], cwd=folder, env=environment, capture_output=True, text=True)
                for way in ([sys.executable], ours)
            ]
            assert answers[0].stdout == answers[1].stdout and answers[1].returncode == 0, answers
            assert answers[1].stdout.endswith("late\nexit\n"), answers
        answers = [
            subprocess.run([*way, "missing.py"], cwd=folder, env=environment, capture_output=True, text=True)
            for way in ([sys.executable], ours)
        ]
        assert [answer.returncode for answer in answers] == [2, 2] and "Traceback" not in answers[1].stderr, answers
        assert answers[1].stderr.splitlines()[-1] == answers[0].stderr.splitlines()[-1], answers
    return "a script and a module run as they do without us"


def _say_tier(rank, answers):
    import torch

    import thalweg_torch

    before = torch.cuda.get_allocator_backend()
    answers.put((before, thalweg_torch.enable(tier=1).tier, torch.cuda.get_allocator_backend()))


def spawned():
    import torch

    import thalweg_torch

    thalweg_torch.enable(tier=1)
    answers = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(_say_tier, (answers,))
    assert answers.get() == ("native", 1, "pluggable")
    return "a spawned process has PyTorch's allocator until it calls enable() itself"


def raises(kind, function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except kind as error:
        return error
    raise AssertionError(f"{function} took {arguments} {keywords}")


def settings():
    import torch

    import thalweg_torch

    assert "^" in str(raises(ValueError, thalweg_torch.enable, conf="max_split_size_mb:1"))
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "garbage_collection_threshold:7"
    text = str(raises(ValueError, thalweg_torch.enable))
    assert "PYTORCH_CUDA_ALLOC_CONF" in text and "^" in text, text
    del os.environ["PYTORCH_CUDA_ALLOC_CONF"]
    assert thalweg_torch.enabled() is None
    thalweg_torch.enable(tier=2, conf="max_split_size_mb:64")
    raises(ValueError, thalweg_torch.set_settings, "backend:cudaMallocAsync")
    torch.cuda.memory._set_allocator_settings("max_split_size_mb:128,expandable_segments:False")
    assert thalweg_torch.settings() == "max_split_size_mb:128,expandable_segments:False", thalweg_torch.settings()
    settings = torch._C._cuda_memorySnapshot(None)["allocator_settings"]
    assert settings["max_split_size"] == 128 << 20 and settings["expandable_segments"] is False, settings
    assert settings["garbage_collection_threshold"] == 0.0 and settings["PYTORCH_CUDA_ALLOC_CONF"] == thalweg_torch.settings()
    return "a wrong text is pointed at, and changes nothing; PyTorch's settings are ours"


def main():
    checks = (native, hooks, settings, statistics, sources, builds, fallback, uses, program, spawned)
    if len(sys.argv) > 1:
        print(next(check for check in checks if check.__name__ == sys.argv[1])())
        return 0
    return sum(subprocess.run([sys.executable, __file__, check.__name__]).returncode != 0 for check in checks)


if __name__ == "__main__":
    sys.exit(main())
