//! The memory of a graph and of all graphs of a pool, and the driver calls that a capture costs.

/// The memory of one graph, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphMemory {
    /// The bytes that the pool had reserved from the driver before the capture.
    pub reserved_before_bytes: u64,
    /// The bytes that the pool had reserved after the capture.
    pub reserved_after_bytes: u64,
    /// The sum of all blocks that the capture allocated.
    pub allocated_bytes: u64,
    /// The addresses that these blocks occupied: less than `allocated_bytes` if memory was reused within the capture.
    pub occupied_bytes: u64,
    /// The bytes that were held when the capture ended: the graph's outputs.
    pub output_bytes: u64,
    /// The buffers that the graph uses and did not allocate.
    pub input_bytes: u64,
    /// The pinned memory that the graph keeps.
    pub pinned_bytes: u64,
}

/// The memory of a pool, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolMemory {
    /// The bytes that the pool has reserved from the driver.
    pub reserved_bytes: u64,
    /// The reserved bytes that callers hold: outputs.
    pub held_bytes: u64,
    /// The pool's graphs, oldest first.
    pub graphs: Vec<GraphMemory>,
}

/// The cost of a capture, in counts instead of times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CaptureCost {
    /// The commands that were captured through Thalweg.
    pub commands: u64,
    /// The number of driver queries for the position of a stream in the capture and for the predecessors of a node, beyond the
    /// commands themselves and the allocator's queries for the reuse of memory. It grows linearly with the commands.
    pub driver_calls: u64,
}
