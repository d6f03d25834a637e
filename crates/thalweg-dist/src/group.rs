//! [`ProcessGroup`]: ranks that do collectives together.
//!
//! A rank is a device with a communicator's handle and its own stream for collectives. Ranks find each other through a store: the
//! first rank publishes the communicator's identifier and the others read it. The communicators of groups within a group are
//! split from its own; if NCCL cannot split, they have their own identifiers. In the store each group has a prefix with the keys
//! `id`, the identifier; `progress/R`, the last call of rank R; `failed`, the reason why the group failed; `flight/R`, the last
//! calls of rank R when it learnt of the failure; `new_group/N` and `split/N`, the ranks that make the groups within it;
//! `register_mem_pool/N`, the segments of symmetric memory.
//!
//! This module is a hub: a group submits [`Coalescing`](crate::Coalescing)s, which return [`Work`](crate::Work), and the
//! `watchdog` monitors it.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use thalweg_derive::at_line;
use thalweg_driver::Code;
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_runtime::{
    Communicator, CommunicatorId, Device, Error, Label, MemPool, Result, Stream, options, refuse, refuse_if,
};
use thalweg_tensor::caller::{at_line, label_at};

use crate::flight::{Entry, FlightRecorder, Tensors};
use crate::names;
use crate::store::{PrefixStore, Store};
use crate::watchdog::{self, Outstanding};

/// PyTorch's limit for NCCL's collectives: 10 minutes.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// The name of the first group.
const FIRST: &str = "world";

/// Returns the prefix of a group's keys in the store.
fn prefix(name: &str) -> String {
    format!("group/{name}")
}

options! {
    /// The options of a process group.
    #[derive(Clone, Debug)]
    pub struct GroupOptions {
        /// The time that a collective may take before the [watchdog](Self::watchdog) ends the group; 10 minutes.
        pub timeout: Duration = DEFAULT_TIMEOUT,
        /// Whether a thread watches over the group: it aborts the group's collectives if one takes longer than the timeout, or
        /// another rank has failed, so that no host thread waits forever. `None`: only on GPUs. The simulated GPU itself detects work
        /// that cannot end.
        pub watchdog: Option<bool> = None,
        /// The priority of the group's stream; smaller numbers are more urgent. The default is 0.
        pub stream_priority: i32 = 0,
    }
}

/// A rank of a group of ranks that do collectives together (`torch.distributed.ProcessGroup`). A clone is the same rank.
///
/// All ranks make the same calls in the same order. Calls are asynchronous and return a [`Work`](crate::Work). The collective
/// runs after the current stream's work so far. Only one host thread at a time may use a group.
#[derive(Clone)]
pub struct ProcessGroup(pub(crate) Arc<GroupState>);

pub(crate) struct GroupState {
    name: String,
    /// The name by which operators find the group.
    pub(crate) registered_name: String,
    rank: u32,
    size: u32,
    /// The members' rank numbers in the first group.
    global_ranks: Vec<u32>,
    pub(crate) device: Device,
    pub(crate) communicator: Arc<Communicator>,
    pub(crate) stream: Stream,
    /// The group's part of the store.
    pub(crate) store: Arc<dyn Store>,
    /// The store of the first group.
    root: Arc<dyn Store>,
    pub(crate) options: GroupOptions,
    children: AtomicU64,
    /// The number of registrations of symmetric memory.
    windows: AtomicU64,
    /// The number of regions that were captured in lockstep.
    pub(crate) captures: AtomicU64,
    flight: Mutex<FlightRecorder>,
    pub(crate) outstanding: Outstanding,
    failure: Mutex<Option<Failure>>,
    has_watchdog: bool,
    /// The two streams of copies from host memory, and the stream of copies to it.
    copies: OnceLock<[Stream; 3]>,
    copy_users: AtomicU64,
}

/// The reason why a group failed.
struct Failure {
    text: String,
    /// The flight record from before the waiting collectives were aborted.
    record: String,
}

/// The parameters for making a group, and its ranks.
struct Plan {
    name: String,
    rank: u32,
    global_ranks: Vec<u32>,
    device: Device,
    root: Arc<dyn Store>,
    options: GroupOptions,
}

impl Plan {
    /// Returns the group's part of the store.
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(PrefixStore::new(prefix(&self.name), self.root.clone()))
    }
}

