"""Writes stepping.pt.gz: states and parameters of PyTorch's optimizers after steps. Needs PyTorch, no GPU:

    python3 make_stepping.py
"""

import copy
import gzip
import io
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent
sys.path.append(str(FOLDER.parent))
from stepping import CASES, made, stepped  # noqa: E402

if __name__ == "__main__":
    import torch
    found = []
    for name, options in CASES:
        parameters, optimizer = made(torch, name, options)
        before = {number: sorted(own) for number, own in optimizer.state_dict()["state"].items()}
        at_four = stepped(torch, parameters, optimizer, range(4))
        state = copy.deepcopy(optimizer.state_dict())
        found.append({"before": before, "four": at_four, "state": state, "six": stepped(torch, parameters, optimizer, range(4, 6)),
                      "order": {number: list(own) for number, own in state["state"].items()}})
    file = io.BytesIO()
    torch.save(found, file)
    (FOLDER / "stepping.pt.gz").write_bytes(gzip.compress(file.getvalue(), mtime=0))
