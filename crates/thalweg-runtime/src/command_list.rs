//! [`CommandList`]: the commands of a call, recorded once, and queued again for memory at other addresses.
//!
//! A call that repeats queues the same commands over the same sizes; only its addresses change. While a thread [records](record), each
//! command that it queues is noted, with the place of each address: a number of *given* memory (inputs and results) or of the list's own,
//! and an offset. [`CommandList::begin`] fills in addresses and queues the commands, without the layers above that chose them. Memory
//! of the list's own is one block. Its parts are placed as they were while the commands were recorded: what was allocated at the same time
//! is apart.
//!
//! # Invariants
//! - A list has all commands of the recorded calls, in their order, or there is none: whatever else is done on the stream, and each
//!   address that is in no known memory, is a reason against a list.
//! - An argument of a kernel is a word. A word with an address in known memory is an address: sizes and indices are smaller than any.
//! - Given memory that overlaps in a different way than while it was recorded, or is aligned less, does not fit the list.

use std::ops::Range;

use thalweg_driver::{Access, DevicePointer, GpuCall, Label, Launch, LibraryLaunch};
use thalweg_kernels::convolution;

use crate::deferred::{Before, queue_deferred_before};
use crate::recorder::{self, Memory, Place, Recorded, Recorder, Touched, Work};
use crate::refuse;
use crate::{Buffer, Error, Result, Stream};

pub use crate::recorder::{excluded, note_given, note_made, recorded, refuse};

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

/// Returns the list of the recorded commands.
fn list(recorder: Recorder) -> std::result::Result<CommandList, String> {
    if let Some(refusal) = recorder.refusal {
        return Err(refusal);
    }
    let memories = recorder.memories.iter().enumerate();
    let numbered: Vec<(usize, Memory)> = memories
        .filter(|(_, memory)| memory.given.is_some())
        .map(|(place, memory)| (place, *memory))
        .collect();
    let mut overlaps = Vec::new();
    for (first, (_, one)) in numbered.iter().enumerate().filter(|(_, (_, one))| !one.is_made) {
        for (second, (_, other)) in numbered.iter().enumerate().skip(first + 1) {
            if !other.is_made && one.start < other.end() && other.start < one.end() {
                overlaps.push((first as u32, second as u32, other.start.wrapping_sub(one.start)));
            }
        }
    }
    let (offsets, block_bytes) = placed(&recorder.memories);
    Ok(CommandList {
        given: numbered.iter().map(Numbered::of).collect(),
        overlaps,
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

/// Given or made memory.
#[derive(Clone, Copy)]
struct Numbered {
    /// The place among all memory.
    memory: u32,
    /// The alignment of its address, as a power of two.
    zeros: u32,
    /// Whether it is made during the call.
    is_made: bool,
    is_empty: bool,
}

impl Numbered {
    const fn of((place, memory): &(usize, Memory)) -> Self {
        let (is_made, is_empty) = (memory.is_made, memory.bytes == 0);
        Self { memory: *place as u32, zeros: alignment_of(memory.start), is_made, is_empty }
    }

    /// Returns whether an address may be that of the memory before a call.
    const fn fits(&self, pointer: DevicePointer) -> bool {
        // Memory that was given back has no address.
        self.is_made
            || self.is_empty
            || pointer.address() != 0 && alignment_of(pointer.address()) >= self.zeros
    }
}

/// Commands that can be queued again for other memory.
pub struct CommandList {
    /// The given and made memory, by number.
    given: Vec<Numbered>,
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

    /// Returns the label of each command.
    pub fn labels(&self) -> impl Iterator<Item = Label> {
        self.commands.iter().map(|command| command.label)
    }

    /// Returns whether there are no commands.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Returns the size of the block that the commands need beside given memory.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Returns the first and the last command that touches each numbered memory; `None` if none does.
    pub fn uses(&self) -> Vec<Option<(usize, usize)>> {
        let mut uses = vec![None; self.given.len()];
        for (number, command) in self.commands.iter().enumerate() {
            for place in command.places() {
                if let (Some(given), _) = self.memories[place.memory as usize] {
                    let (first, _) = uses[given as usize].unwrap_or((number, number));
                    uses[given as usize] = Some((first, number));
                }
            }
        }
        uses
    }

    /// Returns whether the commands compute the same for given memory at these addresses; those of made memory are 0.
    pub fn fits(&self, given: &[DevicePointer]) -> bool {
        let address = |number: u32| given[number as usize].address();
        self.given.len() == given.len()
            && self.given.iter().zip(given).all(|(numbered, &pointer)| numbered.fits(pointer))
            && (self.overlaps.iter())
                .all(|&(one, other, distance)| address(other).wrapping_sub(address(one)) == distance)
    }

    /// Begins to queue the commands, for given memory at these addresses, which must [fit](Self::fits).
    pub fn begin(&self, stream: &Stream, given: &[DevicePointer], label: Label) -> Result<Queueing<'_>> {
        queue_deferred_before(label, Before::Unlisted)?;
        let block = Buffer::labelled(stream, self.block_bytes, label)?;
        let base = |&(number, offset): &(Option<u32>, u64)| match number {
            Some(number) => given[number as usize].address(),
            None => block.pointer().offset(offset).address(),
        };
        let bases = self.memories.iter().map(base).collect();
        Ok(Queueing { list: self, bases, _block: block, stream: stream.clone() })
    }
}

/// Commands that are queued.
pub struct Queueing<'l> {
    list: &'l CommandList,
    /// The address of each memory.
    bases: Vec<u64>,
    _block: Buffer,
    stream: Stream,
}

impl Queueing<'_> {
    /// Sets the address of made memory.
    ///
    /// # Errors
    /// If it is aligned less than while the commands were recorded.
    pub fn make(&mut self, number: usize, pointer: DevicePointer) -> Result<()> {
        let numbered = self.list.given[number];
        if alignment_of(pointer.address()) < numbered.zeros {
            refuse!("the address {:#x} is aligned too little", pointer.address());
        }
        self.bases[numbered.memory as usize] = pointer.address();
        Ok(())
    }

    /// Queues some of the commands. Does not block.
    pub fn queue(&self, commands: Range<usize>) -> Result<()> {
        self.list.commands[commands].iter().try_for_each(|command| command.queue(&self.stream, &self.bases))
    }
}

