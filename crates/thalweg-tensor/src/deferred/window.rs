//! [`Window`]: the loops of a thread that wait, with their operands.

use std::sync::{Arc, Weak};

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use thalweg_execute::alignment_of;
use thalweg_graph::{Lifetime, Memory, Node, Operand, Segment};
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_ops::lower::{LaunchNumbers, LoopLaunch};
use thalweg_runtime::{DevicePointer, Error, Label, Result, Stream};

use crate::storage::{DeferredHolder, Storage};

/// The most loops that wait.
const MOST_LOOPS: usize = 64;

/// The first element of an operand: a storage, and an offset in bytes.
pub(crate) type Place = (Arc<Storage>, u64);

/// A loop that is to wait.
pub(crate) struct Deferral<'a> {
    pub launch: &'a LoopLaunch,
    pub numbers: LaunchNumbers,
    pub read: SmallVec<[Place; 4]>,
    pub written: SmallVec<[Place; 2]>,
    pub stream: Stream,
    pub label: Label,
}

impl Deferral<'_> {
    /// Returns whether the loop cannot wait: another library has the address of an operand, so it may read or write the memory
    /// unnoticed, or the memory was freed.
    pub fn is_refused(&self) -> bool {
        let mut places = self.read.iter().chain(&self.written);
        self.stream.device().is_meta()
            || places.any(|(storage, _)| storage.is_exported() || storage.is_given_back())
    }
}

/// The memory of operands.
pub(super) enum Known {
    /// Memory that exists. Its storage is kept until the last loop that uses it is queued.
    Existing { holder: Option<DeferredHolder>, pointer: DevicePointer },
    /// Memory that is to be allocated, if anything reads it afterwards: if its storage is alive.
    Pending { storage: Weak<Storage>, bytes: u64 },
}

/// A loop that waits.
pub(super) struct Waiting {
    pub node: Node,
    pub numbers: LaunchNumbers,
    pub label: Label,
}

/// The loops that wait, and their operands.
#[derive(Default)]
pub(super) struct Waiters {
    pub stream: Option<Stream>,
    pub loops: Vec<Waiting>,
    pub memories: Vec<Known>,
    /// The number of each storage's memory, by the storage's address. A storage whose memory is pending keeps that address while it
    /// is listed, even if it is dropped.
    places: FxHashMap<usize, u32>,
    /// Numbers that determine the loops.
    pub key: Vec<u64>,
}

/// The loops of a thread that wait.
#[derive(Default)]
pub(crate) struct Window {
    waiters: Mutex<Waiters>,
    /// The failures of earlier programs, and the storages that they left without memory, by address.
    failures: Mutex<Vec<(Error, FxHashSet<usize>)>>,
}

/// The most failures that are remembered.
const MOST_FAILURES: usize = 16;

impl Window {
    pub(super) fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock()
    }

    /// Returns whether a loop may wait with those that wait already.
    pub fn accepts(&self, deferral: &Deferral<'_>) -> bool {
        let waiters = self.waiters();
        waiters.loops.len() < MOST_LOOPS
            && waiters.stream.as_ref().is_none_or(|stream| *stream == deferral.stream)
    }

    /// Adds a loop.
    pub fn add(&self, deferral: Deferral<'_>) {
        let Deferral { launch, numbers, read, written, stream, label } = deferral;
        let mut waiters = self.waiters();
        waiters.stream.get_or_insert(stream);
        waiters.key.extend(launch.key(0));
        let inputs = read.into_iter().map(|place| waiters.operand(place)).collect();
        let outputs = written.into_iter().map(|place| waiters.operand(place)).collect();
        let launch = LoopLaunch { scalars: LaunchNumbers::new(), ..launch.clone() };
        waiters.loops.push(Waiting { node: Node { launch, inputs, outputs }, numbers, label });
    }

    /// Remembers the failure of a program that was to write these storages.
    pub(super) fn failed(&self, error: &Error, storages: impl Iterator<Item = usize>) {
        let mut failures = self.failures.lock();
        if failures.len() == MOST_FAILURES {
            failures.remove(0);
        }
        failures.push((error.clone(), storages.collect()));
    }

    /// Returns the failure of the program that was to write a storage.
    pub fn check(&self, storage: &Storage) -> Result<()> {
        let failures = self.failures.lock();
        let at = std::ptr::from_ref(storage).addr();
        match failures.iter().find(|(_, storages)| storages.contains(&at)) {
            Some((error, _)) => {
                Err(error.clone().context("an earlier command of a compiled function failed"))
            }
            None => Ok(()),
        }
    }
}

impl Waiters {
    /// Returns an operand of the segment.
    fn operand(&mut self, (storage, offset): Place) -> Operand {
        let next = self.memories.len() as u32;
        let memory = *self.places.entry(Arc::as_ptr(&storage).addr()).or_insert(next);
        if memory == next {
            self.memories.push(match storage.promised_bytes() {
                Some(bytes) => Known::Pending { storage: Arc::downgrade(&storage), bytes },
                None => {
                    Known::Existing { pointer: storage.pointer(), holder: Some(DeferredHolder::new(storage)) }
                }
            });
        }
        self.key.extend_from_slice(&[u64::from(memory), offset]);
        Operand { memory, offset }
    }

    /// Returns the segment, and completes its key by what the memory is. `alive` has the storages that are alive.
    pub fn segment(&mut self, alive: &[Option<Arc<Storage>>]) -> Segment {
        let memories: Vec<Memory> = (self.memories.iter().zip(alive))
            .map(|(known, alive)| match *known {
                Known::Existing { pointer, .. } => Memory {
                    bytes: 0,
                    alignment_bytes: alignment_of([pointer]),
                    lifetime: Lifetime::Existing,
                },
                Known::Pending { bytes, .. } => {
                    let lifetime = if alive.is_some() { Lifetime::Kept } else { Lifetime::Temporary };
                    Memory { bytes, alignment_bytes: 256, lifetime }
                }
            })
            .collect();
        for memory in &memories {
            self.key.extend_from_slice(&[memory.bytes, memory.alignment_bytes << 8 | memory.lifetime as u64]);
        }
        Segment { memories, nodes: Vec::new() }
    }
}
