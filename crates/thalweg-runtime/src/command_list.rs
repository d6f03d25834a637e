//! [`CommandList`]: the commands of a call, recorded once, and queued again for memory at other addresses.
//!
//! A call that repeats queues the same commands over the same sizes; only its addresses change. While a thread [records](record), each
//! command that it queues is noted, with the place of each address: a number of *given* memory (inputs and results) or of the list's own,
//! and an offset. [`CommandList::begin`] fills in addresses and queues the commands, without the layers above that chose them. Memory
//! of the list's own is planned in a few *blocks* ([`thalweg_memory::plan`]) from the commands that use it. To the caller a block is made
//! memory like a result: it is made before its first use, and may be given back after its last one.
//!
//! # Invariants
//! - A list has all commands of the recorded calls, in their order, or there is none: whatever else is done on the stream, and each
//!   address that is in no known memory, is a reason against a list.
//! - An argument of a kernel is a word. A word with an address in known memory is an address: sizes and indices are smaller than any.
//! - Given memory that overlaps in a different way than while it was recorded, or is aligned less, does not fit the list.

use std::ops::Range;

use thalweg_driver::{Access, DevicePointer, GpuCall, Label, Launch, LibraryLaunch};
use thalweg_kernels::convolution;
use thalweg_memory::plan::{self, Interval};

use crate::deferred::{Before, queue_deferred_before};
use crate::recorder::{self, Memory, Place, Recorded, Touched, Work};
use crate::refuse;
use crate::{Error, Result, Stream};

pub use crate::recorder::{excluded, note_given, note_made, recorded, refuse};

/// The greatest alignment in bytes that kernels use, as a power of two.
const MOST_ALIGNED: u32 = 8;

/// The unit in which memory is allocated, in bytes.
const UNIT_BYTES: u64 = 512;

/// Records the commands that a function queues on a stream. Returns its result, and the commands, or the reason why there are none.
pub fn record<T>(
    stream: &Stream,
    function: impl FnOnce() -> T,
) -> (T, std::result::Result<RecordedCommands, String>) {
    let recording = recorder::begin(stream.key());
    let result = function();
    if crate::deferred::has_deferred() {
        refuse(|| "work is deferred beyond the call".to_owned());
    }
    let recorder = recording.end().ok_or_else(|| "another recording has ended".to_owned());
    let commands = recorder.and_then(|recorder| match recorder.refusal {
        Some(refusal) => Err(refusal),
        None => Ok(RecordedCommands { memories: recorder.memories, commands: recorder.commands }),
    });
    (result, commands)
}

/// Commands that were recorded, of which [`plan`](Self::plan) makes a list.
pub struct RecordedCommands {
    memories: Vec<Memory>,
    commands: Vec<Recorded>,
}

impl RecordedCommands {
    /// Plans the memory of the commands. `lasts` says which given and made memory stays allocated after its last use, and
    /// `may_overwrite` which given memory may be written after its last use.
    pub fn plan(self, lasts: impl Fn(usize) -> bool, may_overwrite: impl Fn(usize) -> bool) -> CommandList {
        let overlaps = overlaps(&self.memories);
        let owners = self.owners(|given| {
            may_overwrite(given as usize)
                && !overlaps.iter().any(|&(one, other, _)| [one, other].contains(&given))
        });
        let Self { memories, commands } = self;
        let uses = uses(&commands, memories.len(), |memory| owners[memory as usize]);
        let mut others = vec![0; commands.len()];
        let mut intervals = Vec::new();
        for (number, (memory, used)) in memories.iter().zip(&uses).enumerate() {
            let Some((first, last)) = *used else { continue };
            match memory.given {
                None => intervals.push(Interval { memory: number as u32, bytes: memory.bytes, first, last }),
                Some(given) => {
                    let first = if memory.is_made { first } else { 0 };
                    let end = if lasts(given as usize) { others.len() } else { last + 1 };
                    let bytes = memory.bytes.next_multiple_of(UNIT_BYTES);
                    others[first..end].iter_mut().for_each(|sum| *sum += bytes);
                }
            }
        }
        let mut given: Vec<Numbered> = memories.iter().filter_map(Numbered::of).collect();
        let mut places: Vec<Place> =
            memories.iter().map(|memory| Place { memory: memory.given.unwrap_or(0), offset: 0 }).collect();
        let results = given.len();
        for block in plan::blocks(&intervals, &others) {
            for (memory, offset) in block.placed {
                places[memory as usize] = Place { memory: given.len() as u32, offset };
            }
            given.push(Numbered {
                bytes: block.bytes.next_multiple_of(UNIT_BYTES),
                zeros: MOST_ALIGNED,
                is_made: true,
            });
        }
        let mut overwritten = Vec::new();
        for (memory, &owner) in owners.iter().enumerate().filter(|&(memory, &owner)| memory as u32 != owner) {
            places[memory] = places[owner as usize];
            overwritten.extend(memories[owner as usize].given);
        }
        overwritten.sort_unstable();
        overwritten.dedup();
        CommandList { given, results, overlaps, overwritten, places, commands }
    }

