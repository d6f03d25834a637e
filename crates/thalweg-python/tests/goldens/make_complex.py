"""Writes `complex.bin.gz`: functions of complex numbers at extreme points, as computed by PyTorch's CPU backend.

    python tests/goldens/make_complex.py        needs PyTorch 2.11

For complex128 and complex64, and for each function of `complex_points.py`, the file has the bytes of the results at all points.
"""

import gzip
import pathlib
import sys

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import complex_points as points  # noqa: E402

if __name__ == "__main__":
    data = b""
    for name in points.DTYPES:
        z = torch.tensor(points.points(name), dtype=getattr(torch, name))
        for function in points.FUNCTIONS:
            data += points.called(torch, function, z).resolve_conj().numpy().tobytes()
    with open(HERE / "complex.bin.gz", "wb") as file:
        file.write(gzip.compress(data, 9, mtime=0))