impl ProcessGroup {
    /// Makes a device the rank `rank` of `world_size` (`torch.distributed.init_process_group`). *Blocks* until rank 0 has made
    /// this call, on GPUs until all ranks have.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is no such rank; [`Error::is_distributed`] if rank 0 does not make the call in
    /// time; [`Error::is_library_missing`] on a GPU without NCCL.
    #[at_line]
    pub fn new(
        store: Arc<dyn Store>,
        rank: u32,
        world_size: u32,
        device: &Device,
        options: GroupOptions,
    ) -> Result<Self> {
        refuse_if!(
            rank >= world_size,
            "init_process_group: rank {rank} is not in a world of {world_size} ranks, which are 0 to world_size - 1"
        );
        let plan = Plan {
            name: FIRST.to_owned(),
            rank,
            global_ranks: (0..world_size).collect(),
            device: device.clone(),
            root: store,
            options,
        };
        let communicator = joined(&plan)?;
        Self::made(plan, communicator)
    }

    fn made(plan: Plan, communicator: Communicator) -> Result<Self> {
        let store = plan.store();
        let Plan { name, rank, global_ranks, device, root, options } = plan;
        let size = global_ranks.len() as u32;
        let stream = Stream::with_priority(&device, options.stream_priority)?;
        let has_watchdog = options.watchdog.unwrap_or(!device.is_simulated());
        let registered = names::register(&name, &device);
        let group = Self(Arc::new(GroupState {
            name,
            registered_name: registered.name.clone(),
            rank,
            size,
            global_ranks,
            device,
            communicator: Arc::new(communicator),
            stream,
            store,
            root,
            options,
            children: AtomicU64::new(0),
            windows: AtomicU64::new(0),
            captures: AtomicU64::new(0),
            flight: Mutex::default(),
            outstanding: Outstanding::default(),
            failure: Mutex::new(None),
            has_watchdog,
            copies: OnceLock::new(),
            copy_users: AtomicU64::new(0),
        }));
        registered.set(&group.0);
        if has_watchdog {
            watchdog::start(&group.0)?;
        }
        Ok(group)
    }

