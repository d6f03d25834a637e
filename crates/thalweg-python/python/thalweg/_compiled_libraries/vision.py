"""Operators of `torchvision` (`torch.ops.torchvision`). Their gradients are those of the operators that they are made of. Pools of regions
have schemas only, and raise when they are called."""

from .. import _core, autograd
from ..autograd import enable_grad, no_grad
from ..library import Library
from ..nn import functional as F

_REGIONS = "Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_EXTENTS = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_CONVOLUTION = ("SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
                "SymInt offset_groups, bool use_mask")
_SCHEMAS = (
    "_cuda_version() -> int",
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, {_REGIONS}, int sampling_ratio, bool aligned) -> Tensor",
    f"qroi_align(Tensor input, {_REGIONS}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, {_REGIONS}, {_EXTENTS}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool(Tensor input, {_REGIONS}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, {_REGIONS.replace('rois', 'rois, Tensor argmax', 1)}, {_EXTENTS}) -> Tensor",
    f"ps_roi_align(Tensor input, {_REGIONS}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward(Tensor grad, {_REGIONS.replace('rois', 'rois, Tensor channel_mapping', 1)}, int sampling_ratio, {_EXTENTS}) -> Tensor",
    f"ps_roi_pool(Tensor input, {_REGIONS}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward(Tensor grad, {_REGIONS.replace('rois', 'rois, Tensor channel_mapping', 1)}, {_EXTENTS}) -> Tensor",
    f"deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, {_CONVOLUTION}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, {_CONVOLUTION}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
)
# Rows of a comparison of all boxes with all boxes, and regions, that are computed at a time.
_ROWS, _REGIONS_AT_ONCE = 1024, 128


def _cuda_version():
    """Returns the number that means that nothing was compiled for CUDA."""
    return -1


def _overlaps(boxes, others):
    """Returns the areas of intersections by those of unions, of each box with each other one."""
    low, high = _core.maximum(boxes[:, None, :2], others[None, :, :2]), _core.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    areas = [(one[:, 2] - one[:, 0]) * (one[:, 3] - one[:, 1]) for one in (boxes, others)]
    return shared / (areas[0][:, None] + areas[1][None, :] - shared)


def nms(dets, scores, iou_threshold):
    """Returns the boxes that no box with a higher score overlaps by more than the threshold, the highest scores first."""
    if dets.dim() != 2 or dets.shape[1] != 4:
        raise RuntimeError(f"boxes should be a 2d tensor with 4 values in each row, got {tuple(dets.shape)}")
    if scores.dim() != 1 or len(scores) != len(dets):
        raise RuntimeError(f"boxes and scores should have same number of elements in dimension 0, got {len(dets)} and {tuple(scores.shape)}")
    with no_grad():
        order = scores.argsort(descending=True, stable=True)
        boxes, kept, number = dets[order], [], len(dets)
        # A byte for each box: whether a kept box overlaps it. Rows of the comparison are numbers whose bytes are its elements.
        gone = 0
        for start in range(0, number, _ROWS):
            rows = (_overlaps(boxes[start:start + _ROWS], boxes) > iou_threshold).contiguous()._bytes()
            for place in range(start, min(start + _ROWS, number)):
                if not gone >> 8 * place & 1:
                    kept.append(place)
                    gone |= int.from_bytes(rows[(place - start) * number:(place - start + 1) * number], "little")
        return order[_core.tensor(kept, dtype=_core.int64, device=order.device)]


def _weights(start, extent, bins, ratio, length):
    """Returns the weights by which bins of regions are sums of a dimension's elements: means of points, each between two elements."""
    size = extent / bins
    counts = _core.full_like(size, ratio) if ratio > 0 else size.ceil()
    points = _core.arange(ratio if ratio > 0 else int(max(1, counts.max().item())), device=start.device, dtype=start.dtype)
    bin_numbers = _core.arange(bins, device=start.device, dtype=start.dtype)
    where = start[:, None, None] + (bin_numbers[:, None] + (points + 0.5) / counts[:, None, None]) * size[:, None, None]
    is_used = (points < counts[:, None, None]) & (where >= -1) & (where <= length)
    distances = where.clamp(0, length - 1)[..., None] - _core.arange(length, device=start.device, dtype=start.dtype)
    shares = (1 - distances.abs()).clamp(min=0)
    return _core.where(is_used[..., None], shares, 0).sum(2) / counts.clamp(min=1)[:, None, None]


def roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    """Returns the means of each bin of each region, at points between the pixels of its image."""
    if rois.dim() != 2 or rois.shape[1] != 5:
        raise RuntimeError(f"rois must have shape as Tensor[K, 5], got {tuple(rois.shape)}")
    if input.dtype != rois.dtype:
        raise RuntimeError(f"Expected tensor for input to have the same type as tensor for rois; but type {input.dtype} does not equal {rois.dtype}")
    images = rois[:, 0].long()
    left, top, right, bottom = (rois[:, 1:] * spatial_scale - (0.5 if aligned else 0.0)).unbind(1)
    width, height = right - left, bottom - top
    if not aligned:
        width, height = width.clamp(min=1), height.clamp(min=1)
    parts, places = [], []
    for image in range(len(input)):
        for chosen in (images == image).nonzero().flatten().split(_REGIONS_AT_ONCE):
            if len(chosen) == 0:
                continue
            rows = _weights(top[chosen], height[chosen], pooled_height, sampling_ratio, input.shape[2])
            columns = _weights(left[chosen], width[chosen], pooled_width, sampling_ratio, input.shape[3])
            parts.append(_core.einsum("chw,kph,kqw->kcpq", (input[image], rows, columns)))
            places.append(chosen)
    if not parts:
        return input.new_zeros((len(rois), input.shape[1], pooled_height, pooled_width))
    return _core.cat(parts)[_core.cat(places).argsort()]


def deform_conv2d(input, weight, offset, mask, bias, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups, offset_groups, use_mask):
    """Returns the convolution of an image whose elements are read at positions that are shifted by offsets."""
    (batch, channels, height, width), (_, _, tall, wide) = input.shape, weight.shape
    down, across = offset.shape[2:]
    moves = offset.view(batch * offset_groups, tall * wide, 2, down, across)

    def places(own, extent, taps, stride, pad, dilation, count, is_row):
        first = _core.arange(count, device=own.device, dtype=own.dtype) * stride - pad
        tap = _core.arange(taps, device=own.device, dtype=own.dtype) * dilation
        tap = tap.repeat_interleave(wide) if is_row else tap.repeat(tall)
        return (2 * (own + tap[:, None, None] + (first[:, None] if is_row else first)) + 1) / extent - 1
    rows = places(moves[:, :, 0], height, tall, stride_h, pad_h, dilation_h, down, True)
    columns = places(moves[:, :, 1], width, wide, stride_w, pad_w, dilation_w, across, False)
    grid = _core.stack([columns, rows], -1).flatten(1, 2)
    read = F.grid_sample(input.reshape(batch * offset_groups, channels // offset_groups, height, width), grid, align_corners=False)
    read = read.view(batch, offset_groups, channels // offset_groups, tall * wide, down * across)
    if use_mask:
        read = read * mask.view(batch, offset_groups, 1, tall * wide, down * across)
    terms = read.reshape(batch, groups, channels // groups * tall * wide, down * across)
    result = weight.view(groups, weight.shape[0] // groups, -1) @ terms
    return result.view(batch, weight.shape[0], down, across) + bias.view(-1, 1, 1)


def _gradients(function, operands, grad, *options):
    """Returns the gradients of a function by its operands, for a gradient of its result."""
    with enable_grad():
        leaves = [operand.detach().requires_grad_() for operand in operands]
        return autograd.grad(function(*leaves, *options), leaves, grad)


def _roi_align_backward(grad, rois, spatial_scale, pooled_height, pooled_width, batch_size, channels, height, width, sampling_ratio, aligned):
    """Returns the gradient of `roi_align` by the images."""
    images = grad.new_zeros([batch_size, channels, height, width])
    return _gradients(roi_align, [images], grad, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned)[0]


def _deform_conv2d_backward(grad, input, weight, offset, mask, bias, *options):
    """Returns the gradients of `deform_conv2d` by its five tensors."""
    if options[-1]:
        return _gradients(deform_conv2d, [input, weight, offset, mask, bias], grad, *options)
    of_input, of_weight, of_offset, of_bias = _gradients(
        lambda input, weight, offset, bias: deform_conv2d(input, weight, offset, mask, bias, *options), [input, weight, offset, bias], grad)
    return of_input, of_weight, of_offset, _core.zeros_like(mask), of_bias


_library = Library("torchvision", "DEF")
for _schema in _SCHEMAS:
    _library.define(_schema)
for _function in (_cuda_version, nms, roi_align, _roi_align_backward, deform_conv2d, _deform_conv2d_backward):
    _library.impl(_function.__name__, _function)
