"""Policies that choose the parts of a model that are sharded by themselves (`torch.distributed.fsdp.wrap`)."""

import contextlib

from ...nn.containers import ModuleDict, ModuleList


def always_wrap_policy(*args, **kwargs):
    """Chooses every module."""
    return True


def lambda_auto_wrap_policy(module, recurse, nonwrapped_numel, lambda_fn):
    """Chooses the modules that a function names."""
    return True if recurse else lambda_fn(module)


def transformer_auto_wrap_policy(module, recurse, nonwrapped_numel, transformer_layer_cls):
    """Chooses the modules of some classes."""
    return True if recurse else isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(module, recurse, nonwrapped_numel, min_num_params=int(1e8), force_leaf_modules=None, exclude_wrap_modules=None):
    """Chooses modules with at least `min_num_params` elements that are in no other chosen one."""
    is_large = nonwrapped_numel >= min_num_params
    if recurse:
        return is_large
    return is_large and not isinstance(module, tuple(exclude_wrap_modules or (ModuleList, ModuleDict)))


def _or_policy(module, recurse, nonwrapped_numel, policies):
    """Chooses the modules that one of several policies chooses."""
    return any(policy(module=module, recurse=recurse, nonwrapped_numel=nonwrapped_numel) for policy in policies)


class _Policy:
    """The base class of policies that are objects."""


class ModuleWrapPolicy(_Policy):
    """Chooses the modules of some classes."""

    def __init__(self, module_classes):
        self._classes = tuple(module_classes)

    def __call__(self, module, recurse, *args, **kwargs):
        return True if recurse else isinstance(module, self._classes)

    def __repr__(self):
        return f"{type(self).__name__}({self._classes})"


class CustomPolicy(_Policy):
    """Chooses the modules for which a function returns True, or options."""

    def __init__(self, lambda_fn):
        self._function = lambda_fn

    def __call__(self, module, recurse, *args, **kwargs):
        return True if recurse else bool(self._function(module))


@contextlib.contextmanager
def enable_wrap(*, wrapper_cls, **wrapper_kwargs):
    """Returns a region in which `wrap` wraps modules."""
    global _wrapping
    former, _wrapping = _wrapping, (wrapper_cls, wrapper_kwargs)
    try:
        yield
    finally:
        _wrapping = former


_wrapping = None


def wrap(module, **wrap_overrides):
    """Returns the module, wrapped in a region of `enable_wrap`."""
    if _wrapping is None:
        return module
    kind, options = _wrapping
    return kind(module, **{**options, **wrap_overrides})


def chosen(module, policy, ignored=()):
    """Returns the parts of a module that a policy chooses, the innermost first, and the number of elements outside of them."""
    own = sum(parameter.numel() for parameter in module.parameters())
    if not policy(module=module, recurse=True, nonwrapped_numel=own):
        return [], own
    found = []
    for child in module.children():
        if child in ignored:
            continue
        inner, rest = chosen(child, policy, ignored)
        found += inner
        own -= sum(parameter.numel() for parameter in child.parameters()) - rest
        if policy(module=child, recurse=False, nonwrapped_numel=rest):
            found.append(child)
            own -= rest
    return found, own
