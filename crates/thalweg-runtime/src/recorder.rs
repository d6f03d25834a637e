//! The recorder of a thread's commands, of which [`CommandList`](crate::CommandList) is made.
//!
//! An argument of a kernel is a word. A word with an address in known memory is an address: sizes and indices are smaller than any.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_driver::{
    Access, AccessMode, Copy, DevicePointer, Endpoint, Fill, FillPattern, FunctionHandle, GpuCall,
    HostKernel, Label, Launch, LaunchMode, LibraryLaunch, StreamHandle, Touch,
};

/// A stream, by the number of its device and the driver's handle.
type StreamKey = (u64, StreamHandle);

/// An address as a number of memory and an offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) memory: u32,
    pub(crate) offset: u64,
}

/// The work of a command.
pub(crate) enum Work {
    Launch {
        function: FunctionHandle,
        grid: [u32; 3],
        block: [u32; 3],
        shared_memory_bytes: u32,
        mode: LaunchMode,
    },
    Library {
        gpu: Box<GpuCall>,
        host: Arc<dyn HostKernel>,
        places: SmallVec<[Place; 8]>,
    },
    Copy {
        places: [Place; 2],
        bytes: u64,
    },
    Fill {
        place: Place,
        pattern: FillPattern,
        count: u64,
    },
}

/// A range of memory that a command touches.
pub(crate) struct Touched {
    pub(crate) place: Place,
    pub(crate) bytes: u64,
    pub(crate) mode: AccessMode,
    pub(crate) touch: Touch,
}

/// A command.
pub(crate) struct Recorded {
    pub(crate) work: Work,
    /// The arguments.
    pub(crate) words: SmallVec<[u64; 12]>,
    /// The arguments that are addresses.
    pub(crate) addresses: SmallVec<[(u32, Place); 6]>,
    pub(crate) touched: SmallVec<[Touched; 4]>,
    /// Places that are read, each with one that is written: the command may write where it reads.
    pub(crate) aligned: SmallVec<[[Place; 2]; 1]>,
    pub(crate) label: Label,
}

/// Memory that commands may touch.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// The number of the given memory; `None` for memory that was allocated meanwhile.
    pub(crate) given: Option<u32>,
    /// Whether the memory is made during the call.
    pub(crate) is_made: bool,
}

impl Memory {
    pub(crate) const fn end(&self) -> u64 {
        self.start + self.bytes
    }

    const fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end()
    }
}

/// The recording of a thread.
pub(crate) struct Recorder {
    stream: StreamKey,
    pub(crate) memories: Vec<Memory>,
    pub(crate) commands: Vec<Recorded>,
    given: u32,
    pub(crate) refusal: Option<String>,
}

