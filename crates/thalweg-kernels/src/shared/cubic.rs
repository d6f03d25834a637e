//! The weights of cubic convolution with A = −3/4 (R. Keys, 1981).

use thalweg_ir::Element;

use crate::dtypes::rounded;

const A: f64 = -0.75;

/// Returns the weight of a point at a distance from 0 to 1.
pub(crate) fn near<T: Element>(t: f64) -> f64 {
    let r = rounded::<T>;
    r(r(r(r(r((A + 2.0) * t) - (A + 3.0)) * t) * t) + 1.0)
}

/// Returns the weight of a point at a distance of `t` and 1.
pub(crate) fn far<T: Element>(t: f64) -> f64 {
    let r = rounded::<T>;
    let u = r(t + 1.0);
    r(r(r(r(r(r(A * u) - 5.0 * A) * u) + 8.0 * A) * u) - 4.0 * A)
}

/// Returns the derivative of [`near`].
pub(crate) fn near_slope<T: Element>(t: f64) -> f64 {
    let r = rounded::<T>;
    r(r(r(3.0 * (A + 2.0) * t) - 2.0 * (A + 3.0)) * t)
}

/// Returns the derivative of [`far`].
pub(crate) fn far_slope<T: Element>(t: f64) -> f64 {
    let r = rounded::<T>;
    let u = r(t + 1.0);
    r(r(r(r(3.0 * A * u) - 10.0 * A) * u) + 8.0 * A)
}
