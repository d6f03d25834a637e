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


def resolve(inputs):
    """Replaces such tensors among the inputs of a backward pass by copies."""
    for place, one in enumerate(inputs):
        if isinstance(one, torch.Tensor) and is_lazy(one):
            inputs[place] = one.clone()


class Form:
    """The form of an input. The sizes and the strides of one that may vary are not part of it."""

    def __init__(self, place, tensor, may_vary):
        self.place, self.may_vary, self.device = place, may_vary, tensor.device
        self._kind, self._strides = self._kind_of(tensor), tensor.stride()

    def _kind_of(self, tensor):
        return tensor.dtype, is_lazy(tensor), None if self.may_vary else tensor.shape

    def _has_strides(self, tensor):
        steps = zip(tensor.shape, tensor.stride(), self._strides)
        return self.may_vary or 0 in tensor.shape or all(own == stride or size == 1 for size, own, stride in steps)

    def is_of(self, tensor):
        """Returns whether an input has this form."""
        if not isinstance(tensor, torch.Tensor):
            return False
        if tensor.device != self.device:
            raise RuntimeError(f"input {self.place} of a compiled graph is on {tensor.device}, and was on {self.device} in its first call")
        return self._kind_of(tensor) == self._kind and self._has_strides(tensor)

    def restored(self, tensor):
        """Returns a copy of a tensor that has this form, if only its strides are others; else the tensor."""
        if not isinstance(tensor, torch.Tensor) or self._kind_of(tensor) != self._kind or self._has_strides(tensor):
            return tensor
        with torch.no_grad():
            made = torch.empty_strided(tensor.shape, self._strides, dtype=tensor.dtype, device=tensor.device)
            # Elements that share memory are copied once.
            once = [1 if stride == 0 else size for size, stride in zip(tensor.shape, self._strides)]
            made.as_strided(once, self._strides).copy_(tensor[tuple(map(slice, once))])
        return made


class Forms:
    """The forms of the tensors among the inputs of a call. `may_vary` says of which inputs the sizes may."""

    def __init__(self, inputs, may_vary):
        tensors = [(place, one) for place, one in enumerate(inputs) if isinstance(one, torch.Tensor)]
        self._forms = [Form(place, one, may_vary[place]) for place, one in tensors]
        places = [place for place, _ in tensors]
        self._tensors = operator.itemgetter(*places) if len(places) > 1 else lambda inputs: [inputs[place] for place in places]
        self._note([one for _, one in tensors])

    def _note(self, tensors):
        # One call compares all of them.
        self._same = adapter().same_forms(tensors, [form.may_vary for form in self._forms])

    def others(self, inputs):
        """Returns the forms that the inputs of another call do not have."""
        tensors = self._tensors(inputs)
        if self._same(*tensors):
            return []
        found = [form for form, tensor in zip(self._forms, tensors) if not form.is_of(tensor)]
        if not found:
            # Something else differs, such as whether a gradient is wanted.
            self._note(tensors)
        return found

    def restored(self, forms, inputs):
        """Replaces inputs of a backward pass by copies of these forms, and returns the forms that they do not have even so."""
        resolve(inputs)
        for form in forms:
            inputs[form.place] = form.restored(inputs[form.place])
        return [form for form in forms if not form.is_of(inputs[form.place])]
