//! Memory of other processes, opened in this one.
//!
//! [`DeviceAllocator::open_shared`](crate::DeviceAllocator::open_shared) opens memory that another process exported
//! ([`sharing`](super::sharing)). Many tensors may be in one exported piece, so a piece is opened once, however often it is
//! requested, and closed when its last owner drops it. Opened memory does not belong to the allocator: it is never cached, never
//! handed out, and in no statistic.
//!
//! The memory belongs to the other process, which does not see the streams here. So closing waits for them: the streams that used
//! the memory are noted ([`SharedMemory::record_stream`]), and the last owner's drop *blocks* until they have finished with it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};

use rustc_hash::FxHashMap;
use thalweg_lock::Mutex;

use super::sharing::MemoryHandle;
use crate::device::common::Common;
use crate::error::{AllocationError, Kind};
use crate::ids::StreamId;
use crate::upstream::{MemorySharing, PageHandle, PageId, VirtualMemory};

/// The open memory, by the handle that it was opened with.
#[derive(Default)]
pub(crate) struct Imports(Mutex<FxHashMap<MemoryHandle, Weak<SharedMemory>>>);

/// Memory of another process. Dropping it closes it, and *blocks* until the streams that used it have finished with it. If they
/// cannot be waited for, or a capture is under way, it stays open for the life of the process.
pub struct SharedMemory {
    common: Arc<Common>,
    address: u64,
    /// The mapping of pages; `None` for a plain allocation.
    mapping: Option<Mapping>,
    users: Mutex<BTreeSet<StreamId>>,
}

/// Pages mapped in their own range of addresses.
struct Mapping {
    bytes: u64,
    pages: Vec<PageId>,
    is_mapped: bool,
}

impl Imports {
    /// Opens memory that another process exported, or returns it if it is open already.
    pub(crate) fn open(
        &self,
        common: &Arc<Common>,
        handle: &MemoryHandle,
    ) -> Result<Arc<SharedMemory>, AllocationError> {
        let sharing = common.upstream.sharing();
        let sharing = sharing.ok_or(Kind::Sharing("the upstream shares no memory"))?;
        // The lock is held meanwhile, so that no memory is opened twice at the same time.
        let mut imports = self.0.lock();
        if let Some(open) = imports.get(handle).and_then(Weak::upgrade) {
            return Ok(open);
        }
        imports.retain(|_, memory| memory.strong_count() > 0);
        let memory = Arc::new(match handle {
            MemoryHandle::Allocation(bytes) => {
                let address = sharing
                    .import_allocation(bytes)
                    .map_err(|error| AllocationError::upstream("import_allocation", error))?;
                SharedMemory::new(common, address)
            }
            MemoryHandle::Pages { process, page_bytes, handles, .. } => {
                SharedMemory::open_pages(common, sharing, *process, *page_bytes, handles)?
            }
        });
        imports.insert(handle.clone(), Arc::downgrade(&memory));
        Ok(memory)
    }

    /// Forgets memory and returns it, if the caller has the last reference.
    pub(crate) fn retire(&self, memory: Arc<SharedMemory>) -> Option<Arc<SharedMemory>> {
        // While the lock is held the memory is not found; and if two threads retire it at once, the second sees that it has the
        // last reference.
        let mut imports = self.0.lock();
        if Arc::strong_count(&memory) > 1 {
            return None;
        }
        imports.retain(|_, open| !std::ptr::eq(open.as_ptr(), Arc::as_ptr(&memory)));
        Some(memory)
    }
}

impl SharedMemory {
    fn open_pages(
        common: &Arc<Common>,
        sharing: &dyn MemorySharing,
        process: u32,
        page_bytes: u64,
        handles: &[PageHandle],
    ) -> Result<SharedMemory, AllocationError> {
        let has_such_pages = |memory: &&dyn VirtualMemory| {
            page_bytes > 0 && page_bytes.is_multiple_of(memory.granularity_bytes())
        };
        let memory = common.upstream.virtual_memory().filter(has_such_pages);
        let memory = memory.ok_or(Kind::Sharing("the device has no pages of that size"))?;
        let bytes = page_bytes.checked_mul(handles.len() as u64).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or(Kind::Sharing("there are no pages, or more than there are addresses"))?;
        let address = memory
            .reserve_addresses(bytes)
            .map_err(|error| AllocationError::upstream("reserve_addresses", error))?;
        let mut shared = SharedMemory::new(common, address);
        // From here on, a drop releases everything acquired so far.
        let mapping = shared.mapping.insert(Mapping { bytes, pages: Vec::new(), is_mapped: false });
        for handle in handles {
            let page = sharing
                .import_page(process, page_bytes, handle)
                .map_err(|error| AllocationError::upstream("import_page", error))?;
            mapping.pages.push(page);
        }
        memory
            .map(address, page_bytes, &mapping.pages)
            .map_err(|error| AllocationError::upstream("map", error))?;
        mapping.is_mapped = true;
        Ok(shared)
    }

    fn new(common: &Arc<Common>, address: u64) -> Self {
        Self { common: Arc::clone(common), address, mapping: None, users: Mutex::default() }
    }

    /// Returns the address of the memory in this process. A block is at its [`offset_bytes`](crate::SharedBlock::offset_bytes)
    /// from there.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Records that `stream` uses the memory: it stays open until the present work of the stream is done.
    pub fn record_stream(&self, stream: StreamId) {
        self.users.lock().insert(stream);
    }

    /// *Blocks* until the streams that used the memory have finished with it. Returns whether they could be waited for.
    fn wait(&mut self) -> bool {
        let users = self.users.get_mut();
        let _gate = self.common.hold_gate();
        let events = &self.common.upstream;
        let wait = |stream: &StreamId| {
            let Ok(event) = events.record_event(*stream) else { return false };
            let waited = events.synchronize_event(event).is_ok();
            events.release_event(event);
            waited
        };
        users.is_empty() || (!self.common.is_capturing() && users.iter().all(wait))
    }

    /// Closes the memory. There is no caller to report a refusal to.
    fn close(&self) {
        let (upstream, address) = (&self.common.upstream, self.address);
        let Some(Mapping { bytes, pages, is_mapped }) = &self.mapping else {
            let sharing = upstream.sharing().expect("it was opened by this");
            return drop(sharing.close_allocation(address));
        };
        let memory = upstream.virtual_memory().expect("it was opened with this");
        if *is_mapped && memory.unmap(address, *bytes).is_err() {
            return;
        }
        pages.iter().for_each(|page| drop(memory.destroy_page(*page)));
        drop(memory.free_addresses(address, *bytes));
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.wait() {
            self.close();
        }
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = format_args!("{:#x}", self.address);
        f.debug_struct("SharedMemory").field("address", &address).finish_non_exhaustive()
    }
}
