"""Time by kernel of PyTorch's compiled step of GPT-2."""
import sys, torch
sys.argv = ["x"]
src = open("gpt2_peer.py").read().split("for mode in [")[0]
exec(src)
for mode in ("compiled", "eager"):
    torch.manual_seed(0)
    model = Gpt2().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True, capturable=True)
    tokens, following = (torch.randint(0, 50257, (BATCH, TOKENS), device="cuda") for _ in range(2))
    forward = torch.compile(model) if mode == "compiled" else model
    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(tokens, following)
        loss.backward(); optimizer.step()
    for _ in range(4): step()
    torch.cuda.synchronize()
    from torch.profiler import profile, ProfilerActivity
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(3): step()
        torch.cuda.synchronize()
    rows = {}
    for e in p.events():
        if e.device_type == torch.autograd.DeviceType.CUDA:
            n, t = rows.get(e.name, (0, 0.0)); rows[e.name] = (n + 1, t + e.device_time)
    print(mode, "us a step, launches a step, kernel; total", round(sum(t for _, t in rows.values()) / 3, 1))
    for name, (n, t) in sorted(rows.items(), key=lambda x: -x[1][1])[:60]:
        print(f"{t/3:9.1f} {n/3:6.1f} {name[:150]}")
    del model, optimizer, forward
    torch.cuda.empty_cache()
