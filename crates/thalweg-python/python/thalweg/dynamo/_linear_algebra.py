"""Decompositions of PyTorch's internal operators of linear algebra, distances and resampling into operators of the table."""

import torch

aten = torch.ops.aten


def _decomposed(matrix):
    """Returns the factors of a matrix, or those of its transpose, as the gradient of its determinant reads them."""
    is_transposed = matrix.is_contiguous() and not matrix.is_complex()
    factors, pivots, _ = aten.linalg_lu_factor_ex.default(matrix.mT if is_transposed else matrix, pivot=True, check_errors=False)
    return factors, pivots


def _sign_of_pivots(pivots):
    """Returns the sign of the permutation that exchanges each row with a later one, or with itself."""
    rows = torch.arange(1, pivots.shape[-1] + 1, device=pivots.device, dtype=pivots.dtype)
    return 1 - 2 * ((pivots != rows).sum(-1) % 2)


def solve(matrix, right, *, left=True, check_errors=False):
    """Solves linear equations; returns the factors of the matrix, too."""
    if matrix.is_complex():
        return NotImplemented
    factors, pivots, info = aten.linalg_lu_factor_ex.default(matrix, pivot=True, check_errors=False)
    is_vector = right.dim() == 1 or matrix.dim() - 1 == right.dim() and tuple(right.shape) == tuple(matrix.shape[:-1])
    columns = right.unsqueeze(-1) if is_vector else right
    result = aten.linalg_lu_solve.default(factors, pivots, columns, left=left)
    return result.squeeze(-1) if is_vector else result, factors, pivots, info


def determinant(matrix):
    """Returns determinants, and the factors of the matrices."""
    factors, pivots = _decomposed(matrix)
    return factors.diagonal(0, -2, -1).prod(-1) * _sign_of_pivots(pivots).to(matrix.dtype), factors, pivots


def logarithm_of_determinant(matrix):
    """Returns signs and logarithms of determinants, and the factors of the matrices."""
    factors, pivots = _decomposed(matrix)
    diagonal = factors.diagonal(0, -2, -1)
    return diagonal.sgn().prod(-1) * _sign_of_pivots(pivots).to(matrix.dtype), diagonal.abs().log().sum(-1), factors, pivots


def product_of_three(first, second, third, expanded1, expanded2, expanded3, summed, unroll_dim=1):
    """Returns the product of three tensors, which get dimensions of one element, summed over dimensions."""
    for place in expanded1:
        first = first.unsqueeze(place)
    for place in expanded2:
        second = second.unsqueeze(place)
    for place in expanded3:
        third = third.unsqueeze(place)
    product = first * second * third
    return product.sum(summed) if summed else product


def _of_differences(difference, distance, p):
    """Returns the derivative of a norm of differences by each of them; it is 0 where the distance is 0."""
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return difference.sign()
    if p == float("inf"):
        return difference.sign() * (difference.abs() == distance).to(difference.dtype)
    safe = torch.where(distance == 0, torch.ones_like(distance), distance)
    powers = difference if p == 2 else difference.sign() * difference.abs().pow(p - 1)
    quotient = powers / (safe if p == 2 else safe.pow(p - 1))
    return torch.where((distance == 0) | (difference == 0), torch.zeros_like(quotient), quotient)


def distances_backward(grad, x1, x2, p, distances):
    """Computes the gradient of all distances between two lists of points by the first list."""
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return (grad.unsqueeze(-1) * _of_differences(difference, distances.unsqueeze(-1), p)).sum(-2)


def pairwise_backward(grad, points, p, distances):
    """Computes the gradient of the distances between each two points of a list."""
    first, second = torch.triu_indices(points.shape[0], points.shape[0], 1, device=points.device).unbind(0)
    each = grad.unsqueeze(-1) * _of_differences(points[first] - points[second], distances.unsqueeze(-1), p)
    return torch.zeros_like(points).index_add(0, first, each).index_add(0, second, -each)


def _smoothed_backward(operator):
    """Returns the gradient of an operator that resizes images along one axis after the other, each by a product with a matrix."""

    def backward(grad_output, output_size, input_size, align_corners, scales_h=None, scales_w=None):
        wide = torch.float64 if grad_output.dtype == torch.float64 else torch.float32
        result = grad_output.to(wide)
        height, width = input_size[-2:]
        # The matrix of an axis is what becomes of the unit vectors.
        unit = torch.eye(height, device=result.device, dtype=wide)[None, None]
        result = torch.matmul(operator(unit, [output_size[0], height], align_corners, scales_h, None)[0, 0].t(), result)
        unit = torch.eye(width, device=result.device, dtype=wide)[None, None]
        return torch.matmul(result, operator(unit, [width, output_size[1]], align_corners, None, scales_w)[0, 0].t()).to(grad_output.dtype)

    return backward


OWN = {
    aten._linalg_solve_ex.default: solve,
    aten._linalg_det.default: determinant,
    aten._linalg_slogdet.default: logarithm_of_determinant,
    aten._trilinear.default: product_of_three,
    aten._cdist_backward.default: distances_backward,
    aten._pdist_backward.default: pairwise_backward,
    aten._upsample_bilinear2d_aa_backward.default: _smoothed_backward(aten._upsample_bilinear2d_aa.default),
    aten._upsample_bicubic2d_aa_backward.default: _smoothed_backward(aten._upsample_bicubic2d_aa.default),
}
