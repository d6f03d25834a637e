"""Runs test files of PyTorch with this package, and compares the tests that do not pass with a list of reasons.

    python tools/pytorch_suite.py --tests FOLDER --torch SITE_PACKAGES [FILE ...] [--select TEXT] [--seconds 60] [--report FILE]

FOLDER has test files of PyTorch (`test_optim.py`, `nn/test_pooling.py`). SITE_PACKAGES has an installed PyTorch, of which only
`torch/testing/_internal` is loaded, on top of this package. Neither is in this repository. Each file runs in a separate process.
A test that crashes the process or takes longer than `--seconds` is counted as such, and a new process continues with the next
test.

Each line of `tests/pytorch_suite.txt` has a pattern for `file::Class.test` and the reason why such tests do not pass. A test that
fails without a reason is printed with its error. A pattern that matches only passing tests is printed as well.
"""

import argparse
import ast
import collections
import contextlib
import fnmatch
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
PACKAGE = HERE.parent.parent / "python"
REASONS = HERE.parent.parent / "tests" / "pytorch_suite.txt"
OUTCOMES = ("passed", "skipped", "failed", "crashed", "timeout")
# Names of tests of PyTorch's operators written in Python (`torch._refs`). They do not run any code of this package, so they are
# skipped. Test files that are generated from PyTorch's operator table have thousands of them.
REFERENCES = "__refs_"


# The child process: runs one test file and writes its outcomes as lines of JSON.


