"""Ctrl-C while the program waits for the device: KeyboardInterrupt is raised at once, and everything works afterwards."""

import pathlib
import signal
import subprocess
import sys
import time

import thalweg as th

PROGRAM = """if True:
    import io, signal, sys
    # A process in the background may have been started without it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path.insert(0, sys.argv[1])
    import thalweg as th

    x, side = th.rand(900, 900) / 450, th.cuda.Stream()
    for _ in range(900):
        x = x @ x
    event = th.cuda.current_stream().record_event()
    y = x[0, 0]
    waits = [y.item, x.tolist, lambda: th.save(x, io.BytesIO()), lambda: bool(y), lambda: str(x), event.synchronize, th.cuda.current_stream().synchronize,
             th.cuda.synchronize]
    for wait in waits:
        try:
            print("waits", flush=True)
            wait()
            print("came to an end", flush=True)
        except KeyboardInterrupt:
            assert not event.query(), "the work that was waited for goes on"
            print("interrupted", flush=True)
    with th.cuda.stream(side):
        print(th.arange(4.0).sum().item(), y.dim(), flush=True)
"""


def test_a_wait_for_the_device_ends_with_keyboard_interrupt():
    package = str(pathlib.Path(th.__file__).parent.parent)
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, package], stdout=subprocess.PIPE, text=True)
    interrupted = 0
    try:
        for line in child.stdout:
            if line != "waits\n":
                assert line == "6.0 0\n" and interrupted == 8, (line, interrupted)
                break
            # The signal must arrive during the wait, not before it, when Python itself would handle it.
            time.sleep(0.03)
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == "interrupted\n"
            interrupted += 1
        assert child.wait(120) == 0
    finally:
        child.kill()
        child.wait()
