//! Operands of a host function, as enum variants by dtype.

use thalweg_driver::{DevicePointer, HostFault, HostLaunch};
use thalweg_ir::host::{Cells, Slice, SliceMut};
use thalweg_ir::{DType, with_dtype};

/// Returns elements of device memory to read, in the variant of their dtype.
///
/// # Errors
/// Those of [`HostLaunch::read`].
pub fn slice<'a>(
    launch: &'a HostLaunch<'_>,
    dtype: DType,
    address: u64,
    elements: u64,
) -> Result<Slice<'a>, HostFault> {
    let (pointer, count) = (DevicePointer::new(address), elements as usize);
    with_dtype!(dtype, T => Ok(launch.read::<T>(pointer, count)?.into()))
}

/// Returns elements of device memory as cells, which may alias others, in the variant of their dtype.
///
/// # Errors
/// Those of [`HostLaunch::cells`].
pub fn cells<'a>(
    launch: &'a HostLaunch<'_>,
    dtype: DType,
    address: u64,
    elements: u64,
) -> Result<Cells<'a>, HostFault> {
    let (pointer, count) = (DevicePointer::new(address), elements as usize);
    with_dtype!(dtype, T => Ok(launch.cells::<T>(pointer, count)?.into()))
}

/// Returns elements of device memory to write, in the variant of their dtype.
///
/// # Errors
/// Those of [`HostLaunch::write`].
pub fn slice_mut<'a>(
    launch: &'a HostLaunch<'_>,
    dtype: DType,
    address: u64,
    elements: u64,
) -> Result<SliceMut<'a>, HostFault> {
    let (pointer, count) = (DevicePointer::new(address), elements as usize);
    with_dtype!(dtype, T => Ok(launch.write::<T>(pointer, count)?.into()))
}
