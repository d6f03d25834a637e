"""Runs model classes of transformers, timm and torchvision inside PyTorch under compilers: results, times, memory, and a table.

    PYTHONPATH=python python scripts/inside_pytorch.py [NAME ...] [--suite SUITE ...] [--backend BACKEND ...] [--accuracy] [--performance]
                                                       [--training] [--inference] [--float32] [--float64] [--jobs N] [--limit SECONDS] [--total SECONDS] [--out FILE]

The models (`model_classes.py`) have random weights. NAME is a name of a model or a part of one; without a name all run. BACKEND is `eager`,
`inductor`, `thalweg` or another backend of `torch.compile`. Training runs under autocast to bfloat16, and so does inference.

`--accuracy` compares results, gradients and buffers of four calls with those of eager PyTorch: both are measured against the same model in
float64; with `--float64` all of them are in float64, so that rounding cannot be the reason for a difference. `--performance` times calls, the first one too, and the peak of memory. Without a GPU models are tiny, `thalweg` compiles the graphs for a
GPU and runs them on the simulated one, and only `--accuracy` has a meaning. With FILE a line of JSON for each run is appended, and runs that it has already are not repeated; the last lines
printed are a table. Every model runs in a process of its own; N of them compile at the same time, on all GPUs in turn, and are measured one after the other on each.
"""

import argparse
import collections
import concurrent.futures
import copy
import json
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
import traceback
import warnings

import torch

import model_classes

HERE = pathlib.Path(__file__).parent
IS_ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if IS_ON_GPU else "cpu"
# The GPUs, by the names that `CUDA_VISIBLE_DEVICES` takes; without one a single entry.
GPUS = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))).split(",")


def tensors_of(value):
    """Returns the tensors of floats in a result."""
    leaves = torch.utils._pytree.tree_leaves(value if not hasattr(value, "to_tuple") else value.to_tuple())
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def loss_of(value):
    """Returns the loss of a result: the result's own loss, or a sum of its values with alternating signs."""
    own = getattr(value, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    floats = [one for one in tensors_of(value) if one.is_floating_point() and one.requires_grad]
    return sum((one.double() * torch.linspace(-1, 1, one.numel(), device=one.device, dtype=torch.float64).view(one.shape)).mean() for one in floats)


class Run:
    """A model with inputs, as one of the ways to run it."""

    def __init__(self, model, inputs, is_training, is_narrow, compiler=None):
        self.model, self.inputs, self.is_training, self.is_narrow = model, inputs, is_training, is_narrow
        self.called = model if compiler is None else torch.compile(model, backend=compiler)

    def __call__(self):
        """Runs the model once, and its gradient in training."""
        torch.manual_seed(1)
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=self.is_narrow):
            if not self.is_training:
                with torch.no_grad():
                    return self.called(**self.inputs)
            for parameter in self.model.parameters():
                parameter.grad = None
            result = self.called(**self.inputs)
        loss_of(result).backward()
        return result

    def tensors(self):
        """Returns results, gradients and buffers of a call, by name."""
        result = self()
        named = {f"result {place}": one.detach() for place, one in enumerate(tensors_of(result))}
        if self.is_training:
            named |= {f"gradient of {name}": one.grad for name, one in self.model.named_parameters() if one.grad is not None}
        return named | {f"buffer {name}": one.detach().clone() for name, one in self.model.named_buffers()}


def error(found, right):
    """Returns the distance of tensors from the right ones, relative to their size, and the name of the worst. Gradients
    that are nearly zero are measured relative to the largest gradient."""
    worst, where = 0.0, ""
    sizes = [float(one.double().norm()) / math.sqrt(one.numel()) for name, one in right.items() if name.startswith("gradient") and one.numel()]
    top = max(sizes, default=0.0)
    for name, other in right.items():
        one = found[name].double()
        other = other.double()
        if not other.numel():
            continue
        same = torch.isfinite(other)
        if not torch.equal(same, torch.isfinite(one)):
            return math.inf, name
        size = float(other[same].norm()) / math.sqrt(other.numel())
        least = {"gradient": 1e-3 * top, "buffer": 1e-3}.get(name.split()[0], 0.0)
        distance = float((one - other)[same].norm()) / math.sqrt(other.numel()) / max(size, least, 1e-7)
        if distance > worst:
            worst, where = distance, name
    return worst, where


