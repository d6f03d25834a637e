"""`python -m thalweg_torch [options] script.py [arguments]`, or `-m module` for the script: a program with Thalweg's allocator."""

import argparse
import importlib.machinery
import os
import pkgutil
import runpy
import sys
import types


def main():
    parser = argparse.ArgumentParser(
        prog="python -m thalweg_torch",
        usage="%(prog)s [options] (script.py | -m module) [arguments]",
        description=__doc__,
        allow_abbrev=False,
    )
    parser.add_argument("--tier", type=int, choices=(1, 2), help="1: hooks; 2: native class (default: the best that fits)")
    parser.add_argument("--policy", choices=("thalweg", "pytorch"))
    parser.add_argument("--conf", default="", help="settings in the grammar of PYTORCH_ALLOC_CONF")
    parser.add_argument(
        "--sanitize", action="store_true", help="find missing waits and missing record_stream calls; the exit status is 1 if there are any"
    )
    ours, program = split(sys.argv[1:])
    options = parser.parse_args(ours)
    if not program or program == ["-m"]:
        parser.error("the script is missing, or -m and the name of a module")

    import thalweg_torch

    chosen = thalweg_torch.enable(policy=options.policy, conf=options.conf, tier=options.tier, sanitize=options.sanitize)
    print(f"thalweg_torch: tier {chosen.tier} ({chosen.reason})", file=sys.stderr)
    if options.sanitize:
        run_watched(program)
    else:
        run(program)


def run_watched(program):
    """Runs the program and prints the findings. Exits with 1 if there are any and the program itself succeeded."""
    from thalweg_torch import _state

    try:
        run(program)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    finally:
        print(_state.sanitizer.summary(), file=sys.stderr)
    if _state.sanitizer.findings:
        sys.exit(1)


def split(arguments):
    """Our options, and the program with its arguments, which begins with `-m` or with the first argument that is not an
    option."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] != "-m":
        has_value_behind = arguments[at] in ("--tier", "--policy", "--conf")
        at += 2 if has_value_behind else 1
    return arguments[:at], arguments[at:]


def run(program):
    """Runs the program as `python` does: as the module `__main__`, which stays loaded after the program's end for its
    threads, for functions that run at exit, and for processes that it spawns."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy._run_module_as_main(program[1])
        return
    sys.argv = program
    if pkgutil.get_importer(program[0]) is not None:
        # A folder or an archive, with its own __main__.
        sys.path[0] = program[0]
        runpy._run_module_as_main("__main__", alter_argv=False)
        return
    file = os.path.abspath(program[0])
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(file))
    module.__file__ = file
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", file)
    try:
        source = module.__loader__.get_data(file)
    except OSError as error:
        print(f"{sys.executable}: can't open file {file!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(2)
    exec(module.__loader__.source_to_code(source, file), vars(module))


if __name__ == "__main__":
    main()
