"""Measures the host time of a small add from Python on a GPU, compared with a raw launch through the driver in the same process, and with PyTorch
if it is installed.

    PYTHONPATH=python python scripts/overhead.py [FILE]

All are timed in turn, round by round. A raw launch is `cuLaunchKernel` of an empty kernel of three pointers and a count, called through ctypes, whose own
cost (that of a call of `cuDriverGetVersion` with as many arguments) is taken off. The add's budget is raw launch x 1.15 + 0.5 us. With FILE a line of JSON is
appended.
"""

import ctypes
import json
import statistics
import sys
import time

import thalweg as th

# An empty kernel, as PTX, which every driver compiles for its GPU.
KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry nothing(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n) { ret; }
"""
CALLS, ROUNDS = 2000, 21


def checked(code):
    if code:
        raise RuntimeError(f"the driver's call failed: CUresult {code}")


def raw_launch(cuda):
    """Returns a call that launches the empty kernel on the current stream of the first GPU, whose context becomes this thread's."""
    context = ctypes.c_void_p()
    checked(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    checked(cuda.cuCtxSetCurrent(context))
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    checked(cuda.cuModuleLoadData(ctypes.byref(module), KERNEL))
    checked(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"nothing"))
    values = [ctypes.c_uint64(0), ctypes.c_uint64(0), ctypes.c_uint64(0), ctypes.c_uint32(16)]
    arguments = (ctypes.c_void_p * 4)(*(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values))
    launch = cuda.cuLaunchKernel
    one, threads, none = (ctypes.c_uint(value) for value in (1, 32, 0))
    stream = ctypes.c_void_p(th.cuda.current_stream().cuda_stream)

    def call():
        launch(function, one, one, one, threads, one, one, none, stream, arguments, None)
    checked(launch(function, one, one, one, threads, one, one, none, stream, arguments, None))
    call.kept = values
    return call


def empty_call(cuda):
    """Returns a ctypes call that does nothing, with the same number of arguments."""
    version = ctypes.c_int()
    ask, one = cuda.cuDriverGetVersion, ctypes.c_uint(1)

    def call():
        ask(ctypes.byref(version), one, one, one, one, one, one, one, one, one, one)
    return call


def timed(call, synchronize):
    """Returns microseconds of one call on the host."""
    synchronize()
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    passed = time.perf_counter() - begin
    synchronize()
    return passed / CALLS * 1e6


def main(file=None):
    if not th.cuda.is_available():
        sys.exit("there is no GPU: the host's time of a launch is measured on one")
    x, y = th.ones(16, device="cuda"), th.ones(16, device="cuda")
    cuda = ctypes.CDLL("libcuda.so.1")
    calls = {"thalweg": lambda: th.add(x, y), "raw launch": raw_launch(cuda), "ctypes": empty_call(cuda)}
    try:
        import torch
        p, q = torch.ones(16, device="cuda"), torch.ones(16, device="cuda")
        calls["PyTorch"] = lambda: torch.add(p, q)
    except ImportError:
        print("PyTorch is not installed; it is left out")
    times = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(timed(call, th.cuda.synchronize))
    found = {name: statistics.median(values[1:]) for name, values in times.items()}
    found["raw launch"] -= found.pop("ctypes")
    budget = found["raw launch"] * 1.15 + 0.5
    for name, value in found.items():
        print(f"{name:12} {value:6.2f} us")
    print(f"{'budget':12} {budget:6.2f} us: the add is {'within' if found['thalweg'] <= budget else 'beyond'} it ({th.cuda.get_device_name()})")
    if file is not None:
        with open(file, "a") as lines:
            print(json.dumps({"device": th.cuda.get_device_name(), **found, "budget": budget}), file=lines)


if __name__ == "__main__":
    main(*sys.argv[1:2])