def wide_of(model, inputs):
    """Returns a model and its inputs in float64."""
    return copy.deepcopy(model).double(), {name: one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one for name, one in inputs.items()}


def compiler_of(backend):
    """Returns the backend to pass to `torch.compile`; `None` for eager execution."""
    if backend == "thalweg" and not IS_ON_GPU:
        sys.path.insert(0, str(HERE.parent / "tests/dynamo"))
        import as_gpu

        return as_gpu.backend
    return None if backend == "eager" else backend


def check(model, inputs, row, options, gate):
    """Compares calls of a compiled model with eager PyTorch."""
    is_training, is_narrow = row["mode"] == "training", not (options.float32 or options.float64)
    if options.float64:
        model, inputs = wide_of(model, inputs)
    make = lambda **more: Run(copy.deepcopy(model), inputs, is_training, is_narrow, **more)
    eager = make()
    try:
        right = Run(*wide_of(model, inputs), is_training, False).tensors()
    except RuntimeError:
        # The model is not written for float64.
        right = Run(copy.deepcopy(model), inputs, is_training, False).tensors()
    try:
        wanted = eager.tensors()
        theirs, _ = error(wanted, right)
    except RuntimeError:
        # The model is not written for 16 bits.
        theirs = math.inf
    if is_narrow and theirs > 0.2:
        is_narrow = False
        eager = make()
        wanted = eager.tensors()
        theirs, _ = error(wanted, right)
    compiled = make(compiler=compiler_of(row["backend"]))
    began = time.time()
    distances = []
    for call in range(4 if IS_ON_GPU else 2):
        found = compiled.tensors()
        row["first_s"] = row.get("first_s", round(time.time() - began, 1))
        if call:
            eager_again = eager.tensors()
            buffers = {name: one for name, one in eager_again.items() if name.startswith("buffer")}
            distances.append(error({name: found[name] for name in buffers}, buffers))
            found = {name: one for name, one in found.items() if name not in buffers}
            distances.append(error(found, {name: right[name] for name in found}))
        else:
            if set(found) != set(right):
                raise RuntimeError(f"other tensors: {sorted(set(found) ^ set(right))[:6]}")
            distances.append(error(found, right))
            kinds = [name for name in found if found[name].dtype != wanted[name].dtype or found[name].shape != wanted[name].shape]
            row["strides"] = sum(found[name].stride() != wanted[name].stride() for name in found)
            if kinds:
                raise RuntimeError(f"other dtypes or shapes: {kinds[:6]}")
    ours, where = max(distances)
    row |= {"ours": ours, "theirs": theirs, "where": where, "right": ours <= (1e-8 if options.float64 else 3 * theirs + 2e-2)}


