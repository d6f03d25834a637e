"""GPT-2's training step over several GPUs in PyTorch, to be run beside the bench `training` of thalweg-dist: DistributedDataParallel or FSDP2.

    torchrun --nproc-per-node 2 benches/peers/parallel.py ddp|fsdp [--compile] [--layers N] [--features N] [--heads N] [--batch N] [--tokens N] [--steps N]

Prints one JSON object a line, with the names of our bench. `--batch` is that of a rank.
"""
import argparse, json, os, statistics, time
import torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 50304
parser = argparse.ArgumentParser()
parser.add_argument("mode", choices=["ddp", "fsdp"])
parser.add_argument("--compile", action="store_true")
for name, default in dict(layers=12, features=768, heads=12, batch=16, tokens=1024, steps=5).items():
    parser.add_argument(f"--{name}", type=int, default=default)
options = parser.parse_args()
FEATURES, HEADS = options.features, options.heads
torch.backends.cuda.matmul.allow_tf32 = True


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(FEATURES), nn.LayerNorm(FEATURES)
        self.qkv, self.projection = nn.Linear(FEATURES, 3 * FEATURES), nn.Linear(FEATURES, FEATURES)
        self.expand, self.contract = nn.Linear(FEATURES, 4 * FEATURES), nn.Linear(4 * FEATURES, FEATURES)

    def forward(self, x):
        batch, tokens, _ = x.shape
        packed = self.qkv(self.norm1(x)).view(batch, tokens, 3, HEADS, FEATURES // HEADS)
        q, k, v = (part.transpose(1, 2) for part in packed.unbind(2))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, tokens, FEATURES)
        x = x + self.projection(heads)
        return x + self.contract(F.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, FEATURES), nn.Embedding(options.tokens, FEATURES)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(options.layers)), nn.LayerNorm(FEATURES)

    def forward(self, tokens, following):
        x = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        scores = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(scores.view(-1, VOCABULARY), following.view(-1))


local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl", device_id=torch.device("cuda", local))
torch.manual_seed(0)
with torch.device("cuda"):
    model = Gpt2()
if options.mode == "ddp":
    network = DistributedDataParallel(model, device_ids=[local])
else:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    network = fully_shard(model, mp_policy=policy)
if options.compile:
    network = torch.compile(network)
optimizer = torch.optim.AdamW(network.parameters(), lr=3e-4, fused=True)
tokens, following = (torch.randint(0, 50257, (options.batch, options.tokens), device="cuda") for _ in range(2))
start = time.perf_counter()


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16, enabled=options.mode == "ddp"):
        loss = network(tokens, following)
    loss.backward()
    optimizer.step()


for _ in range(5):
    step()
torch.cuda.synchronize()
first = time.perf_counter() - start
times = []
for _ in range(5):
    dist.barrier()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(options.steps):
        step()
    torch.cuda.synchronize()
    times.append((time.perf_counter() - start) / options.steps)
seconds = statistics.median(times)
if dist.get_rank() == 0:
    name = f"torch_{options.mode}_{'compiled' if options.compile else 'eager'}"
    print(json.dumps(dict(name=name, ranks=dist.get_world_size(), ms=round(seconds * 1e3, 3),
                          tokens_per_s_and_gpu=round(options.batch * options.tokens / seconds),
                          peak_allocated_MiB=torch.cuda.max_memory_allocated() >> 20, peak_reserved_MiB=torch.cuda.max_memory_reserved() >> 20,
                          first_steps_s=round(first, 1), torch=torch.__version__, device=torch.cuda.get_device_name())), flush=True)
dist.destroy_process_group()
