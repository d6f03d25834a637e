"""The available parametrizations: weight norm, spectral norm and orthogonal matrices (`torch.nn.utils.parametrizations`)."""

from ... import _core
from .. import functional as F
from ..layers import _ConvTranspose
from ..module import Module
from . import parametrize
from .weight_norm import norm_except_dim, weight_of


def _tensor_of(module, name):
    weight = getattr(module, name, None)
    if not isinstance(weight, _core.Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    return weight


class _WeightNorm(Module):
    """A tensor given by the norms and directions of its slices."""

    def __init__(self, dim=0):
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g, weight_v):
        return weight_of(weight_v, weight_g, self.dim)

    def right_inverse(self, weight):
        """Returns the norms and directions of a weight."""
        return norm_except_dim(weight, 2, self.dim), weight


def weight_norm(module, name="weight", dim=0):
    """Parametrizes a weight by the norms and directions of its slices."""
    parametrize.register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def take_former_names(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs):
        former = [f"{prefix}{name}_{part}" for part in "gv"]
        if all(key in state_dict for key in former):
            for place, key in enumerate(former):
                state_dict[f"{prefix}parametrizations.{name}.original{place}"] = state_dict.pop(key)
    module._register_load_state_dict_pre_hook(take_former_names)
    return module


class _SpectralNorm(Module):
    """A tensor divided by its greatest singular value, which is estimated by power iteration."""

    def __init__(self, weight, n_power_iterations=1, dim=0, eps=1e-12):
        super().__init__()
        rank = weight.dim()
        if not -rank <= dim < rank:
            raise IndexError(f"Dimension out of range (expected to be in range of [-{rank}, {rank - 1}] but got {dim})")
        if n_power_iterations <= 0:
            raise ValueError(f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}")
        self.dim, self.eps = dim % rank, eps
        if rank > 1:
            self.n_power_iterations = n_power_iterations
            matrix = self._matrix(weight.detach())
            for title, extent in zip(("_u", "_v"), matrix.shape):
                self.register_buffer(title, F.normalize(_core.empty([extent], dtype=weight.dtype, device=weight.device).normal_(0, 1), dim=0, eps=eps))
            self._iterate(matrix, 15)

    def _matrix(self, weight):
        order = [self.dim, *(dim for dim in range(weight.dim()) if dim != self.dim)]
        return weight.permute(*order).flatten(1)

    def _iterate(self, matrix, count):
        former = _core._set_grad_enabled(False)
        try:
            matrix = matrix.detach()
            for _ in range(count):
                self._u.copy_(F.normalize(_core.mv(matrix, self._v), dim=0, eps=self.eps))
                self._v.copy_(F.normalize(_core.mv(matrix.mH, self._u), dim=0, eps=self.eps))
        finally:
            _core._set_grad_enabled(former)

    def forward(self, weight):
        if weight.dim() == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._iterate(matrix, self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()
        return weight / _core.vdot(u, _core.mv(matrix, v))

    def right_inverse(self, value):
        """Returns a value unchanged: the program must ensure that its spectral norm is 1."""
        return value


def spectral_norm(module, name="weight", n_power_iterations=1, eps=1e-12, dim=None):
    """Parametrizes a weight as another weight divided by its greatest singular value."""
    weight = _tensor_of(module, name)
    dim = dim if dim is not None else 1 if isinstance(module, _ConvTranspose) else 0
    parametrize.register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, dim, eps))
    return module


def _made_orthogonal(matrix):
    """Returns an orthogonal matrix from a QR decomposition, with signs chosen so that an orthogonal matrix is returned
    unchanged."""
    reflectors, tau = _core.geqrf(matrix)
    return _core.linalg_householder_product(reflectors, tau) * reflectors.diagonal(dim1=-2, dim2=-1).sgn().unsqueeze(-2)


def _is_orthogonal(matrix):
    rows, columns = matrix.shape[-2:]
    one = _core.eye(columns, dtype=matrix.dtype, device=matrix.device)
    eps = {_core.float64: 2.0**-52, _core.complex128: 2.0**-52}.get(matrix.dtype, 2.0**-23)
    return _core.allclose(matrix.mH @ matrix, one.expand_as(matrix.mH @ matrix), atol=10.0 * rows * eps)


