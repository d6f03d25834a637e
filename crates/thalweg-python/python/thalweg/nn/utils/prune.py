"""Pruning: parts of parameters that are set to 0 (`torch.nn.utils.prune`).
A mask is stored next to the parameter, and a hook applies it before each call."""

import abc
import collections.abc
import numbers

from ... import _core
from . import parameters_to_vector


def _validate_pruning_amount_init(amount):
    """Refuses amounts that are neither a fraction nor a count."""
    if not isinstance(amount, numbers.Real):
        raise TypeError(f"Invalid type for amount: {amount}. Must be int or float.")
    if amount < 0 or (not isinstance(amount, numbers.Integral) and amount > 1.0):
        raise ValueError(f"amount={amount} should either be a float in the range [0, 1] or a non-negative integer")


def _validate_pruning_amount(amount, tensor_size):
    """Refuses a count that is greater than the number of elements."""
    if isinstance(amount, numbers.Integral) and amount > tensor_size:
        raise ValueError(f"amount={amount} should be smaller than the number of parameters to prune={tensor_size}")


def _compute_nparams_toprune(amount, tensor_size):
    """Returns how many of `tensor_size` elements are pruned, from a count or a fraction."""
    return amount if isinstance(amount, numbers.Integral) else round(amount * tensor_size)


def _count(amount, size):
    _validate_pruning_amount(amount, size)
    return _compute_nparams_toprune(amount, size)


def _check_rows(tensor, dim):
    if tensor.dim() <= 1:
        raise ValueError("Structured pruning can only be applied to multidimensional tensors. Found tensor of shape "
                         f"{tensor.shape} with {tensor.dim()} dims")
    if dim >= tensor.dim():
        raise IndexError(f"Invalid index {dim} for tensor of size {tensor.shape}")


def _along(rows, dim, rank):
    """Returns a vector as a tensor that can be broadcast along all dimensions but one."""
    return rows.reshape([-1 if one == dim % rank else 1 for one in range(rank)])


class BasePruningMethod(abc.ABC):
    """A method of choosing the elements to prune. The object is the hook that applies the mask; subclasses implement
    `compute_mask`."""

    _tensor_name = None

    def __call__(self, module, inputs):
        setattr(module, self._tensor_name, self.apply_mask(module))

    @abc.abstractmethod
    def compute_mask(self, t, default_mask):
        """Returns the mask of a tensor. It is 0 wherever the former mask is."""

    def apply_mask(self, module):
        """Returns the pruned tensor of a module."""
        if self._tensor_name is None:
            raise AssertionError(f"Module {module} has to be pruned")
        mask, original = (getattr(module, f"{self._tensor_name}_{part}") for part in ("mask", "orig"))
        return mask.to(dtype=original.dtype) * original

    @classmethod
    def apply(cls, module, name, *args, importance_scores=None, **kwargs):
        """Prunes a parameter of a module. If it has already been pruned, the remaining elements are pruned."""
        made = cls(*args, **kwargs)
        made._tensor_name = name
        former = [(number, hook) for number, hook in module._forward_pre_hooks.items()
                  if isinstance(hook, BasePruningMethod) and hook._tensor_name == name]
        if len(former) > 1:
            raise AssertionError(f"Avoid adding multiple pruning hooks to the same tensor {name} of module {module}. Use a PruningContainer.")
        original = getattr(module, name)
        scores = original if importance_scores is None else importance_scores
        if scores.shape != original.shape:
            raise AssertionError(f"importance_scores should have the same shape as parameter {name} of {module}, got {scores.shape} vs "
                                 f"{original.shape}")
        method = made
        if former:
            method = PruningContainer(*(former[0][1] if isinstance(former[0][1], PruningContainer) else [former[0][1]]), made)
        mask = method.compute_mask(scores.detach(), getattr(module, f"{name}_mask").detach().clone() if former else _core.ones_like(original.detach()))
        if former:
            del module._forward_pre_hooks[former[0][0]]
        else:
            module.register_parameter(f"{name}_orig", original)
            del module._parameters[name]
        module.register_buffer(f"{name}_mask", mask)
        setattr(module, name, method.apply_mask(module))
        module.register_forward_pre_hook(method)
        return method

    def prune(self, t, default_mask=None, importance_scores=None):
        """Returns the pruned tensor."""
        scores = t if importance_scores is None else importance_scores
        if scores.shape != t.shape:
            raise AssertionError(f"importance_scores should have the same shape as tensor t, got {scores.shape} vs {t.shape}")
        return t * self.compute_mask(scores, default_mask=_core.ones_like(t) if default_mask is None else default_mask)

    def remove(self, module):
        """Makes the pruned tensor a parameter again."""
        name = self._tensor_name
        if name is None:
            raise AssertionError(f"Module {module} has to be pruned before pruning can be removed")
        weight = self.apply_mask(module).detach()
        if hasattr(module, name):
            delattr(module, name)
        original = module._parameters.pop(f"{name}_orig")
        original.data = weight
        del module._buffers[f"{name}_mask"]
        setattr(module, name, original)


