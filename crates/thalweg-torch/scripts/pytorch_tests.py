"""PyTorch's own tests of operators with kernels inside PyTorch (`thalweg_torch.enable_kernels`) and without, and where the two differ.

    python pytorch_tests.py FOLDER [--files test_ops.py,...] [-k WORDS] [--runs pytorch,kernels,everywhere] [--jobs N] [--gpus N] [--seconds N] [--out FILE]

FOLDER is `test/` of a checkout of PyTorch, of the release that is installed; nothing of it is kept. It needs pytest and what these tests need
(`expecttest`, `hypothesis`). A process has every Nth test of all files, and runs it in each run, some tests at a time: `pytorch` without kernels, `kernels` as
`enable_kernels()` has them, and `everywhere` with every call taken. `-k` is pytest's; without it, those tests are chosen whose names have that of an operator that has a kernel in the last run. A process that
a test ends, or in which one takes longer than `--limit`, is replaced by one for the tests that are left.

Tests that pass without kernels and fail with them are run once more in processes of their own, in the same runs; those that differ again are printed, and their number is
the exit status. FILE has the names of tests by run and outcome, and the messages of failures, as JSON.
"""

import argparse
import collections
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

FILES = "test_ops.py,test_unary_ufuncs.py,test_binary_ufuncs.py,test_reductions.py,test_nn.py"
# The arguments of enable_kernels() of each run; None for none.
RUNS = {"pytorch": None, "kernels": {}, "everywhere": {"everywhere": True}}
GOOD = ("passed", "expected failure")
# Tests of one run before the next run has them.
AT_A_TIME = 64


# ---- In a process of its own ----------------------------------------------------------------------------------------------


class Plugin:
    """Chooses this process's tests, runs them in each configuration, and writes each test's outcome immediately."""

    def __init__(self, work):
        self.work, self.run, self.outcome = work, None, None
        self.out = open(work["out"], "a")

    def write(self, **entry):
        print(json.dumps(entry), file=self.out, flush=True)

    def pytest_collection_modifyitems(self, config, items):
        chosen = items[self.work["part"] :: self.work["parts"]]
        if self.work["only"] is not None:
            only = set(self.work["only"])
            chosen = [item for item in items if item.nodeid in only]
        items[:] = chosen

    def pytest_collection_finish(self, session):
        self.write(collected=[item.nodeid for item in session.items])

    def pytest_collectreport(self, report):
        if report.failed:
            self.write(broken=report.nodeid, message=str(report.longrepr)[-1500:])

    def pytest_runtestloop(self, session):
        done = {(run, test) for run, test in self.work["done"]}
        for first in range(0, len(session.items), AT_A_TIME):
            for run in self.work["runs"]:
                items = [item for item in session.items[first : first + AT_A_TIME] if (run, item.nodeid) not in done]
                switch(run, self.work["device"])
                self.run = run
                for item, following in zip(items, [*items[1:], None]):
                    self.one(item, following)
        import thalweg_torch

        self.write(calls={kernel.operator: (kernel.taken, kernel.passed_on) for kernel in thalweg_torch.kernels()})
        switch("pytorch", self.work["device"])
        return True

    def one(self, item, following):
        self.outcome = None
        self.write(run=self.run, test=item.nodeid, outcome="started")
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        outcome, message = self.outcome or ("failed", "it was not run")
        self.write(run=self.run, test=item.nodeid, outcome=outcome, message=message)
        if outcome == "failed" and self.work["device"] == "cuda" and not is_sound():
            # The context is lost, and every other test with it.
            os._exit(3)

    def pytest_runtest_logreport(self, report):
        expected = hasattr(report, "wasxfail")
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = crash.message if crash else str(report.longrepr)
            if self.outcome is None or self.outcome[0] != "failed":
                self.outcome = "failed", message[:1000]
        elif report.skipped and (self.outcome is None or self.outcome[0] == "passed"):
            self.outcome = ("expected failure", "") if expected else ("skipped", str(report.longrepr)[-300:])
        elif report.when == "call" and self.outcome is None:
            self.outcome = "passed", ""


def switch(run, device):
    import thalweg_torch

    thalweg_torch.disable_kernels()
    if RUNS[run] is not None:
        thalweg_torch.enable_kernels(device=device, **RUNS[run])


def is_sound():
    import torch

    try:
        torch.cuda.synchronize()
        return True
    except RuntimeError:
        return False


def words_of_kernels(run, device):
    """Returns an expression for pytest's `-k`: the names of operators that have a kernel in a run, as tests and modules have them."""
    import thalweg_torch

    switch(run, device)
    words, listed = {"contig"}, thalweg_torch.kernels()
    switch("pytorch", device)
    for kernel in listed:
        name = kernel.operator.partition(".")[0]
        for part in ("native_", "_fused", "_backward_data", "_backward", "_loss"):
            name = name.replace(part, "")
        name = name.strip("_")
        words |= {name, name.replace("_", "")}
    # What contains a word is chosen with it.
    return " or ".join(sorted(word for word in words if not any(other != word and other in word for other in words)))