def child(file, skip, select, log, seconds):
    """Runs the tests of a file except for the first `skip`, and writes one line before and one line after each."""
    import faulthandler
    import unittest

    sys.path[:0] = [str(pathlib.Path(file).parent), str(pathlib.Path(file).parent.parent), str(HERE.parent)]
    sys.argv = [file]
    faulthandler.enable()
    spec = importlib.util.spec_from_loader(pathlib.Path(file).stem, _Loader(pathlib.Path(file).stem, file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with open(log, "a", buffering=1) as out:
        def write(**line):
            out.write(json.dumps(line) + "\n")

        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            write(broken=f"{type(error).__name__}: {error}"[:500], place=_place(error))
            return
        tests = [test for test in _flat(unittest.defaultTestLoader.loadTestsFromModule(module)) if _is_selected(test.id(), select)]
        write(tests=[_name(test) for test in tests])

        def late(*_):
            raise TimeoutError(f"the test took longer than {seconds} s")

        signal.signal(signal.SIGALRM, late)
        for test in tests[skip:]:
            name = _name(test)
            write(begun=name)
            signal.alarm(seconds)
            result = _Result()
            try:
                test.run(result)
            except TimeoutError as error:
                result.outcome, result.text = "timeout", str(error)
            except Exception as error:  # raised by PyTorch's test classes outside of a test
                result.outcome, result.text, result.place = "failed", _text(error), _place(error)
            signal.alarm(0)
            _finish()
            write(ended=name, outcome=result.outcome, text=result.text[:600], place=result.place)
    # Tests may leave threads and captures, which the exit must not wait for.
    os._exit(0)


class _Absent:
    """A name that a test file imports and this package lacks. Only using it is an error, so that the other tests of the file
    run."""

    def __init__(self, name):
        self._name = name

    def _use(self, *_, **__):
        raise NotImplementedError(f"{self._name} is not here")

    __getattr__ = __call__ = __getitem__ = __iter__ = __enter__ = __mro_entries__ = _use


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a test file in which each import of a name may fail separately."""

    def source_to_code(self, data, path, *, _optimize=-1):
        return compile(ast.fix_missing_locations(_Imports().visit(ast.parse(data))), path, "exec", dont_inherit=True)


class _Imports(ast.NodeTransformer):
    """Gives each imported name of PyTorch its own statement, which assigns an `_Absent` if the name does not exist."""

    def visit_ImportFrom(self, node):
        if node.level or not (node.module or "").startswith("torch") or node.names[0].name == "*":
            return node
        return [self._attempt(ast.ImportFrom(node.module, [name], 0), name.asname or name.name, f"{node.module}.{name.name}") for name in node.names]

    def visit_Import(self, node):
        if not any(name.name.startswith("torch.") for name in node.names):
            return node
        return [self._attempt(ast.Import([name]), name.asname, name.name) for name in node.names]

    def _attempt(self, statement, bound, full):
        code = f"{bound} = __import__('pytorch_suite')._Absent({full!r})" if bound else "pass"
        return ast.Try([statement], [ast.ExceptHandler(ast.Name("ImportError", ast.Load()), None, ast.parse(code).body)], [], [])


def _flat(suite):
    """Yields the tests of nested suites."""
    for item in suite:
        yield from _flat(item) if hasattr(item, "__iter__") else (item,)


def _is_selected(name, select):
    """Returns whether a test is selected to run."""
    return select in name and REFERENCES not in name


def _name(test):
    """Returns a test's name in the form `Class.test`."""
    return ".".join(test.id().split(".")[-2:])


def _finish():
    """Waits for device work that a test has left, so that no later test gets its errors."""
    import torch

    try:
        torch.cuda.synchronize()
    except Exception:
        pass  # The test is over and its outcome is known.


def _text(error):
    """Returns the class and message of an exception, after those of its cause."""
    own = f"{type(error).__name__}: {error}"
    return own if error.__cause__ is None else f"{_text(error.__cause__)}\n{own}"


def _is_late(error):
    """Returns whether an exception, or one of its causes, is that of the alarm."""
    return error is not None and (isinstance(error, TimeoutError) or _is_late(error.__cause__))


def _place(error):
    """Returns the innermost line of an exception's traceback, and the innermost line in the test file."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return [f"{pathlib.Path(frame.filename).name}:{frame.lineno}" for frame in (frames[-1:] + [f for f in frames if "test_" in f.filename][-1:])]


def _result_class():
    import unittest

    class Result(unittest.TestResult):
        """The outcome of one test. The first failure counts."""

        outcome, text, place = "passed", "", ()

        def _fail(self, error):
            if self.outcome != "failed":
                self.outcome = "timeout" if _is_late(error[1]) else "failed"
                self.text, self.place = _text(error[1]), _place(error[1])

        def addError(self, test, error):
            self._fail(error)

        def addFailure(self, test, error):
            self._fail(error)

        def addSubTest(self, test, subtest, error):
            if error is not None:
                self._fail(error)

        def addUnexpectedSuccess(self, test):
            self.outcome, self.text = "passed", "PyTorch expects this one to fail"

        def addSkip(self, test, reason):
            if self.outcome == "passed":
                self.outcome, self.text = "skipped", reason

    return Result


def _Result():
    return _result_class()()


# The parent process.


# Code that runs first in interpreters that tests start, so that PyTorch's name refers to this package there as well.
_CUSTOMIZE = """import sys

# A child of the runner does it itself; `sys.argv` is not known yet while this runs.
if "--child" not in sys.orig_argv:
    import thalweg

    thalweg.install_as_torch()
"""


def environment(options, log):
    """Returns the environment for a child process and for the processes that it starts."""
    folder = pathlib.Path(log).with_suffix(".site")
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_CUSTOMIZE)
    path = os.pathsep.join(filter(None, (str(folder), str(PACKAGE), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "THALWEG_TORCH_TESTING": str(options.torch), "THALWEG_SIMULATED_AS": options.simulated_as}


def run_process(command, options, log):
    """Runs a process until it ends or its time is up, ends those that it started, and returns how it ended."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, cwd=options.tests, stdin=subprocess.DEVNULL,
                                   env=environment(options, log), start_new_session=True)
        try:
            status = process.wait(options.seconds * 60)
        except subprocess.TimeoutExpired:
            return "the process had to be ended"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        errors.seek(0)
        return f"exit status {status}: {errors.read().decode(errors='replace')[-300:]}"


def run_file(options, file, log):
    """Runs a file, in as many processes as necessary. Returns the outcomes by test name, and the reason if the file could not be
    loaded."""
    outcomes, begun, skip = {}, None, 0
    while True:
        pathlib.Path(log).write_text("")
        command = [sys.executable, str(HERE), "--child", str(options.tests / file), "--skip", str(skip), "--select", options.select, "--log", log,
                   "--seconds", str(options.seconds), "--torch", str(options.torch), "--as", options.simulated_as]
        ended = run_process(command, options, log)
        names, begun = [], None
        for line in map(json.loads, pathlib.Path(log).read_text().splitlines()):
            if "broken" in line:
                return outcomes, line["broken"] + " at " + ", ".join(line["place"])
            names = line.get("tests", names)
            if "begun" in line:
                begun = line["begun"]
            if "ended" in line:
                outcomes[line["ended"]] = (line["outcome"], line["text"], line["place"])
                begun = None
        if begun is None:
            return outcomes, None if names or outcomes else f"no test was found ({ended})"
        outcomes[begun] = ("crashed", ended, ())
        skip = names.index(begun) + 1


def reasons():
    """Returns pairs of a pattern and a reason."""
    if not REASONS.exists():
        return []
    lines = [line.strip() for line in REASONS.read_text().splitlines()]
    return [tuple(line.split("  ", 1)) for line in lines if line and not line.startswith("#")]


def summary(found, known):
    """Prints the table of files, and the failures without a reason. Returns the number of those failures."""
    total, used, open_ones = collections.Counter(), set(), []
    print(f"{'file':44}" + "".join(f"{outcome:>9}" for outcome in OUTCOMES) + f"{'known':>9}")
    for file, (outcomes, broken) in found.items():
        counts = collections.Counter(outcome for outcome, _, _ in outcomes.values())
        explained = 0
        for name, (outcome, text, place) in outcomes.items():
            if outcome in ("passed", "skipped"):
                continue
            matching = [pattern for pattern, _ in known if fnmatch.fnmatchcase(f"{file}::{name}", pattern)]
            used.update(matching)
            explained += bool(matching)
            if not matching:
                open_ones.append(f"{file}::{name} {outcome} at {', '.join(place)}: {text.splitlines()[0][:240] if text else ''}")
        counts["known"] = explained
        total.update(counts)
        print(f"{file:44}" + "".join(f"{counts[outcome]:>9}" for outcome in (*OUTCOMES, "known")) + (f"  {broken}" if broken else ""))
        if broken:
            open_ones.append(f"{file} cannot be loaded: {broken}")
    print(f"{'all':44}" + "".join(f"{total[outcome]:>9}" for outcome in (*OUTCOMES, "known")))
    run = sum(total[outcome] for outcome in OUTCOMES) - total["skipped"]
    print(f"{run} tests ran, {total['passed']} passed ({100 * total['passed'] / max(run, 1):.1f} %), {len(open_ones)} do not pass and have no reason")
    for line in open_ones:
        print(line)
    for pattern, _ in known:
        if pattern not in used and any(fnmatch.fnmatchcase(file, pattern.split("::")[0]) for file in found):
            print(f"no test needs the reason of {pattern}")
    return len(open_ones)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="files below --tests [default: all]")
    parser.add_argument("--tests", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--torch", type=lambda path: pathlib.Path(path).resolve(), required=True)
    parser.add_argument("--select", default="", help="run only tests with this in their names")
    parser.add_argument("--seconds", type=int, default=60, help="how long one test may take")
    parser.add_argument("--as", dest="simulated_as", default="cpu", choices=("cpu", "cuda"), help="the name of the simulated GPU's device")
    parser.add_argument("--report", type=pathlib.Path, help="write all outcomes to this file, as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--log", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        sys.path.insert(0, str(PACKAGE))
        import thalweg

        thalweg.install_as_torch(testing=str(options.torch), simulated_as=options.simulated_as)
        importlib.import_module("torch.testing._utils")
        return child(options.child, options.skip, options.select, options.log, options.seconds)
    files = options.files or sorted(str(path.relative_to(options.tests)) for path in options.tests.rglob("test_*.py"))
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            found[file] = run_file(options, file, os.path.join(folder, "log"))
            print(f"{file}: {len(found[file][0])} tests", file=sys.stderr)
    if options.report:
        options.report.write_text(json.dumps({file: {"broken": broken, "tests": tests} for file, (tests, broken) in found.items()}, indent=1))
    return 1 if summary(found, reasons()) else 0


if __name__ == "__main__":
    sys.exit(main())
