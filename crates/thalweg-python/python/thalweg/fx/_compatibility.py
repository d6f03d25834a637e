"""Marks of the compatibility that PyTorch promises for a name (`torch.fx._compatibility`)."""

import textwrap

_BACK_COMPAT_OBJECTS = {}
_MARKED_WITH_COMPATIBILITY = {}


def compatibility(is_backward_compatible):
    """Returns a decorator that marks a function or class."""
    def mark(function):
        if is_backward_compatible:
            _BACK_COMPAT_OBJECTS.setdefault(function)
        _MARKED_WITH_COMPATIBILITY.setdefault(function)
        note = "" if is_backward_compatible else "\n\n.. warning::\n    This API is experimental and is *NOT* backward-compatible.\n"
        function.__doc__ = textwrap.dedent(getattr(function, "__doc__", None) or "") + note
        return function
    return mark
