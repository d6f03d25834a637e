//! The memory that graphs allocate.

use std::collections::BTreeMap;

use crate::executor::command::Frontier;

/// The memory that a graph has allocated.
#[derive(Default)]
pub(crate) struct GraphMemory {
    /// The number of holders: the graph and its executables.
    pub(crate) holders: usize,
    pub(crate) allocations: BTreeMap<u64, Owned>,
    pub(crate) launches: Frontier,
}

/// One allocation of a graph.
#[derive(Default)]
pub(crate) struct Owned {
    pub(crate) freed_by_a_node: bool,
    /// Whether the latest launch made this allocation and it has not been freed since.
    pub(crate) is_live: bool,
}
