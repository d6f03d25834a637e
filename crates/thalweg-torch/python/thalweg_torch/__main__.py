"""`python -m thalweg_torch [--tier N] [--policy P] [--conf TEXT] script.py [arguments]`: a program with Thalweg's allocator."""

import argparse
import os
import runpy
import sys


def main():
    parser = argparse.ArgumentParser(prog="python -m thalweg_torch", description=__doc__)
    parser.add_argument("--tier", type=int, choices=(1, 2), help="1: hooks; 2: native class (default: the best that fits)")
    parser.add_argument("--policy", choices=("thalweg", "pytorch"))
    parser.add_argument("--conf", default="", help="settings in the grammar of PYTORCH_ALLOC_CONF")
    parser.add_argument("-m", dest="module", action="store_true", help="the script is a module's name")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()

    import thalweg_torch

    chosen = thalweg_torch.enable(policy=options.policy, conf=options.conf, tier=options.tier)
    print(f"thalweg_torch: tier {chosen.tier} ({chosen.reason})", file=sys.stderr)
    sys.argv = [options.script, *options.arguments]
    if options.module:
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(options.script))
        runpy.run_path(options.script, run_name="__main__")


main()
