"""Products of groups of rows or columns (`torch.nn.functional.grouped_mm`), as layers with several experts compute them."""

from .. import _core


def _check(mat_a, mat_b, offs, bias):
    for name, matrix in (("mat_a", mat_a), ("mat_b", mat_b)):
        if matrix.dim() not in (2, 3):
            raise RuntimeError(f"{name} has to be 2 or 3d")
    has_groups = mat_a.dim() == 2 or mat_b.dim() == 2
    if mat_a.dim() + mat_b.dim() > 4 and mat_a.shape[-1] != mat_b.shape[-2]:
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")
    if bias is not None:
        raise RuntimeError("Bias not supported yet")
    if has_groups != (offs is not None):
        raise RuntimeError("Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d")
    if offs is None:
        return
    if offs.dim() != 1:
        raise RuntimeError("offs has to be 1D")
    if offs.dtype != _core.int32:
        raise RuntimeError("Offsets have to be int32")
    for matrix in (mat_a, mat_b):
        if matrix.dim() == 3 and len(matrix) != len(offs):
            raise RuntimeError(f"matrix batch sizes have to match: there are {len(offs)} groups and {len(matrix)} matrices")


def grouped_mm(mat_a, mat_b, *, offs=None, bias=None, out_dtype=None):
    """Returns the products of groups: of rows of `mat_a` with a matrix each, of matrices with columns of `mat_b`, or of columns with rows.
    `offs` are the ends of the groups, which the host reads. What is after the last end is 0."""
    _check(mat_a, mat_b, offs, bias)
    if offs is None:
        result = mat_a @ mat_b
    else:
        ends = offs.tolist()
        groups = [slice(start, end) for start, end in zip([0, *ends], ends)]
        if mat_a.dim() == mat_b.dim():
            result = _core.stack([mat_a[:, group] @ mat_b[group] for group in groups])
        elif mat_a.dim() == 2:
            parts = [mat_a[group] @ matrix for group, matrix in zip(groups, mat_b)]
            result = _core.cat([*parts, mat_a.new_zeros(mat_a.shape[0] - ends[-1], mat_b.shape[2])])
        else:
            parts = [matrix @ mat_b[:, group] for group, matrix in zip(groups, mat_a)]
            result = _core.cat([*parts, mat_b.new_zeros(mat_a.shape[1], mat_b.shape[1] - ends[-1])], 1)
    return result if out_dtype is None else result.to(out_dtype)


def _scaled_mm(input, mat2, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False):
    """Returns the product of two matrices of 8-bit floats that are scaled, as a whole or by row and by column: it is computed in float32."""
    if input.dim() != 2 or mat2.dim() != 2 or input.shape[1] != mat2.shape[0]:
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({list(input.shape)} and {list(mat2.shape)})")
    for scale, whole in ((scale_a, (len(input), 1)), (scale_b, (1, mat2.shape[1]))):
        if scale.numel() != 1 and tuple(scale.shape) != whole:
            raise RuntimeError(f"_scaled_mm: scales have one element or the shape {whole}, not {tuple(scale.shape)}")
    result = input.float() @ mat2.float() * (scale_a * scale_b)
    result = result if bias is None else result + bias
    return (result if scale_result is None else result * scale_result).to(out_dtype or input.dtype)
