"""Measures the least memory that a training run needs: with limits between the live memory and the memory that PyTorch
reserves, which allocator completes the run.

    python3 fragmentation.py [factor ...]

The program is that of the recorded trace `gpt_train`: a small GPT, batches of two shapes in turn. It first runs without a limit, to
see the most that is ever live (L). Then each allocator runs under limits from 1.02 to 1.3 times L.
"""

import json
import os
import subprocess
import sys

FACTORS = (1.02, 1.05, 1.08, 1.1, 1.12, 1.15, 1.18, 1.2, 1.25, 1.3)
ALLOCATORS = {
    "pytorch": {},
    "pytorch gc0.7": {"conf": "garbage_collection_threshold:0.7"},
    "pytorch expandable": {"conf": "expandable_segments:True"},
    "thalweg": {"tier": 2},
    "thalweg hooks": {"tier": 1},
}


def run(allocator, limit_bytes):
    how = ALLOCATORS[allocator]
    if "conf" in how:
        os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = how["conf"]
    import torch

    if "tier" in how:
        import thalweg_torch

        thalweg_torch.enable(tier=how["tier"])
    import workloads

    torch.manual_seed(1)
    total = torch.cuda.get_device_properties(0).total_memory
    if limit_bytes:
        torch.cuda.set_per_process_memory_fraction(limit_bytes / total)
    try:
        losses, error = workloads.gpt_small_step_sizes(4), None
    except torch.OutOfMemoryError as out_of_memory:
        losses, error = [], str(out_of_memory)[:400]
    stats = torch.cuda.memory_stats()
    return {
        "completed": error is None,
        "error": error,
        "losses": losses,
        "peak_active": stats["active_bytes.all.peak"],
        "peak_reserved": stats["reserved_bytes.all.peak"],
        "retries": stats["num_alloc_retries"],
    }


def child(allocator, limit_bytes):
    command = [sys.executable, os.path.abspath(__file__), "--child", allocator, str(int(limit_bytes))]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(lines[-1][7:]) if lines else {"completed": False, "error": done.stderr[-800:]}


def main():
    if sys.argv[1:2] == ["--child"]:
        print("RESULT " + json.dumps(run(sys.argv[2], int(sys.argv[3]))), flush=True)
        return
    factors = [float(argument) for argument in sys.argv[1:]] or FACTORS
    free = child("pytorch", 0)
    print(json.dumps({"allocator": "pytorch", "factor": None, **free}), flush=True)
    for allocator in ALLOCATORS:
        for factor in factors:
            result = child(allocator, factor * free["peak_active"])
            print(json.dumps({"allocator": allocator, "factor": factor, **result}), flush=True)
            # What completes under a limit completes under a higher one.
            if result["completed"]:
                break


if __name__ == "__main__":
    main()
