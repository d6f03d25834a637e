//! [`CommandList`]: the commands of a call, recorded once, and queued again for memory at other addresses.
//!
//! A call that repeats queues the same commands over the same sizes; only its addresses change. While a thread [records](record), each
//! command that it queues is noted, with the place of each address: a number of *given* memory (inputs and results) or of the list's own,
//! and an offset. [`CommandList::queue`] fills in addresses and queues the commands, without the layers above that chose them. Memory
//! of the list's own is one block. Its parts are placed as they were while the commands were recorded: what was allocated at the same time
//! is apart.
//!
//! # Invariants
//! - A list has all commands of the recorded calls, in their order, or there is none: whatever else is done on the stream, and each
//!   address that is in no known memory, is a reason against a list.
//! - An argument of a kernel is a word. A word with an address in known memory is an address: sizes and indices are smaller than any.
//! - Given memory that overlaps in another way than while it was recorded, or is aligned less, does not fit the list.

use thalweg_driver::{Access, DevicePointer, GpuCall, Label, Launch, LibraryLaunch};
use thalweg_kernels::convolution;

use crate::recorder::{self, Memory, Place, Recorded, Recorder, Touched, Work};
use crate::{Buffer, Result, Stream, queue_deferred};

pub use crate::recorder::{note_given, refuse};

/// The greatest alignment in bytes that kernels use, as a power of two.
const MOST_ALIGNED: u32 = 8;

/// The unit in which parts of a block are placed, in bytes.
const UNIT_BYTES: u64 = 512;

/// Records the commands that a function queues on a stream. Returns its result, and the list, or the reason why there is none.
pub fn record<T>(
    stream: &Stream,
    function: impl FnOnce() -> T,
) -> (T, std::result::Result<CommandList, String>) {
    let recording = recorder::begin(stream.key());
    let result = function();
    if crate::deferred::has_deferred() {
        refuse(|| "work is deferred beyond the call".to_owned());
    }
    let recorder = recording.end().ok_or_else(|| "another recording has ended".to_owned());
    (result, recorder.and_then(list))
}

/// Returns the list of what was recorded.
fn list(recorder: Recorder) -> std::result::Result<CommandList, String> {
    if let Some(refusal) = recorder.refusal {
        return Err(refusal);
    }
    let given: Vec<Memory> =
        recorder.memories.iter().filter(|memory| memory.given.is_some()).copied().collect();
    let overlaps = |(first, one): (usize, &Memory)| {
        let one = *one;
        let later = given.iter().enumerate().skip(first + 1);
        let met = later.filter(move |(_, other)| {
            one.start < other.start + other.bytes && other.start < one.start + one.bytes
        });
        met.map(move |(second, other)| (first as u32, second as u32, other.start.wrapping_sub(one.start)))
            .collect::<Vec<_>>()
    };
    let (offsets, block_bytes) = placed(&recorder.memories);
    Ok(CommandList {
        given: given.iter().map(|memory| alignment_of(memory.start)).collect(),
        overlaps: given.iter().enumerate().flat_map(overlaps).collect(),
        memories: recorder
            .memories
            .iter()
            .zip(offsets)
            .map(|(memory, offset)| (memory.given, offset))
            .collect(),
        block_bytes,
        commands: recorder.commands,
    })
}

/// Returns the offset of each memory in one block, and the size of the block: as they were placed, without what is between them.
fn placed(memories: &[Memory]) -> (Vec<u64>, u64) {
    let own = |memory: &&Memory| memory.given.is_none() && memory.bytes > 0;
    let mut ranges: Vec<(u64, u64)> =
        memories.iter().filter(own).map(|memory| (memory.start, memory.start + memory.bytes)).collect();
    ranges.sort_unstable();
    let mut pieces: Vec<(u64, u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match pieces.last_mut() {
            Some((_, last, _)) if start <= *last => *last = end.max(*last),
            Some(&mut (first, last, offset)) => {
                pieces.push((start, end, offset + (last - first).next_multiple_of(UNIT_BYTES)));
            }
            None => pieces.push((start, end, 0)),
        }
    }
    let size = pieces.last().map_or(0, |(start, end, offset)| offset + end - start);
    let offset = |memory: &Memory| {
        let piece = pieces.iter().rev().find(|(start, ..)| *start <= memory.start);
        piece.filter(|_| own(&memory)).map_or(0, |(start, _, offset)| offset + memory.start - start)
    };
    (memories.iter().map(offset).collect(), size)
}

