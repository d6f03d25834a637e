//! Communicators: groups of devices as ranks, and collectives as commands of streams.

use smallvec::SmallVec;
use thalweg_driver::{
    Access, Collective, CollectiveOperation, CommunicatorHandle, CommunicatorId, CommunicatorInfo,
    DevicePointer, ElementFormat, Label, Registration,
};

use crate::graph::Command;
use crate::refuse;
use crate::{Device, Error, Result, Stream};

/// A device's rank in a communicator. Dropping it leaves the communicator, which *blocks* until its collectives are done;
/// [`Communicator::abort`] does not wait.
#[derive(Debug)]
pub struct Communicator {
    device: Device,
    handle: CommunicatorHandle,
    info: CommunicatorInfo,
    is_over: std::sync::atomic::AtomicBool,
}

/// A rank's part of a collective, without the communicator and the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollectivePart {
    /// The operation, the same on all ranks.
    pub operation: CollectiveOperation,
    /// The format of the elements.
    pub format: ElementFormat,
    /// The number of elements, counted as each operation defines.
    pub count: u64,
    /// The memory that this rank sends from.
    pub send: DevicePointer,
    /// The memory in which this rank receives the result.
    pub receive: DevicePointer,
    /// The call that requested the collective.
    pub label: Label,
}

impl Communicator {
    /// Returns an identifier with which ranks can [`join`](Self::join). One rank creates it, and the program sends it to the
    /// others.
    ///
    /// # Errors
    /// [`Error::is_library_missing`] on a GPU without NCCL.
    pub fn new_id(device: &Device) -> Result<CommunicatorId> {
        device.check(device.driver().communicator_id())
    }

    /// Makes a device a rank of the communicator with this identifier. *Blocks* on a GPU until all ranks have joined.
    ///
    /// # Errors
    /// If the rank is out of range or taken; on a GPU without NCCL, [`Error::is_library_missing`].
    pub fn join(device: &Device, id: &CommunicatorId, rank: u32, ranks: u32) -> Result<Self> {
        let handle = device.check(device.driver().communicator_join(id, device.index(), rank, ranks))?;
        let info = device.check(device.driver().communicator_info(handle))?;
        Ok(Self { device: device.clone(), handle, info, is_over: false.into() })
    }

    /// Creates a communicator of a part of the ranks, which are listed in their new order (`ncclCommSplit`). *All* ranks must
    /// call this, in the same order relative to their other splits, with no collectives under way. The ranks of one part pass the
    /// same list; a rank outside every part passes an empty list and gets `None`. *Blocks* on a GPU until all ranks have called.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the ranks do not form a part; [`Error::is_not_supported`] if NCCL is older than 2.18.
    pub fn split(&self, part: &[u32]) -> Result<Option<Self>> {
        let device = &self.device;
        let Some(handle) = device.check(device.driver().communicator_split(self.handle, part))? else {
            return Ok(None);
        };
        let info = device.check(device.driver().communicator_info(handle))?;
        Ok(Some(Self { device: device.clone(), handle, info, is_over: false.into() }))
    }

    /// Registers device memory with the rank. Symmetric memory is registered by all ranks, which *block* on GPUs until the others
    /// have called. It stays registered until it is deregistered, or the rank is dropped or aborted.
    pub(crate) fn register(
        &self,
        pointer: DevicePointer,
        bytes: u64,
        symmetric: bool,
        label: Label,
    ) -> thalweg_driver::Result<()> {
        let registration = Registration { communicator: self.handle, pointer, bytes, symmetric, label };
        self.device.driver().memory_register(&registration)
    }

    /// Removes the registration of the memory that begins at `pointer`. Does nothing if the rank has been aborted.
    pub(crate) fn deregister(&self, pointer: DevicePointer) -> thalweg_driver::Result<()> {
        if self.is_over.load(std::sync::atomic::Ordering::Acquire) {
            return Ok(());
        }
        self.device.driver().memory_deregister(self.handle, pointer)
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns this rank's number.
    pub fn rank(&self) -> u32 {
        self.info.rank
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> u32 {
        self.info.ranks
    }

    /// Queues parts of collectives as one group: they are not ordered among each other, and another rank may be waiting for any
    /// of them. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a rank does not exist, a size is invalid, or the stream is of another device.
    pub fn submit(&self, stream: &Stream, parts: &[CollectivePart]) -> Result<()> {
        let Some(first) = parts.first() else { return Ok(()) };
        let group: SmallVec<[Collective; 4]> = parts.iter().map(|part| self.placed(stream, part)).collect();
        let mut accesses: SmallVec<[Access; 8]> = SmallVec::new();
        for call in &group {
            let Some(own) = call.accesses(self.info.rank, self.info.ranks) else {
                refuse!("{}: {} elements are more than there are addresses", call.operation, call.count);
            };
            accesses.extend(own);
        }
        let command = Command::Other { label: first.label, accesses: &accesses, parameters: &[] };
        stream.submit(command, || self.device.driver().collectives_async(&group))
    }

    fn placed(&self, stream: &Stream, part: &CollectivePart) -> Collective {
        let &CollectivePart { operation, format, count, send, receive, label } = part;
        let (communicator, stream) = (self.handle, stream.handle());
        Collective { communicator, stream, operation, format, count, send, receive, label }
    }

    /// Leaves the communicator without waiting: its collectives that other ranks have not joined end unfinished. Nothing can be
    /// submitted afterwards.
    ///
    /// # Errors
    /// The driver's errors. Returns `Ok` if the rank was aborted before.
    pub fn abort(&self) -> Result<()> {
        if self.is_over.swap(true, std::sync::atomic::Ordering::AcqRel) {
            return Ok(());
        }
        self.device.check(self.device.driver().communicator_abort(self.handle))
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // In a forked child the rank is the parent's. No caller could use the driver's result.
        if !*self.is_over.get_mut() && !self.device.is_left() {
            let _ = self.device.driver().communicator_destroy(self.handle);
        }
    }
}
