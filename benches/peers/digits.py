"""The digits network in PyTorch, to be run beside `digits --json` on the same GPU: eager, and as one CUDA graph.

Prints one JSON object a line. Batches are on the device already, so only the training step is timed; ours loads batches
from pinned memory within its figure.
"""
import json, statistics, time
import torch, torch.nn as nn, torch.nn.functional as F

dev, batch = "cuda", 64
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False

def network():
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)).to(dev)

x = torch.rand(batch, 1, 8, 8, device=dev)
y = torch.randint(0, 10, (batch,), device=dev)

def report(name, step, steps=660, rounds=5):
    for _ in range(20): step()
    rates = []
    for _ in range(rounds):
        torch.cuda.synchronize(); start = time.perf_counter()
        for _ in range(steps): step()
        torch.cuda.synchronize(); rates.append(steps * batch / (time.perf_counter() - start))
    print(json.dumps(dict(name=name, value=round(statistics.median(rates), 1), unit="samples/s", torch=torch.__version__,
                          device=torch.cuda.get_device_name(), min=round(min(rates), 1), max=round(max(rates), 1))), flush=True)

for fused in (False, True):
    net = network()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, fused=fused, capturable=True)
    def step():
        opt.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
    label = "fused" if fused else "foreach"
    report(f"torch_digits_eager_{label}_adam", step)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3): step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    opt.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph): step()
    report(f"torch_digits_graph_{label}_adam", graph.replay)

# Host time of a small eager operator, from Python.
a, b = torch.randn(16, device=dev), torch.randn(16, device=dev)
def host_us(call, calls=500, rounds=15):
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize(); start = time.perf_counter()
        for _ in range(calls): call()
        times.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(times)
with torch.no_grad():
    for name, call in dict(add_16=lambda: a + b, sum_16=lambda: a.sum()).items():
        print(json.dumps(dict(name=f"torch_python_{name}", value=round(host_us(call), 3), unit="us")))
