//! Products of reflectors, real or complex.

use thalweg_runtime::Result;

use super::decompose::{adjoint, identity};
use crate::tensor::Tensor;

/// Applies reflectors I − τ v vᴴ to matrices (batch, rows, columns): Q = H₁ H₂ … Hₖ, or its adjoint. The vectors are columns
/// (batch, rows, k), the factors are (batch, k, 1). All at once: Q = I − V T Vᴴ, where T = (I + D U)⁻¹ D with the factors D and the
/// strict upper triangle U of Vᴴ V (C. Puglisi, *Modification of the Householder Method Based on the Compact WY Representation*, 1992).
pub(super) fn reflected(
    vectors: &Tensor,
    tau: &Tensor,
    matrices: &Tensor,
    is_adjoint: bool,
) -> Result<Tensor> {
    let adjoints = adjoint(vectors)?;
    let ones = identity(tau, tau.shape()[1])?;
    let triangles = adjoints.matmul(vectors)?.triu(1)?.mul(tau)?.add(&ones)?;
    let inner = adjoints.matmul(matrices)?;
    let inner = match is_adjoint {
        false => triangles.linalg_solve_triangular(&inner.mul(tau)?, true)?,
        true => adjoint(&triangles)?.linalg_solve_triangular(&inner, false)?.mul(&tau.conj()?)?,
    };
    matrices.sub(&vectors.matmul(&inner)?)
}