_MAPS = ("matrix_exp", "cayley", "householder")


class _Orthogonal(Module):
    """An orthogonal matrix as the image of an unconstrained matrix."""

    def __init__(self, weight, orthogonal_map, *, use_trivialization=True):
        super().__init__()
        if weight.is_complex() and orthogonal_map == "householder":
            raise ValueError("The householder parametrization does not support complex tensors.")
        self.shape, self.orthogonal_map = weight.shape, orthogonal_map
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, X):
        is_wide = X.shape[-2] < X.shape[-1]
        X = X.mT if is_wide else X
        found = self._reflected(X) if self.orthogonal_map == "householder" else self._skew(X)
        if hasattr(self, "base"):
            found = self.base @ found
        return found.mT if is_wide else found

    def _skew(self, X):
        """Returns the orthogonal image of a skew-symmetric matrix."""
        rows, columns = X.shape[-2:]
        X = X.tril()
        if rows != columns:
            X = _core.cat([X, X.new_zeros([*X.shape[:-1], rows - columns])], dim=-1)
        A = X - X.mH
        if self.orthogonal_map == "matrix_exp":
            return _core.matrix_exp(A)[..., :columns]
        one = _core.eye(rows, dtype=A.dtype, device=A.device)
        return _core.linalg_solve(one - A * 0.5, one + A * 0.5)[..., :columns]

    def _reflected(self, X):
        """Returns a product of Householder reflections."""
        A = X.tril(diagonal=-1)
        tau = 2.0 / (1.0 + (A * A).sum(dim=-2))
        return _core.linalg_householder_product(A, tau) * X.diagonal(dim1=-2, dim2=-1).int().unsqueeze(-2)

    def right_inverse(self, Q):
        """Returns a matrix that the parametrization maps to the given one, after making the given one orthogonal."""
        if Q.shape != self.shape:
            raise ValueError(f"Expected a matrix or batch of matrices of shape {self.shape}. Got a tensor of shape {Q.shape}.")
        given, is_wide = Q, Q.shape[-2] < Q.shape[-1]
        Q = Q.detach().mT if is_wide else Q.detach()
        rows, columns = Q.shape[-2:]
        if not hasattr(self, "base"):
            if self.orthogonal_map != "householder":
                raise NotImplementedError("It is not possible to assign to the matrix exponential or the Cayley parametrizations when "
                                          "use_trivialization=False.")
            A, tau = _core.geqrf(Q)
            diagonal = A.diagonal(dim1=-2, dim2=-1)
            signs = diagonal.sign() * _core.where(tau == 0.0, -1.0, 1.0).to(A.dtype)
            A = A - _core.diag_embed(diagonal) if rows == columns else A.tril(-1) + A.triu(1)
            A = A + _core.eye(rows, columns, dtype=A.dtype, device=A.device) * signs.unsqueeze(-2)
            return A.mT if is_wide else A
        if rows != columns:
            further = _core.randn([*Q.shape[:-1], rows - columns], dtype=Q.dtype, device=Q.device)
            Q = _made_orthogonal(_core.cat([Q, further], dim=-1))
        else:
            Q = Q.clone() if _is_orthogonal(Q) else _made_orthogonal(Q)
        self.base = Q
        minus = -_core.eye(*given.shape[-2:], dtype=given.dtype, device=given.device)
        return minus.expand(given.shape).clone()


def orthogonal(module, name="weight", orthogonal_map=None, *, use_trivialization=True):
    """Parametrizes a weight by an orthogonal matrix, or by one with orthogonal rows or columns."""
    weight = _tensor_of(module, name)
    if weight.dim() < 2:
        raise ValueError(f"Expected a matrix or batch of matrices. Got a tensor of {weight.dim()} dimensions.")
    if orthogonal_map is None:
        orthogonal_map = "matrix_exp" if weight.shape[-2] == weight.shape[-1] or weight.is_complex() else "householder"
    if orthogonal_map not in _MAPS:
        raise ValueError(f'orthogonal_map has to be one of "matrix_exp", "cayley", "householder". Got: {orthogonal_map}')
    made = _Orthogonal(weight, orthogonal_map, use_trivialization=use_trivialization)
    parametrize.register_parametrization(module, name, made, unsafe=True)
    return module
