"""Passes over graphs (`torch.fx.passes`)."""

import importlib as _importlib


def __getattr__(name):
    if name in ("shape_prop", "split_module", "infra", "utils", "tools_common", "fake_tensor_prop", "graph_manipulation"):
        return _importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
