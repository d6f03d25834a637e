"""`python -m thalweg script.py …`: runs a program whose `import torch` gives this package."""

import os
import runpy
import sys

from . import install_as_torch

_USAGE = """usage: python -m thalweg [--simulated-as cpu|cuda] (script.py | -m module | -c code) [arguments]

Runs a program of PyTorch's: `import torch` in it gives Thalweg."""


def main(arguments):
    """Runs the program that the arguments name."""
    shown = None
    if arguments[:1] == ["--simulated-as"] and len(arguments) > 1:
        shown, arguments = arguments[1], arguments[2:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE)
        return 0 if arguments else 2
    install_as_torch(simulated_as=shown)
    first, *rest = arguments
    if first == "-c" and rest:
        sys.argv = ["-c", *rest[1:]]
        sys.path[0] = ""
        namespace = {"__name__": "__main__", "__builtins__": __builtins__}
        exec(compile(rest[0], "<string>", "exec"), namespace)
    elif first == "-m" and rest:
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first.startswith("-"):
        print(_USAGE, file=sys.stderr)
        return 2
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
