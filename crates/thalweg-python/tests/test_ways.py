"""The way in which compiled functions run: which one is found to be faster, and when."""

import contextlib
from unittest import mock

import thalweg as torch
from thalweg import _core, _ways


class Machine(contextlib.ExitStack):
    """A clock that only the calls of a function move, and functions that take a time compiled and another one as they are written."""

    def __init__(self, planned=0, captures=False, room=(2, 1)):
        super().__init__()
        self.now, self.programs, self.kernels, self.waits, self.planned = 0.0, 0, 0, 0, planned
        replaced = dict(
            _waits_for_gpu=lambda: True, _is_capturing=lambda: captures, _free_and_peak_bytes=lambda: room, _await_gpu=self.wait,
            _compile_counters=lambda: (0, 0, 0, self.programs, 0), _loaded_kernel_count=lambda: self.kernels)
        for name, function in replaced.items():
            self.enter_context(mock.patch.object(_core, name, function))
        self.enter_context(mock.patch.object(_ways, "time", mock.Mock(perf_counter=lambda: self.now)))
        _ways._THREAD.trial = None

    def wait(self):
        self.waits += 1

    def call(self, way, compiled, written):
        is_compiled = way.chosen()
        if is_compiled and self.planned > 0:
            self.planned -= 1
            self.programs += 1
            self.kernels += 1
            self.now += 100.0
        self.now += compiled if is_compiled else written
        return is_compiled


def test_the_faster_way_remains():
    times = [(2.0, 1.0, False), (1.0, 2.0, True), (1.0, 1.0, True), (1.0, 0.96, False), (1.0, 0.98, True)]
    for compiled, written, wanted in times:
        for planned in (0, 1, 5):
            with Machine(planned) as machine:
                way = _ways.Way()
                for _ in range(planned + 40):
                    machine.call(way, compiled, written)
                assert way.compiles is wanted, (compiled, written, planned)
                waits = machine.waits
                assert [machine.call(way, compiled, written) for _ in range(5)] == [wanted] * 5 and machine.waits == waits


def test_sizes_that_are_new_in_every_call_are_planned_in_its_time():
    for plan, wanted in ((2.0, False), (0.2, True)):
        with Machine() as machine:
            way = _ways.Way()
            for _ in range(40):
                machine.programs += 1
                machine.call(way, 1.0 + plan, 2.0)
            assert way.compiles is wanted, plan


def test_functions_of_a_step_are_tried_together():
    with Machine() as machine:
        first, second = _ways.Way(), _ways.Way()
        for _ in range(40):
            ways = [machine.call(first, 1.0, 2.0), machine.call(second, 3.0, 1.0), machine.call(second, 3.0, 1.0)]
            assert len(set(ways)) == 1
        assert first.compiles is second.compiles is False


def test_a_trial_whose_function_is_not_called_again_is_given_up():
    with Machine() as machine:
        first, second = _ways.Way(), _ways.Way()
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


def test_a_capture_and_a_full_gpu_stay_compiled():
    with Machine(captures=True) as machine:
        way = _ways.Way()
        assert machine.call(way, 2.0, 1.0) and way.compiles is True
    with Machine(room=(1, 2)) as machine:
        way = _ways.Way()
        assert all(machine.call(way, 2.0, 1.0) for _ in range(20)) and way.compiles is True


def test_both_ways_compute_the_same():
    linear = torch.nn.Linear(8, 8)
    x = torch.randn(4, 8)
    with Machine() as machine:
        model = torch.compile(linear)
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
