"""Types of symbolic values (`torch.fx.annotate`)."""

from .proxy import Proxy


def annotate(val, type):
    """Returns a value. The node of a symbolic value gets a type."""
    if isinstance(val, Proxy):
        if val.node.type:
            raise RuntimeError(f"Tried to annotate a value that already had a type on it! Existing type is {val.node.type} and new type is {type}.")
        val.node.type = type
    return val
