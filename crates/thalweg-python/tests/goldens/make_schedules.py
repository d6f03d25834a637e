"""Writes schedules.json.gz: the rates of all schedules of schedules.py. Needs PyTorch, no GPU:

    python3 make_schedules.py
"""

import gzip
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent
sys.path.append(str(FOLDER.parent))
from schedules import cases, rates  # noqa: E402

if __name__ == "__main__":
    import torch
    found = {name: rates(torch, *arguments) for name, arguments in cases()}
    (FOLDER / "schedules.json.gz").write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))
