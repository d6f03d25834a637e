"""Forked children: queries before the fork leave them free to use devices. After a use of a device they get an error with
advice."""

import os
import pathlib
import subprocess
import sys

import thalweg as th


def child(function):
    """Returns the result of a function in a forked child, as text."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            text = repr(function())
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    assert os.waitpid(process, 0)[1] == 0, text
    return text


def test_a_child_after_a_use_is_told_what_to_do():
    x = th.ones(2)
    assert x.sum().item() == 2.0
    calls = [
        lambda: (x + 1).tolist(), lambda: x.tolist(), lambda: th.ones(3), lambda: x.add_(1), th.cuda.synchronize, th.cuda.Stream,
        th.cuda.empty_cache, th.cuda.mem_get_info, lambda: th.manual_seed(1), lambda: th.nn.Linear(2, 2), lambda: th.from_dlpack(x),
        lambda: th.cuda.Event().record(), lambda: th.zeros(2, 2) @ th.ones(2, 2), lambda: x.requires_grad_().sum().backward(),
    ]
    for place, call in enumerate(calls):
        text = child(call)
        assert text.startswith("RuntimeError: ") and "start workers with the spawn method" in text, (place, text)
    # Calls that use no device still work in the child, and the parent is unaffected.
    assert child(lambda: (x.shape, x.dtype, th.cuda.is_available())) == repr((x.shape, x.dtype, th.cuda.is_available()))
    assert (x + 1).tolist() == [2.0, 2.0]


def test_availability_initializes_nothing():
    # In a separate process, so that no device has been used before.
    program = """if True:
        import os, sys
        sys.path.insert(0, sys.argv[1])
        import thalweg as th
        count, found = th.cuda.device_count(), th.cuda.is_available()
        assert found == (count > 0)
        process = os.fork()
        if process == 0:
            os._exit(0 if th.arange(3).sum().item() == 3 else 1)
        assert os.waitpid(process, 0)[1] == 0
    """
    package = str(pathlib.Path(th.__file__).parent.parent)
    subprocess.run([sys.executable, "-c", program, package], check=True)


def test_a_free_threaded_build_without_its_extension_is_refused_by_name():
    package = pathlib.Path(th.__file__).parent.parent
    code = f"""if True:
        import importlib.machinery, sys
        sys.path.insert(0, {str(package)!r})
        sys.abiflags, importlib.machinery.EXTENSION_SUFFIXES[:0] = "t", [".cpython-399t.so"]
        import thalweg
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 1 and "(_core.cpython-399t.so is missing)" in run.stderr, run.stderr
