"""Switches for future behaviour (`torch.__future__`): they are stored and have no effect."""

_settings = {"overwrite": False, "swap": False}


def set_overwrite_module_params_on_conversion(value):
    """Stores the setting."""
    _settings["overwrite"] = value


def get_overwrite_module_params_on_conversion():
    """Returns the setting."""
    return _settings["overwrite"]


def set_swap_module_params_on_conversion(value):
    """Stores the setting."""
    _settings["swap"] = value


def get_swap_module_params_on_conversion():
    """Returns the setting."""
    return _settings["swap"]
