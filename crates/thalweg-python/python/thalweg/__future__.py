"""Switches of behaviour that is to come (`torch.__future__`): they are kept, and nothing asks for them."""

_settings = {"overwrite": False, "swap": False}


def set_overwrite_module_params_on_conversion(value):
    """Keeps the setting."""
    _settings["overwrite"] = value


def get_overwrite_module_params_on_conversion():
    """Returns the setting."""
    return _settings["overwrite"]


def set_swap_module_params_on_conversion(value):
    """Keeps the setting."""
    _settings["swap"] = value


def get_swap_module_params_on_conversion():
    """Returns the setting."""
    return _settings["swap"]
