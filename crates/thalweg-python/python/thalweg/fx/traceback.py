"""Lines of a program in the nodes that come from them (`torch.fx.traceback`)."""

import contextlib
import traceback

from .._left_out import attributes as _attributes

__all__ = [
    "annotate", "format_stack", "get_current_meta", "has_preserved_node_meta", "preserve_node_meta", "reset_grad_fn_seq_nr", "set_current_meta",
    "set_grad_fn_seq_nr", "set_stack_trace"]

current_meta = {}
_preserves = False


@contextlib.contextmanager
def preserve_node_meta(enable=True):
    """Returns a region in which new nodes get the annotations of the node that is being run."""
    global _preserves, current_meta
    former, meta = _preserves, current_meta.copy()
    try:
        _preserves = enable
        yield
    finally:
        _preserves, current_meta = former, meta


@contextlib.contextmanager
def annotate(annotation_dict):
    """Returns a region whose nodes have the entries of a dictionary in `meta["custom"]`."""
    global current_meta
    former = current_meta
    current_meta = {**former, "custom": {**former.get("custom", {}), **annotation_dict}}
    try:
        yield
    finally:
        current_meta = former


def set_stack_trace(stack):
    """Sets the lines that new nodes name."""
    if _preserves and stack:
        current_meta["stack_trace"] = "".join(stack)


def set_grad_fn_seq_nr(seq_nr):
    """Sets the number of the node of a backward pass."""
    if _preserves:
        current_meta["grad_fn_seq_nr"] = [*current_meta.get("grad_fn_seq_nr", []), seq_nr]
        current_meta["in_grad_fn"] = current_meta.get("in_grad_fn", 0) + 1


def reset_grad_fn_seq_nr():
    """Forgets the last number of a node of a backward pass."""
    if _preserves and current_meta.get("in_grad_fn", 0) > 0:
        current_meta["in_grad_fn"] -= 1
        current_meta["grad_fn_seq_nr"] = current_meta["grad_fn_seq_nr"][:-1]


def format_stack():
    """Returns the lines that new nodes name: those of the node that is being run, or the current ones."""
    if _preserves:
        return [current_meta.get("stack_trace", "")]
    return traceback.format_list(traceback.extract_stack()[:-1])


def has_preserved_node_meta():
    """Returns whether new nodes get the current annotations."""
    return _preserves


@contextlib.contextmanager
def set_current_meta(node, pass_name=""):
    """Returns a region in which a node is the one that is being run."""
    global current_meta
    if not (_preserves and node.meta):
        yield
        return
    former = current_meta
    current_meta = {**node.meta, "from_node": [*node.meta.get("from_node", []), (node.name, node.target)]}
    try:
        yield
    finally:
        current_meta = former


def get_current_meta():
    """Returns the annotations of the node that is being run."""
    return current_meta


__getattr__ = _attributes(__name__)
