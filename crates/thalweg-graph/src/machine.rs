//! [`Machine`]: the properties of a device on which plans depend.

/// The properties of a device that its plans depend on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Machine {
    /// The shared memory available to a block, in bytes.
    pub shared_memory_bytes: u32,
    /// Whether blocks may form clusters.
    pub has_clusters: bool,
}
