"""Changes in `torch` besides its allocator, which are made once and never undone.

Settings that a program changes through PyTorch are changed in our allocator, too. In the second tier everything else works
without changes. In the first, PyTorch's functions that would raise are replaced by ours, and calls that cannot work under hooks
are refused before they start, since PyTorch itself would fail in the middle.
"""

from . import _statistics, _tiers

# In torch.cuda, and in torch.accelerator, which is the same for devices of any kind.
_COMMON = [
    "memory_stats",
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
]
_STATISTICS = [
    *_COMMON,
    "memory_stats_as_nested_dict",
    "memory_summary",
    "memory_snapshot",
    "get_per_process_memory_fraction",
]
_PRIVATE = ["_snapshot", "_dump_snapshot", "_record_memory_history"]

_WHY_NO_GRAPH_TREES = (
    "torch.compile with CUDA graphs (mode='reduce-overhead' or 'max-autotune', triton.cudagraphs, backend='cudagraphs') does not "
    "work under PyTorch's allocator hooks: PyTorch asks its allocator which blocks of a pool are live, and to put a pool back to "
    "a checkpoint, and the hooks have neither. Use thalweg_torch's second tier (enable(tier=2)), mode='default' or "
    "'max-autotune-no-cudagraphs', or torch.cuda.graph."
)
_WHY_NO_BENCHMARK = (
    "torch.backends.cudnn.benchmark does not work under PyTorch's allocator hooks: it asks the allocator for the largest free "
    "block, and the hooks have no such question. Use thalweg_torch's second tier (enable(tier=2)), or leave it off."
)


def settings(library):
    """Makes `torch.cuda.memory._set_allocator_settings`, which now only affects pinned memory, change our settings as well."""
    import torch

    # If PyTorch has another name for the function, only its own settings change.
    name = "_accelerator_setAllocatorSettings"
    theirs = getattr(torch._C, name, None)
    if theirs is None:
        return

    def set_both(conf):
        theirs(conf)
        library.call("thalweg_set_settings", conf.encode())

    setattr(torch._C, name, set_both)


def statistics():
    """Replaces functions of PyTorch that would raise by functions of this package."""
    import torch

    for name in _STATISTICS:
        setattr(torch.cuda.memory, name, getattr(_statistics, name))
        setattr(torch.cuda, name, getattr(_statistics, name))
    for name in _PRIVATE:
        setattr(torch.cuda.memory, name, getattr(_statistics, name))
    accelerator = getattr(torch, "accelerator", None)
    for module in filter(None, (accelerator, getattr(accelerator, "memory", None))):
        for name in filter(vars(module).__contains__, _COMMON):
            setattr(module, name, getattr(_statistics, name))


def check():
    """Refuses features that are already in use in PyTorch."""
    import torch

    if torch.backends.cudnn.benchmark:
        raise _tiers.Refused(_WHY_NO_BENCHMARK)


def refusals():
    """Refuses features that hooks do not support, before they start."""
    _refuse_graph_trees()
    _refuse_benchmark()


def _refuse_graph_trees():
    # torch.compile itself stays, as a program may have it under another name; its result is checked when it is made and, for
    # later configuration, when it compiles.
    import torch

    inductor, others = torch._TorchCompileInductorWrapper, torch._TorchCompileWrapper
    make, compile_now, make_other = inductor.__init__, inductor.__call__, others.__init__

    def check_configuration(wrapper):
        from torch._inductor import config

        if wrapper.config.get("triton.cudagraphs", config.triton.cudagraphs):
            raise _tiers.Refused(_WHY_NO_GRAPH_TREES)

    def checked_make(self, *arguments, **keywords):
        make(self, *arguments, **keywords)
        check_configuration(self)

    def checked_compile_now(self, *arguments, **keywords):
        check_configuration(self)
        return compile_now(self, *arguments, **keywords)

    def checked_make_other(self, backend, *arguments, **keywords):
        if backend == "cudagraphs":
            raise _tiers.Refused(_WHY_NO_GRAPH_TREES)
        make_other(self, backend, *arguments, **keywords)

    inductor.__init__, inductor.__call__, others.__init__ = checked_make, checked_compile_now, checked_make_other


def _refuse_benchmark():
    import torch

    # The module in sys.modules is an object with a property for each flag; `m` is the real one, with flags() and set_flags().
    cudnn = torch.backends.cudnn
    flag = vars(type(cudnn))["benchmark"]
    set_one, set_all = flag.setter, cudnn.m.set_flags

    def checked_set_one(value):
        if value:
            raise _tiers.Refused(_WHY_NO_BENCHMARK)
        set_one(value)

    def checked_set_all(_enabled=None, _benchmark=None, *arguments, **keywords):
        if _benchmark:
            raise _tiers.Refused(_WHY_NO_BENCHMARK)
        return set_all(_enabled, _benchmark, *arguments, **keywords)

    flag.setter, cudnn.m.set_flags = checked_set_one, checked_set_all
