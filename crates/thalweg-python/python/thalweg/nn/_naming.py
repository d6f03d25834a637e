"""Helpers of `torch.nn.modules.utils`: numbers per dimension, and the prefixes of states."""

import collections.abc


def _ntuple(n, name="parse"):
    """Returns a function that repeats a number to a tuple of `n`. Sequences are returned unchanged."""
    def parse(x):
        return tuple(x) if isinstance(x, collections.abc.Iterable) else (x,) * n
    parse.__name__ = name
    return parse


_single, _pair, _triple, _quadruple = (_ntuple(n, name) for n, name in ((1, "_single"), (2, "_pair"), (3, "_triple"), (4, "_quadruple")))


def _reverse_repeat_tuple(t, n):
    """Returns the elements in reverse order, each repeated `n` times."""
    return tuple(element for element in reversed(t) for _ in range(n))


def _list_with_default(out_size, defaults):
    """Returns extents, with those of the last dimensions as defaults."""
    if isinstance(out_size, int):
        return out_size
    if len(defaults) <= len(out_size):
        raise ValueError(f"Input dimension should be at least {len(out_size) + 1}")
    return [default if size is None else size for size, default in zip(out_size, defaults[-len(out_size):])]


def consume_prefix_in_state_dict_if_present(state_dict, prefix):
    """Removes a prefix from the names of a state and of its metadata, in place."""
    for kind in (state_dict, getattr(state_dict, "_metadata", {})):
        for name in list(kind):
            # The metadata of the module itself have its name without the dot.
            if name.startswith(prefix) or (kind is not state_dict and name and name == prefix.replace(".", "")):
                kind[name[len(prefix):]] = kind.pop(name)
