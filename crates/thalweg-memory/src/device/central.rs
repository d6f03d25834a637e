//! The state behind the lock of the slow path.

use std::sync::Arc;

use super::ledger::Ledger;
use super::pools::Pools;
use crate::trace::history::Ring;

/// Called when memory is short; whether it freed any. It may drop blocks; other calls of the allocator are refused.
pub type FreeMemoryCallback = Arc<dyn Fn() -> bool + Send + Sync>;

/// The state behind the lock of the slow path.
#[derive(Default)]
pub(crate) struct Central {
    pub(crate) ledger: Ledger,
    pub(crate) pools: Pools,
    pub(crate) free_memory_callbacks: Vec<FreeMemoryCallback>,
    /// Events that concern no arena.
    pub(crate) ring: Ring,
    /// The request that is looked for found no range of addresses to grow in.
    pub(crate) addresses_are_short: bool,
}
