//! The caching allocators of Thalweg.
//!
//! Asking a GPU's driver for memory takes tens of microseconds, and giving it back waits for the device. A training step
//! asks thousands of times, and asks for the same sizes in every step. So memory is taken from the driver in large
//! pieces, cut to size, and kept when it is freed.
//!
//! What makes it more than a heap is time. Freeing happens on the host, while the device may not even have *begun* the work
//! that uses the memory. On one stream that does not matter: whatever is put there later also runs later. Between streams it
//! is the whole difficulty.
//!
//! # The words
//!
//! - **Upstream**: where memory and events come from ([`Upstream`]): a driver, or a [fake](fake::FakeUpstream).
//! - **Segment**: a range of addresses. A *plain* one is taken from the upstream as it is; in an *expandable* one, pages
//!   of physical memory are mapped as they are needed. It belongs to one arena and one size class, for life.
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
//! | folder or file | knows | never sees |
//! |---|---|---|
//! | `ids` | names of streams, pools, arenas and kinds of segments | everything else |
//! | `device/blocks`, `slots` | addresses: segments, split and merge | streams, pools, pages, the upstream |
//! | `device/bins` | the free blocks by size | everything else |
//! | `device/pending`, `reach` | when a freed block may be used again: by events, or by a captured graph | addresses, sizes |
//! | `device/gauges`, `ledger` | sums, exact without a shared counter | why |
//! | `device/arena`, `references` | how a block moves through all of these, under one lock | other arenas |
//! | `device/common` | what all arenas share, and which there are | what is in them |
//! | `device/pages`, `expandable`, `spare` | pages, and how they move | where else there is memory |
//! | `device/slow_path`, `release`, `failure` | what to do when memory is short, and what goes back; all arenas, one at a time | |
//! | `device/directory`, `pools`, `scopes` | which arena serves which request | blocks |
//! | `device/direct` | the same books for memory that is not cached here | |
//! | `device/exact`, `restore` | blocks at an address, and a recorded state laid out again | |
//! | `device/recording`, `graph_pools`, `sharing` | the allocator's side of `trace`, `graph_pools` and `ipc` | |
//! | `device/inbox`, `reentry` | how a drop gets past a lock that is taken; which threads are in a function of the program's with a lock held | |
//! | `graph_pools` | pools of captured graphs: put back to what they were (`checkpoint`), pages under two addresses (`aliases`), which blocks are held, and notices when one is given back (`liveness`) | graphs |
//! | `ipc` | memory for other processes, and theirs | |
//! | `policy` | sizes: rounding, segments, when to split | state |
//! | [`settings`] | every key of the configuration, and its text | what an allocator makes of it |
//! | `statistics` | what happened, in sums; the table for people | |
//! | `trace` | each event, with its time and its place in the program ([`history`]); its observers ([`observe`]) | blocks |
//! | `diagnose` | which setting would have helped | |
//! | [`pinned`] | pinned host memory, from end to end | |
//!
//! `docs/memory.md` says why it is so, and what to do at two in the morning.
//!
//! # What holds
//!
//! - Live blocks never overlap, and no byte of a segment is lost.
//! - A block is handed out on a stream only where its memory's last life is over for that stream: the same stream, or events
//!   that have passed, or that the stream was made to wait for.
//! - In steady state an allocation takes no lock that another stream takes, and calls no driver.
//! - No request fails for lack of memory while an eligible free block exists (`device/slow_path` says which are eligible).
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

mod device;
mod diagnose;
mod error;
pub mod fake;
mod graph_pools;
mod ids;
mod ipc;
pub mod pinned;
mod policy;
pub mod settings;
mod statistics;
mod sync;
mod trace;
pub mod upstream;

pub use device::allocator::DeviceAllocator;
pub use device::block::Block;
pub use device::central::FreeMemoryCallback;
pub use device::pools::PoolOptions;
#[doc(hidden)]
pub use device::restore;
pub use device::scopes::{CaptureScope, PoolScope};
pub use error::{AddressProblem, Advice, AllocationError, OutOfMemory};
pub use graph_pools::aliases::Alias;
pub use graph_pools::checkpoint::{LiveDifference, PoolCheckpoint, Restored};
pub use graph_pools::liveness::{LiveBlock, LivenessWatch};
pub use ids::{PoolId, SizeClass, StreamFilter, StreamId};
pub use ipc::imports::SharedMemory;
pub use ipc::sharing::{HandleError, MemoryHandle, SharedBlock, SharedExtent, SharingKind};
pub use pinned::{
    HostAllocator, HostBlock, HostSettings, HostStatistics, StatisticEntry, Tally, TimeStatistic,
};
pub use policy::{MAX_REQUEST_BYTES, MIN_BLOCK_BYTES};
pub use settings::{
    Backend, Concerns, CrossStreamReuse, KeyDescription, Policy, PowerTwoDivisions, Reserve, Settings,
    SettingsError, SnapshotValue,
};
pub use statistics::stats::{self, ByPool, DeviceStatistics, Statistic};
pub use thalweg_snapshot::{BlockSnapshot, BlockState, SegmentSnapshot};
pub use trace::watch::{SnapshotOptions, SnapshotPart};
pub use trace::{history, observe};
pub use upstream::{
    CaptureId, Captures, EventId, Events, HostMethod, HostUpstream, MemoryInfo, MemorySharing, NodeId,
    PageHandle, PageId, Reserved, SegmentSource, StreamOrdered, Upstream, UpstreamError, VirtualMemory,
};
