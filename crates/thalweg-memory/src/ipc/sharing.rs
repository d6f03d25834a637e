//! Memory that is shared with another process.
//!
//! A process *exports* a block as bytes, sends them by any means, and another process opens them. Three things are separate here:
//! the part of the memory that is shared ([`SharedExtent`]), its name outside of this process ([`MemoryHandle`]), and the calls
//! of the driver ([`MemorySharing`](crate::upstream::MemorySharing)).
//!
//! | [`SharingKind`] | shared part | how it is opened |
//! |---|---|---|
//! | `Plain` | the entire segment that contains the block: a driver exports an allocation by its first address | in one call |
//! | `Pages` | only the pages that contain the block | one page at a time, then mapped side by side |
//!
//! In both cases other blocks of the process may be in the same memory: the process that opens it is trusted with them. Plain
//! memory is better for sharing: it needs one handle however large it is, whereas each page needs one, and file descriptors are
//! scarce. A program that plans to share a tensor allocates it from a pool of plain memory, or with `expandable_segments` off,
//! and can check the result with [`Block::sharing_kind`].
//!
//! PyTorch exports *all* pages of an expandable segment up to the end of the mapped range. Here free pages can move, so a process
//! that opened more than the block could keep a page that another block owns by now. The pages of a live block stay. So a block
//! must stay alive while another process has it open; the processes must ensure that.
//!
//! # The bytes
//!
//! The format is PyTorch's (version 3): first the version, then `c` or `e`.
//!
//! ```text
//! 3 'c' | 64 bytes: the driver's handle of the allocation
//! 3 'e' | i32 process | 4 bytes | u64 page bytes | u64 pages | i32 handle type | 4 bytes |  then for each page
//!                                                              1: a file descriptor, i32, of that process
//!                                                              2: 64 bytes: a fabric handle
//! ```
//!
//! Numbers are little-endian, and the gaps are the padding that C inserts. The offset of the block is sent separately. The bytes
//! come from another process: whatever they are, reading them neither panics nor allocates more memory than their own length.
//!
//! Not handled here: opening memory that other processes exported ([`imports`](super::imports)), sending the bytes, keeping
//! blocks alive for others, and events between processes.

use std::fmt;

use crate::device::block::Block;
use crate::error::{AllocationError, Kind};
use crate::upstream::{PageHandle, PageId};

/// The kind of sharing that a block's memory allows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SharingKind {
    /// The memory is shared as one allocation, the block's segment.
    Plain,
    /// The memory is shared page by page.
    Pages,
}

/// The part of the memory that is shared with a block. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedExtent {
    /// The kind of sharing.
    pub kind: SharingKind,
    /// The address at which the shared memory begins: the segment, or the first of the pages.
    pub base_address: u64,
    /// The number of bytes that are shared.
    pub extent_bytes: u64,
    /// The distance from the beginning to the block, in bytes.
    pub offset_bytes: u64,
    /// The size of the block, in bytes.
    pub size_bytes: u64,
    /// The pages in the order of their addresses, without gaps; empty if the memory is plain.
    pub pages: Vec<PageId>,
}

/// A block in the form that is sent to another process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedBlock {
    /// The handle of the memory to open.
    pub memory: MemoryHandle,
    /// The distance from the beginning of that memory to the block, in bytes.
    pub offset_bytes: u64,
    /// The size of the block, in bytes.
    pub size_bytes: u64,
}

impl Block {
    /// Returns how the memory can be shared with another process; `None` if it cannot be shared: the block is null or revoked, or
    /// the driver's stream-ordered allocator owns the memory.
    pub fn sharing_kind(&self) -> Option<SharingKind> {
        let (arena, block) = self.place();
        let state = arena.lock();
        let block = block.filter(|block| !state.is_revoked(*block) && !state.policy.stream_ordered)?;
        Some(if state.blocks.tag(block).is_expandable { SharingKind::Pages } else { SharingKind::Plain })
    }

    /// Returns whether [`share`](Self::share) can work: the memory is of a kind that can be shared, and the upstream supports
    /// sharing.
    pub fn is_exportable(&self) -> bool {
        self.place().0.common.upstream.sharing().is_some() && self.sharing_kind().is_some()
    }

