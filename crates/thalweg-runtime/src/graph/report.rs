//! What graphs take of memory: one graph, and all of a pool. And what a capture takes of the driver.

/// What one graph takes of memory, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphMemory {
    /// What the pool had reserved from the driver before the capture.
    pub reserved_before_bytes: u64,
    /// What it had reserved after it.
    pub reserved_after_bytes: u64,
    /// All that the capture allocated, each block for itself.
    pub allocated_bytes: u64,
    /// The addresses that these blocks took: less than the former where memory was reused within the capture.
    pub occupied_bytes: u64,
    /// What was held when the capture ended: the graph's outputs.
    pub output_bytes: u64,
    /// The buffers that the graph uses and did not allocate.
    pub input_bytes: u64,
    /// The pinned memory that the graph keeps.
    pub pinned_bytes: u64,
}

/// What a pool takes of memory, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolMemory {
    /// What it has reserved from the driver.
    pub reserved_bytes: u64,
    /// What of it is in somebody's hands: outputs that are held.
    pub held_bytes: u64,
    /// Its graphs, oldest first.
    pub graphs: Vec<GraphMemory>,
}

/// What a capture cost, in numbers that no clock is needed for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CaptureCost {
    /// The commands that were captured through Thalweg.
    pub commands: u64,
    /// How often the driver was asked where a stream stands in the capture, and behind which nodes a node comes, beyond the
    /// commands themselves and what the allocator asks to use memory again. It grows with the commands, and no faster.
    pub driver_calls: u64,
}