    /// Returns this rank's number in the group, from 0.
    pub fn rank(&self) -> u32 {
        self.0.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> u32 {
        self.0.size
    }

    /// Returns the device of this rank.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Returns the name of the group, which is the same on all ranks.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the name by which operators find the group on this device ([`functional`](crate::functional),
    /// `torch.distributed.ProcessGroup.group_name`): the group's name, with a number appended if the device is in another group
    /// of this name.
    pub fn group_name(&self) -> &str {
        &self.0.registered_name
    }

    /// Returns the stream on which the collectives of this rank run.
    pub fn stream(&self) -> &Stream {
        &self.0.stream
    }

    /// Returns one of two streams for copies from host memory, alternately, and the stream of this rank's copies to it.
    pub(crate) fn copy_streams(&self) -> Result<(Stream, Stream)> {
        if self.0.copies.get().is_none() {
            let made = || Stream::new(self.device());
            let streams = [made()?, made()?, made()?];
            // Another thread may have set the streams first.
            let _ = self.0.copies.set(streams);
        }
        let [even, odd, departures] = self.0.copies.get().expect("set above");
        let number = self.0.copy_users.fetch_add(1, Ordering::Relaxed);
        let arrivals = if number.is_multiple_of(2) { even } else { odd };
        Ok((arrivals.clone(), departures.clone()))
    }

    /// Returns the ranks of the group as they are numbered in the first group (`get_process_group_ranks`).
    pub fn global_ranks(&self) -> &[u32] {
        &self.0.global_ranks
    }

    /// Creates a group of some of these ranks, in this order (`torch.distributed.new_group`). *All* ranks of this group call it,
    /// in the same order; ranks that are not in the new group get `None`. *Blocks* until all have made the call, on GPUs also
    /// until the collectives of this rank are done.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a rank is not in this group or is named twice; [`Error::is_distributed`] if the ranks
    /// name different ranks, or one does not make the call in time.
    #[at_line]
    pub fn new_group(&self, ranks: &[u32]) -> Result<Option<Self>> {
        self.check()?;
        for (place, &rank) in ranks.iter().enumerate() {
            refuse_if!(
                rank >= self.size(),
                "new_group: the new group's rank should be within the world_size set by init_process_group: {rank} of {}",
                self.size()
            );
            if ranks[..place].contains(&rank) {
                refuse!("new_group: group ranks should be unique, and {rank} is named twice");
            }
        }
        refuse_if!(ranks.is_empty(), "new_group: a group of no ranks");
        let number = self.0.children.fetch_add(1, Ordering::Relaxed);
        self.agree(
            "new_group",
            &format!("new_group/{number}"),
            &format!("makes a group of the ranks {ranks:?}"),
        )?;
        self.part(format!("{}.{number}", self.name()), ranks)
    }

    /// Waits until all ranks of this group are about to make the same call. If one is not, all of them get the error.
    fn agree(&self, call: &str, key: &str, own: &str) -> Result<()> {
        let store = PrefixStore::new(key, self.0.store.clone());
        let first = match self.rank() {
            0 => store.set("first", own.as_bytes()).map(|()| own.as_bytes().to_vec())?,
            _ => store.get("first")?,
        };
        if first != own.as_bytes() {
            let text = format!(
                "{call}: rank {} of the group \"{}\" {own}, and rank 0 {}: all ranks make the same calls in the same order",
                self.rank(),
                self.name(),
                String::from_utf8_lossy(&first)
            );
            store.compare_set("differs", b"", text.as_bytes())?;
        }
        store.set(&came(self.rank()), &[1])?;
        meet(&store, call, self.name(), &(0..self.size()).collect::<Vec<u32>>())?;
        match store.find("differs")? {
            Some(text) => Err(Error::distributed(String::from_utf8_lossy(&text).into_owned())),
            None => Ok(()),
        }
    }

    /// Creates one group per color from the ranks that call with it (`ncclCommSplit`, `MPI_Comm_split`): ordered by `key`, then
    /// by rank. A rank without a color gets no group. *All* ranks of this group call it, and it *blocks* until they have.
    ///
    /// # Errors
    /// [`Error::is_distributed`] if a rank does not make the call in time.
    #[at_line]
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>> {
        self.check()?;
        let number = self.0.children.fetch_add(1, Ordering::Relaxed);
        let entry = |rank: u32| format!("split/{number}/{rank}");
        let own = format!("{} {key}", color.map_or(-1, i64::from));
        self.0.store.set(&entry(self.rank()), own.as_bytes())?;
        let mut chosen: Vec<(i32, u32)> = Vec::new();
        for rank in 0..self.size() {
            let text = String::from_utf8_lossy(&self.0.store.get(&entry(rank))?).into_owned();
            let mut words = text.split(' ').map(str::parse::<i64>);
            let (Some(Ok(other)), Some(Ok(key))) = (words.next(), words.next()) else {
                return Err(Error::distributed(format!(
                    "split: rank {rank} wrote \"{text}\", not color and key"
                )));
            };
            if color.is_some_and(|color| i64::from(color) == other) {
                chosen.push((key as i32, rank));
            }
        }
        chosen.sort_unstable();
        let ranks: Vec<u32> = chosen.into_iter().map(|(_, rank)| rank).collect();
        self.part(format!("{}.{number}.{}", self.name(), color.unwrap_or_default()), &ranks)
    }

    /// Makes the group of these ranks, if this rank is among them. All ranks of this group call it, each with its own part.
    fn part(&self, name: String, ranks: &[u32]) -> Result<Option<Self>> {
        let place = ranks.iter().position(|&rank| rank == self.rank());
        let own = if place.is_some() { ranks } else { &[] };
        let split = match self.split_communicator(own) {
            Err(error) if error.is_not_supported() => None,
            split => split?,
        };
        let Some(place) = place else { return Ok(None) };
        let plan = Plan {
            name,
            rank: place as u32,
            global_ranks: ranks.iter().map(|&rank| self.0.global_ranks[rank as usize]).collect(),
            device: self.0.device.clone(),
            root: self.0.root.clone(),
            options: self.0.options.clone(),
        };
        let communicator = match split {
            Some(communicator) => communicator,
            None => joined(&plan)?,
        };
        Self::made(plan, communicator).map(Some)
    }

    fn split_communicator(&self, part: &[u32]) -> Result<Option<Communicator>> {
        let state = &self.0;
        let (communicator, stream, part) = (state.communicator.clone(), state.stream.clone(), part.to_vec());
        let waits = !state.device.is_simulated();
        let member = format!("rank {} of the group \"{}\"", self.rank(), self.name());
        within(&state.device, state.options.timeout, &member, move || {
            // NCCL may wait forever if a collective is in progress.
            if waits {
                stream.synchronize()?;
            }
            communicator.split(&part)
        })
    }

    // ---- Memory ----------------------------------------------------------------------------------------------------

    /// Registers the memory of a pool with the group, both its present segments and later ones
    /// (`ProcessGroupNCCL.register_mem_pool`): collectives that use it may avoid copies. [`MemPool::for_collectives`] makes such
    /// a pool. It stays registered until it is freed or [deregistered](Self::deregister_mem_pool), or the group is dropped.
    ///
    /// With `symm`, the pool's present segments are registered as symmetric memory (`ncclCommWindowRegister`), for which NCCL has
    /// special kernels. *All* ranks make the call, with pools that have segments of the same sizes, and it *blocks* until they
    /// have. Segments that the pool adds later need another such call.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the pool was not made for collectives, is of another device or is registered already;
    /// [`Error::is_not_supported`] if NCCL is older than 2.19, or 2.27.3 for symmetric memory; [`Error::is_distributed`] for
    /// symmetric memory if the pools differ or a rank does not make the call in time.
    #[track_caller]
    pub fn register_mem_pool(&self, pool: &MemPool, symm: bool) -> Result<()> {
        let label = label_at("register_mem_pool", Location::caller());
        at_line(label.location, || {
            self.check()?;
            if !symm {
                return pool.register(&self.0.communicator, label);
            }
            let number = self.0.windows.fetch_add(1, Ordering::Relaxed);
            let own = format!("registers segments of {:?} bytes", pool.segment_bytes());
            self.agree(label.operator, &format!("register_mem_pool/{number}"), &own)?;
            pool.register_symmetric(&self.0.communicator, label)
        })
    }

    /// Ends the registration of a pool's memory (`ProcessGroupNCCL.deregister_mem_pool`). *Blocks* until the collectives of this
    /// rank are done.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the pool is not registered with the group.
    #[track_caller]
    pub fn deregister_mem_pool(&self, pool: &MemPool) -> Result<()> {
        let label = label_at("deregister_mem_pool", Location::caller());
        at_line(label.location, || {
            self.check()?;
            self.0.stream.synchronize()?;
            pool.deregister(&self.0.communicator, label)
        })
    }

    // ---- Failures -------------------------------------------------------------------------------------------------

    /// Ends the group at once: pending collectives of this rank end unfinished, and later calls of this rank return errors. So do
    /// calls of the other ranks that have a watchdog, which receives the reason. Does not wait.
    pub fn abort(&self, reason: &str) -> Result<()> {
        self.fail(format!("rank {} aborted the group \"{}\": {reason}", self.rank(), self.name()))
    }

    /// Records why the group failed, notifies the other ranks, and aborts the waiting collectives.
    pub(crate) fn fail(&self, text: String) -> Result<()> {
        let record = self.flight_record();
        {
            let mut failure = self.failure();
            if failure.is_some() {
                return Ok(());
            }
            *failure = Some(Failure { text: text.clone(), record: record.clone() });
        }
        if let Some(last) = self.last_call() {
            self.publish(last);
        }
        // A rank that cannot be reached learns of it from its own watchdog.
        let _ = self.0.store.compare_set("failed", b"", text.as_bytes());
        let _ = self.0.store.set(&format!("flight/{}", self.rank()), record.as_bytes());
        self.0.communicator.abort()
    }

    /// Ends the group if a rank cannot be reached, and returns an error that names the ranks that it may be. Other errors are
    /// returned unchanged.
    pub(crate) fn lost(&self, error: Error, entry: Entry) -> Error {
        let is_lost = error.driver_error().is_some_and(|error| error.code() == Code::CommunicatorFailed);
        // An abort also ends calls with such an error.
        if !is_lost || self.check().is_err() {
            return error;
        }
        let text = format!(
            "rank {} of the group \"{}\" lost another rank in {entry}: {error}. {}The last calls of this rank:\n{}",
            self.rank(),
            self.name(),
            self.who_is_missing(entry.sequence),
            self.flight_record()
        );
        // An error of the abort is also returned by later calls.
        let _ = self.fail(text);
        self.explain(error)
    }

    /// Returns the reason in the store why another rank has ended this group or the first one, if there is one.
    pub(crate) fn failure_elsewhere(&self) -> Option<String> {
        let first = format!("{}/failed", prefix(FIRST));
        let found = [self.0.store.find("failed"), self.0.root.find(&first)];
        let text = found.into_iter().find_map(|answer| answer.ok().flatten())?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    fn failure(&self) -> MutexGuard<'_, Option<Failure>> {
        self.0.failure.lock()
    }

    /// Checks that the group has not failed, as far as this rank knows. Ranks of one process learn of each other's failures at
    /// once.
    ///
    /// # Errors
    /// [`Error::is_distributed`] with the reason of the failure.
    pub fn check(&self) -> Result<()> {
        let own = self.failure().as_ref().map(|failure| failure.text.clone());
        let is_near = self.0.store.is_in_process();
        match own.or_else(|| is_near.then(|| self.failure_elsewhere()).flatten()) {
            Some(text) => Err(Error::distributed(text)),
            None => Ok(()),
        }
    }

    /// Returns whether this rank has recorded that the group failed, and ended its part of it.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    /// Returns the given error of the device, or the reason why the group failed if that is known.
    pub(crate) fn explain(&self, error: Error) -> Error {
        self.check().err().unwrap_or(error)
    }

    /// Returns this rank's last collectives, one per line, the latest last (PyTorch's flight recorder): number, operation, line,
    /// dtypes and shapes of inputs and outputs, and progress ([`FlightState`](crate::FlightState)). If the group has failed, it
    /// is the record at that time.
    pub fn flight_record(&self) -> String {
        if let Some(Failure { record, .. }) = &*self.failure() {
            return record.clone();
        }
        let remembered = self.flight().remembered();
        remembered.dump(self.device())
    }

    /// Returns each rank's last collectives, by rank, after the group has failed: each rank's watchdog publishes them when it
    /// learns of the failure. `None` for a rank that has not published them. *Blocks* as long as the store does.
    ///
    /// # Errors
    /// [`Error::is_distributed`] if the store cannot be reached.
    pub fn flight_records(&self) -> Result<Vec<Option<String>>> {
        let record = |rank: u32| {
            let found = self.0.store.find(&format!("flight/{rank}"))?;
            Ok(found.map(|text| String::from_utf8_lossy(&text).into_owned()))
        };
        (0..self.size()).map(record).collect()
    }

    pub(crate) fn flight(&self) -> MutexGuard<'_, FlightRecorder> {
        self.0.flight.lock()
    }

