"""Runs the tests of the Python package: every function `test_…` of every `test_….py` in this folder, or those whose names contain
an argument. Needs Python and the extension module; NumPy is used if it is installed.

    cargo xtask python [FILTER]
"""

import importlib
import pathlib
import sys
import time
import traceback

FOLDER = pathlib.Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "python")]


def main(filters):
    passed, failed, skipped = 0, [], []
    for file in sorted(FOLDER.glob("test_*.py")):
        module = importlib.import_module(file.stem)
        for name, test in list(vars(module).items()):
            full = f"{file.stem}.{name}"
            if not name.startswith("test_") or (filters and not any(part in full for part in filters)):
                continue
            started = time.perf_counter()
            try:
                reason = test()
            except Exception:
                failed.append(full)
                print(f"FAILED {full}\n{traceback.format_exc()}")
                continue
            if isinstance(reason, str):
                skipped.append(f"{full}: {reason}")
            passed += 1
            seconds = time.perf_counter() - started
            if seconds > 2.0:
                print(f"{full} took {seconds:.1f} s")
    for line in skipped:
        print(f"in part left out: {line}")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
