//! The allocator of device memory, from the public face down to addresses.

pub(crate) mod allocator;
pub(crate) mod arena;
pub(crate) mod bins;
pub(crate) mod blocks;
pub(crate) mod common;
pub(crate) mod direct;
pub(crate) mod directory;
pub(crate) mod exact;
pub(crate) mod expandable;
pub(crate) mod failure;
pub(crate) mod gauges;
pub(crate) mod inbox;
pub(crate) mod ledger;
pub(crate) mod pending;
pub(crate) mod pools;
pub(crate) mod reach;
pub(crate) mod reentry;
pub(crate) mod release;
pub mod restore;
pub(crate) mod roll;
pub(crate) mod slots;
pub(crate) mod slow_path;
pub(crate) mod spare;