const fn alignment_of(address: u64) -> u32 {
    let zeros = address.trailing_zeros();
    if zeros < MOST_ALIGNED { zeros } else { MOST_ALIGNED }
}

/// Commands that can be queued again for other memory.
pub struct CommandList {
    /// The alignment of each given memory, as a power of two.
    given: Vec<u32>,
    /// The pairs of given memory that overlap, with the distance of their addresses.
    overlaps: Vec<(u32, u32, u64)>,
    /// The number of each memory that is given, or its offset in the block.
    memories: Vec<(Option<u32>, u64)>,
    block_bytes: u64,
    commands: Vec<Recorded>,
}

impl CommandList {
    /// Returns the number of commands.
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// Returns whether there are no commands.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Returns the size of the block that the commands need beside given memory.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Returns whether the commands compute the same for given memory at these addresses.
    pub fn fits(&self, given: &[DevicePointer]) -> bool {
        let address = |number: u32| given[number as usize].address();
        self.given.len() == given.len()
            && self.given.iter().zip(given).all(|(&zeros, pointer)| alignment_of(pointer.address()) >= zeros)
            && (self.overlaps.iter())
                .all(|&(one, other, distance)| address(other).wrapping_sub(address(one)) == distance)
    }

    /// Queues the commands on a stream, for given memory at these addresses, which must [fit](Self::fits). Does not block.
    ///
    /// # Errors
    /// Those of an allocation and of the commands.
    pub fn queue(&self, stream: &Stream, given: &[DevicePointer], label: Label) -> Result<()> {
        queue_deferred(label)?;
        let block = Buffer::labelled(stream, self.block_bytes, label)?;
        let base = |&(number, offset): &(Option<u32>, u64)| match number {
            Some(number) => given[number as usize].address(),
            None => block.pointer().offset(offset).address(),
        };
        let bases: Vec<u64> = self.memories.iter().map(base).collect();
        self.commands.iter().try_for_each(|command| command.queue(stream, &bases))
    }
}

impl Place {
    fn at(self, bases: &[u64]) -> DevicePointer {
        DevicePointer::new(bases[self.memory as usize] + self.offset)
    }
}

impl Recorded {
    fn queue(&self, stream: &Stream, bases: &[u64]) -> Result<()> {
        let mut words = self.words.clone();
        for &(word, place) in &self.addresses {
            words[word as usize] = place.at(bases).address();
        }
        let (label, arguments) = (self.label, bytemuck::cast_slice(&words));
        let access = |touched: &Touched| {
            let &Touched { place, bytes, mode, touch } = touched;
            Access::new(place.at(bases).address(), bytes, mode).touching(touch)
        };
        match &self.work {
            &Work::Launch { function, grid, block, shared_memory_bytes, mode } => {
                let accesses = &[];
                let launch =
                    Launch { function, grid, block, shared_memory_bytes, mode, arguments, accesses, label };
                stream.submit_launch(launch, |list| list.extend(self.touched.iter().map(access)))
            }
            Work::Library { gpu, host, places } => {
                let (mut gpu, mut places) = (GpuCall::clone(gpu), places.iter());
                gpu.change_addresses(&mut |address| {
                    if let Some(place) = places.next() {
                        *address = place.at(bases);
                    }
                });
                let own;
                let host = match gpu {
                    GpuCall::Convolution(call) if stream.device().is_simulated() => {
                        own = convolution::host_function(call);
                        &own
                    }
                    _ => host,
                };
                let launch = LibraryLaunch { gpu: &gpu, host, arguments, accesses: &[], label };
                stream.submit_library(launch, |list| list.extend(self.touched.iter().map(access)))
            }
            &Work::Copy { places: [target, source], bytes } => {
                stream.copy_on_device(target.at(bases), source.at(bases), bytes, label)
            }
            &Work::Fill { place, pattern, count } => stream.fill(place.at(bases), pattern, count, label),
        }
    }
}
