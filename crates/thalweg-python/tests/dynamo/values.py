"""Values that a seed determines, without a library, and tensors as text."""

import base64
import struct
import zlib

CODES = {"float32": "f", "float64": "d", "int64": "q", "int32": "i", "bool": "?", "uint8": "B"}


def numbers(count, seed, below=None):
    """Returns numbers between -1 and 1, or integers from 0 on below a number."""
    state, made = 2654435761 * (seed + 1) % 2**32, []
    for _ in range(count):
        state = (1664525 * state + 1013904223) % 2**32
        high = state >> 12
        made.append(high % below if below else high / 2**19 - 1.0)
    return made


def packed(numbers, dtype):
    """Returns numbers as text."""
    return base64.b64encode(zlib.compress(struct.pack(f"<{len(numbers)}{CODES[dtype]}", *numbers))).decode()


def unpacked(text, dtype):
    """Returns numbers from their text."""
    raw = zlib.decompress(base64.b64decode(text))
    return list(struct.unpack(f"<{len(raw) // struct.calcsize(CODES[dtype])}{CODES[dtype]}", raw))
