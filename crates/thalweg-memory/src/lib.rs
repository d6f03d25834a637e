//! The caching allocators of Thalweg.
//!
//! Asking a GPU's driver for memory takes tens of microseconds, and giving it back waits for the device. A training step
//! asks thousands of times, and asks for the same sizes in every step. So memory is taken from the driver in large
//! pieces, cut to size, and kept when it is freed.
//!
//! What makes it more than a heap is time. Freeing happens on the host, while the device may not even have *begun* the work
//! that uses the memory. On one stream that is no matter: whatever is put there later also runs later. Between streams it
//! is the whole difficulty.
//!
//! # The words
//!
//! - **Upstream**: where memory and events come from ([`Upstream`]): a driver, or a [fake](fake::FakeUpstream).
//! - **Segment**: a range of addresses. A *plain* one is taken from the upstream as it is; in one that *grows*, pages of
//!   physical memory are mapped as they are needed. It belongs to one arena and one size class, for life.
//! - **Block**: a part of a segment. Blocks tile their segment; the free ones never touch each other. A caller holds a block
//!   as a [`Block`], which frees it when dropped.
//! - **Pool**: the memory among which a request looks. There is the shared pool, and there are private ones ([`PoolId`]): for
//!   captured graphs, whose addresses must stay put, and for programs that want memory of a certain kind, or to themselves.
//! - **Arena**: one pool's memory on one stream, behind a lock of its own.
//! - **Use**: a stream other than the block's own on which it was used ([`Block::record_use`], [`Block::record_stream`]).
//! - **Pending free**: a block that was freed while it had uses. It waits for an event on each of their streams.
//! - **Active**: in a caller's hands, or a pending free. **Inactive**: free.
//!
//! # A block's life
//!
//! ```text
//!            upstream
//!     allocate │  ▲ free        whole plain segments, or pages: on empty_cache,
//!        + map ▼  │ + unmap     or when the upstream has run out
//!           ┌────────┐   best fit on the stream; the rest is split off    ┌───────────┐
//!           │ cached │ ─────────────────────────────────────────────────▶ │ allocated │
//!           └────────┘                                                    └───────────┘
//!              ▲  ▲                   dropped, no uses                      │      │
//!              │  └─────────────────────────────────────────────────────────┘      │ dropped,
//!              │      merged with free neighbours                                  │ with uses
//!              │                                                                   ▼
//!              │        all events have passed, or the                    ┌──────────────┐
//!              └───────────────────────────────────────────────────────── │ pending free │
//!                       stream waits for them                             └──────────────┘
//! ```
//!
//! # The rooms
//!
//! | module | knows | never sees |
//! |---|---|---|
//! | `blocks` | addresses: segments, split and merge | streams, pools, pages, the upstream |
//! | `bins` | the free blocks by size | everything else |
//! | `order`, `reach` | when a freed block may be used again: by events, or by a captured graph | addresses, sizes |
//! | `gauges`, `ledger` | sums, exact without a shared counter | why |
//! | `policy` | sizes: rounding, segments, when to split | state |
//! | `arena` | how a block moves through all of these, under one lock | other arenas |
//! | `common` | what all arenas share, and which there are | what is in them |
//! | `grow`, `aliases` | pages, and how they move | where else there is memory |
//! | `ladder`, `release` | what to do when memory is short, and what goes back; all arenas, one at a time | |
//! | `directory`, `pools` | which arena serves whom | blocks |
//! | `direct` | the same books for memory that is not cached here | |
//! | `registry`, `raw`, `exact`, `checkpoint` | blocks by address, at an address, and pools put back to what they were | the upstream |
//! | `vigil` | which blocks are held, and who hears when one is given back | graphs |
//! | `sharing`, `imports` | memory for other processes, and theirs | |
//! | [`settings`] | every key of the configuration, and its text | what an allocator makes of it |
//! | [`stats`], `summary` | what happened, and what is there | |
//! | [`history`], [`observe`] | each event, with its time and its place in the program; who wants to be told | blocks |
//! | [`host`] | pinned host memory, from end to end | |
//! | `inbox` | how a drop gets past a lock that is taken | what it brings |
//! | `reentry` | which threads are in a function of the program's that is called with a lock held | locks |
//!
//! `docs/memory.md` says why it is so, and what to do at two in the morning.
//!
//! # What holds
//!
//! - Live blocks never overlap, and no byte of a segment is lost.
//! - A block is handed out on a stream only where its memory's last life is over for that stream: the same stream, or events
//!   that have passed, or that the stream was made to wait for.
//! - In steady state an allocation takes no lock that another stream takes, and calls no driver.
//! - No request fails for want of memory while a legal free block exists (`ladder` says what is legal).
//! - Any call of the upstream may fail, or panic: the allocator is valid before and after, and works on.
//! - Dropping a block neither fails nor waits.
//! - With the same calls by one thread, the same decisions: nothing depends on hash order or a clock (but to report how long
//!   something took).
//!
//! What is not here: kernels, tensors, devices, and any `unsafe`. The memory is never touched, only its addresses are.
//!
//! ```
//! use std::sync::Arc;
//! use thalweg_memory::fake::FakeUpstream;
//! use thalweg_memory::{DeviceAllocator, Settings, StreamId};
//!
//! let upstream = Arc::new(FakeUpstream::new(1 << 30));
//! let allocator = DeviceAllocator::new(upstream.clone(), Settings::default());
//! let compute = StreamId::from_raw(1);
//! let block = allocator.allocate(1000, compute)?;
//! assert_eq!(block.size_bytes(), 1024);
//! let address = block.address();
//! drop(block);
//! assert_eq!(allocator.allocate(900, compute)?.address(), address);
//! assert_eq!(upstream.calls().allocate, 1);
//! # Ok::<(), thalweg_memory::AllocationError>(())
//! ```
#![forbid(unsafe_code)]

