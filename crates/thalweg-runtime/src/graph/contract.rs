//! The contract of a graph: the memory that it uses and does not own, which of it the graph writes, and its outputs.
//!
//! A replay runs on the captured addresses, whatever they contain by then. The [`Contract`] lists these addresses, and a replay
//! on memory whose holder has freed it is refused before anything is launched. The check is one load, whatever the number of
//! inputs, because freeing a block notifies its watch ([`thalweg_memory::LivenessWatch`]).
//!
//! The contract is derived from the ranges that every command carries, so it needs no declaration and covers everything that
//! Thalweg submits. Work that the program, or a library that has the `CUstream`, submits to the driver directly carries no ranges
//! that Thalweg sees. Such a graph cannot vouch for its replays and refuses them, unless the ranges are declared
//! ([`Stream::declare`](crate::Stream::declare)).

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use thalweg_driver::Label;
use thalweg_memory::LivenessWatch;

use crate::invalid;
use crate::{Error, Result};

/// The number of dead inputs that a message lists.
const LISTED: usize = 4;

/// The memory that a graph relies on, and the memory that it writes.
#[derive(Debug)]
pub struct Contract {
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    watch: Arc<LivenessWatch>,
    /// Whether there are commands whose ranges are not known.
    pub(super) has_undeclared: bool,
}

/// Memory that a graph uses and did not allocate: one buffer, or a part of unknown memory.
#[derive(Clone, Debug)]
pub struct Input {
    /// The address at which the buffer begins.
    pub address: u64,
    /// The buffer's size in bytes; of unknown memory, the bytes that the first command touches.
    pub size_bytes: u64,
    /// The range of addresses that the graph touches.
    pub touched: Range<u64>,
    /// Whether a command reads the memory (perhaps only values that the graph itself has written there).
    pub is_read: bool,
    /// Whether a command writes the memory: the graph changes its input.
    pub is_written: bool,
    /// The first command that uses the memory.
    pub label: Label,
    /// The kind of the memory's owner.
    pub kind: InputKind,
}

/// The owner of the memory of an input.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum InputKind {
    /// A buffer of the caching allocator. The graph cannot be replayed after the buffer is dropped.
    Buffer,
    /// Memory of the graph's own pool that holds the output of another graph. It cannot be freed, but it can be overwritten
    /// ([`OverwritePolicy`](super::OverwritePolicy)).
    Pool,
    /// Memory of a pool that was made for another graph, which left it there. The graph keeps that pool, so the memory cannot be
    /// freed, whether the buffer is held or not; graphs that are captured into that pool later can overwrite it.
    OtherPool,
    /// Memory that is not a buffer of this allocator: memory of the driver, or of another process. Its end of life is not known.
    Unknown,
}

/// A buffer that a graph leaves: allocated in the capture, and still held when the capture ended.
#[derive(Clone, Debug)]
pub struct Output {
    /// The address at which the buffer begins.
    pub address: u64,
    /// The buffer's size in bytes.
    pub size_bytes: u64,
    /// The operator that the buffer was allocated for.
    pub label: Label,
    pub(super) watch: Arc<LivenessWatch>,
}

impl Output {
    /// Returns whether the buffer is still held.
    pub fn is_held(&self) -> bool {
        self.watch.is_undisturbed()
    }
}

impl Contract {
    pub(super) fn new(inputs: Vec<Input>, outputs: Vec<Output>, watch: Arc<LivenessWatch>) -> Self {
        Self { inputs, outputs, watch, has_undeclared: false }
    }

    /// Returns the memory that the graph uses and did not allocate, in the order of first use.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// Returns the inputs that the graph writes.
    pub fn mutated(&self) -> impl Iterator<Item = &Input> {
        self.inputs.iter().filter(|input| input.is_written)
    }

    /// Returns the buffers that the graph leaves, in ascending order of their addresses.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// Returns the input that contains an address.
    pub fn input_at(&self, address: u64) -> Option<&Input> {
        let holds = |input: &&Input| address.wrapping_sub(input.address) < input.size_bytes;
        self.inputs.iter().find(holds)
    }

    /// Returns whether every input is still held. One load.
    #[inline]
    pub fn is_kept(&self) -> bool {
        self.watch.is_undisturbed()
    }

    /// Returns the inputs that have died, in the order of their deaths.
    pub fn dead_inputs(&self) -> Vec<&Input> {
        let of_address = |address| self.inputs.iter().filter(move |input| input.address == address);
        self.watch.died().into_iter().flat_map(of_address).collect()
    }

    /// Returns whether there are commands that were submitted to the driver directly and whose ranges were not declared. Then the
    /// graph cannot determine whether a replay would touch memory of other owners.
    pub fn has_undeclared_commands(&self) -> bool {
        self.has_undeclared
    }

    /// Checks whether the graph may be launched.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if an input has died (the error lists the inputs, the commands that use them, and the
    /// remedy), or if the graph has [commands without declared ranges](Self::has_undeclared_commands).
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_kept() && !self.has_undeclared { Ok(()) } else { Err(self.broken()) }
    }

    #[cold]
    fn broken(&self) -> Error {
        if self.is_kept() {
            return invalid!(
                "the graph has commands that were given to the driver directly (through `Device::driver`, or by a library), so it \
                 cannot tell whether the memory that they touch is still there: launch kernels with `Stream::launch_kernel`, or \
                 say behind such commands, in the capture, what they touch (`Stream::declare`)"
            );
        }
        let dead = self.dead_inputs();
        let mut text = match dead.len() {
            1 => "an input of the graph has died: ".to_owned(),
            count => format!("{count} inputs of the graph have died: "),
        };
        let listed: Vec<String> = dead.iter().take(LISTED).map(ToString::to_string).collect();
        text.push_str(&listed.join("; "));
        if dead.len() > LISTED {
            text.push_str(&format!("; and {} more", dead.len() - LISTED));
        }
        text.push_str(
            ". The buffer was dropped, or moved, after it was captured, and its memory may be another owner's by now: keep it \
             for as long as the graph is replayed and write new values into it, or capture again",
        );
        Error::invalid(text)
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, size_bytes, label, .. } = self;
        write!(f, "{size_bytes} bytes at {address:#x}, used by {label}")
    }
}
