//! Operands of a host function, in the variant of their dtype.

use thalweg_driver::{DevicePointer, HostFault, HostLaunch};
use thalweg_ir::DType;
use thalweg_ir::host::{Cells, Slice};

macro_rules! by_dtype {
    ($dtype:expr, $launch:expr, $method:ident, $pointer:expr, $count:expr, $wrap:ident) => {
        Ok(match $dtype {
            DType::Bool | DType::U8 => $wrap::U8($launch.$method($pointer, $count)?),
            DType::I32 => $wrap::I32($launch.$method($pointer, $count)?),
            DType::I64 => $wrap::I64($launch.$method($pointer, $count)?),
            DType::F16 => $wrap::F16($launch.$method($pointer, $count)?),
            DType::Bf16 => $wrap::Bf16($launch.$method($pointer, $count)?),
            DType::F32 => $wrap::F32($launch.$method($pointer, $count)?),
            DType::F64 => $wrap::F64($launch.$method($pointer, $count)?),
        })
    };
}

/// Returns elements of device memory to read, in the variant of their dtype.
///
/// # Errors
/// As [`HostLaunch::read`].
pub fn slice<'a>(
    launch: &'a HostLaunch<'_>,
    dtype: DType,
    address: u64,
    elements: u64,
) -> Result<Slice<'a>, HostFault> {
    by_dtype!(dtype, launch, read, DevicePointer::new(address), elements as usize, Slice)
}

/// Returns elements of device memory as cells, which may alias others, in the variant of their dtype.
///
/// # Errors
/// As [`HostLaunch::cells`].
pub fn cells<'a>(
    launch: &'a HostLaunch<'_>,
    dtype: DType,
    address: u64,
    elements: u64,
) -> Result<Cells<'a>, HostFault> {
    by_dtype!(dtype, launch, cells, DevicePointer::new(address), elements as usize, Cells)
}