#[cfg(not(feature = "planted-bugs"))]
#[macro_use]
mod planted;
#[cfg(feature = "planted-bugs")]
#[macro_use]
pub mod planted;

mod advice;
mod aliases;
mod allocator;
mod arena;
mod bins;
mod blocks;
mod checkpoint;
mod common;
mod direct;
mod directory;
mod error;
mod exact;
mod failure;
pub mod fake;
mod gauges;
mod grow;
pub mod history;
pub mod host;
mod imports;
mod inbox;
mod ladder;
mod ledger;
pub mod observe;
mod order;
mod policy;
mod pools;
mod raw;
mod reach;
mod reentry;
mod registry;
mod release;
#[doc(hidden)]
pub mod restore;
pub mod settings;
mod sharing;
mod slots;
mod spare;
pub mod stats;
mod summary;
mod sync;
pub mod upstream;
mod vigil;
mod watch;

pub use advice::Advice;
pub use aliases::Alias;
pub use allocator::{Block, DeviceAllocator, FreeMemoryCallback};
pub use checkpoint::{LiveDifference, PoolCheckpoint, Restored};
pub use error::{AddressProblem, AllocationError, OutOfMemory};
pub use host::{
    HostAllocator, HostBlock, HostSettings, HostStatistics, StatisticEntry, Tally, TimeStatistic,
};
pub use imports::SharedMemory;
pub use policy::{MAX_REQUEST_BYTES, MIN_BLOCK_BYTES};
pub use pools::{CaptureScope, PoolOptions, PoolScope, StreamFilter};
pub use raw::BaseAllocation;
pub use registry::RawBlock;
pub use settings::{
    Backend, Concerns, CrossStreamReuse, KeyDescription, Policy, PowerTwoDivisions, Reserve, Settings,
    SettingsError, SnapshotValue,
};
pub use sharing::{HandleError, MemoryHandle, SharedBlock, SharedExtent, SharingKind};
pub use stats::{ByPool, DeviceStatistics, Statistic};
pub use upstream::{
    CaptureId, Captures, EventId, Events, HostMethod, HostUpstream, MemoryInfo, NodeId, PageHandle, PageId,
    SegmentSource, Sharing, StreamOrdered, Upstream, UpstreamError, VirtualMemory,
};
pub use vigil::{LiveBlock, Vigil};
pub use watch::SnapshotOptions;

pub use thalweg_snapshot::{BlockSnapshot, BlockState, PoolId, SegmentSnapshot, SizeClass, StreamId};
