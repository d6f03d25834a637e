//! The dtypes of kernels that are written once for floats and int64.

use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element};

/// The dtypes for which such a kernel has a version.
pub(crate) const DTYPES: [DType; 5] = [DType::F32, DType::F64, DType::F16, DType::Bf16, DType::I64];

/// The floating-point dtypes, for each of which a kernel that takes only floats has a version.
pub(crate) const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];

/// Checks that a dtype is one of [`DTYPES`].
pub(crate) fn check(kernel: &str, dtype: DType) -> Result<(), Fault> {
    Fault::unless(DTYPES.contains(&dtype), || format!("{kernel} does not take {dtype}"))
}

/// Rounds a number to the type in which sums of elements are kept: f32, or f64 for elements of f64.
pub(crate) fn rounded<T: Element>(value: f64) -> f64 {
    if T::DTYPE == DType::F64 { value } else { f64::from(value as f32) }
}

/// Defines the names of a kernel's entry points, and the list of its sources, each of which a function `print` returns.
macro_rules! entry_points {
    ($prefix:literal) => {
        /// Returns the name of the entry point.
        fn name(dtype: DType) -> &'static str {
            match dtype {
                DType::F16 => concat!($prefix, "_float16"),
                DType::Bf16 => concat!($prefix, "_bfloat16"),
                DType::F32 => concat!($prefix, "_float32"),
                DType::F64 => concat!($prefix, "_float64"),
                _ => concat!($prefix, "_int64"),
            }
        }

        /// Returns name and source of every kernel of this module.
        pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
            $crate::dtypes::DTYPES.into_iter().map(|dtype| (name(dtype).to_owned(), print(dtype)))
        }
    };
}

/// Runs an expression with the Rust type of a floating-point dtype; for any other dtype it returns a fault of the kernel.
macro_rules! with_float {
    ($kernel:literal, $dtype:expr, $T:ident => $run:expr) => {{
        let dtype = $dtype;
        let refuse = || Err(thalweg_driver::HostFault(format!("{}: {dtype} is not a dtype of it", $kernel)));
        thalweg_ir::with_dtype!(dtype,
            bool => refuse(),
            integer $T => refuse(),
            reduced $T => $run,
            float $T => $run,
        )
    }};
}

pub(crate) use {entry_points, with_float};
