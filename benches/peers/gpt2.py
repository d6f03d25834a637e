"""GPT-2's training step in PyTorch, to be run beside `gpt2` on the same GPU: eager, captured, and with --compile compiled.

Prints one JSON object a line, with the names of our bench. The model, its sizes and the optimizer are those of the bench; products run in
bfloat16 by autocast, and in TF32 where they do not.

With --losses FOLDER --text FILE it trains on a text's bytes instead, from three seeds: it writes the weights at the beginning, and the losses of 200
steps in bfloat16 and in float32, for the bench to train from the same weights.
"""
import json, statistics, sys, time
import torch, torch.nn as nn, torch.nn.functional as F

FEATURES, HEADS, LAYERS, VOCABULARY, BATCH, TOKENS = 768, 12, 12, 50304, 16, 1024
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
        self.tokens, self.positions = nn.Embedding(VOCABULARY, FEATURES), nn.Embedding(TOKENS, FEATURES)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(FEATURES)

    def forward(self, tokens, following):
        x = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        scores = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(scores.view(-1, VOCABULARY), following.view(-1))


def measure(mode):
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    model = Gpt2().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True, capturable=True)
    tokens, following = (torch.randint(0, 50257, (BATCH, TOKENS), device="cuda") for _ in range(2))
    forward = torch.compile(model) if mode == "compiled" else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(tokens, following)
        loss.backward()
        optimizer.step()

    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    run = step
    if mode == "captured":
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        run = graph.replay
    for _ in range(3):
        run()
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5):
            run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / 5)
    seconds = statistics.median(times)
    print(json.dumps(dict(name=f"torch_gpt2_{mode}", value=round(BATCH * TOKENS / seconds), unit="tokens/s", ms=round(seconds * 1e3, 3),
                          peak_allocated_MiB=torch.cuda.max_memory_allocated() >> 20, peak_reserved_MiB=torch.cuda.max_memory_reserved() >> 20,
                          first_step_s=round(first, 2), torch=torch.__version__, device=torch.cuda.get_device_name())), flush=True)


def write_losses(folder, text):
    """Trains in both formats from each seed."""
    names = {".expand.": ".mlp.expand.", ".contract.": ".mlp.contract."}
    text = torch.tensor(list(open(text, "rb").read()), device="cuda")
    for seed in range(3):
        torch.manual_seed(seed)
        model = Gpt2().cuda()
        for module in model.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        first = {name: tensor.clone() for name, tensor in model.state_dict().items()}

        def renamed(name):
            for theirs, ours in names.items():
                name = name.replace(theirs, ours)
            return name

        torch.save({renamed(name): tensor.cpu() for name, tensor in first.items()}, f"{folder}/gpt2-{seed}.pt")
        for form in ["bfloat16", "float32"]:
            model.load_state_dict(first)
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
            losses = []
            for step in range(200):
                starts = [(step * BATCH + row) * 7919 % (len(text) - TOKENS - 1) for row in range(BATCH)]
                tokens, following = (torch.stack([text[at + shift:at + shift + TOKENS] for at in starts]) for shift in range(2))
                optimizer.zero_grad(set_to_none=True)
                with torch.autocast("cuda", torch.bfloat16, enabled=form == "bfloat16"):
                    loss = model(tokens, following)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            open(f"{folder}/torch-{form}-{seed}.txt", "w").writelines(f"{loss.item()}\n" for loss in losses)


if "--losses" in sys.argv:
    folder, text = (sys.argv[sys.argv.index(flag) + 1] for flag in ["--losses", "--text"])
    write_losses(folder, text)
    sys.exit()
for mode in ["eager", "captured"] + (["compiled"] if "--compile" in sys.argv else []):
    measure(mode)
