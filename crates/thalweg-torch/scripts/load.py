"""Whether both tiers fit the PyTorch of this machine, without a GPU: they are put in place, asked, and the second is taken out again.

    python3 load.py

A mistake in the class (a virtual function too many, or in the wrong place) shows here as a crash. Needs a PyTorch that was built
for CUDA; no driver.
"""

import subprocess
import sys


def native():
    import torch

    import thalweg_torch

    before = torch.cuda.get_allocator_backend()
    enabled = thalweg_torch.enable(tier=2)
    assert torch.cuda.get_allocator_backend() == "thalweg"
    assert torch._C._cuda_memoryStats(0)["num_ooms"] == 0
    assert torch._C._cuda_memorySnapshot(None)["segments"] == []
    try:
        thalweg_torch.enable()
        raise AssertionError("it was enabled twice")
    except RuntimeError as error:
        assert "in use already" in str(error)
    enabled.way.remove()
    assert torch.cuda.get_allocator_backend() == before
    return repr(enabled)


def hooks():
    import ctypes

    import torch

    import thalweg_torch
    from thalweg_torch import _library

    enabled = thalweg_torch.enable(tier=1)
    assert torch.cuda.get_allocator_backend() == "pluggable"
    functions = ctypes.CDLL(str(_library.path("libthalweg_hooks.so")))
    assert functions.thalweg_hooks_throw_out_of_memory_error() == 1, "PyTorch's exception was not found"
    assert torch.cuda.memory_stats(0)["num_ooms"] == 0
    for wrong in (lambda: torch.compile(lambda x: x, mode="reduce-overhead"), benchmark):
        try:
            wrong()
            raise AssertionError("it was not refused")
        except thalweg_torch.Refused:
            pass
    return repr(enabled)


def benchmark():
    import torch

    torch.backends.cudnn.benchmark = True


def settings():
    import thalweg_torch

    try:
        thalweg_torch.enable(conf="max_split_size_mb:1")
        raise AssertionError("the text was taken")
    except ValueError as error:
        assert "^" in str(error)
    assert thalweg_torch.enabled() is None
    return "a wrong text is pointed at, and changes nothing"


def main():
    checks = {"native": native, "hooks": hooks, "settings": settings}
    if len(sys.argv) > 1:
        print(checks[sys.argv[1]]())
        return 0
    return sum(subprocess.run([sys.executable, __file__, name]).returncode != 0 for name in checks)


if __name__ == "__main__":
    sys.exit(main())