    /// Returns for each memory the one whose place it takes, or itself: its first command writes it, point by point, where the
    /// command reads the other for the last time.
    fn owners(&self, may_overwrite: impl Fn(u32) -> bool) -> Vec<u32> {
        let Self { memories, commands } = self;
        let uses = uses(commands, memories.len(), |memory| memory);
        let mut spans = vec![0; memories.len()];
        for touched in commands.iter().flat_map(|command| &command.touched) {
            let span: &mut u64 = &mut spans[touched.place.memory as usize];
            *span = (*span).max(touched.place.offset + touched.bytes);
        }
        let mut owners: Vec<u32> = (0..memories.len() as u32).collect();
        let mut is_taken = vec![false; memories.len()];
        for (at, command) in commands.iter().enumerate() {
            for &[read, written] in &command.aligned {
                let [one, other] = [read.memory as usize, written.memory as usize];
                let owner = &memories[owners[one] as usize];
                let has_room = spans[other] <= owner.bytes && read.offset == written.offset;
                let may = match owner.given {
                    None => true,
                    Some(given) => {
                        !owner.is_made && alignment_of(owner.start) == MOST_ALIGNED && may_overwrite(given)
                    }
                };
                let ends = uses[one].is_some_and(|(_, last)| last == at);
                let begins = uses[other].is_some_and(|(first, _)| first == at);
                let is_free = memories[other].given.is_none() && owners[other] as usize == other;
                if may && has_room && ends && begins && is_free && !is_taken[one] {
                    owners[other] = owners[one];
                    is_taken[one] = true;
                }
            }
        }
        owners
    }
}

/// Returns the pairs of given memory that overlap, with the distance of their addresses.
fn overlaps(memories: &[Memory]) -> Vec<(u32, u32, u64)> {
    let before = memories.iter().filter(|memory| !memory.is_made);
    let before: Vec<_> = before.filter_map(|memory| Some((memory.given?, memory))).collect();
    let mut overlaps = Vec::new();
    for (place, &(first, one)) in before.iter().enumerate() {
        for &(second, other) in &before[place + 1..] {
            if one.start < other.end() && other.start < one.end() {
                overlaps.push((first, second, other.start.wrapping_sub(one.start)));
            }
        }
    }
    overlaps
}

/// Returns the first and the last command that uses each number; `number` returns that of a memory.
fn uses(commands: &[Recorded], count: usize, number: impl Fn(u32) -> u32) -> Vec<Option<(usize, usize)>> {
    let mut uses = vec![None; count];
    for (command, recorded) in commands.iter().enumerate() {
        for place in recorded.places() {
            let used = &mut uses[number(place.memory) as usize];
            let (first, _) = used.unwrap_or((command, command));
            *used = Some((first, command));
        }
    }
    uses
}

const fn alignment_of(address: u64) -> u32 {
    let zeros = address.trailing_zeros();
    if zeros < MOST_ALIGNED { zeros } else { MOST_ALIGNED }
}

/// Given or made memory.
#[derive(Clone, Copy)]
struct Numbered {
    bytes: u64,
    /// The alignment of its address, as a power of two.
    zeros: u32,
    /// Whether it is made during the call.
    is_made: bool,
}

impl Numbered {
    fn of(memory: &Memory) -> Option<Self> {
        let &Memory { start, bytes, is_made, .. } = memory;
        memory.given.map(|_| Self { bytes, zeros: alignment_of(start), is_made })
    }

    /// Returns whether an address may be that of the memory before a call.
    const fn fits(&self, pointer: DevicePointer) -> bool {
        // Memory that was given back has no address.
        self.is_made
            || self.bytes == 0
            || pointer.address() != 0 && alignment_of(pointer.address()) >= self.zeros
    }
}

/// Commands that can be queued again for other memory.
pub struct CommandList {
    /// The given and made memory, by number, and after them the blocks.
    given: Vec<Numbered>,
    /// The number of given and made memory, without the blocks.
    results: usize,
    /// The pairs of given memory that overlap, with the distance of their addresses.
    overlaps: Vec<(u32, u32, u64)>,
    /// The given memory that commands write after its last use.
    overwritten: Vec<u32>,
    /// The number and the offset of each memory that commands use.
    places: Vec<Place>,
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

