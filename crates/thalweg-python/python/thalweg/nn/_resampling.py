"""Functions that resample images and volumes (`interpolate`, `grid_sample` and similar ones of `torch.nn.functional`)."""

import math

from .. import _core
from .._warnings import warn as _warn
from ..amp import autocast
from . import _checks

# The modes of `interpolate` with the number of spatial dimensions that they require; None if any number is allowed.
_MODES = {"nearest": None, "nearest-exact": None, "area": None, "linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}


def interpolate(input, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None, antialias=False):
    """Returns the input, resampled to more or fewer positions."""
    dims, has_corners = input.dim() - 2, _MODES.get(mode) is not None
    sizes, scales = _checks.check_interpolation(input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias, _MODES)
    if scales is not None and (recompute_scale_factor or mode == "area"):
        sizes, scales = [math.floor(extent * scale) for extent, scale in zip(input.shape[2:], scales)], None
    if mode == "area":
        return getattr(_core, f"adaptive_avg_pool{dims}d")(input, sizes)
    if not has_corners:
        return getattr(_core, f"upsample_nearest{dims}d" if mode == "nearest" else f"_upsample_nearest_exact{dims}d")(input, sizes, scales)
    resize = getattr(_core, f"_upsample_{mode}2d_aa" if antialias else f"upsample_{mode}{dims}d")
    if input.dtype is _core.uint8 and dims == 2:
        return _resized_bytes(resize, input, sizes, bool(align_corners), scales)
    return resize(input, sizes, bool(align_corners), scales)


def _resized_bytes(resize, input, sizes, align_corners, scales):
    """Returns resampled images of bytes as PyTorch's CPU backend does: along the rows, rounded, then along the columns. Its CUDA
    backend refuses bytes."""
    numbers = input.float()
    for axis in (1, 0):
        part = [None if values is None else [values[at] if at == axis else same for at, same in enumerate(kept)]
                for values, kept in ((sizes, numbers.shape[2:]), (scales, (1.0, 1.0)))]
        numbers = resize(numbers, part[0], align_corners, part[1]).add_(0.5).floor_().clamp_(0, 255)
    return numbers.to(_core.uint8)


def _warn_of(name):
    _warn(f"`nn.functional.{name}` is deprecated. Use `nn.functional.interpolate` instead.")


def upsample(input, size=None, scale_factor=None, mode="nearest", align_corners=None):
    """Returns the input, resampled to more positions: the deprecated name of `interpolate`."""
    _warn_of("upsample")
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input, size=None, scale_factor=None):
    """Returns the input at more positions, each with its nearest element."""
    _warn_of("upsample_nearest")
    return interpolate(input, size, scale_factor, mode="nearest")


def upsample_bilinear(input, size=None, scale_factor=None):
    """Returns images at more positions, by bilinear interpolation with aligned corners."""
    _warn_of("upsample_bilinear")
    return interpolate(input, size, scale_factor, mode="bilinear", align_corners=True)


def affine_grid(theta, size, align_corners=None):
    """Returns the grid of `grid_sample` that transforms positions by matrices (N, 2, 3), or (N, 3, 4) for volumes."""
    _checks.warn_of_corners(align_corners)
    if not theta.is_floating_point():
        raise ValueError(f"Expected theta to have floating point type, but got {theta.dtype}")
    dims = len(size) - 2
    if dims not in (2, 3):
        raise NotImplementedError(f"affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms, respectively. Got size {list(size)}.")
    if theta.dim() != 3 or tuple(theta.shape[-2:]) != (dims, dims + 1):
        raise ValueError(f"Expected a batch of {dims}D affine matrices of shape Nx{dims}x{dims + 1} for size {list(size)}. Got {list(theta.shape)}.")
    if align_corners and min(size[2:]) == 1:
        _warn("Since version 1.3.0, affine_grid behavior has changed for unit-size grids when align_corners=True. This is not an intended use case "
              "of affine_grid. See the documentation of affine_grid for details.")
    elif min(size) <= 0:
        raise ValueError(f"Expected non-zero, positive output size. Got {list(size)}")

    def places(count):
        if count == 1:
            return _core.zeros([1], dtype=theta.dtype, device=theta.device)
        line = _core.linspace(-1, 1, count, dtype=theta.dtype, device=theta.device)
        # In PyTorch's order, so that the places of pixels are rounded alike: gradients of `grid_sample` jump there.
        return line if align_corners else line * (count - 1) / count
    extents = list(size[2:])
    axes = _core.meshgrid([places(count) for count in extents], indexing="ij")
    base = _core.stack([*reversed(axes), _core.ones_like(axes[0])], -1).view(1, -1, dims + 1)
    with autocast("cuda", enabled=False):
        return (base @ theta.transpose(1, 2)).view(theta.shape[0], *extents, dims)


def grid_sample(input, grid, mode="bilinear", padding_mode="zeros", align_corners=None):
    """Returns the input at the positions of a grid, whose coordinates go from −1 to 1."""
    modes, paddings = {"bilinear": 0, "nearest": 1, "bicubic": 2}, {"zeros": 0, "border": 1, "reflection": 2}
    if mode not in modes:
        raise ValueError(f"nn.functional.grid_sample(): expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: '{mode}'")
    if padding_mode not in paddings:
        raise ValueError("nn.functional.grid_sample(): expected padding_mode to be 'zeros', 'border', or 'reflection', but got: "
                         f"'{padding_mode}'")
    _checks.warn_of_corners(align_corners)
    return _core.grid_sampler(input, grid, modes[mode], paddings[padding_mode], bool(align_corners))
