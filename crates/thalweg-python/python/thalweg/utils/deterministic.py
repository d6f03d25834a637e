"""The effects of `use_deterministic_algorithms` beyond the operators (`torch.utils.deterministic`)."""

import sys
import types

from .. import _core

_NAME = "deterministic.fill_uninitialized_memory"


class _Module(types.ModuleType):
    @property
    def fill_uninitialized_memory(self):
        """Whether uninitialised memory is filled while operators must be deterministic."""
        return _core._backends._switch(_NAME)

    @fill_uninitialized_memory.setter
    def fill_uninitialized_memory(self, mode):
        if not isinstance(mode, bool):
            raise TypeError(f"fill_uninitialized_memory is a bool, not {type(mode).__name__}")
        _core._backends._set_switch(_NAME, mode)


sys.modules[__name__].__class__ = _Module
