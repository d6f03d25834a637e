"""The transforms that are running on a thread, the innermost last."""

import threading


class _Local(threading.local):
    """The transforms of a thread: maps over a dimension, the number of derivatives, the leaves that they made, and whether a backward pass runs
    for tangents."""

    def __init__(self):
        self.maps, self.derivatives, self.leaves, self.is_forward = [], 0, [], False


local = _Local()


class Map:
    """A running `vmap`: the size of the mapped dimension, and the behaviour of random functions."""

    def __init__(self, size, randomness):
        self.size, self.randomness, self.depth = size, randomness, None

    def __enter__(self):
        self.depth = len(local.maps)
        local.maps.append(self)
        return self

    def __exit__(self, *_):
        local.maps.pop()


class Derivative:
    """A region in which a derivative is computed."""

    def __enter__(self):
        local.derivatives += 1
        return self

    def __exit__(self, *_):
        local.derivatives -= 1
        if local.derivatives == 0:
            local.leaves.clear()


class Forward:
    """A region whose backward passes begin at zeros, to be differentiated by them: the products with tangents are wanted."""

    def __enter__(self):
        self.former, local.is_forward = local.is_forward, True
        return self

    def __exit__(self, *_):
        local.is_forward = self.former
