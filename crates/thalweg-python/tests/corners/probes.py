"""One-line programs that are compared with PyTorch: `values.txt`, with the result in R, and `refusals.txt`, most of which raise.

    python probes.py        # where PyTorch 2.11 is: writes pytorch.json
"""

import json
import pathlib
import sys
import warnings

FOLDER = pathlib.Path(__file__).parent


def plain(value):
    """Returns tensors as their dtypes and numbers."""
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return [str(value.dtype).split(".")[-1], value.tolist()] if hasattr(value, "dtype") else value


def run(torch, line, device=None):
    """Returns the outcome of a line: the class of the exception, and the result."""
    on = {} if device is None else {"device": device}

    def maker(name):
        return lambda *sizes, **options: getattr(torch, name)(*sizes, **{**on, **options})
    names = {"torch": torch, "F": torch.nn.functional, "nan": float("nan"), "inf": float("inf"), "D": device,
             **{name: maker(name) for name in ("ones", "zeros", "tensor")}}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(line, names)
    except Exception as error:
        return {"raises": type(error).__name__, "text": str(error)}
    return {"raises": None, "result": plain(names.get("R"))}


def lines(name):
    """Returns the programs of a file."""
    return (FOLDER / name).read_text().splitlines()


if __name__ == "__main__":
    import torch
    answers = {line: run(torch, line) for name in ("values.txt", "refusals.txt") for line in lines(name)}
    for answer in answers.values():
        answer.pop("text", None)
    sys.stdout.write(f"{sum(answer['raises'] is not None for answer in answers.values())} of {len(answers)} raise\n")
    (FOLDER / "pytorch.json").write_text(json.dumps(answers, indent=0) + "\n")
