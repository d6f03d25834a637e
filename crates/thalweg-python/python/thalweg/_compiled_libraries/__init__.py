"""Operators of libraries that have them in files compiled for PyTorch (`torch.ops.load_library`). Such a file cannot be loaded into this
package. For the libraries named here, a module defines the operators in Python instead."""

import importlib
import pathlib

# By the folder and the beginning of the file's name, the module with its operators.
_MODULES = {("torchvision", "_C"): "vision", ("torchvision", "_C_stable"): "vision", ("lib", "_torchaudio"): "audio", ("lib", "libtorchaudio"): "audio"}


def define(path):
    """Defines the operators of a compiled file if there is a module for it. Returns whether there is one."""
    file = pathlib.Path(path)
    module = _MODULES.get((file.parent.name, file.name.partition(".")[0]))
    if module is not None:
        importlib.import_module(f"{__name__}.{module}")
    return module is not None
