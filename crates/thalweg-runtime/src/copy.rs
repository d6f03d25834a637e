//! Copies and fills.

use smallvec::SmallVec;
use thalweg_driver::{Access, AccessMode, Copy, DevicePointer, Endpoint, Fill, FillPattern, Label};

use crate::graph::Command;
use crate::recorder;
use crate::{PinnedBuffer, Result, Stream};

impl Stream {
    /// Copies device memory to device memory, asynchronously.
    pub fn copy_on_device(
        &self,
        target: DevicePointer,
        source: DevicePointer,
        bytes: u64,
        label: Label,
    ) -> Result<()> {
        self.copy(Endpoint::Device(target), Endpoint::Device(source), bytes, label)
    }

    /// Copies pinned memory to the device, asynchronously. The cache keeps the pinned memory until the copy is done.
    pub fn copy_from_pinned(
        &self,
        target: DevicePointer,
        source: &PinnedBuffer,
        offset_bytes: u64,
        bytes: u64,
        label: Label,
    ) -> Result<()> {
        source.check_range(offset_bytes, bytes)?;
        self.copy(
            Endpoint::Device(target),
            Endpoint::Pinned(source.pointer().offset(offset_bytes)),
            bytes,
            label,
        )?;
        source.record_use(self, label);
        Ok(())
    }

    /// Copies device memory to pinned memory, asynchronously: synchronise before reading it. The cache keeps the pinned
    /// memory until the copy is done.
    pub fn copy_to_pinned(
        &self,
        target: &PinnedBuffer,
        offset_bytes: u64,
        source: DevicePointer,
        bytes: u64,
        label: Label,
    ) -> Result<()> {
        target.check_range(offset_bytes, bytes)?;
        self.copy(
            Endpoint::Pinned(target.pointer().offset(offset_bytes)),
            Endpoint::Device(source),
            bytes,
            label,
        )?;
        target.record_use(self, label);
        Ok(())
    }

    fn copy(&self, target: Endpoint, source: Endpoint, bytes: u64, label: Label) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let copy = Copy { target, source, bytes, label };
        let ends = [(target, AccessMode::Write), (source, AccessMode::Read)];
        let accesses: SmallVec<[Access; 2]> = ends
            .into_iter()
            .filter_map(|(end, mode)| match end {
                Endpoint::Device(pointer) => Some(Access::new(pointer.address(), bytes, mode)),
                Endpoint::Pinned(_) => None,
            })
            .collect();
        let parameters = [address(target), address(source), bytes];
        let parameters = bytemuck::bytes_of(&parameters);
        let command = Command::Other { label, accesses: &accesses, parameters };
        let note = || recorder::note_copy(self.key(), &copy, &accesses);
        self.submit_listed(command, note, || self.device().driver().copy_async(self.handle(), &copy))
    }

    /// Copies ordinary host memory to the device. After the return, `source` may be changed.
    pub fn copy_from_host(&self, target: DevicePointer, source: &[u8], label: Label) -> Result<()> {
        if source.is_empty() {
            return Ok(());
        }
        let access = Access::write(target, source.len() as u64);
        let command = Command::Other { label, accesses: &[access], parameters: &[] };
        let note = || recorder::refuse(|| format!("{label} reads memory of the host"));
        self.submit_listed(command, note, || {
            self.device().driver().copy_from_host(self.handle(), target, source, label)
        })
    }

    /// Copies device memory to ordinary host memory. Blocks until the copy is complete.
    pub fn copy_to_host(&self, target: &mut [u8], source: DevicePointer, label: Label) -> Result<()> {
        if target.is_empty() {
            return Ok(());
        }
        self.submit_and_wait(label, || {
            self.device().driver().copy_to_host(self.handle(), target, source, label)
        })
    }

    /// Writes a pattern `count` times, asynchronously.
    pub fn fill(&self, target: DevicePointer, pattern: FillPattern, count: u64, label: Label) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let fill = Fill { target, pattern, count, label };
        let access = Access::write(target, count.saturating_mul(pattern.bytes()));
        let (unit, value) = match pattern {
            FillPattern::U8(value) => (1, u64::from(value)),
            FillPattern::U16(value) => (2, u64::from(value)),
            FillPattern::U32(value) => (4, u64::from(value)),
        };
        let parameters: [u64; 4] = [target.address(), unit, value, count];
        let parameters = bytemuck::bytes_of(&parameters);
        let command = Command::Other { label, accesses: &[access], parameters };
        let note = || recorder::note_fill(self.key(), &fill, &[access]);
        self.submit_listed(command, note, || self.device().driver().fill_async(self.handle(), &fill))
    }
}

fn address(end: Endpoint) -> u64 {
    match end {
        Endpoint::Device(pointer) => pointer.address(),
        Endpoint::Pinned(pointer) => pointer.address(),
    }
}
