"""The names of the running PyTorch that are not public."""

import functools
import importlib

import torch

import thalweg

from . import Refused

ADAPTERS = {(2, 11): "_adapter_2_11", (2, 15): "_adapter_2_15"}


@functools.cache
def adapter():
    """Returns the module with the names of the running PyTorch that are not public."""
    if getattr(torch, "__file__", None) == getattr(thalweg, "__file__", ""):
        raise Refused("`torch` is Thalweg in this process; use `torch.compile` without a backend")
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version not in ADAPTERS:
        supported = ", ".join(f"{major}.{minor}" for major, minor in ADAPTERS)
        raise Refused(f'the backend "thalweg" supports PyTorch {supported}, and this is {torch.__version__}')
    return importlib.import_module(f".{ADAPTERS[version]}", __package__)
