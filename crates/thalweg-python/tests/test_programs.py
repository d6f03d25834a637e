"""Programs in PyTorch's style run with `thalweg` in place of `torch`, and have PyTorch's losses from the same weights."""

import json
import pathlib
import runpy
import sys
import types

import thalweg

PROGRAMS = pathlib.Path(__file__).parent / "programs"
# Computed by PyTorch 2.11 on a CPU, where `python programs/NAME.py` prints them.
LOSSES = json.loads((PROGRAMS / "losses.json").read_text())
# Likewise, by `python scripts/models.py torch --tiny`.
MODELS = json.loads((PROGRAMS / "models.json").read_text())


def run(name):
    """Returns the result of a program's `train`, where every `import torch` imports this package."""
    added = {"torch" + known.removeprefix("thalweg"): module for known, module in list(sys.modules.items())
             if known == "thalweg" or known.startswith("thalweg.")}
    former = {known: sys.modules.get(known) for known in added}
    sys.modules.update(added)
    try:
        return runpy.run_path(str(PROGRAMS / f"{name}.py"))["train"]()
    finally:
        for known, module in former.items():
            if module is None:
                del sys.modules[known]
            else:
                sys.modules[known] = module


def compare(found, expected):
    worst = max(abs(one - other) / abs(other) for one, other in zip(found, expected))
    assert len(found) == len(expected) and worst < 2e-5, (worst, found)


def test_gpt():
    compare(run("gpt"), LOSSES["gpt"])


def test_images():
    losses, accuracy = run("images")
    compare(losses, LOSSES["images"])
    assert accuracy == LOSSES["images_accuracy"]


def test_words():
    compare(run("words"), LOSSES["words"])


def test_layers():
    found, expected = run("layers"), LOSSES["layers"]
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected)):
        assert len(one) == len(other) and one[:-2] == other[:-2], (number, one, other)
        for mine, theirs in zip(one[-2:], other[-2:]):
            assert abs(mine - theirs) < 2e-4 * max(1.0, abs(theirs)), (number, one, other)


def test_models():
    script = pathlib.Path(__file__).parents[1] / "scripts" / "models.py"
    models = runpy.run_path(str(script))
    # The functions of a script share their globals, which the library is bound to.
    space = models["load"].__globals__
    models["load"]("thalweg")
    options = types.SimpleNamespace(tiny=True, compile=False)
    device = str(thalweg.ones(1).device)
    for name, losses in MODELS.items():
        compare(space["measured"](name, options, device)["losses"], losses)


def test_typed():
    assert len(run("typed")) == 4


def test_optimizers():
    for number, (found, expected) in enumerate(zip(run("optimizers"), LOSSES["optimizers"], strict=True)):
        # Muon computes in bfloat16, and line searches amplify rounding errors of float32.
        for mine, theirs in zip(found, expected, strict=True):
            assert abs(mine - theirs) < 2e-3 * max(1.0, abs(theirs)), (number, found, expected)


def test_scaling():
    for number, (found, expected) in enumerate(zip(run("scaling"), LOSSES["scaling"], strict=True)):
        for mine, theirs in zip(found, expected, strict=True):
            assert abs(mine - theirs) < 1e-5 * max(1.0, abs(theirs)), (number, found, expected)


def test_schedules():
    for number, (found, expected) in enumerate(zip(run("schedules"), LOSSES["schedules"], strict=True)):
        for mine, theirs in zip(found, expected, strict=True):
            assert abs(mine - theirs) < 1e-12, (number, found, expected)
