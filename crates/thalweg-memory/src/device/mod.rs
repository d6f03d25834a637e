//! The allocator of device memory, from the public interface down to addresses.
//!
//! Two types have their methods in several files, each file a concern: a hub with spokes.
//!
//! | hub | spokes |
//! |---|---|
//! | `DeviceAllocator` (`allocator`) | `scopes`, `slow_path`, `release`, `failure`, `direct`, `exact`, `restore`, `recording`, `graph_pools`, `sharing` |
//! | `Arena` with its `ArenaState` (`arena`), and the state that all arenas share (`common`, `pending_list`, `references`), which refer to each other | `expandable`, `exact`, `direct`, `restore`, `recording`, `graph_pools`, and [`graph_pools`](crate::graph_pools) |
//!
//! Otherwise, no module uses a module that uses it.

pub(crate) mod allocator;
pub(crate) mod arena;
pub(crate) mod bins;
pub(crate) mod block;
pub(crate) mod blocks;
pub(crate) mod central;
pub(crate) mod common;
pub(crate) mod direct;
pub(crate) mod directory;
pub(crate) mod exact;
pub(crate) mod expandable;
pub(crate) mod failure;
pub(crate) mod gauges;
mod graph_pools;
pub(crate) mod inbox;
pub(crate) mod ledger;
pub(crate) mod pages;
pub(crate) mod pending;
pub(crate) mod pending_list;
pub(crate) mod pools;
pub(crate) mod reach;
mod recording;
pub(crate) mod reentry;
pub(crate) mod references;
pub(crate) mod release;
pub mod restore;
pub(crate) mod scopes;
mod sharing;
pub(crate) mod slots;
pub(crate) mod slow_path;
pub(crate) mod spare;
