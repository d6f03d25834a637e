//! The memory of graphs, of one and of all of a pool, and the calls of the driver that a capture costs.

/// The memory of one graph, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphMemory {
    /// The bytes that the pool had reserved from the driver before the capture.
    pub reserved_before_bytes: u64,
    /// The bytes that it had reserved after the capture.
    pub reserved_after_bytes: u64,
    /// All that the capture allocated, each block for itself.
    pub allocated_bytes: u64,
    /// The addresses that these blocks took: less than the former where memory was reused within the capture.
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
    /// The bytes that it has reserved from the driver.
    pub reserved_bytes: u64,
    /// The bytes of it that callers hold: outputs.
    pub held_bytes: u64,
    /// Its graphs, oldest first.
    pub graphs: Vec<GraphMemory>,
}

/// The cost of a capture, in counts instead of times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CaptureCost {
    /// The commands that were captured through Thalweg.
    pub commands: u64,
    /// The number of times that the driver was asked where a stream stands in the capture, and behind which nodes a node
    /// comes, beyond the commands themselves and what the allocator asks to use memory again. It grows with the commands,
    /// and no faster.
    pub driver_calls: u64,
}
