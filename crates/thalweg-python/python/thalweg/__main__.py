"""`python -m thalweg script.py …`: runs a program in which `import torch` imports this package."""

import importlib.machinery
import importlib.util
import os
import runpy
import sys
import types

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
        runpy.run_module(_own_name(rest[0]), run_name="__main__", alter_sys=True)
    elif first.startswith("-"):
        print(_USAGE, file=sys.stderr)
        return 2
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        _run_file(first)
    return 0


def _own_name(module):
    """Returns the name under which a module is run: modules of PyTorch's (`torch.distributed.run`) are those of this package."""
    own = __package__ + module.removeprefix("torch")
    is_own = module == "torch" or (module.startswith("torch.") and importlib.util.find_spec(own) is not None)
    return own if is_own else module


def _run_file(path):
    """Runs a file as the main program. Processes that it spawns run it through `_spawned`, so that `torch` is this package there
    as well."""
    os.environ["THALWEG_PROGRAM"] = os.path.abspath(path)
    program = types.ModuleType("__main__")
    program.__file__, program.__builtins__ = path, __builtins__
    program.__spec__ = importlib.machinery.ModuleSpec(f"{__package__}._spawned", None)
    sys.modules["__main__"] = program
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, program.__dict__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
