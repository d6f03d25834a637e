"""Images that are resized.

PyTorch's compilers take such calls apart while they trace, so that a gradient is a sum at indices. In the region `whole` each call is
one operator, with a gradient that is one, as without compilation. `RULES` translates them to calls of the table.
"""

import torch

from ._nodes import known
from ._versions import adapter

aten = torch.ops.aten

# The names of operators, and of their scales. Some take points, and some interpolate, by rules with a number each in the table: one for the
# edges of images, and one for aligned corners.
_SCALES = {1: ["scales"], 2: ["scales_h", "scales_w"], 3: ["scales_d", "scales_h", "scales_w"]}
_TAKING = {f"{name}{axes}d": (number, _SCALES[axes]) for name, number in (("upsample_nearest", 0), ("_upsample_nearest_exact", 1)) for axes in _SCALES}
_LINEAR, _CUBIC = (5, 6), (7, 8)
_INTERPOLATING = {
    "upsample_linear1d": (_LINEAR, _SCALES[1]), "upsample_bilinear2d": (_LINEAR, _SCALES[2]), "upsample_trilinear3d": (_LINEAR, _SCALES[3]),
    "upsample_bicubic2d": (_CUBIC, _SCALES[2]),
}  # fmt: skip


def _replaced(operator, is_recorded, former):
    """Returns the function that replaces an operator: of sizes or scales, one that calls the operator of sizes; of sizes, its own kernel,
    except for integers, and for sizes that vary, which its kernel would take for known."""
    if operator._overloadname == "vec":
        of_sizes = getattr(aten, operator._schema.name.removeprefix("aten::")).default

        def call_of_either(input, output_size, *rest):
            *corners, factors = rest
            sizes = adapter().resized(input.size(), output_size, factors)
            return of_sizes(input, sizes, *corners, *(factors or [None] * len(sizes)))

        return call_of_either
    if not is_recorded:
        return None
    own = adapter().kernel_of(operator)

    def call(input, sizes, *rest, **named):
        is_known = all(isinstance(size, int) for size in (*input.shape, *sizes))
        return (own if input.is_floating_point() and is_known else former)(input, sizes, *rest, **named)

    return call


def whole():
    """Returns a region in which calls that resize images are traced as they are."""
    operators = [getattr(getattr(aten, name), overload) for name in (*_TAKING, *_INTERPOLATING) for overload in ("vec", "default")]
    return adapter().with_kernels(operators, _replaced)


def _resized(name, scales):
    """Returns the rule of an operator that resizes images to a size."""

    def rule(named):
        factors = [named.get(scale) for scale in scales]
        rest = {"input": named["self"], "output_size": named["output_size"], "scale_factors": None}
        if all(factor is not None for factor in factors):
            rest |= {"output_size": None, "scale_factors": factors}
        return f"{name}.vec", rest | ({"align_corners": named["align_corners"]} if "align_corners" in named else {})

    return rule


def _resized_backward(number, scales):
    """Returns the rule of its gradient, by the numbers of its rules in the table."""

    def rule(named):
        size, old = (known(named[name])[-len(scales) :] for name in ("output_size", "input_size"))
        corners = named.get("align_corners", False)
        by = number[corners] if isinstance(number, tuple) else number

        def distance(scale, new, before):
            if by == _LINEAR[0] and new == before:
                return 1.0
            if corners:
                return (before - 1) / (new - 1) if new > 1 else 0.0
            return 1 / scale if scale else before / new

        factors = [distance(named.get(scale), new, before) for scale, new, before in zip(scales, size, old)]
        return "thalweg::resample_backward", {"self": named["grad_output"], "by": by, "size": old, "scale": factors, "before": [0] * len(old)}

    return rule


RULES = {}
for _name, (_number, _scales) in (_TAKING | _INTERPOLATING).items():
    RULES[getattr(aten, _name).default] = _resized(_name, _scales)
    RULES[getattr(aten, f"{_name}_backward").default] = _resized_backward(_number, _scales)
