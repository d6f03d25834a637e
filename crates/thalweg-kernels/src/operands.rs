//! The span of an operand in memory, and operands of a host function, as enum variants by dtype.

use thalweg_driver::{DevicePointer, HostFault, HostLaunch};
use thalweg_ir::host::{Cells, Slice, SliceMut};
use thalweg_ir::{DType, with_dtype};

/// Returns the number of elements from the first to the last of an operand in memory; 0 if it has none.
pub(crate) fn span<const RANK: usize>(extents: [u64; RANK], strides: [u64; RANK]) -> u64 {
    match extents.contains(&0) {
        true => 0,
        false => 1 + extents.iter().zip(strides).map(|(extent, stride)| (extent - 1) * stride).sum::<u64>(),
    }
}

/// Returns elements of device memory to read, in the variant of their dtype.
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
pub fn slice_mut<'a>(
    launch: &'a HostLaunch<'_>,
    dtype: DType,
    address: u64,
    elements: u64,
) -> Result<SliceMut<'a>, HostFault> {
    let (pointer, count) = (DevicePointer::new(address), elements as usize);
    with_dtype!(dtype, T => Ok(launch.write::<T>(pointer, count)?.into()))
}