def work(path):
    import pytest

    with open(path) as file:
        options = json.load(file)
    os.chdir(options["folder"])
    sys.path.insert(0, options["folder"])
    words = options["words"] or words_of_kernels(options["runs"][-1], options["device"])
    arguments = [*options["files"], "-q", "--noconftest", "-c", os.devnull, "--rootdir", options["folder"], "-p", "no:cacheprovider"]
    status = pytest.main([*arguments, "-o", "xfail_strict=true", "--tb=short", "-k", words], plugins=[Plugin(options)])
    sys.stdout.flush()
    # Leftovers of a test must not keep the process alive. 5: no test was collected.
    os._exit(0 if status in (0, 1, 5) else int(status))


# ---- Beside it ------------------------------------------------------------------------------------------------------------


class Part:
    """The tests of one process, which is started again for the tests that remain."""

    def __init__(self, options, scratch, name, runs, part=(0, 1), only=None):
        self.options, self.runs, self.only, self.part = options, runs, only, part
        # GPUs are taken in turn.
        self.gpu = part[0] % options.gpus if options.gpus > 1 else None
        self.tests, self.outcomes, self.broken, self.ended, self.starts = [], {}, {}, False, 0
        # By operator: calls that its kernel took and that PyTorch's got, in processes that came to their end.
        self.calls = {}
        self.base = os.path.join(scratch, name)
        self.start()

    def start(self):
        done = [key for key, entry in self.outcomes.items() if entry["outcome"] != "started"]
        self.starts, self.read, self.partial = self.starts + 1, 0, ""
        self.out = f"{self.base}.{self.starts}"
        folder = os.path.abspath(self.options.folder)
        work = dict(folder=folder, files=self.options.files.split(","), words=self.options.words, device=self.options.device, runs=self.runs,
                    part=self.part[0], parts=self.part[1], only=self.only, done=done, out=self.out)
        with open(self.out + ".work", "w") as file:
            json.dump(work, file)
        open(self.out, "w").close()
        environment = {**os.environ, "PYTORCH_TESTING_DEVICE_ONLY_FOR": self.options.device, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
        if self.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(self.gpu)
        environment["PYTHONPATH"] = os.pathsep.join(part for part in (folder, environment.get("PYTHONPATH")) if part)
        command = [sys.executable, os.path.abspath(__file__), folder, "--work", self.out + ".work"]
        with open(self.out + ".log", "w") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        self.since = time.monotonic()

    def look(self):
        """Reads the new output; restarts a process that has ended early."""
        if self.ended:
            return
        status = self.process.poll()
        with open(self.out) as file:
            file.seek(self.read)
            text = self.partial + file.read()
            self.read = file.tell()
        *lines, self.partial = text.split("\n")
        for line in lines:
            self.take(json.loads(line))
        if lines:
            self.since = time.monotonic()
        is_running = any(entry["outcome"] == "started" for entry in self.outcomes.values())
        if status is None and time.monotonic() - self.since > (self.options.limit if is_running else 4 * self.options.limit):
            self.stop()
            status = f"nothing happened for {self.options.limit} s"
        if status is None:
            return
        started = [key for key, entry in self.outcomes.items() if entry["outcome"] == "started"]
        for key in started:
            self.outcomes[key] = {"outcome": "failed", "message": f"the process ended: {status}; {self.tail()}"}
        left = len(self.tests) * len(self.runs) - len(self.outcomes)
        if left and self.tests and (started or status == 3) and self.starts < 12:
            self.start()
            return
        self.ended = True
        if status != 0 and not self.tests:
            self.broken["(all)"] = f"ended with {status}: {self.tail()}"

    def take(self, entry):
        if "collected" in entry:
            self.tests = entry["collected"]
        elif "calls" in entry:
            self.calls = entry["calls"]
        elif "broken" in entry:
            self.broken[entry["broken"]] = entry["message"]
        else:
            self.outcomes[entry["run"], entry["test"]] = {"outcome": entry["outcome"], "message": entry.get("message", "")}

    def tail(self):
        with open(self.out + ".log", errors="replace") as file:
            return file.read()[-600:]

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def finish(parts, until, what):
    """Waits for all parts, and reports their progress. Parts that take too long are stopped."""
    begin = told = time.monotonic()
    while not all(part.ended for part in parts) and time.monotonic() < until:
        time.sleep(0.5)
        for part in parts:
            part.look()
        if time.monotonic() - told >= 10:
            told = time.monotonic()
            print(f"[{told - begin:4.0f} s] {what}: {progress(parts)}", flush=True)
    for part in parts:
        part.stop()
        part.look() if not part.ended else None
        # A test that was running when the time was up says nothing.
        part.outcomes = {key: entry for key, entry in part.outcomes.items() if not entry["message"].startswith("the process ended: -9")}
    print(f"[{time.monotonic() - begin:4.0f} s] {what}: {progress(parts)}", flush=True)


def progress(parts):
    counts = collections.defaultdict(collections.Counter)
    for part in parts:
        for (run, _), entry in part.outcomes.items():
            counts[run][entry["outcome"]] += 1
    tests, collecting = sum(len(part.tests) for part in parts), sum(not part.tests and not part.ended for part in parts)
    texts = [f"{run} " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(found.items()) if outcome != "started") for run, found in counts.items()]
    return f"{tests} tests" + (f", {collecting} processes collect" if collecting else "") + "".join(f"; {text}" for text in texts)