class PruningContainer(BasePruningMethod):
    """A sequence of pruning methods, each of which prunes the elements that the earlier ones left."""

    def __init__(self, *args):
        self._pruning_methods = ()
        self._tensor_name = args[0]._tensor_name if args else None
        for method in args:
            self.add_pruning_method(method)

    def add_pruning_method(self, method):
        """Adds a pruning method."""
        if method is not None and not isinstance(method, BasePruningMethod):
            raise TypeError(f"{type(method)} is not a BasePruningMethod subclass")
        if method is not None and method._tensor_name != self._tensor_name:
            raise ValueError(f"Can only add pruning methods acting on the parameter named '{self._tensor_name}' to PruningContainer {self}. Found "
                             f"'{method._tensor_name}'")
        self._pruning_methods += (method,)

    def __len__(self):
        return len(self._pruning_methods)

    def __iter__(self):
        return iter(self._pruning_methods)

    def __getitem__(self, index):
        return self._pruning_methods[index]

    def compute_mask(self, t, default_mask):
        """Returns the mask of the last method, computed for the elements that the earlier methods left."""
        method, mask = self._pruning_methods[-1], default_mask.to(dtype=t.dtype)
        if method.PRUNING_TYPE == "unstructured":
            places = default_mask == 1
        elif method.PRUNING_TYPE == "structured":
            if not hasattr(method, "dim"):
                raise AttributeError('Pruning methods of PRUNING_TYPE "structured" need to have the attribute `dim` defined.')
            if not -t.dim() <= method.dim:
                raise IndexError(f"Index is out of bounds for tensor with dimensions {t.dim()}")
            dim = method.dim % t.dim()
            kept = default_mask.sum(dim=[one for one in range(t.dim()) if one != dim]) != 0
            places = tuple(kept if one == dim else slice(None) for one in range(t.dim()))
        elif method.PRUNING_TYPE == "global":
            places = tuple(slice(None) for _ in range(t.dim()))
        else:
            raise ValueError(f"Unrecognized PRUNING_TYPE {method.PRUNING_TYPE}")
        mask[places] = method.compute_mask(t[places], default_mask=default_mask[places]).to(dtype=mask.dtype)
        return mask


