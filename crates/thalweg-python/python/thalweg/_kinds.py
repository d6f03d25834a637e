"""Names of functions of single elements, for classes of tensors that compute them from their parts."""

from . import _torch_functions

# Functions that a sum may go through.
LINEAR = frozenset("add sub neg clone detach contiguous to cpu cuda pin_memory float double half bfloat16 alias positive __pos__ __neg__".split())
# Tensors in the shape of another one.
LIKE = frozenset("zeros_like ones_like empty_like rand_like randn_like full_like".split())
# Other functions of single elements.
OF_ELEMENTS = frozenset("""mul div rsub pow exp log log2 log10 log1p expm1 sqrt rsqrt reciprocal abs sign sin cos tan tanh sigmoid relu gelu silu elu
    leaky_relu softplus hardtanh relu6 mish hardswish hardsigmoid logsigmoid erf clamp clamp_min clamp_max clip maximum minimum fmod remainder floor ceil round
    trunc where masked_fill addcmul addcdiv lerp square threshold logical_and logical_or logical_not logical_xor eq ne lt le gt ge isnan isinf isfinite
    true_divide floor_divide multiply divide subtract nan_to_num fill copy atan2 hypot dropout""".split())


def name_of(func):
    """Returns the name of the operator that a function runs."""
    name = getattr(func, "__name__", "").partition(".")[0]
    return _torch_functions._CALLED.get(name, name)
