"""Measures the cost of an allocation and its free with PyTorch's own allocator, with the hooks and with the native
class, each in a separate process.

    python3 pairs.py [--quick] [--repeat N] [pytorch] [hooks] [native]

Prints one JSON object a figure, then a table of the least and the median over the repetitions, which alternate. `torch.empty` is in
Python; the others are C++ loops over the allocator in place (pairs.cpp).
"""

import argparse
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
        loops = []
        for _ in range(9):
            start = time.perf_counter()
            for _ in range(3000):
                pair()
            loops.append((time.perf_counter() - start) / 3000 * 1e6)
        figures[f"torch_empty_free_{size}_us"] = sorted(loops)[4]
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


def table(figures):
    names = dict.fromkeys(name for _, name in figures)
    allocators = dict.fromkeys(allocator for allocator, _ in figures)
    print(f"{'least and median':30}" + "".join(f"{allocator:>22}" for allocator in allocators))
    for name in names:
        row = f"{name:30}"
        for allocator in allocators:
            values = sorted(figures.get((allocator, name), ()))
            row += f"{values[0]:11.2f}{values[len(values) // 2]:11.2f}" if values else f"{'-':>22}"
        print(row)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--child", action="store_true")
    parser.add_argument("allocators", nargs="*", default=["pytorch", "hooks", "native"])
    options = parser.parse_args()
    if options.child:
        for name, value in measure(options.allocators[0], options.quick).items():
            print(json.dumps({"allocator": options.allocators[0], "name": name, "value": round(value, 3)}), flush=True)
        return
    figures = {}
    for allocator in options.allocators * options.repeat:
        command = [sys.executable, os.path.abspath(__file__), "--child", allocator, *(["--quick"] if options.quick else [])]
        done = subprocess.run(command, capture_output=True, text=True)
        print(done.stdout, end="", flush=True)
        for line in filter(None, done.stdout.splitlines()):
            figure = json.loads(line)
            figures.setdefault((allocator, figure["name"]), []).append(figure["value"])
        if done.returncode:
            print(json.dumps({"allocator": allocator, "error": done.stderr[-2000:]}), flush=True)
    table(figures)


if __name__ == "__main__":
    main()
