"""Random calls have PyTorch's results: dtypes, shapes, numbers, gradients, printed text, and exception classes.

`tools/differential.py` makes the probes and PyTorch's results, and finds new ones.
"""

import gzip
import json
import pathlib
import sys
import warnings

import thalweg as th
import thalweg.signal.windows  # noqa: F401

FOLDER = pathlib.Path(__file__).parent / "differential"
sys.path.append(str(FOLDER))
import api_probes as probes  # noqa: E402


def test_probes_give_what_pytorch_gives():
    lines = gzip.decompress((FOLDER / "goldens.jsonl.gz").read_bytes()).decode().splitlines()
    assert len(lines) > 1000, len(lines)
    different = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line in lines:
            probe, theirs = json.loads(line)
            ours = json.loads(json.dumps(probes.run(th, probe)))
            way = probes.compared(probe, ours, theirs)
            if way:
                different.append(f"{probe}: {way}")
    assert not different, "\n".join(different[:20])
