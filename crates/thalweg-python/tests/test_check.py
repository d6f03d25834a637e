"""Programs under seeds: correct ones pass, and a missing wait is reported with the lines of the program, with `check` and with
the pytest fixture."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

import thalweg as th
from thalweg import testing

from support import raises

ORDERED = """
def test_ordered(thalweg_check):
    import thalweg as th
    x = th.ones(64, device="cuda")
    side = th.cuda.Stream()
    side.wait_stream(th.cuda.current_stream())
    with th.cuda.stream(side):
        y = x * 2
    th.cuda.current_stream().wait_stream(side)
    assert (y + 1).sum().item() == 192.0
"""

RACE = """
import thalweg as th

def test_race(thalweg_check):
    x = th.ones(64, device="cuda")
    side = th.cuda.Stream()
    with th.cuda.stream(side):
        y = x * 2  # the line
    y.record_stream(th.cuda.current_stream())
"""


def ordered():
    x = th.ones(64, device="cpu")
    side = th.cuda.Stream()
    side.wait_stream(th.cuda.current_stream())
    with th.cuda.stream(side):
        y = x * 2
    th.cuda.current_stream().wait_stream(side)
    assert (y + 1).sum().item() == 192.0


def unordered():
    x = th.ones(64) + 1
    side = th.cuda.Stream()
    with th.cuda.stream(side):
        y = x * 2
    side.synchronize()
    return y


def test_what_is_ordered_passes():
    testing.check(ordered, seeds=5)
    assert str(th.ones(1).device) == "sim:0" or th.cuda.is_available()


def test_a_missing_wait_is_reported_with_its_lines():
    try:
        testing.check(unordered, seeds=5)
    except testing.CheckFailed as failure:
        text = str(failure)
    else:
        raise AssertionError("nothing was found")
    first = unordered.__code__.co_firstlineno
    assert f"`mul` at {__file__}:{first + 4}" in text.replace("\n            ", ""), text
    assert f"`add` at {__file__}:{first + 1}" in text.replace("\n            ", ""), text


def test_exceptions_of_the_program_come_out():
    def wrong():
        raise KeyError("mine")

    with raises(KeyError, "mine"):
        testing.check(wrong, seeds=3)
    with raises(ValueError, "seeds is 0"):
        testing.check(ordered, seeds=0)
    with raises(TypeError):
        testing.check(lambda needed: needed, seeds=1)


def test_threads_of_the_program_are_on_the_device_of_the_check():
    def program(is_ordered):
        made = []

        def produce():
            with th.cuda.stream(th.cuda.Stream()):
                tensors = th.full((16,), 3.0), th.ones(16, device="sim"), th.ones(16, device="cpu")
                made.append((tensors, th.cuda.current_stream().record_event()))

        thread = threading.Thread(target=produce)
        thread.start()
        thread.join()
        (tensors, event), = made
        if is_ordered:
            th.cuda.current_stream().wait_event(event)
        total = tensors[0] + tensors[1] + tensors[2]
        for tensor in tensors:
            tensor.record_stream(th.cuda.current_stream())
        assert not is_ordered or total.tolist() == [5.0] * 16

    testing.check(lambda: program(True), seeds=4)
    with raises(testing.CheckFailed, "data race"):
        testing.check(lambda: program(False), seeds=4)


def test_tensors_from_outside_and_regions_left_open():
    outside, default = th.ones(3), th.cuda.default_stream()
    with raises(RuntimeError, "two devices that are both called sim:0: one that is not checked and a checked one"):
        testing.check(lambda: outside + th.ones(3), seeds=1)

    def leaves_open():
        th.cuda.set_stream(th.cuda.Stream())
        th.cuda.use_mem_pool(th.cuda.MemPool()).__enter__()
        th.cuda.CUDAGraph().capture_begin()

    testing.check(leaves_open, seeds=2)
    assert th.cuda.current_stream() == default and not th.cuda.is_current_stream_capturing()


def lines_of_both(operation):
    """Returns the two lines of this file in the report of a race."""
    def program():
        x, y, side = th.ones(64) * 1, th.ones(64) * 1, th.cuda.Stream()
        side.wait_stream(th.cuda.current_stream())
        x.add_(1)
        with th.cuda.stream(side):
            result = operation(x, y)
        side.synchronize()
        return result

    with raises(testing.CheckFailed):
        try:
            testing.check(program, seeds=1)
        except testing.CheckFailed as failure:
            text = str(failure).replace("\n            ", "")
            raise
    assert ".rs:" not in text, text
    return set(re.findall(re.escape(__file__) + r":(\d+)", text))


def test_reports_have_lines_of_python_for_calls_of_every_kind():
    for operation in (lambda x, y: x.copy_(y), lambda x, y: x.fill_(1.0), lambda x, y: x.__setitem__(0, 1.0), lambda x, y: x.clone(),
                      lambda x, y: x.reshape(8, 8) @ y.reshape(8, 8), lambda x, y: x.to(th.float16), lambda x, y: x.tolist(),
                      lambda x, y: x[0].item(), lambda x, y: x.normal_(), lambda x, y: th.nn.functional.dropout(x, 0.5)):
        assert str(operation.__code__.co_firstlineno) in lines_of_both(operation)

    def dropped():
        side, x = th.cuda.Stream(), th.ones(64) * 1
        side.wait_stream(th.cuda.current_stream())
        with th.cuda.stream(side):
            y = x * 2
        del x
        return y

    line = dropped.__code__.co_firstlineno + 5
    with raises(testing.CheckFailed, f"`drop` at {__file__}:{line}"):
        testing.check(dropped, seeds=1)


def test_the_fixture_of_pytest():
    if importlib.util.find_spec("pytest") is None:
        return "pytest is not installed"
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "test_streams.py").write_text(ORDERED + RACE)
        package = pathlib.Path(th.__file__).parent.parent
        environment = os.environ | {"PYTHONPATH": str(package), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "thalweg._pytest", "-p", "no:cacheprovider", "--thalweg-seeds", "4"]
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ran.returncode == 1 and "1 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "During handling" not in ran.stdout, ran.stdout
    line = (ORDERED + RACE)[: (ORDERED + RACE).index("# the line")].count("\n") + 1
    assert f"test_streams.py:{line}" in ran.stdout.replace("\n            ", ""), ran.stdout
    return None


def test_sorts_are_not_said_to_read_their_own_scratch_memory():
    program = """
import thalweg as th
index, source = th.zeros(2_000_000, dtype=th.int64), th.zeros(2_000_000, 16)
th.zeros(100_000, 16).index_add_(0, index, source)
th.zeros(3, 1_000_000).sort(1)
th.zeros(1_000_000).topk(3)
th.zeros(2_000_000, dtype=th.int64).unique()
th.cuda.synchronize()
"""
    settings = {"THALWEG_DEVICE": "sim", "THALWEG_SIM_SEED": "1", "THALWEG_SIM_ORDER_ONLY": "1", "THALWEG_SIM_MEMORY_BYTES": str(1 << 34),
                "PYTHONPATH": str(pathlib.Path(th.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0 and "memory" not in done.stderr, done.stderr
