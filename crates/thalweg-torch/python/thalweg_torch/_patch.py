"""What is changed in `torch` beside its allocator, and put back by nobody.

In the second tier everything answers already. In the first, PyTorch's functions that would raise are replaced by ours, and what
cannot work under hooks is refused before it starts, since PyTorch itself fails in the middle.
"""

from . import _statistics, _tiers

_STATISTICS = [
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
    "memory_summary",
    "memory_snapshot",
]
_PRIVATE = ["_snapshot", "_dump_snapshot", "_record_memory_history"]

_WHY_NO_GRAPH_TREES = (
    "torch.compile with CUDA graphs (mode='reduce-overhead' or 'max-autotune', triton.cudagraphs) does not work under "
    "PyTorch's allocator hooks: PyTorch asks its allocator which blocks of a pool are live, and to put a pool back to a "
    "checkpoint, and the hooks have neither. Use thalweg_torch's second tier (enable(tier=2)), mode='default' or "
    "'max-autotune-no-cudagraphs', or torch.cuda.graph."
)
_WHY_NO_BENCHMARK = (
    "torch.backends.cudnn.benchmark does not work under PyTorch's allocator hooks: it asks the allocator for the largest free "
    "block, and the hooks have no such question. Use thalweg_torch's second tier (enable(tier=2)), or leave it off."
)


def statistics():
    """Puts our functions where PyTorch's would raise."""
    import torch

    for name in _STATISTICS:
        setattr(torch.cuda.memory, name, getattr(_statistics, name))
        setattr(torch.cuda, name, getattr(_statistics, name))
    for name in _PRIVATE:
        setattr(torch.cuda.memory, name, getattr(_statistics, name))


def refusals():
    """Refuses what hooks cannot do, before it starts."""
    _refuse_graph_trees()
    _refuse_benchmark()


def _refuse_graph_trees():
    import torch

    compile_before = torch.compile

    def compile(model=None, *arguments, mode=None, options=None, **others):
        import torch._inductor.config

        wanted = mode in ("reduce-overhead", "max-autotune") or (options or {}).get("triton.cudagraphs")
        if wanted or torch._inductor.config.triton.cudagraphs:
            raise _tiers.Refused(_WHY_NO_GRAPH_TREES)
        return compile_before(model, *arguments, mode=mode, options=options, **others)

    compile.__doc__ = compile_before.__doc__
    torch.compile = compile


def _refuse_benchmark():
    import torch

    cudnn = torch.backends.cudnn
    if cudnn.benchmark:
        raise _tiers.Refused(_WHY_NO_BENCHMARK)
    module = type(cudnn)
    former = module.benchmark

    class Benchmark:
        def __get__(self, instance, owner=None):
            return former.__get__(instance, owner)

        def __set__(self, instance, value):
            if value:
                raise _tiers.Refused(_WHY_NO_BENCHMARK)
            former.__set__(instance, value)

    module.benchmark = Benchmark()
