"""PyTorch's own tests under PyTorch's allocator and under Thalweg's, and where the two differ.

    python3 suites.py FOLDER [--files test_cuda.py,...] [--ways pytorch,thalweg,...] [--modes order,alone] [--only TEXT] [--out FILE]

FOLDER holds test files of PyTorch (`test/test_cuda.py` and others, of any release); nothing of them is kept. Each test runs in each
way twice: `order`, all tests of a file in one process, one behind the other as the file has them; and `alone`, in a process of its own,
`--jobs` at a time on a GPU. What fails alone is run once more with the GPU to itself. A way has a GPU of its own where there are
enough, and two for files with `multigpu` in their names.

Each outcome is one JSON object a line of `--out`: {"file", "test", "way", "mode", "outcome", "seconds", "message"}. Printed are counts,
then a row for each test that passes under PyTorch's allocator and not under ours. The exit status is the number of tests that pass under
PyTorch's allocator and, in the same mode, in none of our ways: a test may ask for PyTorch's exact segments, which is `policy="pytorch"`.
"""

import argparse
import collections
import concurrent.futures
import gc
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
import unittest

FILES = "test_cuda.py,test_cuda_trace.py,test_cuda_expandable_segments.py,test_cuda_multigpu.py"
# The arguments of enable() for each way; None for PyTorch's own allocator.
WAYS = {"pytorch": None, "thalweg": {"tier": 2}, "thalweg policy:pytorch": {"tier": 2, "policy": "pytorch"}}
GOOD = ("passed", "expected failure")


# ---- In a process of its own ----------------------------------------------------------------------------------------------


