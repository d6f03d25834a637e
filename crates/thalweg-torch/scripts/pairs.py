"""What an allocation and its free cost: PyTorch's own allocator, the hooks and the native class, each in a process of its own.

    python3 pairs.py [--quick] [pytorch] [hooks] [native]

Prints one JSON object a line. `torch.empty` is in Python; the others are C++ loops over the allocator in place (pairs.cpp).
"""

import ctypes
import json
import os
import pathlib
import subprocess
import sys
import time


def measure(name, quick):
    import torch

    if name != "pytorch":
        import thalweg_torch

        thalweg_torch.enable(tier={"hooks": 1, "native": 2}[name])
    figures = {}
    for size in (4096,) if quick else (512, 4096, 1 << 20, 3 << 20, 32 << 20):

        def pair():
            x = torch.empty(size, dtype=torch.uint8, device="cuda")
            del x

        for _ in range(500):
            pair()
        best = []
        for _ in range(9):
            start = time.perf_counter()
            for _ in range(3000):
                pair()
            best.append((time.perf_counter() - start) / 3000 * 1e6)
        figures[f"torch_empty_free_{size}_us"] = sorted(best)[4]
    library = ctypes.CDLL(str(pathlib.Path(__file__).parent / "libthalweg_pairs.so"))
    for function in ("thalweg_bench_pair", "thalweg_bench_threads", "thalweg_bench_churn"):
        getattr(library, function).restype = ctypes.c_double
    median = lambda call: sorted(call() for _ in range(5))[2]
    for size in (4096,) if quick else (512, 4096, 3 << 20, 32 << 20):
        figures[f"pair_{size}_ns"] = median(
            lambda: library.thalweg_bench_pair(ctypes.c_uint64(size), ctypes.c_int64(100_000))
        )
    for threads in (1, 8) if quick else (1, 2, 4, 8):
        figures[f"threads{threads}_4096_ns"] = median(
            lambda: library.thalweg_bench_threads(
                ctypes.c_int64(threads), ctypes.c_uint64(4096), ctypes.c_int64(50_000)
            )
        )
    for live in () if quick else (100, 10_000):
        figures[f"churn_{live}_ns"] = median(
            lambda: library.thalweg_bench_churn(ctypes.c_int64(live), ctypes.c_int64(50_000))
        )
    return figures


def main():
    quick = "--quick" in sys.argv
    names = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    if "--child" in sys.argv:
        for name, value in measure(names[0], quick).items():
            print(json.dumps({"allocator": names[0], "name": name, "value": round(value, 3)}), flush=True)
        return
    for name in names or ("pytorch", "hooks", "native"):
        command = [sys.executable, os.path.abspath(__file__), "--child", name, *(["--quick"] if quick else [])]
        done = subprocess.run(command, capture_output=True, text=True)
        print(done.stdout, end="", flush=True)
        if done.returncode:
            print(json.dumps({"allocator": name, "error": done.stderr[-2000:]}), flush=True)


if __name__ == "__main__":
    main()
