"""Checks that the sanitizer finds the bugs in small programs, and nothing in their corrected versions.

    python3 sanitize.py [name ...]

Each program runs twice in a process of its own, under `python -m thalweg_torch --sanitize`: with `RIGHT = False` it has the bug that
its first line names, with `RIGHT = True` it has not. Prints a table; the exit status is the number of programs that were judged wrongly.
"""

import concurrent.futures
import os
import subprocess
import sys
import tempfile

PROGRAMS = {}


def program(text):
    lines = text.strip("\n").splitlines()
    name, _, kind = lines[0].removeprefix("# ").partition(": ")
    PROGRAMS[name] = (kind, "\n".join(lines[1:]))


HEAD = """
import torch
main, side = torch.cuda.current_stream(), torch.cuda.Stream()
"""

program("""
# missing wait before a read: data race
x = torch.ones(1 << 20, device="cuda")
with torch.cuda.stream(side):
    if RIGHT:
        side.wait_stream(main)
    y = x * 2
main.wait_stream(side)
x.record_stream(side)
y.record_stream(main)
print(y.sum().item())
""")

program("""
# missing wait behind the side stream: data race
x = torch.ones(1 << 20, device="cuda")
side.wait_stream(main)
with torch.cuda.stream(side):
    x.mul_(2)
x.record_stream(side)
if RIGHT:
    main.wait_stream(side)
print(x.sum().item())
""")

program("""
# event recorded too early: data race
x = torch.zeros(1 << 20, device="cuda")
event = torch.cuda.Event()
event.record()
if RIGHT:
    x.add_(1); event.record()
else:
    x.add_(1)
side.wait_event(event)
with torch.cuda.stream(side):
    y = x + 1
x.record_stream(side)
torch.cuda.synchronize()
""")

program("""
# tensor dropped under another stream's work: missing record_stream
x = torch.ones(1 << 20, device="cuda")
side.wait_stream(main)
with torch.cuda.stream(side):
    y = x * 2
if RIGHT:
    x.record_stream(side)
del x
torch.cuda.synchronize()
""")

program("""
# columns of one matrix on two streams: data race
x = torch.zeros(1024, 64, device="cuda")
side.wait_stream(main)
x[:, :32].add_(1)
with torch.cuda.stream(side):
    x[:, (32 if RIGHT else 31):].add_(1)
main.wait_stream(side)
x.record_stream(side)
torch.cuda.synchronize()
""")

program("""
# gradients used on a stream that does not wait for backward: data race
model = torch.nn.Linear(256, 256).cuda()
x = torch.ones(64, 256, device="cuda")
model(x).sum().backward()
if RIGHT:
    side.wait_stream(main)
with torch.cuda.stream(side):
    norm = model.weight.grad.norm()
main.wait_stream(side)
norm.record_stream(main)
model.weight.grad.record_stream(side)
torch.cuda.synchronize()
""")

program("""
# batch fetched on a side stream and used without waiting: data race
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(3):
    with torch.cuda.stream(side):
        batch = torch.randn(32, 256).pin_memory().to("cuda", non_blocking=True)
    if RIGHT:
        main.wait_stream(side)
    batch.record_stream(main)
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
""")

program("""
# queries that said no: data race
x = torch.zeros(1 << 24, device="cuda")
event = torch.cuda.Event()
for _ in range(50):
    x.add_(1)
event.record()
while RIGHT and not event.query():
    pass
with torch.cuda.stream(side):
    y = x + 1
x.record_stream(side)
torch.cuda.synchronize()
""")

program("""
# a thread that does not wait: data race
import threading
x = torch.zeros(1 << 20, device="cuda")
def work():
    with torch.cuda.stream(side):
        if RIGHT:
            side.wait_stream(main)
        x.add_(1)
thread = threading.Thread(target=work)
thread.start()
thread.join()
x.record_stream(side)
torch.cuda.synchronize()
""")


def judge(name, is_right):
    kind, text = PROGRAMS[name]
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "program.py")
        with open(file, "w") as out:
            out.write(f"RIGHT = {is_right}\n{HEAD}\n{text}\n")
        command = [sys.executable, "-m", "thalweg_torch", "--sanitize", file]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    found = [line.split(":")[0] for line in ran.stderr.splitlines() if line.startswith((kind + ":", "data race:", "missing record"))]
    expected = (0, []) if is_right else (1, [kind])
    is_well = ran.returncode == expected[0] and (set(found) == set(expected[1]))
    return is_well, ran.returncode, found, ran.stderr


def main():
    names = sys.argv[1:] or list(PROGRAMS)
    jobs = [(name, is_right) for name in names for is_right in (False, True)]
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for (name, is_right), (is_well, status, found, text) in zip(jobs, pool.map(lambda job: judge(*job), jobs)):
            wrong += not is_well
            verdict = "ok" if is_well else "WRONG"
            print(f"{verdict:5}  {'right' if is_right else 'buggy'}  {name}: status {status}, {', '.join(found) or 'nothing'}", flush=True)
            if not is_well or (name, is_right) == jobs[0]:
                print(text)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