def differences(outcomes, runs):
    """Returns the tests that pass without kernels but fail with them: (run, test)."""
    good = {test for (run, test), entry in outcomes.items() if run == "pytorch" and entry["outcome"] in GOOD}
    return [(run, test) for (run, test), entry in outcomes.items() if run != "pytorch" and test in good and entry["outcome"] == "failed"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--files", default=FILES)
    parser.add_argument("-k", dest="words", default="", help="an expression of pytest's")
    parser.add_argument("--runs", default="pytorch,kernels", help="some of " + ",".join(RUNS))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--gpus", type=int, default=1, help="the number of GPUs that processes take in turn")
    parser.add_argument("--part", default="0/1", help="K/N: every Nth test from the Kth on")
    parser.add_argument("--limit", type=float, default=90, help="seconds for one test")
    parser.add_argument("--seconds", type=float, default=330, help="for everything")
    parser.add_argument("--out", help="where outcomes are written")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
    runs = options.runs.split(",")
    if unknown := [run for run in runs if run not in RUNS]:
        parser.error(f"no run has the name {unknown[0]}: say some of {', '.join(RUNS)}")
    if missing := [name for name in options.files.split(",") if not os.path.exists(os.path.join(options.folder, name))]:
        parser.error(f"{options.folder} does not have {', '.join(missing)}")
    place, of = map(int, options.part.split("/"))
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        parts = [Part(options, scratch, str(number), runs, (place + of * number, of * options.jobs)) for number in range(options.jobs)]
        # The rest is for another look at what differs: a process takes a minute or two to collect its tests.
        finish(parts, begin + max(0.75 * options.seconds, options.seconds - 130), "all tests")
        outcomes = {key: entry for part in parts for key, entry in part.outcomes.items()}
        found, again = differences(outcomes, runs), {}
        if found:
            tests = sorted({test for _, test in found})
            jobs = min(options.jobs, len(tests))
            parts_again = [Part(options, scratch, f"again{number}", runs, only=tests[number::jobs]) for number in range(jobs)]
            finish(parts_again, begin + options.seconds, "once more")
            again = {key: entry for part in parts_again for key, entry in part.outcomes.items()}
    return report(options, parts, outcomes, found, again, runs)


def report(options, parts, outcomes, found, again, runs):
    by_run = {run: collections.defaultdict(list) for run in runs}
    for (run, test), entry in outcomes.items():
        by_run[run][entry["outcome"]].append(test)
    tests = {test for part in parts for test in part.tests}
    for run in runs:
        by_run[run]["not run"] = sorted(test for test in tests if (run, test) not in outcomes)
    steady = [key for key in found if again.get(key, {"outcome": "failed"})["outcome"] == "failed"
              and again.get(("pytorch", key[1]), {"outcome": "passed"})["outcome"] in GOOD]
    for run in runs:
        print(f"{run:10} " + ", ".join(f"{len(names)} {outcome}" for outcome, names in sorted(by_run[run].items()) if names))
    calls = collections.Counter()
    for operator, counts in (pair for part in parts for pair in part.calls.items()):
        calls.update({(operator, place): count for place, count in enumerate(counts)})
    print("calls taken and passed on:", ", ".join(f"{operator} {calls[operator, 0]} {calls[operator, 1]}" for operator, place in calls if place == 0))
    broken = {name: message for part in parts for name, message in part.broken.items()}
    for name, message in broken.items():
        print(f"\n{name} was not collected: {message}")
    for run, test in steady:
        lines = [line for line in outcomes[run, test]["message"].splitlines() if line.strip()] or [""]
        print(f"\npasses without kernels, fails with `{run}`: {test}\n    " + "\n    ".join(line[:200] for line in lines[:3]))
    print(f"\n{len(steady)} tests pass without kernels and fail with them; {len(found) - len(steady)} others did so once and not again")
    if options.out:
        with open(options.out, "w") as file:
            failures = {f"{run}: {test}": entry["message"] for (run, test), entry in outcomes.items() if entry["outcome"] == "failed"}
            json.dump({"runs": by_run, "differences": steady, "once": [key for key in found if key not in steady], "broken": broken, "messages": failures}, file, indent=1)
    return min(len(steady) + len(broken), 100)


if __name__ == "__main__":
    sys.exit(main())
