"""Checks of modules and functions of networks before they compute, with PyTorch's exception classes."""

import math
import numbers

from .. import _core
from .._warnings import warn as _warn


def check_probability(p):
    """Refuses numbers that are not probabilities."""
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def warn_of_rank(dims, input):
    """Warns if the input of a channel dropout has a rank that the dropout is not meant for."""
    rank = input.dim()
    if dims > 1 and rank not in (dims + 1, dims + 2):
        _warn(f"dropout{dims}d: Received a {rank}-D input to dropout{dims}d, which is deprecated and will result in an error in a future "
              f"release. To retain the behavior and silence this warning, please use dropout instead. Note that dropout{dims}d exists to "
              f"provide channel-wise dropout on inputs with {dims} spatial dimensions, a channel dimension, and an optional batch dimension "
              f"(i.e. {dims + 1}D or {dims + 2}D inputs).")
    elif dims == 2 and rank == 3:
        _warn("dropout2d: Received a 3D input to dropout2d and assuming that channel-wise 1D dropout behavior is desired - input is interpreted "
              "as shape (N, C, L), where C is the channel dim. This behavior will change in a future release to interpret the input as one "
              "without a batch dimension, i.e. shape (C, H, W). To maintain the 1D channel-wise dropout behavior, please switch to using "
              "dropout1d instead.")


def check_fractional(name, input, kernel, output):
    """Refuses windows of a fractional pool that do not fit into the input."""
    dims = 3 if name.endswith("3d") else 2
    for title, sizes in (("kernel_size", kernel), ("output_size", output)):
        if len(sizes) != dims:
            raise RuntimeError(f"{name}: {title} must either be a single Int or tuple of Ints, and this one has {len(sizes)} for {dims} dimensions")
    extents = input.shape[-dims - 1:]
    if input.dim() not in (dims + 1, dims + 2) or 0 in extents:
        raise RuntimeError(f"{name}: Expected input to be a {dims + 1}D or {dims + 2}D tensor with non-zero size for non-batch dimensions, but got: "
                           f"{list(input.shape)}")
    for place, size, window, extent in zip(("time", "height", "width")[-dims:], output, kernel, extents[1:]):
        if size + window - 1 > extent:
            raise RuntimeError(f"{name}: pool {place} {window} too large relative to input {place} {extent}, for {size} windows")


def check_batch(input, trains, eps=1.0):
    """Refuses a batch norm over a single value per channel, whose variance is undefined, and an `eps` that does not keep
    divisions finite."""
    if trains and input.dim() >= 2 and input.shape[0] * math.prod(input.shape[2:]) == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.size()}")
    if eps <= 0.0:
        raise ValueError(f"batch_norm eps must be positive, but got {eps}")


def check_places(input, uses_input):
    """Refuses an instance norm over a single position per channel."""
    if uses_input and math.prod(input.shape[2:]) == 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {input.size()}")


