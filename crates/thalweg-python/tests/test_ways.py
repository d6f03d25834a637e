"""The way in which compiled functions run: which one is found to be faster, and when."""

import pytest
import thalweg as torch
from thalweg import _core, _ways


class Machine:
    """A clock that only the calls of a function move, and functions that take a time compiled and another one as they are written."""

    def __init__(self, monkeypatch, planned=0):
        self.now, self.programs, self.waits, self.planned = 0.0, 0, 0, planned
        monkeypatch.setattr(_core, "_waits_for_gpu", lambda: True)
        monkeypatch.setattr(_core, "_is_capturing", lambda: False)
        monkeypatch.setattr(_core, "_free_and_peak_bytes", lambda: (2, 1))
        monkeypatch.setattr(_core, "_await_gpu", self.wait)
        monkeypatch.setattr(_core, "_compile_counters", lambda: (0, 0, 0, self.programs, 0))
        monkeypatch.setattr(_ways.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(_ways.Trial.__init__, "__defaults__", (lambda: self.now, None, None))
        _ways._THREAD.trial = None

    def wait(self):
        self.waits += 1

    def call(self, way, compiled, written):
        is_compiled = way.chosen()
        if is_compiled and self.planned > 0:
            self.planned -= 1
            self.programs += 1
            self.now += 100.0
        self.now += compiled if is_compiled else written
        return is_compiled


@pytest.mark.parametrize("compiled, written, wanted", [(2.0, 1.0, False), (1.0, 2.0, True), (1.0, 1.0, True), (1.0, 0.96, False), (1.0, 0.98, True)])
@pytest.mark.parametrize("planned", [0, 1, 5])
def test_the_faster_way_remains(monkeypatch, compiled, written, wanted, planned):
    machine, way = Machine(monkeypatch, planned), _ways.Way()
    for _ in range(planned + 40):
        machine.call(way, compiled, written)
    assert way.compiles is wanted
    waits = machine.waits
    assert [machine.call(way, compiled, written) for _ in range(5)] == [wanted] * 5 and machine.waits == waits


def test_functions_of_a_step_are_tried_together(monkeypatch):
    machine, first, second = Machine(monkeypatch), _ways.Way(), _ways.Way()
    for _ in range(40):
        ways = [machine.call(first, 1.0, 2.0), machine.call(second, 3.0, 1.0), machine.call(second, 3.0, 1.0)]
        assert len(set(ways)) == 1
    assert first.compiles is second.compiles is False


def test_a_trial_whose_function_is_not_called_again_is_given_up(monkeypatch):
    machine, first, second = Machine(monkeypatch), _ways.Way(), _ways.Way()
    machine.call(first, 1.0, 2.0)
    for _ in range(200):
        machine.call(second, 2.0, 1.0)
    assert second.compiles is False and first.compiles is None
    third = _ways.Way()
    for _ in range(40):
        machine.call(third, 1.0, 2.0)
    assert third.compiles is True
    del third
    for _ in range(40):
        machine.call(first, 1.0, 2.0)
    assert first.compiles is True


def test_a_capture_and_a_full_gpu_stay_compiled(monkeypatch):
    machine, way = Machine(monkeypatch), _ways.Way()
    monkeypatch.setattr(_core, "_is_capturing", lambda: True)
    assert machine.call(way, 2.0, 1.0) and way.compiles is True
    machine, way = Machine(monkeypatch), _ways.Way()
    monkeypatch.setattr(_core, "_free_and_peak_bytes", lambda: (1, 2))
    assert all(machine.call(way, 2.0, 1.0) for _ in range(20)) and way.compiles is True


def test_both_ways_compute_the_same(monkeypatch):
    machine = Machine(monkeypatch)
    linear = torch.nn.Linear(8, 8)
    model = torch.compile(linear)
    x = torch.randn(4, 8)
    results = []
    for _ in range(30):
        machine.now += 1.0
        y = model(x)
        y.sum().backward()
        results.append((y.tolist(), linear.weight.grad.tolist()))
        linear.weight.grad = linear.bias.grad = None
    assert all(result == results[0] for result in results)
    always = torch.compile(linear, options={"adaptive": False})
    before = machine.waits
    for _ in range(30):
        always(x)
    assert machine.waits == before


def test_nothing_is_tried_on_the_simulated_gpu():
    calls = []
    function = torch.compile(lambda x: (calls.append(_core._is_compiling()), x.exp())[1])
    for _ in range(30):
        function(torch.ones(2))
    assert all(calls)
