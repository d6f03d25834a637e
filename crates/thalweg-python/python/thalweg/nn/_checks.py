"""What modules and functions of networks refuse before they compute: in PyTorch's classes of exceptions."""

import math

from .. import _core


def check_probability(p):
    """Refuses what is no probability."""
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def check_batch(input, trains, eps=1.0):
    """Refuses a batch norm of one value of each channel, whose variance would be none, and a term that does not keep divisions finite."""
    if trains and input.dim() >= 2 and input.shape[0] * math.prod(input.shape[2:]) == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.size()}")
    if eps <= 0.0:
        raise ValueError(f"batch_norm eps must be positive, but got {eps}")


def check_places(input, uses_input):
    """Refuses an instance norm of one place of each channel."""
    if uses_input and math.prod(input.shape[2:]) == 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {input.size()}")


def check_groups(input, num_groups):
    """Refuses a group norm of one value of each group."""
    if input.dim() < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {input.dim()}")
    if num_groups > 0 and (input.shape[0] * input.shape[1] // num_groups) * math.prod(input.shape[2:]) == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {list(input.shape)}")


def check_padding_idx(padding_idx, count):
    """Refuses a row of padding that a table has not; returns its place from the start, or -1."""
    if padding_idx is None:
        return -1
    if not -count <= padding_idx < count:
        raise AssertionError("Padding_idx must be within num_embeddings")
    return padding_idx % count


def check_bags(input, weight, offsets, mode, scale_grad_by_freq, per_sample_weights, padding_idx):
    """Refuses tables, bags and weights that do not fit each other."""
    if per_sample_weights is not None and input.size() != per_sample_weights.size():
        raise ValueError(f"embedding_bag: If per_sample_weights ({per_sample_weights.shape}) is not None, then it must have the same shape as the "
                         f"input ({input.shape})")
    if weight.dim() != 2:
        raise ValueError(f"weight has to be a 2D Tensor, but got Tensor of dimension {weight.dim()}")
    if input.dim() == 2 and offsets is not None:
        raise ValueError("if input is 2D, then offsets has to be None, as input is treated is a mini-batch of fixed length sequences. However, found "
                         f"offsets of type {type(offsets)}")
    if input.dim() == 1 and offsets is None:
        raise ValueError("offsets has to be a 1D Tensor but got None")
    if input.dim() == 1 and offsets.dim() != 1:
        raise ValueError("offsets has to be a 1D Tensor")
    if input.dim() not in (1, 2):
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.dim()}")
    if mode not in ("sum", "mean", "max"):
        raise ValueError("mode has to be one of sum, mean or max")
    if mode == "max" and scale_grad_by_freq:
        raise ValueError("max mode does not support scaling the gradient by the frequency")
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError("embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for mode='sum' "
                                  f"(got mode='{mode}'). Please open a feature request on GitHub.")
    if padding_idx is not None and not -weight.shape[0] <= padding_idx < weight.shape[0]:
        raise RuntimeError(f"padding_idx must be within the number of embeddings, -{weight.shape[0]} through {weight.shape[0] - 1}, but got "
                           f"{padding_idx}")


def check_weights(input, weight):
    """Refuses weights of elements of another shape."""
    if weight.size() != input.size():
        raise ValueError("Weights and input must have the same size.")


def reduced(losses, reduction, weight=None):
    """Returns losses reduced, in a mean by their weights."""
    if weight is not None:
        losses = losses * weight
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    if reduction != "mean":
        raise ValueError(f"Invalid reduction mode: {reduction}. Expected one of 'none', 'mean', 'sum'.")
    return losses.mean() if weight is None else losses.sum() / weight.sum()


def check_variance(input, var):
    """Refuses variances below 0, and those of a wrong shape; returns them so that they are broadcast."""
    if not isinstance(var, _core.Tensor):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        return _core.full_like(input, var)
    if (var < 0).any():
        raise ValueError("var has negative entry/entries")
    if var.size() == input.size():
        return var
    if input.size()[:-1] == var.size():
        return var.unsqueeze(-1)
    differing = [own for own, other in zip(var.size(), input.size()) if own != other]
    if input.dim() == var.dim() and differing == [1]:
        return var
    raise ValueError("var is of incorrect size")