def check_groups(input, num_groups):
    """Refuses a group norm over a single value per group."""
    if input.dim() < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {input.dim()}")
    if num_groups > 0 and (input.shape[0] * input.shape[1] // num_groups) * math.prod(input.shape[2:]) == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {list(input.shape)}")


def check_padding_idx(padding_idx, count):
    """Refuses a padding row outside of the table. Returns its non-negative index, or -1 for none."""
    if padding_idx is None:
        return -1
    if not -count <= padding_idx < count:
        raise AssertionError("Padding_idx must be within num_embeddings")
    return padding_idx % count


def check_bags(input, weight, offsets, mode, scale_grad_by_freq, per_sample_weights, padding_idx):
    """Refuses tables, bags and weights that do not match each other."""
    if per_sample_weights is not None and input.size() != per_sample_weights.size():
        raise ValueError(f"embedding_bag: If per_sample_weights ({per_sample_weights.shape}) is not None, then it must have the same shape as the "
                         f"input ({input.shape})")
    if per_sample_weights is not None and per_sample_weights.dtype != weight.dtype:
        raise RuntimeError(f"embedding_bag: expected scalar type {weight.dtype} but found {per_sample_weights.dtype}: `weight` and "
                           "`per_sample_weights` must have the same type as each other")
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


def check_sizes(input, target, text):
    """Refuses a target of a different size."""
    if target.size() != input.size():
        raise ValueError(text.format(target.size(), input.size()))


def warn_of_corners(align_corners):
    """Warns if `align_corners` is not given, which decides whether the corners of images are the centres of their outermost
    pixels."""
    if align_corners is None:
        _warn("Default grid_sample and affine_grid behavior has changed to align_corners=False since 1.3.0. Please specify align_corners=True if "
              "the old behavior is desired. See the documentation of grid_sample for details.")


def warn_of_sizes(input, target):
    """Warns about a target of a different size, which is broadcast."""
    if target.size() != input.size():
        _warn(f"Using a target size ({target.size()}) that is different to the input size ({input.size()}). This will likely lead to incorrect "
              "results due to broadcasting. Please ensure they have the same size.")


def check_rows(input, target):
    """Refuses targets with a different number of rows than the scores."""
    if input.dim() < 1:
        raise ValueError(f"Expected 1 or more dimensions (got {input.dim()})")
    if input.dim() > 1 and target.dim() > 0 and input.shape[0] != target.shape[0]:
        raise ValueError(f"Expected input batch_size ({input.shape[0]}) to match target batch_size ({target.shape[0]}).")


def check_classes(input, target, label_smoothing):
    """Refuses class targets with a different number of rows than the scores, and a label smoothing outside of [0, 1]."""
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    if target.size() != input.size():
        check_rows(input, target)


def check_multi_margin(p, weight, text="weight must be one-dimensional"):
    """Refuses powers other than 1 and 2, and weights that are not one number per class."""
    if p != 1 and p != 2:
        raise ValueError("only p == 1 and p == 2 supported")
    if weight is not None and weight.dim() != 1:
        raise ValueError(text)


def check_pad(input, pad, mode, value, modes):
    """Refuses unknown modes, and pads that do not match the dimensions that the mode supports."""
    if len(pad) % 2:
        raise RuntimeError("Padding length must be divisible by 2")
    if len(pad) > 2 * input.dim():
        raise RuntimeError(f"Padding length should be less than or equal to two times the input dimension but got padding length {len(pad)} and input "
                           f"of dimension {input.dim()}")
    if mode not in modes:
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    if value is not None and value != 0:
        raise RuntimeError(f'Padding mode "{mode}" doesn\'t take in value argument')
    if not (2 <= len(pad) <= 6 and input.dim() in (len(pad) // 2 + 1, len(pad) // 2 + 2)):
        raise NotImplementedError(f"Padding size {len(pad)} is not supported for {input.dim()}D input tensor: 2 numbers pad the last dimension of 2D "
                                  "or 3D input, 4 the last two of 3D or 4D input, 6 the last three of 4D or 5D input")


def _of_all(name, value, dims, spatial):
    """Returns one number for each dimension."""
    if not isinstance(value, (list, tuple)):
        return [value] * dims
    if len(value) != dims:
        raise ValueError(f"Input and {name} must have the same number of spatial dimensions, but got input with spatial dimensions of "
                         f"{list(spatial)} and {name} of {list(value)}")
    return list(value)


def check_interpolation(input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias, modes):
    """Refuses modes, sizes and options that do not match each other. Returns sizes and scales, of which one is None."""
    dims, spatial = input.dim() - 2, input.shape[2:]
    needed = modes.get(mode)
    if align_corners is not None and mode in modes and needed is None:
        raise ValueError("align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear")
    if (size is None) == (scale_factor is None):
        raise ValueError("either size or scale_factor should be defined" if size is None else "only one of size or scale_factor should be defined")
    sizes = scales = None
    if size is not None:
        sizes = _of_all("output", size, dims, spatial)
        if not all(isinstance(one, numbers.Integral) or (isinstance(one, _core.Tensor) and not one.is_floating_point()) for one in sizes):
            raise TypeError("expected size to be one of int or Tuple[int] or Tuple[int, int] or Tuple[int, int, int], but got size with types "
                            f"{[type(one) for one in sizes]}")
        sizes = [int(one) for one in sizes]
        if recompute_scale_factor:
            raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
    else:
        scales = [float(one) for one in _of_all("scale_factor", scale_factor, dims, spatial)]
    if antialias and not (mode in ("bilinear", "bicubic") and dims == 2):
        raise ValueError("Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D tensor as input")
    if mode not in modes or not 1 <= dims <= 3 or needed not in (None, dims):
        text = f", but {mode} mode needs {needed + 2}D input" if needed is not None and 1 <= dims <= 3 and mode != "bicubic" else \
            f"; input of 3D, 4D or 5D and the modes {' | '.join(modes)} are supported (got {mode})"
        raise NotImplementedError(f"Got {input.dim()}D input{text}")
    return sizes, scales


def check_variance(input, var):
    """Refuses negative variances and those of a wrong shape. Returns the variances in a shape that can be broadcast."""
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
    """Returns the spatial sizes that an unpooling returns: `output_size` if a pool with these arguments could have had
    an input of that size, else an error; without `output_size`, the smallest such sizes."""
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
    """Refuses tensors and masks of attention whose shapes do not match each other."""
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
            wanted = f"`None` or {ranks[0]}-D" if len(ranks) == 1 else "`None`, 2-D or 3-D"
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
    """Refuses masks whose extents do not match those of the attention."""
    if attn_mask is not None:
        wanted = (queries, keys) if attn_mask.dim() == 2 else (batch * heads, queries, keys)
        if tuple(attn_mask.shape) != wanted:
            raise RuntimeError(f"The shape of the {attn_mask.dim()}D attn_mask is {attn_mask.shape}, but should be {wanted}.")
    if key_padding_mask is not None:
        own = (1, *key_padding_mask.shape) if key_padding_mask.dim() == 1 else tuple(key_padding_mask.shape)
        for place, (extent, wanted) in enumerate(zip(own, (batch, keys))):
            if extent != wanted:
                raise AssertionError(f"Expected key_padded_mask.shape[{place}] to be {wanted}, but got {extent}")
