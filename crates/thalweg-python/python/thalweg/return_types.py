"""The named tuples that operators return (`torch.return_types`), by the operators' names."""

from . import _core


def __getattr__(name):
    function = None if name.startswith("__") else getattr(_core, name, None)
    # The class is that of the results for tensors without elements.
    matrix = _core.empty([2, 2], device="meta")
    for arguments in ((matrix, 0), (matrix,), (matrix, 1), (matrix, 1, 0)) if callable(function) else ():
        try:
            made = type(function(*arguments))
        except (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError):
            continue
        if made is not tuple and issubclass(made, tuple) and hasattr(made, "_fields"):
            globals()[name] = made
            return made
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
