//! The counts of a region's commands.

/// The kind of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Command {
    Kernel,
    Library,
    Copy { bytes: u64 },
    CopyFromHost { bytes: u64 },
    Fill,
    HostFunction,
    Graph,
    Memory,
}

/// The numbers of commands that a region submits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// The number of kernels.
    pub kernels: u64,
    /// The number of library calls: matrix products, collectives.
    pub library_calls: u64,
    /// The number of copies, including those from and to pageable memory.
    pub copies: u64,
    /// The bytes copied.
    pub copied_bytes: u64,
    /// The number of copies from pageable memory: a captured step has to copy these into its inputs before each replay.
    pub staging_copies: u64,
    /// The number of fills.
    pub fills: u64,
    /// The number of host functions.
    pub host_functions: u64,
    /// The number of graph launches, which no graph contains.
    pub graph_launches: u64,
    /// The number of allocations from the stream-ordered allocator, and frees, that would be nodes of the graph.
    pub memory_nodes: u64,
    /// The number of allocations from the caching allocator.
    pub allocations: u64,
    /// The bytes that these allocations requested.
    pub allocated_bytes: u64,
}

impl Counts {
    /// Returns the number of all commands. Each of them costs the eager region a launch every time that it runs.
    pub fn commands(&self) -> u64 {
        self.kernels
            + self.library_calls
            + self.copies
            + self.fills
            + self.host_functions
            + self.graph_launches
            + self.memory_nodes
    }

    pub(super) fn add(&mut self, command: Command) {
        match command {
            Command::Kernel => self.kernels += 1,
            Command::Library => self.library_calls += 1,
            Command::Copy { bytes } => {
                self.copies += 1;
                self.copied_bytes += bytes;
            }
            Command::CopyFromHost { bytes } => {
                self.copies += 1;
                self.copied_bytes += bytes;
                self.staging_copies += 1;
            }
            Command::Fill => self.fills += 1,
            Command::HostFunction => self.host_functions += 1,
            Command::Graph => self.graph_launches += 1,
            Command::Memory => self.memory_nodes += 1,
        }
    }
}
