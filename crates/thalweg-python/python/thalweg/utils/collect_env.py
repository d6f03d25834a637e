"""The machine and the versions, for bug reports (`python -m thalweg.utils.collect_env`)."""

import importlib.metadata
import os
import platform
import sys

from .. import _core, cuda, version

_LIBRARIES = ("numpy", "transformers", "accelerate", "safetensors", "torchvision", "torchmetrics", "pytorch-lightning")


def _version_of(library):
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def get_pretty_env_info():
    """Returns the versions and the devices as text, one line each."""
    has_gpu = cuda.is_available()
    rows = {
        "Thalweg version": _core.__version__,
        "PyTorch version that is followed": version.__version__,
        "Default device": _core.get_default_device(),
        "Is CUDA available": has_gpu,
        "GPUs": ", ".join(cuda.get_device_name(place) for place in range(cuda.device_count())) if has_gpu else "none",
        "OS": platform.platform(),
        "Libc version": "-".join(platform.libc_ver()),
        "Machine": platform.machine(),
        "Processors": os.cpu_count(),
        "Python version": sys.version.replace("\n", " "),
        "Python executable": sys.executable,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
        **{library: _version_of(library) for library in _LIBRARIES},
    }
    return "\n".join(f"{name}: {value}" for name, value in rows.items()) + "\n"


def main():
    """Prints the versions and the devices."""
    print(get_pretty_env_info(), end="")


if __name__ == "__main__":
    main()
