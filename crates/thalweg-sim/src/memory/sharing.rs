//! Memory that is exported and imported: within one machine only.
//!
//! An export is a *token*: the process, the machine, and a number that the machine can interpret. A file descriptor is an
//! anonymous file that contains the token; a fabric or an IPC handle is the token itself. So the logic above can run in one
//! process as it would on a GPU in two. Another process or machine does not have the memory and returns an error.
//!
//! Unlike on a GPU, an exported file does not keep the memory alive: a handle or a mapping does.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Weak};

use super::backing::{PAGE_BYTES, anonymous_file};
use super::ranges::Range;
use super::virtual_memory::PhysicalMemory;
use crate::memory::{Allocation, DEVICE_BASE, Memory, Opened, Piece, Span, SpanAccess};
use crate::refusal::{CallResult, Refusal};
use smallvec::SmallVec;
use thalweg_driver::{Code, HandleType, IpcHandle, ShareableHandle};

/// The bytes with which every token begins.
const MAGIC: [u8; 8] = *b"thw-sim1";
const TOKEN_BYTES: usize = 32;

/// An export: see the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Token {
    process: u32,
    machine: u16,
    /// The number of physical memory, or the address of plain memory.
    subject: u64,
    /// The allocation that a plain address belonged to; 0 for physical memory.
    allocation: u64,
}

impl Token {
    fn to_bytes(self) -> [u8; TOKEN_BYTES] {
        let mut bytes = [0; TOKEN_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.process.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.machine.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.subject.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.allocation.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; TOKEN_BYTES] = bytes.first_chunk()?;
        let number = |start: usize| {
            u64::from_le_bytes(bytes[start..start + 8].try_into().expect("eight bytes were taken"))
        };
        (bytes[..8] == MAGIC).then(|| Self {
            process: number(8) as u32,
            machine: (number(8) >> 32) as u16,
            subject: number(16),
            allocation: number(24),
        })
    }

    fn to_handle(self) -> [u8; 64] {
        let mut handle = [0; 64];
        handle[..TOKEN_BYTES].copy_from_slice(&self.to_bytes());
        handle
    }
}

/// Physical memory that was exported, by number.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    last: u64,
    memories: Vec<(u64, Weak<PhysicalMemory>)>,
}

impl Exports {
    /// Returns the number of this memory, which is the same at every export.
    fn number(&mut self, memory: &Arc<PhysicalMemory>) -> u64 {
        self.memories.retain(|(_, known)| known.strong_count() > 0);
        if let Some((number, _)) =
            self.memories.iter().find(|(_, known)| known.as_ptr() == Arc::as_ptr(memory))
        {
            return *number;
        }
        self.last += 1;
        self.memories.push((self.last, Arc::downgrade(memory)));
        self.last
    }

    fn find(&self, number: u64) -> Option<Arc<PhysicalMemory>> {
        self.memories.iter().find(|(known, _)| *known == number)?.1.upgrade()
    }
}

impl Memory {
    fn token(&self, subject: u64, allocation: u64) -> Token {
        Token { process: std::process::id(), machine: self.machine, subject, allocation }
    }

    /// Decodes a token that this machine made.
    fn own_token(&self, bytes: &[u8]) -> CallResult<Token> {
        let token = Token::from_bytes(bytes)
            .ok_or_else(|| Refusal::new(Code::InvalidValue, "this is not a handle of simulated memory"))?;
        if token == self.token(token.subject, token.allocation) {
            return Ok(token);
        }
        Err(Refusal::new(
            Code::NotSupported,
            format!(
                "the memory is of another simulated machine (process {}): simulated memory is shared within one machine \
                 of one process only",
                token.process
            ),
        ))
    }

    pub(crate) fn physical_export(&mut self, handle: u64) -> CallResult<ShareableHandle> {
        let memory = Arc::clone(self.physical(handle)?);
        let Some(share_as) = memory.share_as else {
            return Err(Refusal::new(
                Code::InvalidValue,
                "the physical memory was made without `share_as`, and cannot be shared",
            ));
        };
        let number = self.exports.number(&memory);
        let token = self.token(number, 0);
        match share_as {
            HandleType::Fabric => Ok(ShareableHandle::Fabric(Box::new(token.to_handle()))),
            HandleType::FileDescriptor => {
                let refuse =
                    |error| Refusal::new(Code::OperatingSystem, format!("no file to export: {error}"));
                let mut file = anonymous_file(0).map_err(refuse)?;
                file.write_all(&token.to_bytes()).map_err(refuse)?;
                Ok(ShareableHandle::FileDescriptor(OwnedFd::from(file)))
            }
        }
    }