    /// Records a collective that is about to be submitted.
    pub(crate) fn note(&self, label: Label, tensors: Tensors) -> Entry {
        let entry = self.flight().add(label, tensors);
        // If there is a watchdog, it publishes the call in its next check.
        if self.0.store.is_in_process() && !self.has_watchdog() {
            self.publish(entry);
        }
        entry
    }

    /// Returns this rank's last collective.
    pub(crate) fn last_call(&self) -> Option<Entry> {
        self.flight().last()
    }

    /// Publishes this rank's progress to the other ranks.
    pub(crate) fn publish(&self, entry: Entry) {
        let key = format!("progress/{}", self.rank());
        // This only serves explanations, which have fewer details without the store.
        let _ = self.0.store.set(&key, format!("{} {}", entry.sequence, entry.label).as_bytes());
    }

    /// Describes the progress of the other ranks, for a rank that waits in its call `sequence`.
    pub(crate) fn who_is_missing(&self, sequence: u64) -> String {
        watchdog::wait_for_progress(self);
        let mut text = String::new();
        for rank in (0..self.size()).filter(|&rank| rank != self.rank()) {
            let Ok(progress) = self.0.store.find(&format!("progress/{rank}")) else {
                return "The store does not answer, so that it is not known which rank is missing. "
                    .to_owned();
            };
            let progress = progress.map(|value| String::from_utf8_lossy(&value).into_owned());
            let (made, last) = match progress.as_deref().and_then(|text| text.split_once(' ')) {
                Some((made, last)) => (made.parse().unwrap_or(0), last),
                None if self.0.store.is_in_process() => (0, "none"),
                // Between processes, watchdogs publish it in their checks.
                None => {
                    text +=
                        &format!("Rank {rank} has not said how far it came, so its process may have ended. ");
                    continue;
                }
            };
            if made < sequence {
                text += &format!("Rank {rank} has made {made} of {sequence} calls; its last is {last}. ");
            }
        }
        if text.is_empty() {
            text += "As far as is known all ranks have made the call, and a device or a link between them takes long or stalls. ";
        }
        text
    }

