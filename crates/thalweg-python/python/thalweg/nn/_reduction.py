"""The words for reductions of elementwise losses (`torch.nn._reduction`)."""

import warnings

_NUMBERS = {"none": 0, "mean": 1, "elementwise_mean": 1, "sum": 2}


def get_enum(reduction):
    """Returns the number of a reduction: 0 for `none`, 1 for `mean`, 2 for `sum`."""
    if reduction not in _NUMBERS:
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return _NUMBERS[reduction]


def legacy_get_string(size_average, reduce, emit_warning=True):
    """Returns the word for the two deprecated arguments."""
    word = "none" if reduce is False else "sum" if size_average is False else "mean"
    if emit_warning:
        warnings.warn(f"size_average and reduce args will be deprecated, please use reduction='{word}' instead.", stacklevel=2)
    return word


def legacy_get_enum(size_average, reduce, emit_warning=True):
    """Returns the code for the two deprecated arguments."""
    return get_enum(legacy_get_string(size_average, reduce, emit_warning))
