"""Measures buffers that a side stream fills and the main one uses: reserved memory and time, with each way of recording
that use.

    python3 hand_over.py [allocator:mode ...]

32 buffers of 256 MiB are filled on a side stream, used on the main one, which then has other work. `stash` is what programs write
by hand to avoid `record_stream`: keep the buffer, wait for its event on the device two buffers later, drop it.
"""

import json
import os
import subprocess
import sys
import time

MODES = {
    "pytorch": ("record_stream", "stash", "ring3"),
    "thalweg": ("record_stream", "record_use", "region", "stash"),
    "thalweg hooks": ("record_stream", "record_use"),
}


def run(allocator, mode, count=32, size=256 << 20):
    import torch

    if allocator != "pytorch":
        import thalweg_torch

        thalweg_torch.enable(tier=1 if "hooks" in allocator else 2)
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.empty_like(a)
    for _ in range(3):
        torch.mm(a, a, out=b)
    ring = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(3)] if mode == "ring3" else []
    ring_events = [None] * 3

    def step(index, stash):
        with torch.cuda.stream(side):
            if mode == "ring3":
                if ring_events[index % 3]:
                    side.wait_event(ring_events[index % 3])
                x = ring[index % 3]
            else:
                x = torch.empty(size, dtype=torch.uint8, device="cuda")
            x.zero_()
            filled = side.record_event()
        main.wait_event(filled)
        if mode == "region":
            x.record_stream(main)
        x.add_(1)
        if mode == "record_use":
            thalweg_torch.record_use(x, main)
        used = main.record_event() if mode in ("stash", "ring3") else None
        # Later work of the main stream, which has nothing to do with the buffer.
        torch.mm(a, a, out=b)
        torch.mm(a, a, out=b)
        if mode == "record_stream":
            x.record_stream(main)
        elif mode == "ring3":
            ring_events[index % 3] = used
        elif mode == "stash":
            stash.append((x, used))
            if len(stash) > 2:
                _, event = stash.pop(0)
                side.wait_event(event)

    def loop():
        stash = []
        for index in range(count):
            if mode == "region":
                with thalweg_torch.record_use_region():
                    step(index, stash)
            else:
                step(index, stash)
        torch.cuda.synchronize()

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(6):
        start = time.perf_counter()
        loop()
        times.append((time.perf_counter() - start) * 1e3)
    stats = torch.cuda.memory_stats()
    # Beside the buffers there are the two matrices and cuBLAS's workspace.
    return {
        "reserved_MiB": stats["reserved_bytes.all.peak"] >> 20,
        "active_MiB": stats["active_bytes.all.peak"] >> 20,
        "first_ms": round(times[0], 2),
        "ms": round(sorted(times[1:])[2], 2),
    }


def main():
    if sys.argv[1:2] == ["--child"]:
        print("RESULT " + json.dumps(run(*sys.argv[2:4])), flush=True)
        return
    jobs = [argument.split(":") for argument in sys.argv[1:]]
    for allocator, mode in jobs or [(allocator, mode) for allocator, modes in MODES.items() for mode in modes]:
        command = [sys.executable, os.path.abspath(__file__), "--child", allocator, mode]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        result = json.loads(lines[-1][7:]) if lines else {"error": done.stderr[-1500:]}
        print(json.dumps({"allocator": allocator, "mode": mode, **result}), flush=True)


if __name__ == "__main__":
    main()