    /// Returns the number and the size of each block, which is made memory that the commands need beside the results.
    pub fn blocks(&self) -> impl Iterator<Item = (usize, u64)> {
        (self.results..self.given.len()).map(|number| (number, self.given[number].bytes))
    }

    /// Returns the numbers of the given memory that commands write after its last use.
    pub fn overwritten(&self) -> impl Iterator<Item = usize> {
        self.overwritten.iter().map(|&number| number as usize)
    }

    /// Returns the size of numbered memory, in units of allocation.
    pub fn allocated_bytes(&self, number: usize) -> u64 {
        self.given[number].bytes.next_multiple_of(UNIT_BYTES)
    }

    /// Returns the first and the last command that touches each numbered memory; `None` if none does.
    pub fn uses(&self) -> Vec<Option<(usize, usize)>> {
        uses(&self.commands, self.given.len(), |memory| self.places[memory as usize].memory)
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
        let given = given.iter().map(|pointer| pointer.address()).collect();
        Ok(Queueing { list: self, given, stream: stream.clone() })
    }
}

/// Commands that are queued.
pub struct Queueing<'l> {
    list: &'l CommandList,
    /// The address of each numbered memory.
    given: Vec<u64>,
    stream: Stream,
}

impl Queueing<'_> {
    /// Sets the address of made memory.
    ///
    /// # Errors
    /// If it is aligned less than while the commands were recorded.
    pub fn make(&mut self, number: usize, pointer: DevicePointer) -> Result<()> {
        if alignment_of(pointer.address()) < self.list.given[number].zeros {
            refuse!("the address {:#x} is aligned too little", pointer.address());
        }
        self.given[number] = pointer.address();
        Ok(())
    }

    /// Queues some of the commands. Does not block.
    pub fn queue(&self, commands: Range<usize>) -> Result<()> {
        self.list.commands[commands].iter().try_for_each(|command| command.queue(&self.stream, self))
    }

    fn at(&self, place: Place) -> DevicePointer {
        let own = self.list.places[place.memory as usize];
        DevicePointer::new(self.given[own.memory as usize] + own.offset + place.offset)
    }
}

impl Recorded {
    /// Returns the places of the memory that the command uses.
    fn places(&self) -> impl Iterator<Item = Place> {
        let work: &[Place] = match &self.work {
            Work::Launch { .. } => &[],
            Work::Library { places, .. } => places,
            Work::Copy { places, .. } => places,
            Work::Fill { place, .. } => std::slice::from_ref(place),
        };
        let touched = self.touched.iter().map(|touched| touched.place);
        touched.chain(self.addresses.iter().map(|&(_, place)| place)).chain(work.iter().copied())
    }

    fn queue(&self, stream: &Stream, memory: &Queueing<'_>) -> Result<()> {
        let mut words = self.words.clone();
        for &(word, place) in &self.addresses {
            words[word as usize] = memory.at(place).address();
        }
        let (label, arguments) = (self.label, bytemuck::cast_slice(&words));
        let access = |touched: &Touched| {
            let &Touched { place, bytes, mode, touch } = touched;
            Access::new(memory.at(place).address(), bytes, mode).touching(touch)
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
                        *address = memory.at(*place);
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
                stream.copy_on_device(memory.at(target), memory.at(source), bytes, label)
            }
            &Work::Fill { place, pattern, count } => stream.fill(memory.at(place), pattern, count, label),
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_sim::{SimConfig, SimDriver};

    use super::*;
    use crate::{Buffer, Device, Environment};

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
        let list = list.unwrap().plan(|_| true, |_| false);
        assert_eq!((list.len(), list.uses()), (2, vec![Some((0, 0)), Some((1, 1)), Some((0, 1))]));
        let blocks: Vec<_> = list.blocks().collect();
        assert_eq!(blocks, [(2, UNIT_BYTES)]);
        for value in 1..4 {
            stream.copy_from_host(c.pointer(), &[value; BYTES as usize], label()).unwrap();
            let given = [c.pointer(), DevicePointer::new(0), DevicePointer::new(0)];
            assert!(list.fits(&given));
            let mut queueing = list.begin(&stream, &given, label()).unwrap();
            let block = Buffer::new(&stream, UNIT_BYTES).unwrap();
            queueing.make(2, block.pointer()).unwrap();
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
        let list = list.unwrap().plan(|_| true, |_| false);
        let inside = |offset| [b.pointer(), b.pointer().offset(offset)];
        assert!(list.fits(&inside(16)));
        assert!(!list.fits(&inside(32)), "the distance is another one");
        assert!(!list.fits(&[b.pointer().offset(1), b.pointer().offset(17)]), "it is aligned less");
        assert!(!list.fits(&[DevicePointer::new(0), DevicePointer::new(16)]), "it was given back");
    }
}