    /// Returns the memory that is shared with the block; `None` in the same cases as [`sharing_kind`](Self::sharing_kind).
    pub fn shared_extent(&self) -> Option<SharedExtent> {
        let kind = self.sharing_kind()?;
        let (arena, block) = self.place();
        let (state, block) = (arena.lock(), block?);
        let (base_address, extent_bytes, pages) = match kind {
            SharingKind::Plain => {
                let segment = state.blocks.segment_of(block);
                (segment.address, segment.size_bytes, Vec::new())
            }
            SharingKind::Pages => {
                let (address, page_bytes, pages) = state.pages_after(block);
                (address, pages.len() as u64 * page_bytes, pages)
            }
        };
        let (offset_bytes, size_bytes) = (self.address() - base_address, self.size_bytes());
        Some(SharedExtent { kind, base_address, extent_bytes, offset_bytes, size_bytes, pages })
    }

    /// Exports the memory. It must not be freed while another process has it open. File descriptors in the result belong to this
    /// process, and stay open as long as their pages exist.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if the block is not [exportable](Self::is_exportable); or
    /// the upstream's error.
    pub fn share(&self) -> Result<SharedBlock, AllocationError> {
        let upstream = &self.place().0.common.upstream;
        let sharing = upstream.sharing().ok_or(Kind::Sharing("the upstream shares no memory"))?;
        let extent = self.shared_extent().ok_or(Kind::Sharing(
            "there is none, it was taken back, or it comes from the driver's stream-ordered allocator",
        ))?;
        let SharedExtent { kind, base_address, extent_bytes, offset_bytes, size_bytes, pages } = extent;
        let memory = match kind {
            SharingKind::Plain => {
                let exported = sharing.export_allocation(base_address);
                let handle =
                    exported.map_err(|error| AllocationError::upstream("export_allocation", error))?;
                MemoryHandle::Allocation(Box::new(handle))
            }
            SharingKind::Pages => {
                let exported: Result<Vec<PageHandle>, _> =
                    pages.iter().map(|page| sharing.export_page(*page)).collect();
                let handles = exported.map_err(|error| AllocationError::upstream("export_page", error))?;
                let page_bytes = extent_bytes / pages.len() as u64;
                MemoryHandle::Pages {
                    process: std::process::id(),
                    serial: sharing.serial(),
                    page_bytes,
                    handles,
                }
            }
        };
        Ok(SharedBlock { memory, offset_bytes, size_bytes })
    }
}

/// Memory of another process, or of this one, to be opened.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MemoryHandle {
    /// One allocation, as the driver exports it.
    Allocation(Box<[u8; 64]>),
    /// Pages that are mapped side by side.
    Pages {
        /// The process that exported the memory, which owns the file descriptors.
        process: u32,
        /// The process's [`serial`](crate::MemorySharing::serial) when it exported them: equal descriptor numbers mean the same
        /// page only if the serials are equal too. PyTorch, which has no serial, leaves arbitrary bytes in its place.
        serial: u64,
        /// The size of each page, in bytes.
        page_bytes: u64,
        /// The handles, one per page, all of one kind.
        handles: Vec<PageHandle>,
    },
}

const VERSION: u8 = 3;
const ALLOCATION: u8 = b'c';
const PAGES: u8 = b'e';
const DESCRIPTORS: i32 = 1;
const FABRIC: i32 = 2;

