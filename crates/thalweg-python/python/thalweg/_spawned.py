"""The main module of processes that a program under `python -m thalweg` spawns.
Runs the program's file with `torch` as this package."""

import os

if "THALWEG_PROGRAM" in os.environ and __name__ == "__mp_main__":
    import thalweg

    thalweg.install_as_torch()
    __file__ = os.environ["THALWEG_PROGRAM"]
    with open(__file__, "rb") as _file:
        _code = compile(_file.read(), __file__, "exec")
    exec(_code)
