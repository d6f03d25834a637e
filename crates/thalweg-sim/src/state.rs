//! All state of a machine, and the checks with which every call begins.
//!
//! The methods that implement the driver's calls are in the module of their subject ([`stream`](crate::objects::stream),
//! [`capture`](crate::objects::capture), [`graph`](crate::objects::graph), [`code`](crate::objects::code), ...). All of
//! them are methods of [`MachineState`]: they run in the critical section and never wait.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use thalweg_driver::{Code, MemoryAdvice, MemoryLocation, Registration};

use super::control::Control;
use super::executor::command::Frontier;
use super::executor::{Executor, Job};
use super::memory::Memory;
use super::refusal::{CallResult, Refusal};
use crate::collective::Collectives;
use crate::conditional::ConditionEntry;
use crate::memory::pool::Pools;
use crate::objects::capture::Capture;
use crate::objects::code::{Function, Module};
use crate::objects::graph::{Executable, Graph};
use crate::objects::graph_memory::GraphMemory;
use crate::objects::stream::{Event, Stream, StreamEntry};
use crate::table::Table;
use crate::workers::WorkerThreads;

/// The state of a machine.
pub(super) struct MachineState {
    pub(super) executor: Executor<Collectives>,
    pub(super) memory: Memory,
    pub(super) pools: Pools,
    /// The pools' handles.
    pub(super) pool_handles: Table<u64>,
    pub(super) devices: Vec<Device>,
    pub(super) streams: Table<StreamEntry>,
    pub(super) events: Table<Event>,
    pub(super) modules: Table<Module>,
    pub(super) functions: Table<Function>,
    /// The communicator and rank of each handle.
    pub(super) communicators: Table<(u64, u32)>,
    /// The memory that is registered with ranks.
    pub(super) registered: Vec<Registration>,
    pub(super) captures: Vec<Capture>,
    pub(super) graphs: Table<Graph>,
    pub(super) executables: Table<Executable>,
    pub(super) conditions: Table<ConditionEntry>,
    pub(super) last_graph_serial: u64,
    /// The memory that graphs have allocated, by the graphs' serial numbers.
    pub(super) graph_memory: BTreeMap<u64, GraphMemory>,
    /// Values of the program that are dropped after the critical section.
    pub(super) trash: Vec<Box<dyn Any + Send>>,
    pub(super) workers: WorkerThreads,
    /// The queued commands on memory that the host accesses in place: the call that queued them waits for them.
    pub(super) awaited: Frontier,
    /// The number of calls that used an external stream after its owner had destroyed it.
    pub(super) ended_streams_named: AtomicU64,
    /// The number of the next stream.
    pub(super) next_stream: u32,
    /// The first call of the driver that a command made, which CUDA forbids.
    pub(super) misuse: Option<String>,
    /// The function that is called with the text of `misuse`, once.
    pub(super) on_misuse: Option<OnMisuse>,
    /// The controlled machine's state: the schedule and the threads.
    pub(super) control: Option<Box<Control>>,
}

/// A function that receives the text of a misuse.
pub(super) type OnMisuse = Box<dyn FnOnce(&str) + Send>;

/// A device.
pub(super) struct Device {
    pub(super) is_active: bool,
    /// The handle of the legacy default stream.
    pub(super) default_stream: u64,
    /// The streams that synchronize with the legacy default stream.
    pub(super) blocking_streams: Vec<u64>,
    /// The unfinished work of streams that were destroyed.
    pub(super) orphans: Frontier,
}

