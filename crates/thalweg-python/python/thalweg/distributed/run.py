"""The launcher of several ranks (`torchrun`, `python -m torch.distributed.run`): `python -m thalweg.distributed.run --nproc-per-node 2 script.py`.

The script runs with this package as `torch`, in one process for each rank, with the variables that PyTorch's launcher sets. If one
fails, the others are ended.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time


def _free_port():
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


def parse_args(args):
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(prog="thalweg.distributed.run", description="Starts one process for each rank.", allow_abbrev=False)
    both = {"nproc-per-node": "1", "nnodes": "1", "node-rank": "0", "master-addr": "127.0.0.1", "master-port": "0", "max-restarts": "0",
            "rdzv-backend": "static", "rdzv-endpoint": "", "rdzv-id": "none", "log-dir": "", "monitor-interval": "0.1"}
    for name, default in both.items():
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}", default=default)
    for name in ("standalone", "module", "no-python"):
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}", action="store_true", **({"dest": "module"} if name == "module" else {}))
    parser.add_argument("-m", dest="module", action="store_true")
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser.parse_args(args)


def _count(text):
    if text in ("auto", "gpu", "cpu"):
        from .. import cuda
        return max(cuda.device_count(), 1) if text != "cpu" else os.cpu_count()
    return int(text)


def _environment(options, local_rank, count, port):
    nodes = int(options.nnodes.split(":")[-1])
    rank = int(options.node_rank) * count + local_rank
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return {
        **os.environ, "RANK": str(rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": str(nodes * count), "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": options.node_rank, "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": str(nodes * count), "ROLE_NAME": "default",
        "GROUP_WORLD_SIZE": str(nodes), "MASTER_ADDR": options.master_addr, "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": options.rdzv_id,
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": options.max_restarts,
        "PYTHONPATH": os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])}


def main(args=None):
    """Starts the ranks and waits for them. Returns the exit code of the first that fails, or 0."""
    options = parse_args(sys.argv[1:] if args is None else args)
    if options.rdzv_endpoint:
        options.master_addr, _, options.master_port = options.rdzv_endpoint.partition(":")
    count, port = _count(options.nproc_per_node), int(options.master_port or 0) or _free_port()
    command = [options.training_script] if options.no_python else [
        sys.executable, "-m", "thalweg", *(["-m"] if options.module else []), options.training_script]
    ranks = [subprocess.Popen([*command, *options.training_script_args], env=_environment(options, rank, count, port)) for rank in range(count)]
    try:
        while True:
            codes = [process.poll() for process in ranks]
            failed = next((rank for rank, code in enumerate(codes) if code not in (None, 0)), None)
            if failed is not None:
                _end(ranks)
                print(f"thalweg.distributed.run: rank {failed} (pid {ranks[failed].pid}) ended with exit code {codes[failed]}; the others were ended",
                      file=sys.stderr)
                return codes[failed]
            if all(code == 0 for code in codes):
                return 0
            time.sleep(float(options.monitor_interval))
    except KeyboardInterrupt:
        _end(ranks)
        return 128 + signal.SIGINT


def _end(ranks):
    for process in ranks:
        if process.poll() is None:
            process.terminate()
    for process in ranks:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
