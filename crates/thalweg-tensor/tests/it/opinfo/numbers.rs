//! Numbers of goldens and results, and when they agree.

use thalweg_ir::{DType, Element, with_dtype};
use thalweg_tensor::Tensor;

use super::file::{File, Row};
use crate::support::device;

/// Returns the elements that bytes hold.
pub fn elements<T: Element>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Elements in row-major order, without loss.
pub enum Numbers {
    /// Numbers of a floating-point dtype; for a complex one the parts of each number in turn.
    Floats(Vec<f64>),
    /// Numbers of an integer dtype or bool.
    Integers(Vec<i64>),
}

impl Numbers {
    /// Reads the elements that a golden has; `None` if its dtype does not exist here.
    pub fn of_row(file: &File, row: &Row<'_>) -> Option<Self> {
        Some(Self::of_bytes(file.storage(row.storage?), row.dtype.parse().ok()?))
    }

    /// Reads the bytes of elements.
    #[expect(clippy::useless_conversion, reason = "the parts of one of the complex types are f64")]
    pub fn of_bytes(bytes: &[u8], dtype: DType) -> Self {
        fn floats<T: Element>(bytes: &[u8]) -> Numbers {
            Numbers::Floats(elements::<T>(bytes).into_iter().map(Element::to_f64).collect())
        }
        fn integers<T: Element + Into<i64>>(bytes: &[u8]) -> Numbers {
            Numbers::Integers(elements::<T>(bytes).into_iter().map(Into::into).collect())
        }
        with_dtype!(dtype,
            bool => Self::Integers(bytes.iter().map(|&byte| i64::from(byte)).collect()),
            integer T => integers::<T>(bytes),
            reduced T => floats::<T>(bytes),
            float T => floats::<T>(bytes),
            complex T => {
                let parts = elements::<T>(bytes).into_iter().flat_map(|number| [number.re.into(), number.im.into()]);
                Self::Floats(parts.collect())
            },
        )
    }

    /// Reads a tensor.
    pub fn of_tensor(tensor: &Tensor) -> Result<Self, String> {
        let tensor = match tensor.detach() {
            tensor if tensor.dtype().is_complex() => {
                tensor.view_as_real().map_err(|error| format!("the result has no parts: {error}"))?
            }
            tensor => tensor,
        };
        let is_float = tensor.dtype().is_floating_point();
        let wide = tensor.to_dtype(if is_float { DType::F64 } else { DType::I64 });
        match is_float {
            true => wide.and_then(|wide| wide.to_vec()).map(Self::Floats),
            false => wide.and_then(|wide| wide.to_vec()).map(Self::Integers),
        }
        .map_err(|error| format!("the result cannot be read: {error}"))
    }

    /// Returns the largest finite absolute value.
    pub fn largest(&self) -> f64 {
        let largest =
            |largest: f64, number: f64| if number.is_finite() { largest.max(number.abs()) } else { largest };
        match self {
            Self::Floats(list) => list.iter().copied().fold(0.0, largest),
            Self::Integers(list) => list.iter().map(|&number| number as f64).fold(0.0, largest),
        }
    }

    /// Returns whether every number is 0.
    pub fn are_zero(&self) -> bool {
        match self {
            Self::Floats(list) => list.iter().all(|&number| number == 0.0),
            Self::Integers(list) => list.iter().all(|&number| number == 0),
        }
    }
}

/// The tolerance of results.
#[derive(Clone, Copy)]
pub struct Tolerance {
    /// The fraction of the expected number.
    pub relative: f64,
    /// The absolute tolerance.
    pub absolute: f64,
}

impl Tolerance {
    /// Returns the distance of a number from the expected one, in units of the tolerance.
    fn distance(self, found: f64, expected: f64) -> f64 {
        if found == expected || (found.is_nan() && expected.is_nan()) {
            return 0.0;
        }
        let limit = self.absolute + self.relative * expected.abs();
        let distance = (found - expected).abs() / limit;
        if expected.is_finite() && !distance.is_nan() { distance } else { f64::INFINITY }
    }
}

/// Compares elements; the message names the first that differs. `exact`, if given, is the result in f64: an element also agrees
/// if its distance from it is within the tolerance, or no greater than that of the worst expected element.
pub fn compare(
    found: &Numbers,
    expected: &Numbers,
    exact: Option<&[f64]>,
    tolerance: Tolerance,
) -> Result<(), String> {
    let differ = |index: usize, found: &dyn std::fmt::Display, expected: &dyn std::fmt::Display| {
        Err(format!("element {index} is {found}, PyTorch's {expected}"))
    };
    match (found, expected) {
        (Numbers::Floats(found), Numbers::Floats(expected)) => {
            let exact = exact.unwrap_or(expected);
            let distances =
                expected.iter().zip(exact).map(|(&number, &exact)| tolerance.distance(number, exact));
            let allowed = distances.filter(|distance| distance.is_finite()).fold(1.0, f64::max);
            for (index, ((&found, &expected), &exact)) in found.iter().zip(expected).zip(exact).enumerate() {
                let agrees =
                    tolerance.distance(found, expected) <= 1.0 || tolerance.distance(found, exact) <= allowed;
                if !agrees {
                    return differ(index, &found, &format!("{expected} (in f64 {exact})"));
                }
            }
        }
        (Numbers::Integers(found), Numbers::Integers(expected)) => {
            for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
                if found != expected {
                    return differ(index, found, expected);
                }
            }
        }
        _ => return Err("one has integers, the other floating-point numbers".into()),
    }
    Ok(())
}

/// Compares a result with the golden: dtype, shape, and elements if they are defined; `exact` is the row of the result in f64.
pub fn compare_with_row(
    found: &Tensor,
    file: &File,
    row: &Row<'_>,
    exact: Option<&Row<'_>>,
    tolerance: Tolerance,
) -> Result<(), String> {
    if found.dtype().name() != row.dtype {
        return Err(format!("the dtype is {}, PyTorch's {}", found.dtype(), row.dtype));
    }
    if found.shape() != row.shape {
        return Err(format!("the shape is {:?}, PyTorch's {:?}", found.shape(), row.shape));
    }
    let Some(expected) = Numbers::of_row(file, row) else { return Ok(()) };
    let exact = match exact.and_then(|exact| Numbers::of_row(file, exact)) {
        Some(Numbers::Floats(exact)) => Some(overflowed(exact, found.dtype().real())),
        _ => None,
    };
    compare(&Numbers::of_tensor(found)?, &expected, exact.as_deref(), tolerance)
}

/// Returns numbers, with those that a dtype cannot represent replaced by infinity.
fn overflowed(mut numbers: Vec<f64>, dtype: DType) -> Vec<f64> {
    let largest = match dtype {
        DType::F16 => 65_504.0,
        DType::Bf16 | DType::F32 => f64::from(f32::MAX),
        _ => f64::MAX,
    };
    numbers.iter_mut().filter(|number| number.abs() > largest).for_each(|number| *number *= f64::INFINITY);
    numbers
}

/// Makes the numbers of `pattern` in `dump.py`: element i is ((5 i + 3 salt + 1) mod 17 − 8) / 8.
pub fn pattern(shape: &[usize], dtype: DType, salt: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let numbers: Vec<f64> = (0..count).map(|i| (((5 * i + 3 * salt + 1) % 17) as f64 - 8.0) / 8.0).collect();
    Tensor::from_slice(&numbers, shape, &device())
        .and_then(|tensor| tensor.to_dtype(dtype))
        .expect("the tensor is made")
}
