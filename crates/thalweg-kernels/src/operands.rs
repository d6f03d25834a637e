//! The span of an operand in memory, and operands of a host function, as enum variants by dtype.

use smallvec::SmallVec;
use thalweg_driver::{DevicePointer, HostFault, HostLaunch};
use thalweg_ir::host::{Cells, Slice, SliceMut, Source};
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

/// An input as a thread sees it that runs a part of a launch.
#[derive(Clone, Copy)]
pub enum PartInput<'a> {
    /// Elements that no part of the launch writes.
    Slice(Slice<'a>),
    /// The elements of an output, which the thread's own part writes.
    Output(usize),
}

/// Returns the inputs of a run whose outputs are these cells.
pub fn sources_of<'a>(
    inputs: impl IntoIterator<Item = PartInput<'a>>,
    outputs: &[Cells<'a>],
) -> SmallVec<[Source<'a>; 8]> {
    let source = |input| match input {
        PartInput::Slice(slice) => Source::Slice(slice),
        PartInput::Output(output) => Source::Cells(outputs[output]),
    };
    inputs.into_iter().map(source).collect()
}
