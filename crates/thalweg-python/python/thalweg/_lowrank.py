"""Singular values and principal components in a few dimensions, from products with random matrices (`torch.svd_lowrank`)."""

from . import _core

__all__ = ["get_lowrank_range", "pca_lowrank", "svd_lowrank"]


def get_lowrank_range(A, q, niter=2, M=None):
    """Returns an orthonormal basis of `q` columns that spans most of the range of A − M. It is computed from products with a
    random matrix, and refined by `niter` rounds of products with the matrix and its adjoint."""
    if M is not None:
        A = A - M
    start = _core.randn([*A.shape[:-2], A.shape[-1], q], dtype=A.dtype, device=A.device)
    basis = _core.linalg_qr(A @ start)[0]
    for _ in range(niter):
        other = _core.linalg_qr(A.mH @ basis)[0]
        basis = _core.linalg_qr(A @ other)[0]
    return basis


def svd_lowrank(A, q=6, niter=2, M=None):
    """Returns the factors U, S and V of the greatest `q` singular values of A, or of A − M, approximately."""
    if M is not None:
        A = A - M.broadcast_to(A.shape)
    is_wide = A.shape[-2] < A.shape[-1]
    tall = A.mH if is_wide else A
    basis = get_lowrank_range(tall, q, niter)
    U, S, Vh = _core.linalg_svd(basis.mH @ tall, False)
    U, V = basis @ U, Vh.mH
    return (V, S, U) if is_wide else (U, S, V)


def pca_lowrank(A, q=None, center=True, niter=2):
    """Returns the factors U, S and V of the greatest `q` singular values of A, whose columns are centred first, approximately."""
    least = min(A.shape[-2:])
    q = min(6, least) if q is None else q
    if not 0 <= q <= least:
        raise ValueError(f"q(={q}) must be non-negative integer and not greater than min(m, n)={least}")
    if not isinstance(niter, int) or niter < 0:
        raise ValueError(f"niter(={niter}) must be non-negative integer")
    return svd_lowrank(A - A.mean(-2, True) if center else A, q, niter)