def measure(model, inputs, row, options, gate):
    """Times the first call, and the later ones."""
    wait = torch.cuda.synchronize if IS_ON_GPU else lambda: None
    run = Run(model, inputs, row["mode"] == "training", not options.float32, compiler=compiler_of(row["backend"]))
    began = time.perf_counter()
    run()
    wait()
    row["first_s"] = round(time.perf_counter() - began, 1)
    for _ in range(3):
        run()
    wait()
    gate()
    run()
    wait()
    if IS_ON_GPU:
        torch.cuda.reset_peak_memory_stats()
    times, host = [], []
    for _ in range(options.rounds):
        began = time.perf_counter()
        run()
        host.append(time.perf_counter() - began)
        wait()
        times.append(time.perf_counter() - began)
    began = time.perf_counter()
    for _ in range(options.rounds):
        run()
    wait()
    row |= {"ms": round((time.perf_counter() - began) / options.rounds * 1e3, 3), "alone_ms": round(statistics.median(times) * 1e3, 3), "host_ms": round(statistics.median(host) * 1e3, 3)}
    row["peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20) if IS_ON_GPU else 0


def run_row(row, options, gate):
    """Runs one model under one backend."""
    import thalweg.dynamo

    warnings.simplefilter("ignore")
    thalweg.dynamo.register()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not options.accuracy
    size = model_classes.GPU if IS_ON_GPU and not options.tiny else model_classes.TINY
    model, inputs = model_classes.made(row["suite"], row["name"], size)
    model = model.to(DEVICE).train(row["mode"] == "training")
    inputs = {name: one.to(DEVICE) if isinstance(one, torch.Tensor) else one for name, one in inputs.items()}
    with torch._functorch.config.patch(enable_autograd_cache=False):
        (check if options.accuracy else measure)(model, inputs, row, options, gate)
    graphs = thalweg.dynamo.compiled()
    reasons = collections.Counter()
    for graph in graphs:
        for (operator, reason), count in graph.passed_on.items():
            reasons[f"{operator}: {reason}"] += count
    row["breaks"] = sum(torch._dynamo.utils.counters["graph_break"].values())
    row |= {"graphs": len(graphs), "taken": sum(graph.taken for graph in graphs), "passed_on": sum(reasons.values()), "reasons": dict(reasons)}


class Child:
    """A separate process that runs a row on a GPU: this program, started with the row and two pipes."""

    def __init__(self, row, options, gpu):
        self._row = row
        (self._reader, writer), (reader, self._go) = os.pipe(), os.pipe()
        given = json.dumps([row, vars(options), writer, reader])
        self._process = subprocess.Popen([sys.executable, __file__, "--child", given], pass_fds=(writer, reader), env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu})
        os.close(writer)
        os.close(reader)
        self._begun = b""

    def wait(self):
        """Waits until the process is at its gate, or has ended."""
        self._begun = os.read(self._reader, 1)

    def result(self):
        """Lets the process continue, and returns the row with its results."""
        if self._begun == b"\n":
            os.write(self._go, b"x")
        text = self._begun.strip()
        while part := os.read(self._reader, 1 << 16):
            text += part
        os.close(self._reader)
        os.close(self._go)
        status = self._process.wait()
        return json.loads(text) if text else self._row | {"problem": f"the process ended with status {status}"}