    pub(crate) fn physical_import(
        &mut self,
        device: u32,
        bytes: u64,
        handle: &ShareableHandle,
    ) -> CallResult<u64> {
        let mut content = [0; TOKEN_BYTES];
        let token = match handle {
            ShareableHandle::Fabric(bytes) => self.own_token(&bytes[..])?,
            ShareableHandle::FileDescriptor(descriptor) => {
                let file = descriptor.as_fd().try_clone_to_owned().map(File::from);
                file.and_then(|file| file.read_exact_at(&mut content, 0)).map_err(|error| {
                    let detail = format!("the descriptor is not exported memory: {error}");
                    Refusal::new(Code::InvalidValue, detail)
                })?;
                self.own_token(&content)?
            }
        };
        let memory = self.exports.find(token.subject).ok_or_else(|| {
            Refusal::new(Code::InvalidValue, "the exported memory is gone: nothing holds or maps it any more")
        })?;
        if memory.share_as != Some(handle.handle_type()) {
            return Err(Refusal::new(
                Code::InvalidValue,
                format!("the memory was exported as {:?}", memory.share_as),
            ));
        }
        if (memory.device, memory.bytes) != (device, bytes) {
            let code = if memory.device == device { Code::InvalidValue } else { Code::InvalidDevice };
            return Err(Refusal::new(
                code,
                format!(
                    "{bytes} bytes of device {device}: the exported memory has {} bytes and is on device {}",
                    memory.bytes, memory.device
                ),
            ));
        }
        Ok(self.physicals.insert(memory))
    }

    pub(crate) fn ipc_export(&self, address: u64) -> CallResult<IpcHandle> {
        match self.spans_in(address, 1).next() {
            Some((_, span)) if span.sharing == SpanAccess::Plain && self.plain_pieces(address).is_ok() => {
                Ok(IpcHandle(self.token(address, span.allocation).to_handle()))
            }
            _ => Err(Refusal::new(
                Code::InvalidValue,
                format!("{address:#x} is not the start of live memory of memory_allocate"),
            )),
        }
    }

    /// Maps the exported memory a second time.
    pub(crate) fn ipc_open(&mut self, device: u32, handle: IpcHandle) -> CallResult<u64> {
        let token = self.own_token(&handle.0)?;
        let origin = token.subject;
        let is_alive =
            self.spans_in(origin, 1).next().is_some_and(|(_, span)| span.allocation == token.allocation);
        let Some(Allocation::Plain(segment)) = self.allocations.get(&origin).filter(|_| is_alive) else {
            return Err(Refusal::new(Code::InvalidValue, "the exported memory was freed"));
        };
        if segment.device != device {
            let detail =
                format!("the exported memory is on device {}, not on device {device}", segment.device);
            return Err(Refusal::new(Code::InvalidDevice, detail));
        }
        let (bytes, pieces) = (segment.bytes, segment.pieces.clone());
        let offset = self.take_area(bytes, PAGE_BYTES)?;
        if let Err(refusal) = self.map_pieces(offset, device, &pieces) {
            self.area.release(Range { start: offset, bytes });
            return Err(refusal);
        }
        let (address, allocation) = (DEVICE_BASE + offset, self.next_allocation());
        let spans: SmallVec<[(u64, Span); 1]> = self
            .spans_in(origin, bytes)
            .map(|(start, span)| {
                let start = address + (start - origin);
                (start, Span { allocation, pointer: self.host_address(start), ..*span })
            })
            .collect();
        for (start, span) in spans {
            self.add_span(start, span);
        }
        self.opened.insert(address, Opened { origin, bytes });
        Ok(address)
    }

    /// Returns the plain memory around an address, at its original address or where it was opened.
    pub(crate) fn address_range(&self, address: u64) -> CallResult<(u64, u64)> {
        let allocated = self.allocations.iter().filter_map(|(&start, allocation)| match allocation {
            Allocation::Plain(segment) => Some((start, segment.bytes)),
            Allocation::Pinned { .. } | Allocation::Process { .. } => None,
        });
        let opened = self.opened.iter().map(|(&start, opened)| (start, opened.bytes));
        let around = |(start, bytes): &(u64, u64)| (*start..start + bytes).contains(&address);
        allocated.chain(opened).find(around).ok_or_else(|| {
            let detail = format!("{address:#x} is not in memory that memory_allocate or ipc_open gave");
            Refusal::new(Code::InvalidValue, detail)
        })
    }

    /// Returns the memory that `ipc_open` mapped at an address.
    pub(crate) fn opened_pieces(&self, address: u64) -> CallResult<SmallVec<[Piece; 4]>> {
        let Some(opened) = self.opened.get(&address) else {
            return Err(Refusal::new(
                Code::InvalidValue,
                format!("{address:#x} is not the start of memory that ipc_open opened"),
            ));
        };
        self.plain_pieces(opened.origin).map(|(_, pieces)| pieces)
    }

    /// Unmaps the pieces that `opened_pieces` found, under the same lock.
    pub(crate) fn ipc_close(&mut self, address: u64) {
        let Opened { bytes, .. } = self.opened.remove(&address).expect("opened_pieces found it");
        self.remove_spans(address, bytes);
        let offset = address - DEVICE_BASE;
        self.unmap_area(offset, bytes);
        self.area.release(Range { start: offset, bytes });
    }

    /// Refuses to free memory that a process has open. (On a GPU that is undefined.)
    pub(crate) fn check_not_open(&self, origin: u64) -> CallResult<()> {
        match self.opened.iter().find(|(_, opened)| opened.origin == origin) {
            Some((address, _)) => Err(Refusal::new(
                Code::InvalidValue,
                format!("{origin:#x} is open at {address:#x}: close it with ipc_close first"),
            )),
            None => Ok(()),
        }
    }
}
