//! Memory at two addresses, in pools whose addresses must stay valid.
//!
//! A replay runs at the addresses of its capture. So in a pool of graphs no address may lose its page, and scattered free pages
//! cannot be [stitched](crate::device::expandable) by moving them. Where the pool allows it ([`PoolOptions::may_alias`]), they
//! are stitched nevertheless: a page is mapped where it is needed, and the old range becomes an *alias*, a stale mapping that
//! stays for as long as the pool is held.
//!
//! ```text
//! capture   [ a ][free A][ b ][free B][ unmapped  ]      a request for two pages
//! then      [ a ][alias ][ b ][alias ][ c:  A  B  ]      a replay writes A and B through both addresses, in one order
//! ```
//!
//! The work of a graph that goes through the old address, and the work that goes through the new one, are on one stream in one
//! order, like two successive blocks at one address. (On a GPU, data that a kernel writes through one address is seen through the
//! other by the kernels after it, on a stream and in a graph: the driver's conformance suite tests both.)
//!
//! While a program captures, it also frees memory of the shared pool that no request can use, for example gradients of earlier
//! steps. Such pages move to the pool permanently, after the host has waited for the stream that had them. During a capture that
//! wait costs nothing.
//!
//! Code that compares addresses to find out whether two graphs touch the same memory must take the
//! [aliases](crate::DeviceAllocator::aliases) into account.
//!
//! Invariants:
//!
//! - An alias is a taken block that no caller holds, and is part of no snapshot, checkpoint or sum.
//! - Its pages belong to the pool, or are [spare](crate::device::spare) pages that serve only this pool.
//! - An arena whose aliases are as large as its pool's reserved memory creates pages as long as there is room: otherwise a
//!   long-running program that captures nothing would accumulate more and more aliases.
//! - Aliases are unmapped when free memory of the pool is returned, which only happens when it has no reference, or on request;
//!   or when a pool without references gets one again.

use rustc_hash::FxHashMap;

use crate::device::arena::ArenaState;
use crate::device::blocks::{BlockId, Span};
use crate::device::pages::StaleMapping;
use crate::error::AllocationError;
use crate::upstream::{PageId, VirtualMemory};

#[cfg(doc)]
use crate::PoolOptions;

/// An address range of a pool whose memory has moved to another address. Data that is written through one address is read through
/// the other ([`PoolOptions::may_alias`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Alias {
    /// The former address of the memory.
    pub address: u64,
    /// The size, in bytes.
    pub size_bytes: u64,
    /// The present address of the memory.
    pub now_at: u64,
}

impl ArenaState {
    /// Returns the former addresses of memory that has moved but can still be accessed there, page by page. `now_at` contains the
    /// present addresses of the pool's pages: a page that was spare meanwhile may be on another stream.
    pub(crate) fn aliases(&self, now_at: &FxHashMap<PageId, u64>) -> Vec<Alias> {
        let of_stale = |(block, stale): (&BlockId, &StaleMapping)| {
            let Span { address, size_bytes, .. } = self.blocks.span(*block);
            let page_bytes = size_bytes / stale.pages.len() as u64;
            let pages = (0u64..).map(|place| address + place * page_bytes).zip(stale.pages.clone());
            pages.map(move |(address, page)| (address, page_bytes, page)).collect::<Vec<_>>()
        };
        let stale_mappings =
            self.stale_mappings.iter().filter(|(_, stale)| stale.is_alias).flat_map(of_stale);
        // A page that was dropped meanwhile has no present address.
        let alias =
            |(address, size_bytes, page)| Some(Alias { address, size_bytes, now_at: *now_at.get(&page)? });
        stale_mappings.filter_map(alias).collect()
    }

    /// Returns whether any alias exists: a range whose page has moved but stays mapped, for as long as the pool is held.
    pub(crate) fn has_aliases(&self) -> bool {
        self.stale_mappings.values().any(|stale| stale.is_alias)
    }

    /// Returns the bytes of all aliases.
    pub(crate) fn alias_bytes(&self) -> u64 {
        let aliases = self.stale_mappings.iter().filter(|(_, stale)| stale.is_alias);
        aliases.map(|(block, _)| self.blocks.span(*block).size_bytes).sum()
    }

    /// Unmaps the aliases: nothing relies on the pool's addresses any more, and no work in flight touches its free memory.
    ///
    /// # Errors
    /// Returns the upstream's error; the remaining ranges are still aliases.
    pub(crate) fn close_aliases(&mut self, memory: &dyn VirtualMemory) -> Result<(), AllocationError> {
        let mut aliases: Vec<Span> = self
            .stale_mappings
            .iter()
            .filter(|(_, stale)| stale.is_alias)
            .map(|(block, _)| self.blocks.span(*block))
            .collect();
        aliases.sort_unstable_by_key(|span| span.address);
        for Span { block, address, size_bytes } in aliases {
            memory.unmap(address, size_bytes).map_err(|error| AllocationError::upstream("unmap", error))?;
            self.stale_mappings.remove(&block);
            let merged = self.blocks.release_unmapped(block);
            self.note_unmapped(merged);
        }
        Ok(())
    }
}
