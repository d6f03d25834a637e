"""Programs under seeds: what is right passes, a missing wait is reported with the lines of the program, and pytest's fixture does so."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

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