    pub(crate) fn has_watchdog(&self) -> bool {
        self.0.has_watchdog
    }
}

/// Returns the key that a rank of a group sets when it arrives.
fn came(rank: u32) -> String {
    format!("came/{rank}")
}

/// Waits until every rank of a group has made this call, because a communicator waits forever for one that never does.
///
/// # Errors
/// [`Error::is_distributed`] with the ranks that have not made the call within the store's timeout.
fn meet(store: &dyn Store, call: &str, name: &str, ranks: &[u32]) -> Result<()> {
    let keys: Vec<String> = (0..ranks.len() as u32).map(came).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let Err(error) = store.wait(&keys, store.timeout()) else { return Ok(()) };
    let is_missing = |key: &str| !matches!(store.find(key), Ok(Some(_)));
    let missing: Vec<u32> =
        keys.iter().zip(ranks).filter(|(key, _)| is_missing(key)).map(|(_, &rank)| rank).collect();
    if missing.is_empty() {
        return Err(error);
    }
    Err(Error::distributed(format!(
        "{call}: of the {} ranks of the group \"{name}\" {missing:?} did not come within {} ms; look at why they did not start, \
         or give the store a longer timeout",
        ranks.len(),
        store.timeout().as_millis()
    )))
}

/// Joins a group's own communicator. If that fails, the other ranks are notified, which would wait for this one.
fn joined(plan: &Plan) -> Result<Communicator> {
    joined_alone(plan).inspect_err(|error| {
        let text = format!("rank {} did not join the group \"{}\": {error}", plan.rank, plan.name);
        let _ = plan.store().compare_set("failed", b"", text.as_bytes());
    })
}