def check_same_rank(name, **tensors):
    """Refuses tensors of different numbers of dimensions."""
    if len({tensor.dim() for tensor in tensors.values()}) > 1:
        sizes = ", ".join(f"{title}: {tensor.size()}" for title, tensor in tensors.items())
        raise RuntimeError(f"{name} : All input tensors should have same dimension but got sizes: {sizes} ")


def check_margin(margin, text="margin must be greater than 0, got {}"):
    """Refuses a margin that is not above 0."""
    if margin <= 0:
        raise ValueError(text.format(margin))


def check_unpooled(input, kernel_size, stride, padding, output_size):
    """Returns the extents of what a pool came from: those that are wanted, where the pool can have come from them."""
    dims = len(kernel_size)
    sizes = [(input.shape[input.dim() - dims + dim] - 1) * stride[dim] + kernel_size[dim] - 2 * padding[dim] for dim in range(dims)]
    if output_size is None:
        return sizes
    output_size = list(output_size)
    if len(output_size) == dims + 2:
        output_size = output_size[2:]
    if len(output_size) != dims:
        raise ValueError(f"output_size should be a sequence containing {dims} or {dims + 2} elements, but it has a length of '{len(output_size)}'")
    for dim, (size, step) in enumerate(zip(sizes, stride)):
        if not size - step < output_size[dim] < size + step:
            raise ValueError(f'invalid output_size "{output_size}" (dim {dim} must be between {size - step} and {size + step})')
    return output_size


def check_attention(query, key, value, key_padding_mask, attn_mask, num_heads, has_own_sizes):
    """Refuses tensors and masks of attention whose shapes do not fit each other."""
    if query.dim() not in (2, 3):
        raise AssertionError(f"query should be unbatched 2D or batched 3D tensor but received {query.dim()}-D query tensor")
    rank, title = query.dim(), "batched (3-D)" if query.dim() == 3 else "unbatched (2-D)"
    if key.dim() != rank or value.dim() != rank:
        raise AssertionError(f"For {title} `query`, expected `key` and `value` to be {rank}-D but found {key.dim()}-D and {value.dim()}-D tensors "
                             "respectively")
    for name, mask, ranks in (("key_padding_mask", key_padding_mask, (rank - 1,)), ("attn_mask", attn_mask, (2, 3))):
        if mask is None:
            continue
        if mask.dim() not in ranks:
            wanted = "`None` or " + " or ".join(f"{one}-D" for one in ranks)
            raise AssertionError(f"For {title} `query`, expected `{name}` to be {wanted} but found {mask.dim()}-D tensor instead")
        if not mask.is_floating_point() and mask.dtype != getattr(_core, "bool"):
            raise AssertionError(f"only bool and floating types of {name} are supported")
    if rank == 2 and attn_mask is not None and attn_mask.dim() == 3:
        expected = (num_heads, query.shape[0], key.shape[0])
        if tuple(attn_mask.shape) != expected:
            raise AssertionError(f"Expected `attn_mask` shape to be {expected} but got {attn_mask.shape}")
    if has_own_sizes and key.shape[:-1] != value.shape[:-1]:
        raise AssertionError(f"key's sequence and batch dims {key.shape[:-1]} do not match value's {value.shape[:-1]}")
    if not has_own_sizes and key.shape != value.shape:
        raise AssertionError(f"key shape {key.shape} does not match value shape {value.shape}")


def check_masks(batch, heads, queries, keys, attn_mask, key_padding_mask):
    """Refuses masks of other extents than the attention that they are for."""
    if attn_mask is not None:
        wanted = (queries, keys) if attn_mask.dim() == 2 else (batch * heads, queries, keys)
        if tuple(attn_mask.shape) != wanted:
            raise RuntimeError(f"The shape of the {attn_mask.dim()}D attn_mask is {attn_mask.shape}, but should be {wanted}.")
    if key_padding_mask is not None:
        own = (1, *key_padding_mask.shape) if key_padding_mask.dim() == 1 else tuple(key_padding_mask.shape)
        for place, (extent, wanted) in enumerate(zip(own, (batch, keys))):
            if extent != wanted:
                raise AssertionError(f"Expected key_padded_mask.shape[{place}] to be {wanted}, but got {extent}")
