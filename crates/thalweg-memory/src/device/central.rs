//! The state guarded by the lock of the slow path.

use std::sync::Arc;

use super::ledger::Ledger;
use super::pools::Pools;
use crate::trace::history::Ring;

/// A function that is called when memory is short, and returns whether it freed any. It may drop blocks; other calls of the
/// allocator are refused.
pub type FreeMemoryCallback = Arc<dyn Fn() -> bool + Send + Sync>;

/// The state guarded by the lock of the slow path.
#[derive(Default)]
pub(crate) struct Central {
    pub(crate) ledger: Ledger,
    pub(crate) pools: Pools,
    pub(crate) free_memory_callbacks: Vec<FreeMemoryCallback>,
    /// Events that concern no arena.
    pub(crate) ring: Ring,
    /// Whether the present request found no range of addresses to grow in.
    pub(crate) addresses_are_short: bool,
}
