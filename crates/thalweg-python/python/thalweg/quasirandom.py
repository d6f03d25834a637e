"""Sequences that fill a cube evenly (`torch.quasirandom`)."""

import base64
import functools
import zlib

from . import _core
from ._sobol_numbers import NUMBERS

__all__ = ["SobolEngine"]


@functools.cache
def _table():
    """Returns the polynomial and the first numbers of the directions of each dimension."""
    data = memoryview(zlib.decompress(base64.b85decode(NUMBERS))).cast("H")
    found, place = [], 0
    while place < len(data):
        degree = max(data[place].bit_length() - 1, 0)
        found.append((data[place], list(data[place + 1:place + 1 + degree])))
        place += 1 + degree
    return found


def _directions(dimension, bits):
    """Returns the directions of a dimension, as fractions of `bits` binary digits."""
    polynomial, numbers = _table()[dimension]
    degree = len(numbers)
    if degree == 0:
        numbers = [1] * bits
    for place in range(degree, bits if degree else 0):
        made = numbers[place - degree]
        for step in range(1, degree + 1):
            if polynomial >> (degree - step) & 1:
                made ^= numbers[place - step] << step
        numbers.append(made)
    return [number << (bits - 1 - place) for place, number in enumerate(numbers[:bits])]


class SobolEngine:
    """A Sobol sequence of points in a cube, which may be scrambled."""

    MAXBIT = 30
    # The number of dimensions in the table of directions.
    MAXDIM = 1024

    def __init__(self, dimension, scramble=False, seed=None):
        if not 1 <= dimension <= self.MAXDIM:
            raise ValueError(f"Supported range of dimensionality for SobolEngine is [1, {self.MAXDIM}]")
        self.dimension, self.scramble, self.seed = dimension, scramble, seed
        self.sobolstate = _core.tensor([_directions(place, self.MAXBIT) for place in range(dimension)], dtype=_core.int64)
        self.shift = _core.zeros(dimension, dtype=_core.int64)
        if scramble:
            self._scramble()
        self.reset()

    def _scramble(self):
        """Draws a shift, and multiplies the digits of each direction by a triangular matrix."""
        generator = None if self.seed is None else _core.Generator().manual_seed(self.seed)
        powers = 2 ** _core.arange(self.MAXBIT)
        self.shift = (_core.randint(2, [self.dimension, self.MAXBIT], generator=generator) * powers).sum(1)
        matrix = _core.randint(2, [self.dimension, self.MAXBIT, self.MAXBIT], generator=generator).tril(-1) + _core.eye(self.MAXBIT, dtype=_core.int64)
        # Digits from the most significant on.
        digits = (self.sobolstate.unsqueeze(-1).bitwise_right_shift(_core.arange(self.MAXBIT).flip(0))) & 1
        mixed = (matrix.unsqueeze(1) * digits.unsqueeze(2)).sum(-1) % 2
        self.sobolstate = (mixed * powers.flip(0)).sum(-1)

    def reset(self):
        """Goes back to the first point."""
        self.num_generated, self.quasi = 0, self.shift.clone()
        return self

    def _points(self, first, count):
        """Returns points as integers: the directions of the digits of a place's Gray code, combined."""
        places = _core.arange(first, first + count)
        codes, found = places ^ places.bitwise_right_shift(1), self.shift.unsqueeze(0).expand(count, self.dimension)
        for bit in range((first + count).bit_length()):
            is_set = codes.bitwise_right_shift(bit) & 1
            found = found ^ (is_set.unsqueeze(1) * self.sobolstate[:, bit])
        return found

    def draw(self, n=1, out=None, dtype=None):
        """Returns the next points, one a row."""
        points = self._points(self.num_generated, n)
        self.num_generated += n
        if n:
            self.quasi = points[-1].clone()
        result = points.to(_core.get_default_dtype() if dtype is None else dtype) * 2.0 ** -self.MAXBIT
        return result if out is None else out.resize_as_(result).copy_(result)

    def draw_base2(self, m, out=None, dtype=None):
        """Returns the next 2**m points, if the number of all points is a power of 2 then."""
        total = self.num_generated + 2**m
        if total & (total - 1):
            raise ValueError(f"The balance properties of Sobol' points require n to be a power of 2. {self.num_generated} points have been previously generated, "
                             f"then: n={self.num_generated}+2**{m}={total}. If you still want to do this, please use 'SobolEngine.draw()' instead.")
        return self.draw(2**m, out, dtype)

    def fast_forward(self, n):
        """Skips points."""
        self.num_generated += n
        self.quasi = self._points(self.num_generated - 1, 1)[0] if self.num_generated else self.shift.clone()
        return self

    def __repr__(self):
        parts = [f"dimension={self.dimension}"] + ["scramble=True"] * bool(self.scramble) + ([] if self.seed is None else [f"seed={self.seed}"])
        return f"{type(self).__name__}({', '.join(parts)})"
