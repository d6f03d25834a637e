"""Runs the tests of the Python package: every function `test_…` of every `test_….py` in this folder, or those whose names contain
an argument. Each core, of up to eight, runs one file at a time. Needs Python and the extension module; NumPy is used if it is installed.

    cargo xtask python [FILTER]
"""

import concurrent.futures
import importlib
import multiprocessing
import os
import pathlib
import sys
import time
import traceback

FOLDER = pathlib.Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "python")]


def run_file(stem, filters):
    """Runs the tests of a file. Returns the number of those that passed, and lines about failed, slow and skipped ones."""
    passed, failed, slow, skipped = 0, [], [], []
    for name, test in list(vars(importlib.import_module(stem)).items()):
        full = f"{stem}.{name}"
        if not name.startswith("test_") or (filters and not any(part in full for part in filters)):
            continue
        started = time.perf_counter()
        try:
            reason = test()
        except Exception:
            failed.append(f"FAILED {full}\n{traceback.format_exc()}")
            continue
        if isinstance(reason, str):
            skipped.append(f"{full}: {reason}")
        passed += 1
        seconds = time.perf_counter() - started
        if seconds > 2.0:
            slow.append(f"{full} took {seconds:.1f} s")
    return passed, failed, slow, skipped


def main(filters):
    passed, failed, skipped = 0, 0, []
    # A process with threads is not forked.
    workers = min(8, os.cpu_count() or 1)
    pool = concurrent.futures.ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    with pool:
        runs = [pool.submit(run_file, file.stem, filters) for file in sorted(FOLDER.glob("test_*.py"))]
        for run in runs:
            successes, failures, slow, reasons = run.result()
            passed += successes
            failed += len(failures)
            skipped += reasons
            for line in failures + slow:
                print(line, flush=True)
    for line in skipped:
        print(f"in part left out: {line}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
