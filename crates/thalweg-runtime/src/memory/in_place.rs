//! The host's view of a buffer, through which it accesses the memory in place.
//!
//! A view belongs to its buffer, and ends before the buffer's memory is returned. The address that it has given out is valid as long as
//! the buffer: the code that keeps the address keeps a tensor over the buffer.

use thalweg_driver::DevicePointer;

use crate::{Device, Result};

/// The host's view of a buffer.
pub(super) struct View {
    device: Device,
    pointer: DevicePointer,
    bytes: u64,
    /// The address of the first byte in the process.
    pub(super) address: u64,
}

impl View {
    /// Returns a view of memory of a device, and waits for the device's work.
    pub(super) fn new(device: &Device, pointer: DevicePointer, bytes: u64) -> Result<Self> {
        let address = device.driver().host_view(device.index(), pointer, bytes)?;
        Ok(Self { device: device.clone(), pointer, bytes, address })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // Without the view, calls on the memory return earlier. So a failure costs time and nothing else.
        let _ = self.device.driver().host_unview(self.pointer, self.bytes);
    }
}
