"""Runs random probes of the Python API and of PyTorch, and prints each difference as the shortest call that shows it.

    PYTHONPATH=python python tools/differential.py --seed 1 --seconds 600      needs PyTorch 2.11 (the CPU's will do)
    PYTHONPATH=python python tools/differential.py --write 1500                writes the probes of the test, with PyTorch's results

`--only NAME` selects the functions whose names contain a text. A seed always produces the same probes.
"""

import argparse
import collections
import faulthandler
import fnmatch
import gzip
import json
import pathlib
import random
import re
import sys
import time
import warnings

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/differential"
sys.path.insert(0, str(FOLDER))

import api_probes as probes  # noqa: E402
import torch  # noqa: E402
import torch.signal.windows  # noqa: E402,F401

import thalweg  # noqa: E402


def known_differences():
    """Returns the patterns of calls for which a difference is intended."""
    return [line.partition(" | ")[0] for line in (FOLDER / "known.txt").read_text().splitlines() if line and not line.startswith("#")]


def available():
    """Returns the signatures of functions that this library has. Missing ones are listed next to the signatures."""
    def has(name):
        value = thalweg
        for part in name.removeprefix("torch.").split("."):
            value = getattr(value, part, None)
        return value is not None and type(value).__name__ != "_LeftOut"
    return [one for one in probes.lines() if has(one[0])]


def way_of(probe):
    """Returns the kind of difference between the libraries on a probe, and PyTorch's result."""
    faulthandler.dump_traceback_later(30, exit=True)
    theirs = probes.run(torch, probe)
    ours = probes.run(thalweg, probe)
    faulthandler.cancel_dump_traceback_later()
    if ours[:1] == ["error"] and "work submitted earlier failed" in ours[-1]:
        raise SystemExit(f"the device is lost at, or before, {described(probe)}\n    {ours[-1]}")
    return probes.compared(probe, ours, theirs), theirs


def smaller(probe):
    """Yields probes that are smaller in one respect."""
    if probe["kind"]:
        yield {**probe, "kind": ""}
    head, _, inner = probe["call"].partition("(")
    parts = split_arguments(inner[:-1])
    for place in reversed(range(len(parts))):
        yield {**probe, "call": f"{head}({', '.join(parts[:place] + parts[place + 1:])})"}
    for key, text in probe["tensors"].items():
        if key not in {part.strip("[]*").split(",")[0] for part in parts} and not head.startswith(f"{key}.") and f"{key}" not in inner:
            yield {**probe, "tensors": {name: other for name, other in probe["tensors"].items() if name != key}}
        for shorter in shorter_tensors(text):
            yield {**probe, "tensors": {**probe["tensors"], key: shorter}}


def split_arguments(text):
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [part for part in [*parts, text[start:].strip()] if part]


def shorter_tensors(text):
    """Yields tensors with fewer or simpler numbers."""
    scope = {"torch": torch}
    value = eval(text, scope)
    dtype = str(value.dtype)
    if not value.numel():
        return
    choices = [value.select(0, 0) if value.dim() else value, value.narrow(0, 0, 1) if value.dim() and value.shape[0] > 1 else value]
    for choice in choices:
        other = f"torch.tensor({choice.tolist()!r}, dtype={dtype})".replace("nan", "float('nan')").replace("inf", "float('inf')")
        if len(other) < len(text):
            yield other


def minimised(probe, way):
    """Returns the shortest probe with the same kind of difference."""
    for _ in range(20):
        for other in smaller(probe):
            found, theirs = way_of(other)
            if found and found.split(" ")[0] == way.split(" ")[0] and (not theirs or theirs[0] != "error" or "refuses" in way or "instead" in found):
                probe, way = other, found
                break
        else:
            break
    return probe, way


def described(probe):
    tensors = "; ".join(f"{key} = {text}" for key, text in probe["tensors"].items())
    return f"{tensors}; {probe['call']}" + (f"   [{probe['kind']}]" if probe["kind"] else "")


def search(arguments):
    """Runs probes until the time is over. Returns the number of probes that differ."""
    source = random.Random(arguments.seed)
    signatures = [one for one in available() if arguments.only in one[0] and not re.search(arguments.skip, one[0])]
    known, counts, seen = known_differences(), collections.Counter(), collections.Counter()
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end and counts["probes"] < arguments.probes:
        probe = probes.probe(source, signatures)
        if arguments.verbose:
            print(described(probe), file=sys.stderr, flush=True)
        way, theirs = way_of(probe)
        counts["probes"] += 1
        if way and way.startswith("raises ") and not arguments.classes:
            counts["other class of exception"] += 1
            continue
        counts["refused by both" if not way and theirs[:1] == ["error"] else "equal" if not way else "different"] += 1
        if not way:
            continue
        name = probe["call"].partition("(")[0]
        kind = (name, way.split(" ")[0])
        pattern = f"{probe['call']}: {way}"
        if any(fnmatch.fnmatchcase(pattern, one) for one in known):
            counts["known"] += 1
            continue
        seen[kind] += 1
        if seen[kind] <= arguments.each:
            probe, way = minimised(probe, way)
            print(f"{described(probe)}\n    {way}", flush=True)
    print(dict(counts))
    return sum(seen.values())


def write(arguments):
    """Writes probes with PyTorch's results, and some that PyTorch refuses."""
    source = random.Random(arguments.seed)
    signatures = [one for one in available() if not re.search(arguments.skip, one[0])]
    known, found, each = known_differences(), [], collections.Counter()
    while len(found) < arguments.write:
        probe = probes.probe(source, signatures)
        name = probe["call"].partition("(")[0]
        way, theirs = way_of(probe)
        is_refused = theirs[:1] == ["error"]
        if way or each[name] >= 3 or (is_refused and source.random() > 0.1) or any(
                fnmatch.fnmatchcase(f"{probe['call']}: ", one) for one in known):
            continue
        each[name] += 1
        found.append([probe, theirs[:2] if is_refused else theirs])
    text = "\n".join(json.dumps(one, separators=(",", ":")) for one in found)
    (FOLDER / "goldens.jsonl.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{len(found)} probes of {len(each)} functions, {(FOLDER / 'goldens.jsonl.gz').stat().st_size} bytes")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--probes", type=int, default=10**9)
    parser.add_argument("--each", type=int, default=1, help="how many differences of one kind are printed of a function")
    parser.add_argument("--classes", action="store_true", help="print differences of exception classes as well")
    parser.add_argument("--verbose", action="store_true", help="print each probe before it runs")
    parser.add_argument("--only", default="")
    parser.add_argument("--skip", default="^$", help="functions that are left out, as a regular expression")
    parser.add_argument("--write", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    return 1 if (write if arguments.write else search)(arguments) else 0


if __name__ == "__main__":
    sys.exit(main())
