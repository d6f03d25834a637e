"""Autocast compared with PyTorch's results on a GPU (`autocast/pytorch.json.gz`, which `autocast/cases.py` writes there): for
every operator of its lists, and for functions and modules composed of them, the dtypes of results and gradients, and numbers that
reveal the dtype of the computation."""

import gzip
import json
import math
import pathlib
import sys

import thalweg

FOLDER = pathlib.Path(__file__).parent / "autocast"

# The allowed difference of results of a dtype, relative to the largest number of a tensor.
UNITS = {"float64": 1e-5, "float32": 3e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
SHORT = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def loaded():
    """Returns the module of the cases, and PyTorch's answers."""
    sys.path.insert(0, str(FOLDER))
    try:
        import cases
    finally:
        sys.path.pop(0)
    return cases, json.loads(gzip.decompress((FOLDER / "pytorch.json.gz").read_bytes()))["answers"]


def unit(answer, dtype):
    """Returns the tolerance for numbers of a dtype, by the narrowest dtype that PyTorch computed in or returned."""
    computed = [SHORT[name] for call in answer["computed"].split() for name in call.split(":")[1].split(",") if name in SHORT]
    return max(UNITS.get(name, 0.0) for name in [dtype, *computed])


def apart(found, wanted, bound):
    """Returns whether lists of numbers, as texts, differ by more than a bound relative to the largest."""
    found, wanted = ([float(number) for number in numbers] for numbers in (found, wanted))
    largest = max([abs(number) for number in wanted if math.isfinite(number)], default=0.0)
    near = lambda a, b: a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= bound * max(largest, 1e-2)
    return len(found) != len(wanted) or not all(map(near, found, wanted))


# Cases that differ from PyTorch, as "name", "name|region" or "name|region|variant", with the reason.
DIFFERENCES = {
    "matrix_exp|bfloat16|half": "PyTorch's overflows in 16 bits", "matrix_exp|float16|half": "PyTorch's overflows in 16 bits",
    "matrix_exp|bfloat16|other": "PyTorch's overflows in 16 bits", "matrix_exp|float16|other": "PyTorch's overflows in 16 bits",
    "fft.rfft": "Fourier transforms take no 16-bit floats", "stft": "Fourier transforms take no 16-bit floats",
    "special.zeta": "the class of the refused gradient", "nextafter": "its gradient is 0, not an error",
    "aminmax": "it has a gradient here", "special.i1": "its gradient is there in 16 bits", "special.i1e": "its gradient is there in 16 bits",
    "native_group_norm": "statistics of 16-bit floats are float32, as those of layer norm",
    **{f"{name}|bfloat16": "cuDNN's recurrent networks are cast to float16 whatever the region asks for; here to its dtype"
       for name in ("nn.RNN", "nn.LSTM", "nn.GRU", "nn.LSTM two layers")},
}


def is_left_out(key, found, wanted):
    """Returns whether a difference of a case is intended: a listed one, a missing name, or a mixture of dtypes that PyTorch
    refuses."""
    name, region, _ = key.split("|")
    listed = any(part in DIFFERENCES for part in (name, f"{name}|{region}", key))
    return listed or found.get("error") in ("AttributeError", "TypeError") or ("error" in wanted and "error" not in found)


def difference(found, wanted):
    """Returns how an answer differs from PyTorch's, or None if it does not."""
    if "error" in wanted or "error" in found:
        return None if "error" in wanted and "error" in found else f"{found} is not {wanted}"
    if found["dtypes"] != wanted["dtypes"]:
        return f"results are {found['dtypes']}, not {wanted['dtypes']}"
    if found.get("gradients") != wanted.get("gradients"):
        return f"gradients are {found.get('gradients')}, not {wanted.get('gradients')}"
    for mine, its, dtype in zip(found["values"], wanted["values"], wanted["dtypes"]):
        if apart(mine, its, unit(wanted, dtype)):
            return f"the result is {mine}, not {its} ({wanted['computed']})"
    for mine, its, dtype in zip(found.get("slopes", []), wanted.get("slopes", []), wanted.get("gradients", [])):
        if apart(mine, its, 4 * max(unit(wanted, dtype), *(UNITS.get(name, 0.0) for name in wanted["dtypes"]))):
            return f"a gradient is {mine}, not {its} ({wanted['computed']})"
    return None


def test_every_operator_computes_in_the_dtypes_of_pytorch():
    cases, answers = loaded()
    differ, held = [], 0
    for case in cases.cases(thalweg):
        for region in ("bfloat16", "float16"):
            for variant in cases.VARIANTS:
                wanted = answers.get(f"{case[0]}|{region}|{variant}")
                if wanted is None:
                    continue
                found = cases.run(thalweg, "sim", case, region, variant)
                reason = difference(found, wanted)
                held += reason is None
                if reason and not is_left_out(f"{case[0]}|{region}|{variant}", found, wanted):
                    differ.append(f"{case[0]} in {region} of {variant}: {reason}")
    assert not differ, f"{held} agree; these do not:\n" + "\n".join(differ)
    assert held > 3200, f"{held} cases agree"
