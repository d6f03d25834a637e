"""Graphs of PyTorch's compiler as programs: small models in inference and training, stored with PyTorch's results (`dynamo`)."""

import gzip
import json
import pathlib
import sys

import thalweg

FOLDER = pathlib.Path(__file__).parent
sys.path.insert(0, str(FOLDER / "dynamo"))

import values  # noqa: E402

from thalweg.dynamo import _stored  # noqa: E402


def tensor_of(text):
    """Returns a tensor that is stored by its numbers, with its strides."""
    made = thalweg.tensor(values.unpacked(text["numbers"], text["dtype"]), dtype=getattr(thalweg, text["dtype"])).reshape(text["shape"])
    return thalweg.empty_strided(text["shape"], text["strides"], dtype=made.dtype).copy_(made)


def of_seed(source):
    """Returns a tensor of the values of a seed."""
    numbers = values.numbers(thalweg.Size(source["shape"]).numel(), source["seed"], source.get("below"))
    return thalweg.tensor([number * source["scale"] for number in numbers]).reshape(source["shape"])


def agree(found, text, where):
    expected = tensor_of(text)
    assert found.dtype == expected.dtype and found.shape == expected.shape, f"{where}: {found.dtype} {found.shape}"
    significant = [(one, other) for size, one, other in zip(found.shape, found.stride(), expected.stride()) if size > 1]
    assert not found.numel() or all(one == other for one, other in significant), f"{where}: strides {found.stride()} are not {expected.stride()}"
    assert thalweg.allclose(found, expected, rtol=2e-5, atol=2e-5, equal_nan=True) if found.is_floating_point() else thalweg.equal(found, expected), where


def run_model(name, model):
    """Runs the graphs of a model, and compares all results with PyTorch's. Returns the loops and the kernels."""
    known = {key: of_seed(source) for key, source in model["sources"].items()}
    before = thalweg._core._compile_counters()
    for number, graph in enumerate(model["graphs"]):
        program = _stored.from_json(graph["program"], thalweg.device("sim", 0))
        inputs = [(known[one["as"]].clone() if "as" in one else tensor_of(one)) if isinstance(one, dict) else one for one in graph["inputs"]]
        own = list(inputs)
        results = program(inputs)
        assert inputs == [], "the list of inputs is emptied"
        for place, (found, text) in enumerate(zip(results, graph["outputs"], strict=True)):
            where = f"result {place} of the {graph['kind']} graph of {name}"
            if isinstance(text, dict):
                agree(found, text, where)
                # Later graphs read PyTorch's own results, so that differences do not add up.
                known[f"{number} {place}"] = tensor_of(text)
            else:
                assert found == text, where
        for place, text in graph["changed"].items():
            agree(own[int(place)], text, f"input {place} of the {graph['kind']} graph of {name}")
    after = thalweg._core._compile_counters()
    return after[0] - before[0], after[2] - before[2]


def models():
    return json.loads(gzip.decompress((FOLDER / "goldens/dynamo_programs.json.gz").read_bytes()))


def test_stored_graphs_compute_what_pytorch_computes():
    loops, kernels = 0, 0
    for name, model in models().items():
        counted = run_model(name, model)
        loops, kernels = loops + counted[0], kernels + counted[1]
    # Loops wait, as in a compiled function: many become one kernel.
    assert 0 < kernels < 0.8 * loops, (kernels, loops)


def test_an_error_names_the_node():
    from thalweg.dynamo._description import Description

    made = Description()
    first, result = made.slot(), made.slot()
    made.inputs, made.outputs = [first], [_stored.Place(result)]
    made.call("view", [_stored.Place(first), [7]], [(result, None, None)], "node `view` of aten.view.default, File model.py, line 3")
    program = thalweg._core.Program(*made.parts(), device=thalweg.device("sim", 0), constants=[], kept=[])
    try:
        program([thalweg.ones(6)])
    except RuntimeError as error:
        assert "node `view`" in str(error) and "line 3" in str(error) and "shape" in str(error), error
    else:
        raise AssertionError("nothing was raised")
    assert program([thalweg.ones(7)])[0].shape == (7,), "the program is as it was"


def test_integers_are_computed_as_python_does():
    from thalweg.dynamo._description import Description

    made = Description()
    slots = [made.slot() for _ in range(3)]
    made.inputs = slots
    first, second, x = (_stored.Place(slot) for slot in slots)
    names = ["add", "sub", "mul", "floordiv", "mod", "max", "min"]
    made.outputs = [made.integer(name, [first, second]) for name in names] + [made.integer("size", [x, 1])]
    program = thalweg._core.Program(*made.parts(), device=thalweg.device("sim", 0), constants=[], kept=[])
    for one in (-7, -6, 0, 5, 6):
        for other in (-3, -2, 2, 5):
            expected = [one + other, one - other, one * other, one // other, one % other, max(one, other), min(one, other), 4]
            assert program([one, other, thalweg.ones(2, 4)]) == expected
    try:
        program([2**62, 4, thalweg.ones(2, 4)])
    except RuntimeError as error:
        assert "64 bits" in str(error), error
    else:
        raise AssertionError("nothing was raised")
