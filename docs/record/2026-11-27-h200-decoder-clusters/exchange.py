"""Times exchanges between all blocks, in nanoseconds per round, alone and beside copies of weights (6 KB per block and `pace` cycles).

Mode 8: values of 4 bytes, each with a tag. Mode 16: three of them with a tag. Mode 1: twelve from each block to each of its cluster. `replicas`: copies of what
is handed over, of which a block reads one. `cluster` other than 1 in modes 8 and 16: each block of a cluster polls a part and hands it on, by `split` threads a line.
"""
import sys
from concurrent.futures import ThreadPoolExecutor

import torch

import cuda

text = open(f"{sys.path[0]}/exchange.cu").read()
cases = []


def case(mode, values, replicas=1, cluster=1, split=1, blocks=128, vector=False):
    cases.extend((mode, values, replicas, cluster, split, blocks, vector, pace) for pace in (0, 700))


for replicas in (1, 2, 4, 8, 16):
    case(8, 768, replicas)
for mode, values in ((16, 768), (8, 1536), (16, 1536)):
    for replicas in (1, 4, 8):
        case(mode, values, replicas)
    if (mode, values) == (16, 768):
        case(16, 768, vector=True)
case(8, 384), case(16, 384), case(16, 384, 8), case(16, 768, 1, 2)
for few, many in ((768, 864), (1536, 1728)):
    for replicas in (1, 4):
        case(8, few, replicas, blocks=96), case(16, many, replicas, blocks=96)
for cluster, split in ((2, 1), (2, 2), (4, 1), (4, 4), (8, 1), (8, 4), (8, 8)):
    case(8, 768, 1, cluster, split, 96)
case(8, 768, 4, 8, 8, 96), case(16, 864, 1, 8, 8, 96)
case(8, 1536, 1, 8, 4, 96), case(16, 1728, 1, 8, 4, 96), case(8, 1536, 1, 4, 2, 96)
for cluster in (2, 4, 8, 16):
    case(1, 768, 1, cluster, 1, 96)


def compiled(case):
    names = ("MODE", "VALUES", "REP", "CL", "SPLIT", "BLOCKS")
    defines = "".join(f"#define {name} {value}\n" for name, value in zip(names, case))
    vector = "#define VECTOR\n" if case[6] else ""
    return cuda.compiled(f"{defines}{vector}#define PACE {case[7]}\n{text}")


with ThreadPoolExecutor(16) as pool:
    codes = list(pool.map(compiled, cases))
print(torch.cuda.get_device_name(0))
exchange = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
result = torch.zeros(128 * 384, dtype=torch.int32, device="cuda")
weights = torch.zeros((1 << 28) + (1 << 20), dtype=torch.int8, device="cuda")
stream = torch.cuda.current_stream().cuda_stream


def milliseconds(run):
    """The least of three."""
    times = []
    for _ in range(3):
        exchange.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(), run(), end.record(), torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return min(times)


for case, (code, _) in zip(cases, codes):
    mode, values, replicas, cluster, split, blocks, vector, pace = case
    function = cuda.Function(code, "rounds", 170 << 10, cluster)
    clusters = function.most_clusters(blocks, 416) if cluster > 1 else 0
    times = []
    for count in (1000, 2000):
        words = [exchange.data_ptr(), result.data_ptr(), count, weights.data_ptr(), (1 << 28) - 1]
        times.append(milliseconds(function.launcher(words, blocks, 416, stream, cooperative=mode != 1)))
    kind = f"mode {mode:2d} values {values:5d} replicas {replicas:2d} cluster {cluster:2d} split {split} {'vector' if vector else ''}"
    print(f"{kind} blocks {blocks} pace {pace:4d} clusters {clusters:3d}: {(times[1] - times[0]) * 1e3:7.0f} ns", flush=True)
