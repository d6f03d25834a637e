//! The caching allocators of Thalweg.
//!
//! Allocating memory from a GPU's driver takes tens of microseconds, and freeing it waits for the device. A training step
//! allocates thousands of times, with the same sizes in every step. So memory is taken from the driver in large pieces, split to
//! size, and kept when it is freed.
//!
//! The difference to a heap is time. Freeing happens on the host, while the device may not even have *begun* the work that uses
//! the memory. On one stream that does not matter: work that is submitted later also runs later. All the difficulty is between
//! streams.
//!
//! # The words
//!
//! - **Upstream**: the source of memory and events ([`Upstream`]): a driver, or a [fake](fake::FakeUpstream).
//! - **Segment**: a range of addresses. A *plain* one is taken from the upstream in one piece; in an *expandable* one, pages of
//!   physical memory are mapped as they are needed. A segment belongs to one arena and one size class for life.
//! - **Block**: a part of a segment. Blocks tile their segment; no two free ones are adjacent. A caller holds a block as a
//!   [`Block`], which frees it when dropped.
//! - **Pool**: the memory that may serve a request. There is the shared pool, and there are private ones ([`PoolId`]): for
//!   captured graphs, whose addresses must stay valid, and for programs that need memory of a certain kind, or of their own.
//! - **Arena**: one pool's memory on one stream, with a lock of its own.
//! - **Use**: a use of a block on a stream other than its own ([`Block::record_use`], [`Block::record_stream`]).
//! - **Pending free**: a block that was freed while it had uses. It waits for an event on each of their streams.
//! - **Active**: held by a caller, or a pending free. **Inactive**: free.
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
//! | `device/gauges`, `ledger` | sums, exact without a shared counter | the reasons for changes |
//! | `device/arena`, `references` | how a block moves through all of these, under one lock | other arenas |
//! | `device/common` | the state that all arenas share, and the list of arenas | their contents |
//! | `device/pages`, `expandable`, `spare` | pages, and how they move | other sources of memory |
//! | `device/slow_path`, `release`, `failure` | the stages when memory is short, and which memory is returned; all arenas, one at a time | |
//! | `device/directory`, `pools`, `scopes` | which arena serves which request | blocks |
//! | `device/direct` | the same books for memory that is not cached here | |
//! | `device/exact`, `restore` | blocks at an address, and the restoration of a recorded state | |
//! | `device/recording`, `graph_pools`, `sharing` | the allocator's side of `trace`, `graph_pools` and `ipc` | |
//! | `device/inbox`, `reentry` | how a drop avoids a lock that is taken; which threads are in a function of the program with a lock held | |
//! | `graph_pools` | pools of captured graphs: restoration to an earlier state (`checkpoint`), pages at two addresses (`aliases`), which blocks are held, and notifications when one is freed (`liveness`) | graphs |
//! | `ipc` | memory for other processes, and theirs | |
//! | `policy` | sizes: rounding, segments, when to split | state |
//! | [`settings`] | every key of the configuration, and its text | how an allocator uses it |
//! | `statistics` | the sums of events; the table for people | |
//! | `trace` | each event, with its time and its place in the program ([`history`]); its observers ([`observe`]) | blocks |
//! | `diagnose` | which setting would have helped | |
//! | [`pinned`] | pinned host memory, from end to end | |
//! | [`plan`] | temporary memory whose lifetimes are known beforehand, as few blocks | everything else |
//!
//! See `docs/memory.md` for the design and for troubleshooting.
//!
//! # Guarantees
//!
//! - Live blocks never overlap, and no byte of a segment is lost.
//! - A block is handed out on a stream only where its memory's last use is over for that stream: on the same stream, or after
//!   events that have passed, or that the stream was made to wait for.
//! - In steady state an allocation takes no lock that another stream takes, and makes no driver call.
//! - No request fails for lack of memory while an eligible free block exists (`device/slow_path` defines which are eligible).
//! - Any call of the upstream may fail, or panic: the allocator is valid before and after, and stays usable.
//! - Dropping a block neither fails nor waits.
//! - The same calls by one thread lead to the same decisions: nothing depends on hash order or a clock (except reports of how
//!   long something took).
//!
//! Not part of this crate: kernels, tensors, devices, and any `unsafe`. The memory itself is never accessed, only its addresses
//! are handled.
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
pub mod plan;
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
pub use pinned::{HostAllocator, HostBlock, HostStatistics, StatisticEntry, Tally, TimeStatistic};
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
