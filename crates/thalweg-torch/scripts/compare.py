"""Programs under PyTorch's own allocator and under Thalweg's: losses, time and memory, each run in a fresh process.

    python3 compare.py [--workloads gpt_eager,gnn,...] [--allocators pytorch,thalweg,...] [--repeat N]

Prints one JSON object per run, then a table. Step time and peaks come from the same run; runs of different allocators alternate,
and the repetition with the least mean is taken for each. "first s" is what the first steps took, which compile and fill the cache
and are not counted in the others. "best ms" is the mean over the steps of the least time that each took in any repetition: a step
does the same work in all of them, so a busy host adds nothing to it but what hits one step every time. Algorithms are
deterministic, so that losses must be equal to the bit; "not N" says that they first differ in step N.
"""

import argparse
import json
import os
import subprocess
import sys
import time

ALLOCATORS = {
    "pytorch": {},
    "pytorch expandable": {"conf": "expandable_segments:True"},
    "pytorch split128": {"conf": "max_split_size_mb:128"},
    "pytorch pow2_8": {"conf": "roundup_power2_divisions:8"},
    "thalweg": {"tier": 2},
    "thalweg page2": {"tier": 2, "thalweg_conf": "expandable_page_mb:2"},
    "thalweg plain": {"tier": 2, "thalweg_conf": "expandable_segments:False"},
    "thalweg hooks": {"tier": 1},
    "thalweg policy:pytorch": {"tier": 2, "policy": "pytorch"},
}
DEFAULT = ("pytorch", "pytorch expandable", "thalweg")
# Of these, PyTorch's best setting is looked for.
SIZES_VARY = ("gnn", "unet", "generation", "resnet")


class Timer:
    """Milliseconds of each step, from end to end on the device, and how often the driver was asked for memory until then."""

    def __init__(self, torch):
        self.torch, self.times, self.asked = torch, [], []

    def __enter__(self):
        self.torch.cuda.synchronize()
        self.start = time.perf_counter()

    def __exit__(self, *_):
        self.torch.cuda.synchronize()
        self.times.append((time.perf_counter() - self.start) * 1e3)
        self.asked.append(self.torch.cuda.memory_stats()["num_device_alloc"])


def run(workload, allocator):
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    how = ALLOCATORS[allocator]
    if "conf" in how:
        os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = how["conf"]
    import torch

    if "tier" in how:
        import thalweg_torch

        thalweg_torch.enable(tier=how["tier"], policy=how.get("policy"), conf=how.get("thalweg_conf", ""))
    import workloads

    torch.manual_seed(1)
    # Attention repeats its bits under the strict form only; a few operators of the others have no strict form.
    torch.use_deterministic_algorithms(True, warn_only=not workload.startswith("gpt"))
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.deterministic = True
    # Of attention, the one implementation whose gradient repeats its bits.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    function, steps, warm_up = workloads.WORKLOADS[workload]
    torch.cuda.init()
    timer = Timer(torch)
    losses = function(steps, timer)
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    times = sorted(timer.times[warm_up:])
    return {
        "losses": [float(loss).hex() for loss in losses],
        "warm_up_steps": warm_up,
        "warm_up_s": sum(timer.times[:warm_up]) / 1e3,
        "step_ms": times[len(times) // 2],
        "mean_ms": sum(times) / len(times),
        "peak_reserved": stats["reserved_bytes.all.peak"],
        "peak_active": stats["active_bytes.all.peak"],
        "retries": stats["num_alloc_retries"],
        "device_allocations": stats["num_device_alloc"],
        "pages_moved": thalweg_torch.memory_stats()["num_pages_moved"] if "tier" in how else 0,
        "times": [round(value, 2) for value in timer.times],
        "asked": timer.asked,
    }


def table(results):
    columns = f"{'first s':>9}{'step ms':>9}{'mean ms':>9}{'best ms':>9}{'reserved MiB':>14}{'active MiB':>12}{'r/a':>7}"
    print(f"{'workload':22}{'allocator':24}{'losses':8}{columns}")
    for workload in dict.fromkeys(workload for workload, _ in results):
        first = next((r for (w, a), r in results.items() if w == workload and a == "pytorch" and r), None)
        for (name, allocator), result in results.items():
            if name != workload:
                continue
            if not result:
                print(f"{workload:22}{allocator:24}failed")
                continue
            same = "-"
            if first is not None:
                pairs = enumerate(zip(result["losses"], first["losses"]))
                differs = next((step for step, (one, other) in pairs if one != other), None)
                same = "equal" if differs is None else f"not {differs}"
            reserved, active = result["peak_reserved"] / 2**20, result["peak_active"] / 2**20
            counted = result["least"][result["warm_up_steps"] :]
            print(
                f"{workload:22}{allocator:24}{same:8}{result['warm_up_s']:9.2f}{result['step_ms']:9.2f}"
                f"{result['mean_ms']:9.2f}{sum(counted) / len(counted):9.2f}{reserved:14.0f}{active:12.0f}{reserved / active:7.3f}"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--workloads")
    parser.add_argument("--allocators")
    parser.add_argument("--repeat", type=int, default=2)
    options = parser.parse_args()
    if options.child:
        print("RESULT " + json.dumps(run(*options.child)), flush=True)
        return
    import workloads

    names = options.workloads.split(",") if options.workloads else list(workloads.WORKLOADS)
    results = {}
    for name in names:
        allocators = options.allocators.split(",") if options.allocators else list(DEFAULT)
        if not options.allocators and name in SIZES_VARY:
            allocators += ["pytorch split128", "pytorch pow2_8"]
        for repetition in range(options.repeat):
            for allocator in allocators:
                command = [sys.executable, os.path.abspath(__file__), "--child", name, allocator]
                done = subprocess.run(command, capture_output=True, text=True)
                lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
                if not lines:
                    print(json.dumps({"workload": name, "allocator": allocator, "error": done.stderr[-1500:]}), flush=True)
                    results.setdefault((name, allocator), None)
                    continue
                result = json.loads(lines[-1][7:])
                print(json.dumps({"workload": name, "allocator": allocator, **result}), flush=True)
                best = results.get((name, allocator))
                if best is not None and best["losses"] != result["losses"]:
                    print(f"# {name} under {allocator}: two runs have different losses")
                least = [min(pair) for pair in zip(result["times"], best["least"])] if best else result["times"]
                if best is None or result["mean_ms"] < best["mean_ms"]:
                    best = result
                results[(name, allocator)] = {**best, "least": least}
    table(results)


if __name__ == "__main__":
    main()
