//! The kernels of [`Decompose`](super::Decompose): one block per matrix, whose threads share rows or columns.

use super::Method;
use crate::source::Source;

/// Returns the translation unit of a method.
pub(super) fn print(method: Method) -> String {
    let file = match method {
        Method::Cholesky => include_str!("cholesky.cu"),
        Method::Triangular => include_str!("triangular.cu"),
        Method::Lu => include_str!("lu.cu"),
        Method::Permutation => include_str!("permutation.cu"),
        Method::Qr => include_str!("qr.cu"),
        Method::Reflectors => include_str!("reflectors.cu"),
        Method::Eigen => include_str!("eigen.cu"),
        Method::Singular => include_str!("singular.cu"),
        Method::Indefinite => include_str!("indefinite.cu"),
        Method::IndefiniteSolve => include_str!("indefinite_solve.cu"),
        Method::General => include_str!("general.cu"),
    };
    Source::new(method.name()).print(file)
}