class Identity(BasePruningMethod):
    """Prunes nothing."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t, default_mask):
        """Returns the former mask."""
        return default_mask


class _OfAmount(BasePruningMethod):
    """A method that prunes a given count or fraction."""

    PRUNING_TYPE = "unstructured"

    def __init__(self, amount):
        _validate_pruning_amount_init(amount)
        self.amount = amount

    def _scores(self, t):
        """Returns a score for each element. Those with the lowest scores are pruned."""
        raise NotImplementedError

    def compute_mask(self, t, default_mask):
        """Returns the former mask, with 0 at the elements with the lowest scores."""
        count, mask = _count(self.amount, t.numel()), default_mask.clone()
        if count:
            places = _core.topk(self._scores(t).reshape(-1), count, largest=False)[1]
            mask = mask.reshape(-1).index_fill(0, places, 0).reshape(mask.shape)
        return mask


class RandomUnstructured(_OfAmount):
    """Prunes random elements."""

    def _scores(self, t):
        return _core.rand_like(t)


class L1Unstructured(_OfAmount):
    """Prunes the elements with the smallest magnitudes."""

    def _scores(self, t):
        return t.abs()


class _OfRows(_OfAmount):
    """A method that prunes slices along a dimension."""

    PRUNING_TYPE = "structured"

    def compute_mask(self, t, default_mask):
        """Returns the former mask, with 0 at the slices with the lowest scores."""
        _check_rows(t, self.dim)
        count = _count(self.amount, t.shape[self.dim])
        if count == 0:
            return default_mask
        places = _core.topk(self._scores(t), count, largest=False)[1]
        rows = _core.ones([t.shape[self.dim]], dtype=default_mask.dtype, device=t.device).index_fill(0, places, 0)
        return default_mask * _along(rows, self.dim, t.dim())


class RandomStructured(_OfRows):
    """Prunes random slices."""

    def __init__(self, amount, dim=-1):
        super().__init__(amount)
        self.dim = dim

    def _scores(self, t):
        return _core.rand([t.shape[self.dim]], device=t.device)


class LnStructured(_OfRows):
    """Prunes the slices with the smallest norms."""

    def __init__(self, amount, n, dim=-1):
        super().__init__(amount)
        self.n, self.dim = n, dim

    def _scores(self, t):
        return _core.linalg_vector_norm(t, 2 if self.n == "fro" else self.n, [one for one in range(t.dim()) if one != self.dim % t.dim()])


class CustomFromMask(BasePruningMethod):
    """Prunes by a given mask."""

    PRUNING_TYPE = "global"

    def __init__(self, mask):
        self.mask = mask

    def compute_mask(self, t, default_mask):
        """Returns the product of both masks."""
        if default_mask.shape != self.mask.shape:
            raise AssertionError(f"default_mask shape {default_mask.shape} must match self.mask shape {self.mask.shape}")
        return default_mask * self.mask.to(dtype=default_mask.dtype)


def identity(module, name):
    """Adds a mask that prunes nothing."""
    Identity.apply(module, name)
    return module


def random_unstructured(module, name, amount):
    """Prunes random elements of a parameter."""
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(module, name, amount, importance_scores=None):
    """Prunes the elements of a parameter with the smallest magnitudes, or with the lowest scores."""
    L1Unstructured.apply(module, name, amount=amount, importance_scores=importance_scores)
    return module


def random_structured(module, name, amount, dim):
    """Prunes random slices of a parameter."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(module, name, amount, n, dim, importance_scores=None):
    """Prunes the slices of a parameter with the smallest norms, or with the smallest norms of scores."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module, name, mask):
    """Prunes by a given mask."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(parameters, pruning_method, importance_scores=None, **kwargs):
    """Prunes elements of several parameters, given as pairs of modules and names, as if they were one parameter."""
    if not isinstance(parameters, collections.abc.Iterable):
        raise TypeError("global_unstructured(): parameters is not an Iterable")
    scores, parameters = {} if importance_scores is None else importance_scores, list(parameters)
    if not isinstance(scores, dict):
        raise TypeError("global_unstructured(): importance_scores must be of type dict")
    method = pruning_method(**kwargs)
    if method.PRUNING_TYPE != "unstructured":
        raise TypeError(f'Only "unstructured" PRUNING_TYPE supported for the `pruning_method`. Found method {pruning_method} of type '
                        f"{method.PRUNING_TYPE}")
    method._tensor_name = "all"
    tensors = [getattr(module, name).detach() for module, name in parameters]
    values = parameters_to_vector([scores.get(pair, tensor) for pair, tensor in zip(parameters, tensors)])
    former = parameters_to_vector([getattr(module, f"{name}_mask", _core.ones_like(tensor)) for (module, name), tensor in zip(parameters, tensors)])
    mask, start = PruningContainer(method).compute_mask(values, former), 0
    for (module, name), tensor in zip(parameters, tensors):
        custom_from_mask(module, name, mask=mask[start:start + tensor.numel()].reshape(tensor.shape))
        start += tensor.numel()


def remove(module, name):
    """Makes a pruned tensor a parameter again, without its mask."""
    for number, hook in list(module._forward_pre_hooks.items()):
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == name:
            hook.remove(module)
            del module._forward_pre_hooks[number]
            return module
    raise ValueError(f"Parameter '{name}' of module {module} has to be pruned before pruning can be removed")


def is_pruned(module):
    """Returns whether a parameter of a module or of one of its submodules is pruned."""
    return any(isinstance(hook, BasePruningMethod) for one in module.modules() for hook in one._forward_pre_hooks.values())