/// Joins a group's own communicator, whose identifier is in the group's part of the store.
fn joined_alone(plan: &Plan) -> Result<Communicator> {
    let (store, device, rank) = (plan.store(), plan.device.clone(), plan.rank);
    let size = plan.global_ranks.len() as u32;
    // Published before anything can fail, so that other ranks wait no longer for this one than it takes to get here.
    store.set(&came(rank), &[1])?;
    let id = identifier(&*store, &device, rank)?;
    meet(&*store, "init_process_group", &plan.name, &plan.global_ranks)?;
    let member = format!("rank {rank} of {size} of the group \"{}\"", plan.name);
    within(&plan.device, plan.options.timeout, &member, move || Communicator::join(&device, &id, rank, size))
}

/// Creates a communicator. On a GPU that waits for the other ranks, forever if one of them has died, so a separate thread does
/// it. After the timeout the thread is abandoned, and a communicator that it still creates is dropped.
fn within<T: Send + 'static>(
    device: &Device,
    timeout: Duration,
    member: &str,
    get: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if device.is_simulated() {
        return get();
    }
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let gets = move || drop(sender.send(get()));
    let started = std::thread::Builder::new().name("communicator".to_owned()).spawn(gets);
    started
        .map_err(|error| Error::distributed(format!("{member} has no thread for a communicator: {error}")))?;
    receiver.recv_timeout(timeout).unwrap_or_else(|_| {
        Err(Error::distributed(format!(
            "{member} did not get its communicator within {} ms: another rank ended after it came to the store, its collectives do not end, or NCCL cannot \
             reach it (NCCL_DEBUG=INFO says what it does)",
            timeout.as_millis()
        )))
    })
}

/// Returns the identifier of a group's communicator, which its first rank makes.
fn identifier(store: &dyn Store, device: &Device, rank: u32) -> Result<CommunicatorId> {
    let process = std::process::id().to_le_bytes();
    if rank == 0 {
        // A rank that waits for the identifier need not wait for the store's timeout.
        let id = Communicator::new_id(device).inspect_err(|_| drop(store.set("id", &[])))?;
        store.set("id", &[&id.0[..], &process].concat())?;
        return Ok(id);
    }
    let found = store.get("id")?;
    if found.is_empty() {
        return Err(Error::distributed(String::from_utf8_lossy(&store.get("failed")?).into_owned()));
    }
    let nonsense = || Error::distributed("the store's entry `id` is none: do others use the same store?");
    let (id, maker) = found.split_first_chunk::<{ CommunicatorId::BYTES }>().ok_or_else(nonsense)?;
    refuse_if!(
        device.is_simulated() && maker != process,
        "simulated devices of several processes do not reach each other: run the ranks as threads of one process \
         (`run_ranks`), or on GPUs"
    );
    Ok(CommunicatorId(*id))
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessGroup({}, rank {} of {}, {})", self.name(), self.rank(), self.size(), self.device())
    }
}
