"""Thalweg's caching allocator inside PyTorch.

    import thalweg_torch
    thalweg_torch.enable()      # before the first CUDA allocation

or, without touching the program, `python -m thalweg_torch script.py`. docs/pytorch.md explains it, the choice between its two
tiers, and the limits.
"""

import logging

from . import _patch, _state, _tiers
from ._kernels import Kernel, disable_kernels, enable_kernels, kernels
from ._library import Library
from ._sanitize import Sanitizer
from ._statistics import (
    _dump_snapshot,
    _record_memory_history,
    _snapshot,
    device_index,
    get_per_process_memory_fraction,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from ._tiers import Refused
from ._uses import record_use, record_use_region

__all__ = [
    "Kernel",
    "Refused",
    "disable_kernels",
    "enable",
    "enable_kernels",
    "enabled",
    "findings",
    "get_per_process_memory_fraction",
    "kernels",
    "mem_pool_source",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "record_use",
    "record_use_region",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_settings",
    "settings",
]

_log = logging.getLogger("thalweg_torch")


def enable(policy=None, conf="", tier=None, patch=True, sanitize=False):
    """Makes Thalweg's allocator PyTorch's. Call it once, before the first CUDA allocation.

    `policy`: "thalweg" (the default) or "pytorch", which makes PyTorch's decisions, address by address.
    `conf`: settings in the grammar of `PYTORCH_ALLOC_CONF`, with Thalweg's keys too. They override that variable.
    `tier`: 2 for the native class, 1 for PyTorch's hooks, None for the best that fits.
    `patch`: whether settings that are changed through PyTorch are changed in ours, too; and under hooks, whether PyTorch's functions
    that would raise are replaced by ours, and what cannot work is refused before it starts.
    `sanitize`: whether to find missing waits and missing `record_stream` calls from now on, on this thread and those that are
    started later: each is printed to standard error when it is found, and is in `findings()`. Programs run much slower.

    Returns an object with the chosen `tier` and the `reason`.
    """
    with _state.lock:
        return _enable(policy, conf, tier, patch, sanitize)


def _enable(policy, conf, tier, patch, sanitize):
    if _state.enabled is not None:
        raise RuntimeError(f"Thalweg's allocator is in use already: {_state.enabled!r}")
    if _state.source is not None:
        raise Refused("PyTorch's allocator has to stay, since mem_pool_source() was called, which is for its pools")
    chosen, reason = _tiers.pick(tier)
    if chosen == 1 and patch:
        _patch.check()
    text = ",".join(part for part in (f"policy:{policy}" if policy else "", conf) if part)
    library = Library("cuda+sanitizer" if sanitize else "cuda", text)
    way = _tiers.Native(library) if chosen == 2 else _tiers.Hooks(library)
    _state.enabled = _state.Enabled(library, way, reason)
    if patch:
        _patch.settings(library)
    if chosen == 1 and patch:
        _patch.statistics()
        _patch.refusals()
    if sanitize:
        _state.sanitizer = Sanitizer(library)
        _state.sanitizer.start()
    _log.info("tier %d: %s", chosen, reason)
    return _state.enabled


def enabled():
    """Returns the result of `enable`, or None if it was not called."""
    return _state.enabled


def findings():
    """Returns the sanitizer's findings so far (`enable(sanitize=True)`), as texts."""
    if _state.sanitizer is None:
        raise RuntimeError("nothing is looked for: call thalweg_torch.enable(sanitize=True), or run with --sanitize")
    _state.sanitizer.report()
    return list(_state.sanitizer.findings)


def settings(device=0):
    """Returns the settings of a device that are not at their defaults, in the grammar of `PYTORCH_ALLOC_CONF`."""
    return _state.library().text("thalweg_settings", device_index(device)).decode()


def set_settings(conf):
    """Changes settings of all devices. Settings that `conf` does not name are unchanged."""
    _state.library().call("thalweg_set_settings", conf.encode())


def mem_pool_source(conf=""):
    """Returns an allocator for `torch.cuda.MemPool(mem_pool_source().allocator())`: PyTorch's own allocator stays in
    use, and Thalweg's provides the segments of that pool. It cannot be combined with `enable`. A process has one such
    allocator, for any number of pools: later calls return the first one's, and `conf` must be the same."""
    with _state.lock:
        return _mem_pool_source(conf)


def _mem_pool_source(conf):
    if _state.enabled is not None:
        raise RuntimeError("Thalweg's allocator is in use already; a torch.cuda.MemPool() has it as its source as it is")
    if _state.source is None:
        _tiers.check_build()
        library = Library("cuda", conf)
        allocator = _tiers.pluggable()
        _tiers.use_for_hooks(library)
        allocator.thalweg_library, allocator.thalweg_conf = library, conf
        _state.source = allocator
    elif conf != _state.source.thalweg_conf:
        raise Refused(
            f"this process has its source of pools already, with conf={_state.source.thalweg_conf!r} and not {conf!r}: PyTorch's "
            "hooks are plain functions, which call one allocator"
        )
    return _state.source