impl MemoryHandle {
    /// Returns the bytes to send.
    ///
    /// # Panics
    /// If there are no pages, or pages of both kinds, or the process number is not one; handles that this crate exports satisfy
    /// all of this.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Allocation(handle) => [&[VERSION, ALLOCATION][..], &handle[..]].concat(),
            Self::Pages { process, serial, page_bytes, handles } => {
                let handle_type = match handles.first().expect("what is shared has a page") {
                    PageHandle::Descriptor(_) => DESCRIPTORS,
                    PageHandle::Fabric(_) => FABRIC,
                };
                let process = i32::try_from(*process).expect("processes are numbered by i32");
                let mut bytes = vec![VERSION, PAGES];
                // The gaps that PyTorch leaves unused between its fields contain the halves of the serial number.
                let serial = serial.to_le_bytes();
                bytes.extend(process.to_le_bytes());
                bytes.extend(&serial[..4]);
                bytes.extend(page_bytes.to_le_bytes());
                bytes.extend((handles.len() as u64).to_le_bytes());
                bytes.extend(handle_type.to_le_bytes());
                bytes.extend(&serial[4..]);
                for handle in handles {
                    match (handle, handle_type) {
                        (PageHandle::Descriptor(descriptor), DESCRIPTORS) => {
                            bytes.extend(descriptor.to_le_bytes());
                        }
                        (PageHandle::Fabric(fabric), FABRIC) => bytes.extend(&fabric[..]),
                        _ => panic!("all pages of a block are exported in one way"),
                    }
                }
                bytes
            }
        }
    }

    /// Decodes a handle.
    ///
    /// # Errors
    /// If the bytes have another version, are truncated, have trailing bytes, or are not a valid handle.
    pub fn decode(bytes: &[u8]) -> Result<Self, HandleError> {
        let mut rest = Rest(bytes);
        let [version, kind] = rest.array("its version and kind")?;
        if version != VERSION {
            return Err(HandleError(format!("it is of version {version}, and {VERSION} is understood")));
        }
        let handle = match kind {
            ALLOCATION => Self::Allocation(Box::new(rest.array("the handle of an allocation")?)),
            PAGES => rest.pages()?,
            other => return Err(HandleError(format!("its kind is {other:#04x}, and must be 'c' or 'e'"))),
        };
        match rest.0.len() {
            0 => Ok(handle),
            more => Err(HandleError(format!("there are {more} bytes behind its end"))),
        }
    }

    /// Returns the size of the memory in bytes, if the handle contains it.
    pub fn extent_bytes(&self) -> Option<u64> {
        match self {
            Self::Allocation(_) => None,
            Self::Pages { page_bytes, handles, .. } => Some(page_bytes * handles.len() as u64),
        }
    }
}

/// The reason why bytes are not a handle of shared memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandleError(String);

impl fmt::Display for HandleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "these bytes are not a handle of shared memory: {}; export the block again", self.0)
    }
}

impl std::error::Error for HandleError {}

/// The bytes that have not been read yet.
struct Rest<'b>(&'b [u8]);

impl Rest<'_> {
    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], HandleError> {
        let Some((first, rest)) = self.0.split_first_chunk::<N>() else {
            return Err(HandleError(format!("{what} takes {N} bytes, and {} are left", self.0.len())));
        };
        self.0 = rest;
        Ok(*first)
    }

    fn pages(&mut self) -> Result<MemoryHandle, HandleError> {
        let number = |bytes: &[u8; 32], at: usize| -> [u8; 8] {
            bytes[at..at + 8].try_into().expect("a range of eight bytes")
        };
        let small = |bytes: [u8; 8]| i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let header: [u8; 32] = self.array("the header")?;
        let (process, handle_type) = (small(number(&header, 0)), small(number(&header, 24)));
        let half =
            |at: usize| u64::from(u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes")));
        let serial = half(4) | half(28) << 32;
        let page_bytes = u64::from_le_bytes(number(&header, 8));
        let count = u64::from_le_bytes(number(&header, 16));
        let process = u32::try_from(process).ok().filter(|process| *process > 0);
        let process =
            process.ok_or_else(|| HandleError("its process is not a positive number".to_owned()))?;
        let each: u64 = match handle_type {
            DESCRIPTORS => 4,
            FABRIC => 64,
            other => return Err(HandleError(format!("its handle type is {other}, and must be 1 or 2"))),
        };
        let left = self.0.len() as u64;
        if count == 0 || count.checked_mul(each).is_none_or(|bytes| bytes > left) {
            return Err(HandleError(format!("it says {count} pages, and {left} bytes are left for them")));
        }
        if page_bytes == 0 || !page_bytes.is_multiple_of(512) || page_bytes.checked_mul(count).is_none() {
            return Err(HandleError(format!("{count} pages of {page_bytes} bytes make no sense")));
        }
        let handles: Result<Vec<PageHandle>, HandleError> =
            (0..count).map(|_| self.page(handle_type)).collect();
        Ok(MemoryHandle::Pages { process, serial, page_bytes, handles: handles? })
    }

    fn page(&mut self, handle_type: i32) -> Result<PageHandle, HandleError> {
        if handle_type == FABRIC {
            return Ok(PageHandle::Fabric(Box::new(self.array("a fabric handle")?)));
        }
        let descriptor = i32::from_le_bytes(self.array("a file descriptor")?);
        if descriptor < 0 {
            return Err(HandleError(format!("{descriptor} is not a file descriptor")));
        }
        Ok(PageHandle::Descriptor(descriptor))
    }
}
