"""The forms of the tensors that a graph is given: sizes, strides, dtype and device.

A repeated call reads memory as it was recorded, and PyTorch's guards do not check the forms of all tensors. Parameters and buffers may be
changed in their place, as by `model.to(memory_format=...)` or `model.bfloat16()`. A hook of saved tensors may return a tensor with other strides,
as one does that keeps them in pinned memory, or of another dtype. And gradients may be conjugated or negated when they are read.
"""

import operator

import torch

from ._versions import adapter


def is_lazy(tensor):
    """Returns whether a tensor's elements are others than those in its memory."""
    return tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()


def _known(numbers):
    """Returns sizes or strides, with `None` for those that differ between calls."""
    return [number if isinstance(number, int) else None for number in numbers]


class Form:
    """The form of an input in the trace of a graph."""

    def __init__(self, place, value):
        self.place, self.dtype, self.device = place, value.dtype, value.device.type
        self.sizes, self.strides = _known(value.shape), _known(value.stride())

    def _has_strides(self, tensor):
        steps = zip(tensor.shape, tensor.stride(), self.strides)
        return 0 in tensor.shape or all(own == stride or stride is None or size == 1 for size, own, stride in steps)

    def _has_sizes(self, tensor):
        return len(tensor.shape) == len(self.sizes) and all(own == size or size is None for own, size in zip(tensor.shape, self.sizes))

    def is_of(self, tensor):
        """Returns whether a tensor has this form. The token of an effect is none."""
        return tensor is None or tensor.dtype is self.dtype and self._has_sizes(tensor) and self._has_strides(tensor) and not is_lazy(tensor)

    def restored(self, tensor):
        """Returns a copy of a tensor that has this form."""
        shape, where = tuple(tensor.shape), f"input {self.place} of the backward pass"
        if not self._has_sizes(tensor):
            raise RuntimeError(f"{where} has the shape {shape}, and had {tuple(self.sizes)} when it was compiled: a hook has changed it")
        with torch.no_grad():
            # Elements that are computed when they are read.
            tensor = tensor.clone() if is_lazy(tensor) else tensor
            if self._has_strides(tensor) or None in self.strides:
                return tensor.to(self.dtype)
            made = torch.empty_strided(shape, self.strides, dtype=self.dtype, device=tensor.device)
            # Elements that share memory are copied once.
            once = [1 if stride == 0 else size for size, stride in zip(shape, self.strides)]
            made.as_strided(once, self.strides).copy_(tensor[tuple(map(slice, once))])
        return made


class Forms:
    """The forms of the tensors among the inputs of a graph."""

    def __init__(self, graph):
        values = [node.meta.get("val") for node in graph.find_nodes(op="placeholder")]
        is_strided = [isinstance(value, torch.Tensor) and value.layout is torch.strided for value in values]
        self._forms = [Form(place, value) for place, value in enumerate(values) if is_strided[place]]
        self._tensors = operator.itemgetter(*[form.place for form in self._forms]) if len(self._forms) > 1 else self._few
        self._same = None

    def _few(self, inputs):
        """Returns the tensors among the inputs, of which there is one or none."""
        return [inputs[form.place] for form in self._forms]

    def __getstate__(self):
        return {**self.__dict__, "_same": None}

    def others(self, inputs):
        """Returns the forms that tensors of a call do not have."""
        tensors = self._tensors(inputs)
        if self._same is not None and self._same(*tensors):
            return []
        found = [form for form, tensor in zip(self._forms, tensors) if not form.is_of(tensor)]
        if not found and tensors and all(tensor is not None for tensor in tensors):
            # From now on, one call compares all of them.
            self._same = adapter().same_forms(tensors, [form.sizes for form in self._forms])
        return found