def child(row, options, writer, reader):
    """Runs a row in this process, and writes the results to a pipe."""

    def gate():
        """Waits until all models that are compiled at the same time are ready, and the rows before this one are
        measured."""
        signal.alarm(0)
        os.write(writer, b"\n")
        os.read(reader, 1)
        signal.alarm(60)

    def stop(*_):
        raise TimeoutError(f"more than {options.limit} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(options.limit)
    try:
        run_row(row, options, gate)
    except BaseException as problem:
        row["problem"] = f"{type(problem).__name__}: {' '.join(str(problem).split())[:600]}"
        row["trace"] = traceback.format_exc()[-3000:]
    signal.alarm(0)
    text = json.dumps(row).encode()
    while text:
        text = text[os.write(writer, text) :]
    os._exit(0)


def results(rows, options):
    """Runs rows, some of them at the same time, but measures them one after the other on each GPU. Yields the results. If the first
    two rows fail for the same reason, no more are run."""
    end, problems = time.time() + options.total, []
    for first in range(0, len(rows), options.jobs):
        if time.time() > end:
            return
        children = collections.defaultdict(list)
        for place, row in enumerate(rows[first : first + options.jobs], first):
            gpu = GPUS[place // len(options.backend) % len(GPUS)]
            children[gpu].append(Child(row, options, gpu))
        for child in sum(children.values(), []):
            child.wait()
        with concurrent.futures.ThreadPoolExecutor(len(GPUS)) as pool:
            measured = list(pool.map(lambda of_gpu: [child.result() for child in of_gpu], children.values()))
        for row in sum(measured, []):
            problems.append(row.get("problem"))
            yield row
        if len(problems) > 1 and problems[0] is not None and problems[0] == problems[1]:
            return


def line_of(row):
    """Returns a row as a line."""
    text = f"{row['suite']} {row['name']} {row['mode']} {row['backend']}: "
    if "problem" in row:
        return text + "FAILED " + row["problem"][:300]
    if "right" in row:
        text += f"{'right' if row['right'] else 'WRONG'} {row['ours']:.1e} (eager {row['theirs']:.1e}{'' if row['right'] else ', ' + row['where']}), "
    else:
        text += f"{row['ms']} ms, host {row['host_ms']} ms, {row['peak_mib']} MiB, "
    text += f"first {row['first_s']} s, {row['graphs']} graphs, {row['breaks']} breaks, {row['taken']} taken, {row['passed_on']} passed on"
    return text + "".join(f"\n    {count} x {reason}" for reason, count in row["reasons"].items())


def table(rows, backends):
    """Prints a table of the rows, a line for each model, and the geometric means over models: of the speed over eager, and of time, memory and
    first step by Inductor's."""
    models = collections.defaultdict(dict)
    for row in rows:
        models[row["suite"], row["name"], row["mode"]][row["backend"]] = row
    ratios = collections.defaultdict(list)
    print("\n| model | mode |" + "".join(f" {backend} |" for backend in backends) + "\n|---|---|" + "---|" * len(backends))
    for (_, name, mode), each in models.items():
        cells = []
        for backend in backends:
            row, eager = each.get(backend, {}), each.get("eager", {})
            if "right" in row:
                cells.append("right" if row["right"] else f"wrong by {row['ours']:.1e}")
            elif "ms" in row:
                cells.append(f"{row['ms']} ms, {row['peak_mib']} MiB, {row['first_s']} s")
                if "ms" in eager:
                    ratios[backend, mode, "times as fast as eager"].append(eager["ms"] / row["ms"])
                    cells[-1] += f", {eager['ms'] / row['ms']:.2f} x"
                inductor = each.get("inductor", {})
                if backend != "inductor" and "ms" in inductor:
                    for key, unit in (("ms", "time"), ("peak_mib", "memory"), ("first_s", "first step")):
                        ratios[backend, mode, f"of Inductor's {unit}"].append(row[key] / inductor[key])
            else:
                cells.append(row.get("problem", "")[:60].replace("|", "/"))
        print(f"| {name} | {mode} | " + " | ".join(cells) + " |")
    for (backend, mode, what), each in sorted(ratios.items()):
        mean = math.exp(statistics.fmean(map(math.log, each)))
        print(f"{backend}, {mode}: {mean:.3f} {what} over {len(each)} models, from {min(each):.2f} to {max(each):.2f}")


def arguments():
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--suite", nargs="+", default=list(model_classes.SUITES), choices=list(model_classes.SUITES))
    parser.add_argument("--backend", nargs="+", default=["thalweg"])
    for name in ("accuracy", "performance", "training", "inference", "float32", "float64", "exact", "tiny"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--limit", type=int, default=240)
    parser.add_argument("--total", type=int, default=10**6)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out")
    options = parser.parse_args()
    options.accuracy = options.accuracy or not options.performance
    return options


def main():
    """Runs the models of the command line."""
    options = arguments()
    modes = [mode for mode in ("training", "inference") if getattr(options, mode)] or ["training", "inference"]
    fits = (lambda one, name: one == name) if options.exact else (lambda one, name: one.lower() in name.lower())
    names = [(suite, name) for suite in options.suite for name in model_classes.SUITES[suite][0]]
    chosen = [(suite, name) for suite, name in names if not options.names or any(fits(one, name) for one in options.names)]
    rows = [
        {"suite": suite, "name": name, "mode": mode, "backend": backend} for suite, name in chosen for mode in modes for backend in options.backend
    ]
    done, place = [], lambda row: tuple(row[key] for key in ("suite", "name", "mode", "backend"))
    if options.out and os.path.exists(options.out):
        wanted = {place(row) for row in rows}
        done = [row for row in map(json.loads, open(options.out)) if place(row) in wanted]
        known = {place(row) for row in done}
        rows = [row for row in rows if place(row) not in known]
    for row in results(rows, options):
        done.append(row)
        print(line_of(row), flush=True)
        if options.out:
            with open(options.out, "a") as file:
                file.write(json.dumps(row) + "\n")
    table(done, options.backend)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        row, options, writer, reader = json.loads(sys.argv[2])
        child(row, argparse.Namespace(**options), writer, reader)
    main()