class Written(unittest.TestResult):
    """Writes each test's outcome immediately, so that a crash loses only one test."""

    def __init__(self, file):
        super().__init__()
        self.file, self.outcome = file, {}

    def write(self, **entry):
        print(json.dumps(entry), file=self.file, flush=True)

    def startTest(self, test):
        super().startTest(test)
        # Leftovers of one test must not reach another, whenever Python collects garbage.
        gc.collect()
        self.started, self.outcome = time.perf_counter(), {"outcome": "passed"}
        self.write(test=name_of(test), outcome="started")

    def stopTest(self, test):
        super().stopTest(test)
        self.write(test=name_of(test), seconds=round(time.perf_counter() - self.started, 3), **self.outcome)

    def fail(self, error):
        self.outcome = {"outcome": "failed", "message": f"{error[0].__name__}: {error[1]}"[:2000]}

    def addError(self, test, error):
        self.fail(error)
        if not hasattr(test, "_testMethodName"):
            # A class or module that was not set up: no test of it starts.
            self.write(test=str(test), **self.outcome)

    def addFailure(self, test, error):
        self.fail(error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.fail(error)

    def addSkip(self, test, reason):
        self.outcome = {"outcome": "skipped", "message": reason}

    def addExpectedFailure(self, test, error):
        self.outcome = {"outcome": "expected failure"}

    def addUnexpectedSuccess(self, test):
        self.outcome = {"outcome": "failed", "message": "unexpected success"}


def name_of(test):
    return ".".join(test.id().split(".")[-2:])


def tests_of(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


def work(path, way, out, names):
    """Runs the tests of these names, or all of the file."""
    folder, file = os.path.split(path)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = [path]
    if WAYS[way] is not None:
        import thalweg_torch

        thalweg_torch.enable(**WAYS[way])
    module = __import__(os.path.splitext(file)[0])
    tests = {name_of(test): test for test in tests_of(unittest.defaultTestLoader.loadTestsFromModule(module))}
    chosen = json.loads(names) if names else list(tests)
    with open(out, "a") as written:
        print(json.dumps(list(tests)), file=written, flush=True)
        unittest.TestSuite(tests[name] for name in chosen).run(Written(written))
    sys.stdout.flush()
    # Leftovers of a test must not keep the process alive.
    os._exit(0)


# ---- Beside it ------------------------------------------------------------------------------------------------------------


class Runs:
    def __init__(self, options):
        self.options, self.entries = options, []
        self.out = open(options.out, "a") if options.out else None

    def keep(self, file, way, mode, entry):
        self.entries.append({"file": file, "way": way, "mode": mode, "seconds": 0, "message": "", **entry})
        if self.out:
            print(json.dumps(self.entries[-1]), file=self.out, flush=True)

    def run(self, file, way, gpus, names):
        """Returns the names of all tests of a file, and the outcomes of those that ran in one process. The last of
        these may have crashed the process."""
        path = os.path.abspath(os.path.join(self.options.folder, file))
        folder = os.path.dirname(path)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{folder}"}
        with tempfile.TemporaryDirectory() as scratch:
            out, log = os.path.join(scratch, "out"), os.path.join(scratch, "log")
            open(out, "w").close()
            command = [sys.executable, __file__, folder, "--work", path, way, out, json.dumps(names) if names else ""]
            with open(log, "w") as output:
                process = subprocess.Popen(
                    command, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
                )
                outcome = self.wait(process, out)
            with open(out) as file:
                lines = [json.loads(line) for line in file if line.endswith("\n")]
            with open(log, errors="replace") as file:
                tail = file.read()[-1500:]
        if not lines:
            return [], [{"test": "(file)", "outcome": outcome, "message": tail}]
        entries = {}
        for entry in lines[1:]:
            entries[entry["test"]] = entry
        entries = list(entries.values())
        if entries and entries[-1]["outcome"] == "started":
            entries[-1].update(outcome=outcome, message=tail)
        return lines[0], entries

    def wait(self, process, out):
        """Waits until the process ends, or makes no progress for too long. Returns how it ended."""
        size, since = 0, time.monotonic()
        while True:
            try:
                status = process.wait(timeout=0.2)
                return f"ended by signal {-status}" if status < 0 else f"ended with {status}"
            except subprocess.TimeoutExpired:
                pass
            if os.path.getsize(out) != size:
                size, since = os.path.getsize(out), time.monotonic()
            if time.monotonic() - since > self.options.limit:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return f"hung for {self.options.limit} s"

    def in_order(self, file, way, gpus):
        """Runs all tests of a file. After a test that ends its process, the remaining tests run in a new one."""
        names, left = None, None
        while left is None or left:
            all_names, entries = self.run(file, way, gpus, left)
            if names is None:
                names = [name for name in all_names if self.options.only in name]
                if left is None and self.options.only:
                    left = names
                    continue
                left = names
            for entry in entries:
                self.keep(file, way, "order", entry)
            done = {entry["test"] for entry in entries}
            remaining = [name for name in left if name not in done]
            left = remaining if len(remaining) < len(left) else []
        return names

    def alone(self, file, way, gpus, name):
        entries = self.run(file, way, gpus, [name])[1]
        return entries[-1] if entries else {"test": name, "outcome": "failed", "message": "it did not start"}


def gpus_in_groups(count):
    """Returns groups of GPUs in the notation of CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
        visible = ",".join(str(place) for place, _ in enumerate(listed.splitlines()))
    gpus = visible.split(",")
    groups = [gpus[at : at + count] for at in range(0, len(gpus), count)]
    return [",".join(group) for group in groups if len(group) == count]


def on_gpus(groups, jobs, work):
    """Calls each with a group of GPUs, `jobs` at a time on each group."""
    free = queue.Queue()
    for _ in range(jobs):
        for group in groups:
            free.put(group)

    def call(function):
        group = free.get()
        try:
            return function(group)
        finally:
            free.put(group)

    with concurrent.futures.ThreadPoolExecutor(max_workers=len(groups) * jobs) as pool:
        return list(pool.map(call, work))


def run_file(runs, file):
    options = runs.options
    groups = gpus_in_groups(2 if "multigpu" in file else 1)
    if not groups:
        print(f"{file}: needs two GPUs", file=sys.stderr)
        return
    ways, names = options.ways.split(","), set()
    if "order" in options.modes:
        found = on_gpus(groups, 1, [lambda gpus, way=way: runs.in_order(file, way, gpus) for way in ways])
        names = [name for listed in found for name in listed or []]
    else:
        names = runs.run(file, ways[0], groups[0], ["nothing"])[0]
    if "alone" in options.modes:
        skipped = {entry["test"] for entry in runs.entries if entry["outcome"] == "skipped" and entry["file"] == file}
        names = [name for name in dict.fromkeys(names) if options.only in name and name not in skipped]
        items = [(way, name) for name in names for way in ways]
        for jobs in (options.jobs, 1):
            entries = on_gpus(groups, jobs, [lambda gpus, item=item: runs.alone(file, item[0], gpus, item[1]) for item in items])
            failed = []
            for item, entry in zip(items, entries):
                if jobs > 1 and entry["outcome"] not in (*GOOD, "skipped"):
                    failed.append(item)
                else:
                    runs.keep(file, item[0], "alone", entry)
            items = failed


def report(runs):
    """Prints counts and differences. Returns the number of tests that pass only under PyTorch's allocator."""
    by_test, counts = collections.defaultdict(dict), collections.Counter()
    for entry in runs.entries:
        by_test[entry["file"], entry["mode"], entry["test"]][entry["way"]] = entry
        counts[entry["file"], entry["mode"], entry["way"], entry["outcome"].split(" by ")[0].split(" for ")[0]] += 1
    for (file, mode, way, outcome), count in sorted(counts.items()):
        print(f"{file:36} {mode:6} {way:24} {outcome:18} {count}")
    wrong = 0
    for (file, mode, test), ways in sorted(by_test.items()):
        theirs = ways.get("pytorch")
        ours = {way: entry for way, entry in ways.items() if way != "pytorch"}
        bad = {way: entry for way, entry in ours.items() if entry["outcome"] not in GOOD}
        if theirs is None or theirs["outcome"] not in GOOD or not bad:
            continue
        wrong += len(bad) == len(ours)
        print(f"\n{file} {mode}: {test}{'' if len(bad) == len(ours) else ' (passes in one of our ways)'}")
        for way, entry in bad.items():
            lines = [line for line in entry["message"].splitlines() if line.strip()] or [""]
            print(f"    {way}: {entry['outcome']}: {lines[0][:150]}")
    print(f"\n{wrong} tests pass under PyTorch's allocator and in no way under Thalweg's")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--files", default=FILES)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--modes", default="order,alone")
    parser.add_argument("--only", default="", help="tests with this in their names")
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time on a GPU")
    parser.add_argument("--limit", type=int, default=180, help="seconds for one test")
    parser.add_argument("--out", help="where outcomes are written, one JSON object a line")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work)
    runs = Runs(options)
    for file in options.files.split(","):
        if os.path.exists(os.path.join(options.folder, file)):
            run_file(runs, file)
        else:
            print(f"{file}: not in {options.folder}", file=sys.stderr)
    return min(report(runs), 100)


if __name__ == "__main__":
    sys.exit(main())
