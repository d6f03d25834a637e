"""Collectives over several GPUs in PyTorch and in Thalweg, in turn in one run: host time of a call, bus bandwidth, and the ratios.

    python benches/peers/collectives.py --bench PATH [--gpus N] [--rounds N] [--json FILE]

PATH is our bench `collectives` of thalweg-dist (in a bundle: benches/thalweg-dist-collectives). Both sides run under torchrun, a process per GPU, `--rounds` times in
turn; of each row the least host time and the greatest bandwidth count. Under torchrun the script is PyTorch's side and prints JSON lines with the names of our bench.
"""
import argparse, json, os, subprocess, sys, time

NAMES = ["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"]


def peer():
    import torch, torch.distributed as dist

    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    ranks = dist.get_world_size()

    def call(name, whole, part):
        if name == "all_reduce":
            return dist.all_reduce(whole, async_op=True)
        if name == "all_gather_into_tensor":
            return dist.all_gather_into_tensor(whole, part, async_op=True)
        return dist.reduce_scatter_tensor(part, whole, async_op=True)

    for name in NAMES:
        for power in range(10, 31, 2):
            elements = (1 << power) // 4
            whole = torch.zeros(elements, device="cuda")
            part = torch.zeros(elements // ranks, device="cuda")
            rounds = 50 if power < 24 else 10
            for _ in range(5):
                call(name, whole, part).wait()
            dist.barrier()
            torch.cuda.synchronize()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            begin = time.perf_counter()
            for _ in range(rounds):
                work = call(name, whole, part)
            host = (time.perf_counter() - begin) * 1e6 / rounds
            work.wait()
            end.record()
            end.synchronize()
            us = start.elapsed_time(end) * 1e3 / rounds
            factor = (2 if name == "all_reduce" else 1) * (ranks - 1) / ranks
            if dist.get_rank() == 0:
                row = {"name": name, "bytes": 4 * elements, "us": us, "bus_gb_per_s": 4 * elements * factor / us / 1e3, "host_us": host}
                print(json.dumps(row), flush=True)
    dist.destroy_process_group()


def run(command, gpus):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus)]
    output = subprocess.run(launcher + command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json")
    options = parser.parse_args()
    best = {}
    for _ in range(options.rounds):
        for side, command in [("ours", ["--no-python", options.bench]), ("torch", [os.path.abspath(__file__)])]:
            for row in run(command, options.gpus):
                mine = best.setdefault((row["name"], row["bytes"]), {}).setdefault(side, dict(row))
                mine["host_us"] = min(mine["host_us"], row["host_us"])
                mine["bus_gb_per_s"] = max(mine["bus_gb_per_s"], row["bus_gb_per_s"])
    print(f"{'collective':24} {'bytes':>11} | {'host us: ours':>13} {'torch':>8} {'ratio':>6} | {'GB/s: ours':>10} {'torch':>8} {'ratio':>6}")
    for (name, size), sides in best.items():
        ours, torch = sides["ours"], sides["torch"]
        host, bus = ours["host_us"] / torch["host_us"], ours["bus_gb_per_s"] / torch["bus_gb_per_s"]
        print(f"{name:24} {size:11} | {ours['host_us']:13.2f} {torch['host_us']:8.2f} {host:6.2f} | "
              f"{ours['bus_gb_per_s']:10.2f} {torch['bus_gb_per_s']:8.2f} {bus:6.2f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump([{"name": name, "bytes": size, **sides} for (name, size), sides in best.items()], file, indent=1)


if __name__ == "__main__":
    peer() if "LOCAL_RANK" in os.environ else main()
