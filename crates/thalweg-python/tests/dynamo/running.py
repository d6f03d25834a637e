"""Helpers of the tests that need PyTorch itself."""

import functools
import importlib.util
import sys

REASON = "PyTorch is not installed for this interpreter"


def with_pytorch(test):
    """Returns a test that is left out, with the reason, where PyTorch cannot be imported."""

    @functools.wraps(test)
    def run():
        if importlib.util.find_spec("torch") is None or "thalweg" in getattr(sys.modules.get("torch"), "__file__", ""):
            return REASON
        import torch
        import torch._functorch.config

        from thalweg import dynamo

        if not torch.__version__.startswith(("2.11.", "2.15.")):
            return f"the backend supports PyTorch 2.11 and 2.15, and this is {torch.__version__}"
        torch._dynamo.reset()
        dynamo.register()
        torch.manual_seed(0)
        # Graphs of an earlier run would be found instead of being compiled.
        with torch._functorch.config.patch(enable_autograd_cache=False):
            return test(torch, dynamo)

    return run


def trained(torch, function, parameters, inputs):
    """Returns the result of a function, and all gradients."""
    result = function(*inputs)
    results = result if isinstance(result, tuple) else (result,)
    leaves = [leaf for leaf in [*parameters, *inputs] if leaf.requires_grad]
    roots = [one for one in results if one.requires_grad]
    gradients = torch.autograd.grad(roots, leaves, [torch.ones_like(root) for root in roots]) if roots else ()
    return [*results, *gradients]
