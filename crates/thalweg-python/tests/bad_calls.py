"""The refused calls of goldens/bad_calls.txt, and a library's response to them."""

import importlib
import io
import pathlib
import pickle
import warnings


def calls():
    """Returns the calls as text."""
    lines = (pathlib.Path(__file__).parent / "goldens/bad_calls.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def outcome(library, call):
    """Returns the class of the exception that a call raises, or "ok", and its text."""
    nn, optim = library.nn, library.optim

    def parameter():
        return nn.Parameter(library.ones(2))

    def graded(value):
        made = parameter()
        made.grad = library.full((2,), value)
        return made
    names = {
        "torch": library, "nn": nn, "F": nn.functional, "optim": optim, "S": optim.lr_scheduler, "io": io, "pickle": pickle,
        "r": lambda *shape: library.ones(shape), "z": lambda *shape: library.zeros(shape, dtype=library.int64),
        "b": lambda *shape: library.zeros(shape, dtype=getattr(library, "bool")), "p": parameter, "graded": graded,
        "o": lambda: optim.SGD([parameter()], lr=0.1, momentum=0.9)}
    importlib.import_module(f"{library.__name__}.optim.swa_utils")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = eval(call, names)
            if isinstance(found, library.Tensor):
                # Errors on the device are only reported when its work is waited for.
                found.tolist()
        except Exception as error:
            return type(error).__name__, str(error)
        finally:
            library.serialization.clear_safe_globals()
    return "ok", ""
