"""Constructors whose parameters are written as in a definition: those of modules that are made by a function."""


def names_of(parameters):
    """Returns the names of parameters that are written as in a definition (`"alpha=1.0, inplace=False"`)."""
    return [part.partition("=")[0] for part in parameters.split(", ") if part not in ("", "*")]


def initializer(name, parameters, start):
    """Returns the `__init__` of a class that takes these parameters and calls `start(self, given)` with their values by name."""
    given = ", ".join(f"{one!r}: {one}" for one in names_of(parameters))
    scope = {"start": start}
    exec(f"def __init__(self{', ' if parameters else ''}{parameters}):\n    start(self, {{{given}}})", scope)
    scope["__init__"].__qualname__ = f"{name}.__init__"
    return scope["__init__"]
