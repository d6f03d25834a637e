"""Writes reshaping.json.gz: results of PyTorch's parametrizations, weight norms, pruning, fusion and averages. Needs PyTorch, no
GPU:

    python3 make_reshaping.py
"""

import gzip
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent
sys.path.append(str(FOLDER.parent))
from reshaping import World, cases, outcome  # noqa: E402

if __name__ == "__main__":
    import torch
    world = World(torch)
    found = {name: outcome(world, function, arguments) for name, function, arguments in cases()}
    (FOLDER / "reshaping.json.gz").write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))