impl Place {
    fn at(self, bases: &[u64]) -> DevicePointer {
        DevicePointer::new(bases[self.memory as usize] + self.offset)
    }
}

impl Recorded {
    /// Returns the places of the memory that the command touches.
    fn places(&self) -> impl Iterator<Item = Place> {
        self.touched.iter().map(|touched| touched.place).chain(self.addresses.iter().map(|&(_, place)| place))
    }

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

#[cfg(test)]
mod tests {
    use thalweg_sim::{SimConfig, SimDriver};

    use super::*;
    use crate::{Device, Environment};

    const BYTES: u64 = 64;

    fn stream() -> Stream {
        let driver = SimDriver::new(SimConfig::default()).unwrap();
        let devices = Device::all_of(driver, &Environment::default()).unwrap();
        devices.into_iter().next().unwrap().current_stream()
    }

    fn buffers<const N: usize>(stream: &Stream) -> [Buffer; N] {
        std::array::from_fn(|_| Buffer::new(stream, BYTES).unwrap())
    }

    fn label() -> Label {
        Label::here("test")
    }

    #[test]
    fn commands_are_queued_again_for_other_memory() {
        let stream = stream();
        let [a, b, c, d] = buffers(&stream);
        let (copied, list) = record(&stream, || {
            note_given(a.pointer(), BYTES);
            let own = Buffer::labelled(&stream, BYTES, label())?;
            stream.copy_on_device(own.pointer(), a.pointer(), BYTES, label())?;
            note_made(b.pointer(), BYTES);
            stream.copy_on_device(b.pointer(), own.pointer(), BYTES, label())
        });
        copied.unwrap();
        let list = list.unwrap();
        assert_eq!((list.len(), list.uses()), (2, vec![Some((0, 0)), Some((1, 1))]));
        assert!((BYTES..=UNIT_BYTES).contains(&list.block_bytes()));
        for value in 1..4 {
            stream.copy_from_host(c.pointer(), &[value; BYTES as usize], label()).unwrap();
            let given = [c.pointer(), DevicePointer::new(0)];
            assert!(list.fits(&given));
            let mut queueing = list.begin(&stream, &given, label()).unwrap();
            queueing.queue(0..1).unwrap();
            queueing.make(1, d.pointer()).unwrap();
            queueing.queue(1..2).unwrap();
            let mut found = [0; BYTES as usize];
            stream.copy_to_host(&mut found, d.pointer(), label()).unwrap();
            assert_eq!(found, [value; BYTES as usize]);
        }
    }

    #[test]
    fn what_cannot_be_repeated_makes_no_list() {
        let stream = stream();
        let [a, b] = buffers(&stream);
        let refused = |function: &dyn Fn()| record(&stream, function).1.err().unwrap_or_default();
        let from_host = refused(&|| stream.copy_from_host(a.pointer(), &[1; 8], label()).unwrap());
        assert!(from_host.contains("memory of the host"), "{from_host}");
        let unknown = refused(&|| stream.copy_on_device(a.pointer(), b.pointer(), BYTES, label()).unwrap());
        assert!(unknown.contains("not the call's"), "{unknown}");
        let waits = refused(&|| stream.copy_to_host(&mut [0; 8], a.pointer(), label()).unwrap());
        assert!(waits.contains("waits"), "{waits}");
        let event = refused(&|| drop(stream.record_event().unwrap()));
        assert!(event.contains("event"), "{event}");
    }

    #[test]
    fn given_memory_fits_if_it_overlaps_and_is_aligned_as_it_was() {
        let stream = stream();
        let [a, b] = buffers(&stream);
        let (_, list) = record(&stream, || {
            note_given(a.pointer(), BYTES);
            note_given(a.pointer().offset(16), 16);
        });
        let list = list.unwrap();
        let inside = |offset| [b.pointer(), b.pointer().offset(offset)];
        assert!(list.fits(&inside(16)));
        assert!(!list.fits(&inside(32)), "the distance is another one");
        assert!(!list.fits(&[b.pointer().offset(1), b.pointer().offset(17)]), "it is aligned less");
        assert!(!list.fits(&[DevicePointer::new(0), DevicePointer::new(16)]), "it was given back");
    }
}
