"""Checks for modules that may be installed."""

import importlib.util


def _check_module_exists(name):
    """Returns whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
