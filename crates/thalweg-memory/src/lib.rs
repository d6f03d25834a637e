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
//! - **Segment**: a range that the upstream gave. It belongs to one stream, one pool and one size class, for life.
//! - **Block**: a part of a segment. Blocks tile their segment; the free ones never touch each other. A caller holds a block
//!   as a [`Block`], which frees it when dropped.
//! - **Pool**: the free blocks among which a request looks for one. There is the shared pool, and there are private ones
//!   for captured graphs, whose addresses must stay put ([`PoolId`]). Each has a part for small requests and one for large.
//! - **Use**: a stream other than the block's own on which it was used ([`Block::record_stream`]).
//! - **Pending free**: a block that was freed while it had uses. It waits for an event on each of their streams.
//! - **Active**: in a caller's hands, or a pending free. **Inactive**: free.
//!
//! # A block's life
//!
//! ```text
//!            upstream
//!     allocate │  ▲ free        only whole segments go back: on empty_cache,
//!              ▼  │             or when the upstream has run out
//!           ┌────────┐   best fit on the stream; the rest is split off    ┌───────────┐
//!           │ cached │ ─────────────────────────────────────────────────▶ │ allocated │
//!           └────────┘                                                    └───────────┘
//!              ▲  ▲                   dropped, no uses                      │      │
//!              │  └─────────────────────────────────────────────────────────┘      │ dropped,
//!              │      merged with free neighbours                                  │ with uses
//!              │                                                                   ▼
//!              │             all events have passed                       ┌──────────────┐
//!              └───────────────────────────────────────────────────────── │ pending free │
//!                                                                         └──────────────┘
//! ```
//!
//! # The rooms
//!
//! | module | knows | never sees |
//! |---|---|---|
//! | `blocks` | addresses: segments, split and merge | streams, pools, the upstream |
//! | `order` | when a freed block may be used again | addresses, sizes |
//! | `pool`, `pools` | where free blocks are found, and who looks where | events |
//! | `policy` | sizes: rounding, segments, when to split | everything else |
//! | `state`, `ladder` | how the parts move together; what to do when memory is short | |
//! | [`stats`], [`snapshot`] | what happened, and what is there | |
//! | [`history`], [`observe`] | each event, with its time and its place in the program; who wants to be told | blocks |
//! | [`replay`] | recorded programs, to be served again | how they are served |
//! | [`host`] | pinned host memory, from end to end | |
//! | `inbox` | how a drop gets past a lock that is taken | what it brings |
//!
//! # What holds
//!
//! - Live blocks never overlap, and no byte of a segment is lost.
//! - A block is handed out on the stream that it belongs to, and only after the events of its last life have passed.
//! - Any call of the upstream may fail, or panic: the allocator is valid before and after, and works on.
//! - Dropping a block neither fails nor waits.
//! - With the same calls, the same decisions: nothing depends on hash order, threads' luck aside, and no clock is asked
//!   (but to report how long pinning took).
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

mod advice;
mod allocator;
mod arena;
mod bins;
mod blocks;
mod direct;
mod directory;
mod error;
mod failure;
pub mod fake;
mod gauges;
mod grow;
pub mod history;
pub mod host;
mod inbox;
mod ladder;
mod ledger;
pub mod observe;
mod order;
mod policy;
mod pools;
mod reach;
pub mod replay;
pub mod settings;
mod slots;
pub mod snapshot;
pub mod stats;
mod summary;
pub mod upstream;
mod watch;

pub use advice::Advice;
pub use allocator::{Block, DeviceAllocator, FreeMemoryCallback, PoolScope};
pub use error::{AllocationError, OutOfMemory};
pub use host::{
    HostAllocator, HostBlock, HostSettings, HostStatistics, RawBlock, StatisticEntry, Tally, TimeStatistic,
};
pub use pools::{PoolId, PoolOptions, StreamFilter};
pub use settings::{
    Backend, Concerns, CrossStreamReuse, KeyDescription, Policy, PowerTwoDivisions, Reserve, Settings,
    SettingsError, SnapshotValue,
};
pub use snapshot::{BlockSnapshot, BlockState, SegmentSnapshot};
pub use stats::{ByPool, DeviceStatistics, SizeClass, Statistic};
pub use upstream::{
    CaptureId, Captures, EventId, Events, HostMethod, HostUpstream, MemoryInfo, NodeId, PageId,
    SegmentSource, StreamId, StreamOrdered, Upstream, UpstreamError, VirtualMemory,
};
pub use watch::SnapshotOptions;
