"""Writes bad_calls.json: for each call of bad_calls.txt the class of PyTorch's exception, or "ok". Needs PyTorch, no GPU:

    python3 make_bad_calls.py
"""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent
sys.path.append(str(FOLDER.parent))
from bad_calls import calls, outcome  # noqa: E402

if __name__ == "__main__":
    import torch
    found = {call: outcome(torch, call)[0] for call in calls()}
    (FOLDER / "bad_calls.json").write_text(json.dumps(found, indent=0) + "\n")
