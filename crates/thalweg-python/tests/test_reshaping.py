"""Parametrizations, weight norms, pruning, fusion and model averages, compared with PyTorch (`goldens/make_reshaping.py`)."""

import gzip
import json
import math
import pathlib

import thalweg as th
from reshaping import World, cases, outcome
from support import raises

GOLDENS = pathlib.Path(__file__).parent / "goldens/reshaping.json.gz"


def agrees(found, expected):
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(agrees, found, expected))
    if isinstance(expected, float):
        return not isinstance(found, str) and math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9)
    return found == expected


def test_against_pytorch():
    goldens, world = json.loads(gzip.decompress(GOLDENS.read_bytes())), World(th)
    assert list(goldens) == [name for name, _, _ in cases()]
    for name, function, arguments in cases():
        found = outcome(world, function, arguments)
        assert agrees(found, goldens[name]), f"{name}: {found} is not {goldens[name]}"


def test_a_refused_parametrization_changes_nothing():
    class Grows(th.nn.Module):
        def forward(self, x):
            return th.cat([x, x])

        def right_inverse(self, x):
            return x * 2

    layer = th.nn.Linear(2, 2)
    before, weight = layer.weight.tolist(), layer.weight
    with raises(ValueError, "may not change the shape"):
        th.nn.utils.parametrize.register_parametrization(layer, "weight", Grows())
    assert type(layer) is th.nn.Linear and layer.weight is weight and layer.weight.tolist() == before
    with raises(ValueError, "should be smaller"):
        th.nn.utils.prune.l1_unstructured(layer, "weight", 9)
    assert list(layer.state_dict()) == ["weight", "bias"] and layer.weight is weight
