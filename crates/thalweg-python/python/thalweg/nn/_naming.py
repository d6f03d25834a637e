"""Helpers of `torch.nn.modules.utils`: numbers for each dimension, and the prefixes of states."""

import collections.abc


def _ntuple(n, name="parse"):
    """Returns a function that gives a tuple of as many numbers; what is a sequence already is left as it is."""
    def parse(x):
        return tuple(x) if isinstance(x, collections.abc.Iterable) else (x,) * n
    parse.__name__ = name
    return parse


_single, _pair, _triple, _quadruple = (_ntuple(n, name) for n, name in ((1, "_single"), (2, "_pair"), (3, "_triple"), (4, "_quadruple")))


def _reverse_repeat_tuple(t, n):
    """Returns the elements from the last one on, each so many times."""
    return tuple(element for element in reversed(t) for _ in range(n))


def _list_with_default(out_size, defaults):
    """Returns extents, with those of the last dimensions where none is said."""
    if isinstance(out_size, int):
        return out_size
    if len(defaults) <= len(out_size):
        raise ValueError(f"Input dimension should be at least {len(out_size) + 1}")
    return [default if size is None else size for size, default in zip(out_size, defaults[-len(out_size):])]


def consume_prefix_in_state_dict_if_present(state_dict, prefix):
    """Takes a prefix off the names of a state that have it, and off those of its metadata, in place."""
    for kind in (state_dict, getattr(state_dict, "_metadata", {})):
        for name in list(kind):
            # A module's own metadata have its name without the point.
            if name.startswith(prefix) or (kind is not state_dict and name and name == prefix.replace(".", "")):
                kind[name[len(prefix):]] = kind.pop(name)
