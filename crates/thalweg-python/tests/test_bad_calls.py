"""Calls that modules, functions, optimizers and schedules refuse, checked against PyTorch's exception classes
(`goldens/make_bad_calls.py`)."""

import json
import pathlib

import thalweg as th
from bad_calls import calls, outcome

GOLDENS = pathlib.Path(__file__).parent / "goldens/bad_calls.json"

# Differences from PyTorch on the CPU: this package's outcome, and the reason.
DIFFERENT = {
    "F.one_hot(z(2) + 3, 2)": ("IndexError", "the device finds it, as an index out of bounds"),
    "F.embedding_bag(z(3), r(3, 2), z(1) + 1)": ("IndexError", "the device finds it, as an index out of bounds"),
    "F.binary_cross_entropy(r(2) + 1, r(2))": ("ok", "the host does not read elements; CUDA asserts in its kernel"),
    "F.unfold(r(2), (2, 2))": ("RuntimeError", "PyTorch asks for a dimension before it checks how many there are"),
    "F.avg_pool2d(r(4, 4), 2)": ("RuntimeError", "PyTorch asks for a dimension before it checks how many there are"),
}


def test_classes_of_exceptions():
    goldens = json.loads(GOLDENS.read_text())
    assert list(goldens) == calls(), "goldens/make_bad_calls.py has to be run again"
    wrong = []
    for call, wanted in goldens.items():
        found, text = outcome(th, call)
        if found != DIFFERENT.get(call, (wanted,))[0]:
            wrong.append(f"{call}: {found} ({text.splitlines()[0] if text else ''}), not {wanted}")
    assert not wrong, "\n".join(wrong)
    assert all(goldens[call] != found for call, (found, _) in DIFFERENT.items())


def test_nothing_is_half_changed():
    nn = th.nn
    norm = nn.BatchNorm1d(2)
    before = [tensor.tolist() for tensor in norm.buffers()]
    for refused in (lambda: norm(th.ones(1, 2)), lambda: norm(th.ones(2, 3))):
        try:
            refused()
        except (ValueError, RuntimeError):
            pass
        if refused is not None and [tensor.tolist() for tensor in norm.buffers()][:2] != before[:2]:
            raise AssertionError("running statistics have changed")
    assert norm.num_batches_tracked.item() <= 1

    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    state = net.state_dict()
    bad = {**{name: th.zeros_like(value) for name, value in state.items()}, "1.bias": th.zeros(3)}
    kept = {name: value.tolist() for name, value in state.items()}
    for strict in (True, False):
        try:
            net.load_state_dict(bad, strict=strict)
        except RuntimeError:
            pass
        assert {name: value.tolist() for name, value in net.state_dict().items()} == kept
    calls_made = []

    def fails_late(tensor):
        calls_made.append(tensor)
        if len(calls_made) == 3:
            raise RuntimeError("no more")
        return tensor.double()
    try:
        net._apply(fails_late)
    except RuntimeError:
        pass
    assert len(calls_made) == 3 and all(parameter.dtype is th.float32 for parameter in net.parameters())
