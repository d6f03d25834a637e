"""Modules of devices for which this package has no backend (`torch.xpu`, `torch.mps`, `torch.mtia`, …), and `torch.cpu`."""

import contextlib
import sys
import types

from . import _core


class _Absent(types.ModuleType):
    """The module of a kind of device that is not available."""

    def is_available(self=None):
        """Returns False."""
        return False

    def device_count(self=None):
        """Returns 0."""
        return 0

    def is_initialized(self=None):
        """Returns False."""
        return False

    def is_bf16_supported(self=None, including_emulation=True):
        """Returns False."""
        return False

    def _is_in_bad_fork(self=None):
        """Returns False."""
        return False

    def empty_cache(self=None):
        """Does nothing: there is no memory."""

    def manual_seed_all(self, seed):
        """Does nothing: there is no generator."""

    manual_seed = manual_seed_all

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        from ._left_out import placeholder
        return placeholder(f"{self.__name__}.{name}", f"there is no backend of '{self.__name__.rpartition('.')[2]}' here")


class _Stream:
    """The stream of the host, whose work completes immediately."""

    def wait_stream(self, stream):
        """Does nothing."""

    synchronize = record_event = wait_event = wait_stream


class _Event:
    """An event of the host, which has happened."""

    def __init__(self, enable_timing=False):
        pass

    def record(self, stream=None):
        """Does nothing."""

    wait = synchronize = record

    def query(self):
        """Returns True."""
        return True


def _cpu():
    made = types.ModuleType(f"{__package__}.cpu", "The host as a device (`torch.cpu`): the simulated GPU.")
    stream = _Stream()

    def synchronize(device=None):
        """Waits for the simulated GPU."""
        _core._cuda.synchronize(device)

    made.__dict__.update(
        Event=_Event, StreamContext=contextlib.nullcontext, get_capabilities=dict, is_available=lambda: True, device_count=lambda: 1, current_device=lambda: "cpu", set_device=lambda device: None,
        synchronize=synchronize, is_initialized=lambda: True, Stream=_Stream, current_stream=lambda device=None: stream,
        stream=lambda stream: contextlib.nullcontext(), _is_avx2_supported=lambda: False, _is_avx512_supported=lambda: False,
        _is_vnni_supported=lambda: False, _is_amx_tile_supported=lambda: False)
    return made


def add(namespace):
    """Adds the modules to the package."""
    for name in ("xpu", "mps", "mtia", "hpu", "maia", "ipu"):
        made = _Absent(f"{__package__}.{name}", f"There are no devices of the kind '{name}' (`torch.{name}`).")
        for method in vars(_Absent):
            if callable(getattr(made, method)) and not method.startswith("__"):
                setattr(made, method, getattr(made, method))
        namespace[name] = sys.modules[made.__name__] = made
    cpu = _cpu()
    namespace["cpu"] = sys.modules[cpu.__name__] = cpu
    for name in ("amp", "random", "memory"):
        sys.modules[f"{__package__}.cpu.{name}"] = cpu.__dict__[name] = types.ModuleType(f"{cpu.__name__}.{name}")
    from . import amp
    cpu.amp.__dict__.update(_earlier(amp))


def _earlier(amp):
    """Returns the mixed-precision classes under their deprecated names (`torch.cpu.amp`)."""
    class autocast(amp.autocast):
        """A region whose operators choose the dtype that they compute in."""

        def __init__(self, enabled=True, dtype=None, cache_enabled=True):
            amp._deprecated("cpu", "autocast")
            super().__init__("cpu", dtype, enabled, cache_enabled)

    class GradScaler(amp.GradScaler):
        """Scales losses so that small gradients of low precision do not vanish."""

        def __init__(self, init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True):
            amp._deprecated("cpu", "GradScaler")
            super().__init__("cpu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
    return {"autocast": autocast, "GradScaler": GradScaler}