impl MachineState {
    pub(super) fn new(
        driver: u16,
        devices: u32,
        device_bytes: u64,
        is_controlled: bool,
    ) -> std::io::Result<Self> {
        let mut streams = Table::new(driver);
        let mut device = |number| Device {
            is_active: false,
            default_stream: streams.insert(StreamEntry::Own(Stream::legacy(number))),
            blocking_streams: Vec::new(),
            orphans: Frontier::new(),
        };
        Ok(Self {
            executor: Executor::new(devices),
            memory: Memory::new(driver, devices, device_bytes, is_controlled)?,
            pools: Pools::default(),
            pool_handles: Table::new(driver),
            devices: (0..devices).map(&mut device).collect(),
            streams,
            events: Table::new(driver),
            modules: Table::new(driver),
            functions: Table::new(driver),
            communicators: Table::new(driver),
            registered: Vec::new(),
            captures: Vec::new(),
            graphs: Table::new(driver),
            executables: Table::new(driver),
            conditions: Table::new(driver),
            last_graph_serial: 0,
            graph_memory: BTreeMap::new(),
            trash: Vec::new(),
            workers: WorkerThreads::default(),
            awaited: Frontier::new(),
            ended_streams_named: AtomicU64::new(0),
            next_stream: devices,
            misuse: None,
            on_misuse: None,
            control: None,
        })
    }

    /// Returns the next command for a worker.
    pub(super) fn take(&mut self) -> Option<Job> {
        self.executor.take(&self.memory)
    }

    /// Settles everything that has become due in the critical section: collectives that can never run, stream-ordered
    /// frees, and memory that nothing touches any more.
    pub(super) fn settle(&mut self) {
        self.executor.break_circles();
        for step in self.executor.spent.drain(..) {
            self.trash.push(Box::new(step));
        }
        while let Some(address) = self.executor.freed.pop() {
            self.pools.freed(address, &mut self.memory);
        }
        if !self.memory.condemned.is_empty() {
            for segment in std::mem::take(&mut self.memory.condemned) {
                if self.executor.is_touched(&self.memory.segment_pieces(&segment)) {
                    self.memory.condemn(segment);
                } else {
                    self.memory.segment_release(segment);
                }
            }
        }
    }

    /// Checks that a device with this number exists.
    pub(super) fn device(&mut self, device: u32) -> CallResult<&mut Device> {
        let count = self.devices.len();
        self.devices.get_mut(device as usize).ok_or_else(|| {
            Refusal::new(Code::InvalidDevice, format!("there is no device {device}: there are {count}"))
        })
    }

    /// Checks that the device exists and is not lost, and gives it a context.
    pub(super) fn usable(&mut self, device: u32) -> CallResult<()> {
        self.device(device)?.is_active = true;
        self.check_alive(device)
    }

    /// Checks that the device is not lost.
    pub(super) fn check_alive(&self, device: u32) -> CallResult<()> {
        match self.executor.lost(device) {
            Some(cause) => Err(cause.clone()),
            None => Ok(()),
        }
    }

    /// Checks advice on managed memory, which has no effect here.
    pub(super) fn memory_advise(&mut self, address: u64, bytes: u64, advice: MemoryAdvice) -> CallResult<()> {
        use MemoryAdvice::{AccessedBy, NotAccessedBy, PreferredLocation, ReadMostly};
        self.memory.check_managed(address, bytes)?;
        match advice {
            PreferredLocation(Some(location)) | AccessedBy(location) | NotAccessedBy(location) => {
                match location {
                    MemoryLocation::Device(device) => self.usable(device),
                    MemoryLocation::Host => Ok(()),
                }
            }
            PreferredLocation(None) | ReadMostly(_) => Ok(()),
        }
    }

    /// Returns the pool of a handle.
    pub(super) fn pool(&self, handle: u64) -> CallResult<u64> {
        self.pool_handles.get(handle).copied().ok_or_else(|| unknown("pool", handle))
    }

    /// Returns all unfinished work of a device.
    pub(super) fn device_frontier(&self, device: u32) -> Frontier {
        let mut frontier = self.devices[device as usize].orphans.clone();
        for (_, entry) in self.streams.iter() {
            if let StreamEntry::Own(stream) = entry
                && stream.device == device
            {
                frontier.extend_from_slice(&stream.frontier);
            }
        }
        self.executor.prune(&mut frontier);
        frontier
    }
}

/// Returns the refusal of an unknown handle.
pub(super) fn unknown(kind: &str, handle: u64) -> Refusal {
    Refusal::new(
        Code::InvalidHandle,
        format!("{handle:#x} is not the handle of any {kind} of this driver, or it was destroyed"),
    )
}
