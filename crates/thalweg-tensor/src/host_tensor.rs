//! [`HostTensor`]: a tensor in pinned host memory, for loading data and fetching results without waiting.

use std::panic::Location;

use thalweg_derive::in_call;
use thalweg_ir::{DType, Element, Shape, byte_count};
use thalweg_runtime::{Device, Error, PinnedBuffer, Result, invalid, refuse_if};

use crate::caller::{at_line, creating, label_at};
use crate::kernels::recorded_write::{Recording, Write};
use crate::tensor::Tensor;

/// A row-major tensor in pinned host memory. Copies between it and the device are asynchronous, so the caller must order reads
/// and writes on the host, for example by recording an event after the copy and synchronising with it.
#[derive(Debug)]
pub struct HostTensor {
    buffer: PinnedBuffer,
    shape: Shape,
    dtype: DType,
    device: Device,
}

impl HostTensor {
    /// Allocates a tensor in pinned memory of a device's driver. Its elements are uninitialized.
    #[track_caller]
    pub fn pinned(shape: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        let (name, location) = ("HostTensor::pinned", Location::caller());
        let bytes = creating(name, (shape, dtype, device), location, || Ok(byte_count(shape, dtype)?))?;
        // Outside of a closure, so that a report about the memory names the caller's line.
        let buffer = PinnedBuffer::new(device, bytes as u64);
        let buffer = creating(name, (shape, dtype, device), location, || buffer)?;
        Ok(Self { buffer, shape: shape.into(), dtype, device: device.clone() })
    }

    /// Returns the shape: the extent of each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Checks a range of elements and returns its offset in bytes. Truth values are bytes.
    fn check<T: Element>(&self, first: usize, count: usize) -> Result<u64> {
        let elements: usize = self.shape.iter().product();
        let fits = T::DTYPE == self.dtype || (self.dtype == DType::Bool && T::DTYPE == DType::U8);
        refuse_if!(
            !fits || first.checked_add(count).is_none_or(|end| end > elements),
            "elements {first} to {} of {} do not fit a pinned tensor {:?} of {}",
            first.saturating_add(count),
            T::DTYPE,
            self.shape,
            self.dtype
        );
        Ok((first * self.dtype.size_bytes()) as u64)
    }

    /// Writes elements, counted row-major, from `first` on. Does not wait for copies in progress.
    #[track_caller]
    pub fn write<T: Element>(&self, first: usize, values: &[T]) -> Result<()> {
        let offset = at_line(Location::caller(), || self.check::<T>(first, values.len()))?;
        self.buffer.write(offset, values)
    }

    /// Reads elements, counted row-major, from `first` on. Does not wait for copies in progress.
    #[track_caller]
    pub fn read<T: Element>(&self, first: usize, values: &mut [T]) -> Result<()> {
        let offset = at_line(Location::caller(), || self.check::<T>(first, values.len()))?;
        self.buffer.read(offset, values)
    }

    /// Copies the elements to a new tensor on the device, asynchronously on the current stream (`to(device, non_blocking=True)`).
    #[track_caller]
    pub fn to_device(&self) -> Result<Tensor> {
        creating("to_device", (&self.shape, self.dtype, &self.device), Location::caller(), || {
            let tensor = Tensor::empty(&self.shape, self.dtype, &self.device)?;
            self.copy_into(&tensor, Location::caller())?;
            Ok(tensor)
        })
    }

    fn copy_into(&self, tensor: &Tensor, location: &'static Location<'static>) -> Result<()> {
        let bytes = (tensor.elements() * tensor.dtype().size_bytes()) as u64;
        let stream = tensor.device().current_stream();
        stream.copy_from_pinned(
            tensor.pointer(),
            &self.buffer,
            0,
            bytes,
            label_at("copy_from_pinned", location),
        )
    }
}

impl Tensor {
    fn check_against(&self, host: &HostTensor) -> Result<()> {
        if self.shape() == host.shape() && self.dtype() == host.dtype && self.is_contiguous() {
            Ok(())
        } else {
            Err(invalid!(
                "the tensor must be contiguous, {:?} {} like the pinned one",
                host.shape,
                host.dtype
            ))
        }
    }

    /// Overwrites this contiguous tensor, in place, with a pinned one of the same shape and dtype. Asynchronous on the current
    /// stream. Autograd treats it as [`Tensor::copy_`] of a source that requires no gradient.
    #[in_call("copy_from_pinned", &[self])]
    pub fn copy_from_pinned(&self, source: &HostTensor) -> Result<()> {
        self.check_against(source)?;
        let recording = Recording::new(self, &self.detach())?;
        source.copy_into(self, Location::caller())?;
        self.bump_version();
        if let Some(recording) = recording {
            recording.record(Write::Copy { shape: self.shape().into(), dtype: self.dtype() });
        }
        Ok(())
    }

    /// Copies this contiguous tensor into a pinned one of the same shape and dtype. Asynchronous on the current stream:
    /// synchronise before reading it.
    #[in_call("copy_to_pinned", &[self])]
    pub fn copy_to_pinned(&self, target: &HostTensor) -> Result<()> {
        self.check_against(target)?;
        let bytes = (self.elements() * self.dtype().size_bytes()) as u64;
        let label = label_at("copy_to_pinned", Location::caller());
        self.device().current_stream().copy_to_pinned(&target.buffer, 0, self.pointer(), bytes, label)
    }
}