thread_local! {
    static IS_RECORDING: Cell<bool> = const { Cell::new(false) };
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

/// Returns whether this thread records.
#[inline]
pub(crate) fn is_recording() -> bool {
    IS_RECORDING.get()
}

fn note(change: impl FnOnce(&mut Recorder)) {
    if is_recording() {
        RECORDER.with_borrow_mut(|recorder| recorder.as_mut().map(change));
    }
}

/// Makes the commands that this thread records no list.
pub fn refuse(reason: impl FnOnce() -> String) {
    note(|recorder| {
        recorder.refusal.get_or_insert_with(reason);
    });
}

/// Runs a function whose commands are not part of the recording.
pub fn excluded<T>(function: impl FnOnce() -> T) -> T {
    struct Paused(bool);
    impl Drop for Paused {
        fn drop(&mut self) {
            IS_RECORDING.set(self.0);
        }
    }
    let _paused = Paused(IS_RECORDING.replace(false));
    function()
}

/// Returns the number of commands that this thread has recorded.
pub fn recorded() -> usize {
    RECORDER.with_borrow(|recorder| recorder.as_ref().map_or(0, |recorder| recorder.commands.len()))
}

/// Notes memory whose address is given before each repeated call. Given and made memory is numbered together, from 0 on.
pub fn note_given(pointer: DevicePointer, bytes: u64) {
    note_numbered(pointer, bytes, false);
}

/// Notes memory that each repeated call makes before its first use, and that nothing else has until then.
pub fn note_made(pointer: DevicePointer, bytes: u64) {
    note_numbered(pointer, bytes, true);
}

fn note_numbered(pointer: DevicePointer, bytes: u64, is_made: bool) {
    note(|recorder| {
        let given = Some(recorder.given);
        recorder.given += 1;
        recorder.memories.push(Memory { start: pointer.address(), bytes, given, is_made });
    });
}

/// Notes memory that was allocated.
#[inline]
pub(crate) fn note_allocated(pointer: DevicePointer, bytes: u64) {
    note(|recorder| {
        recorder.memories.push(Memory { start: pointer.address(), bytes, given: None, is_made: false })
    });
}

/// Begins a recording on this thread. It ends with the result.
pub(crate) fn begin(stream: StreamKey) -> Recording {
    let refusal = is_recording().then(|| "a recording is under way".to_owned());
    RECORDER.set(Some(Recorder { stream, memories: Vec::new(), commands: Vec::new(), given: 0, refusal }));
    IS_RECORDING.set(true);
    Recording
}

/// A recording of this thread.
pub(crate) struct Recording;

impl Recording {
    /// Ends the recording, and returns the recorded commands.
    pub(crate) fn end(self) -> Option<Recorder> {
        RECORDER.take()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        IS_RECORDING.set(false);
        RECORDER.set(None);
    }
}

impl Recorder {
    /// Returns the place of an address, in the memory that was made known last.
    fn place(&self, address: u64) -> Option<Place> {
        let memory = self.memories.iter().rposition(|memory| memory.contains(address))?;
        Some(Place { memory: memory as u32, offset: address - self.memories[memory].start })
    }

    fn add(
        &mut self,
        stream: StreamKey,
        label: Label,
        accesses: &[Access],
        words: &[u64],
        work: Option<Work>,
    ) {
        if self.stream != stream {
            self.refusal.get_or_insert_with(|| format!("{label} is on another stream"));
        }
        let touched = accesses.iter().filter(|access| access.bytes > 0).map(|access| {
            let &Access { start, bytes, mode, touch } = access;
            Some(Touched { place: self.place(start)?, bytes, mode, touch })
        });
        let (Some(touched), Some(work)) = (touched.collect::<Option<_>>(), work) else {
            self.refusal.get_or_insert_with(|| format!("{label} uses memory that is not the call's"));
            return;
        };
        let addresses = (0..).zip(words).filter_map(|(at, &word)| Some((at, self.place(word)?))).collect();
        let aligned = SmallVec::new();
        self.commands.push(Recorded { work, words: words.into(), addresses, touched, aligned, label });
    }
}

/// Notes a kernel.
pub(crate) fn note_launch(stream: StreamKey, launch: &Launch<'_>) {
    note(|recorder| {
        let &Launch { function, grid, block, shared_memory_bytes, mode, arguments, accesses, label } = launch;
        let words = bytemuck::try_cast_slice(arguments);
        let work = Work::Launch { function, grid, block, shared_memory_bytes, mode };
        let work = words.is_ok().then_some(work);
        recorder.add(stream, label, accesses, words.unwrap_or_default(), work);
    });
}

/// Notes pairs of addresses: the last command may write at the second where it reads at the first, if it has no other operand there.
#[inline]
pub(crate) fn note_aligned(pairs: impl Iterator<Item = [u64; 2]>) {
    note(|recorder| {
        let pairs: SmallVec<[[Place; 2]; 1]> = pairs
            .filter_map(|[read, written]| Some([recorder.place(read)?, recorder.place(written)?]))
            .collect();
        let Some(command) = recorder.commands.last_mut() else { return };
        let operands = &command.addresses;
        let is_one =
            |place: &Place| operands.iter().filter(|(_, other)| other.memory == place.memory).count() == 1;
        command.aligned = pairs.into_iter().filter(|pair| pair.iter().all(is_one)).collect();
    });
}

/// Notes a library's call.
pub(crate) fn note_library(stream: StreamKey, launch: &LibraryLaunch<'_>) {
    note(|recorder| {
        let (mut gpu, mut places) = (launch.gpu.clone(), SmallVec::new());
        let mut are_known = true;
        are_known &= gpu.change_addresses(&mut |address| match recorder.place(address.address()) {
            Some(place) => places.push(place),
            None => are_known = false,
        });
        let words = bytemuck::try_cast_slice(launch.arguments);
        are_known &= words.is_ok();
        let work =
            are_known.then(|| Work::Library { gpu: Box::new(gpu), host: Arc::clone(launch.host), places });
        recorder.add(stream, launch.label, launch.accesses, words.unwrap_or_default(), work);
    });
}

/// Notes a copy.
pub(crate) fn note_copy(stream: StreamKey, copy: &Copy, accesses: &[Access]) {
    note(|recorder| {
        let place = |end: Endpoint| match end {
            Endpoint::Device(pointer) => recorder.place(pointer.address()),
            Endpoint::Pinned(_) => None,
        };
        let places = place(copy.target).zip(place(copy.source));
        let work = places.map(|(to, from)| Work::Copy { places: [to, from], bytes: copy.bytes });
        recorder.add(stream, copy.label, accesses, &[], work);
    });
}

/// Notes a fill.
pub(crate) fn note_fill(stream: StreamKey, fill: &Fill, accesses: &[Access]) {
    note(|recorder| {
        let place = recorder.place(fill.target.address());
        let work = place.map(|place| Work::Fill { place, pattern: fill.pattern, count: fill.count });
        recorder.add(stream, fill.label, accesses, &[], work);
    });
}
