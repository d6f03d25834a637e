//! Collectives through NCCL.
//!
//! The library is loaded when the first communicator is requested. Communicators are created for all devices at once, in
//! this process (`ncclCommInitAll`), or rank by rank under an identifier that the program passes from one rank to the
//! others (`ncclCommInitRank`). NCCL uses the primary contexts, as we do.
//!
//! NCCL requires that a communicator is used by one thread at a time, and that calls that belong together are inside a
//! group. So each rank has a lock that a group holds from its first call to its end. Ranks are locked in the order of their
//! handles: groups of several threads never wait for each other's locks in a circle.
//!
//! Only an abort does not wait for that lock without a limit, because the holder may be blocked until the abort. NCCL frees
//! a communicator in its abort even if a thread is inside a call with it. So such an abort is made inside a group, which is
//! ended only when that thread has left: the call ends at once, and the memory is freed at the group's end (from NCCL 2.22
//! on; older versions free it at once).
//!
//! The version is queried once, and features that it lacks are refused by name (`version`).
//!
//! NCCL does not report later errors between devices (parts that differ, a rank that never calls): its kernels wait.

mod collective;
mod memory;
#[cfg(test)]
mod tests;
mod version;

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};
use std::thread::Builder;
use std::time::{Duration, Instant};

use thalweg_lock::{Mutex, MutexGuard};

use self::version::Version;
use crate::collective::{Collective, CollectiveOperation, CommunicatorId, CommunicatorInfo, Reduction};
use crate::cuda::search::{Library, OpenLibrary, SearchEnvironment};
use crate::cuda::sys::RawStream;
use crate::cuda::table::{CallStatus, entry_points, function_at, text_at};
use crate::library::ElementFormat;
use crate::{Code, Error, Result};

/// The interval at which an abort checks whether a call is done.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The statuses that leave a communicator usable: they report a wrong argument or a wrong use.
const MISTAKES: [u32; 2] = [4, 5];

/// `ncclComm_t`, as a number.
pub(in crate::cuda) type RawCommunicator = usize;

/// The handle that `ncclCommRegister` or `ncclCommWindowRegister` returns, as a number.
pub(in crate::cuda) type RawRegistration = usize;

/// `NCCL_SPLIT_NOCOLOR`: a rank that is in no part of a split.
pub(in crate::cuda) const NO_COLOR: c_int = -1;

/// `NCCL_WIN_COLL_SYMMETRIC`: a window that all ranks register.
pub(in crate::cuda) const SYMMETRIC: c_int = 1;

/// `ncclUniqueId`, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::cuda) struct RawId(pub(in crate::cuda) [u8; CommunicatorId::BYTES]);

entry_points! {
    /// libnccl.
    NcclTable from cudarc::nccl::sys {
        init_all = ncclCommInitAll (communicators: *mut RawCommunicator, count: c_int, devices: *const c_int);
        get_version = ncclGetVersion (version: *mut c_int);
        unique_id = ncclGetUniqueId (id: *mut RawId);
        init_rank = ncclCommInitRank (communicator: *mut RawCommunicator, ranks: c_int, id: RawId, rank: c_int);
        split = ncclCommSplit (communicator: RawCommunicator, color: c_int, key: c_int, part: *mut RawCommunicator,
            config: *const c_void);
        memory_allocate = ncclMemAlloc (pointer: *mut u64, bytes: usize);
        memory_free = ncclMemFree (pointer: u64);
        register = ncclCommRegister (communicator: RawCommunicator, pointer: u64, bytes: usize,
            registration: *mut RawRegistration);
        deregister = ncclCommDeregister (communicator: RawCommunicator, registration: RawRegistration);
        window_register = ncclCommWindowRegister (communicator: RawCommunicator, pointer: u64, bytes: usize,
            window: *mut RawRegistration, flags: c_int);
        window_deregister = ncclCommWindowDeregister (communicator: RawCommunicator, window: RawRegistration);
        abort = ncclCommAbort (communicator: RawCommunicator);
        destroy = ncclCommDestroy (communicator: RawCommunicator);
        group_start = ncclGroupStart ();
        group_end = ncclGroupEnd ();
        all_reduce = ncclAllReduce (send: u64, receive: u64, count: usize, format: u32, reduction: u32,
            communicator: RawCommunicator, stream: RawStream);
        broadcast = ncclBroadcast (send: u64, receive: u64, count: usize, format: u32, root: c_int, communicator: RawCommunicator,
            stream: RawStream);
        reduce = ncclReduce (send: u64, receive: u64, count: usize, format: u32, reduction: u32, root: c_int,
            communicator: RawCommunicator, stream: RawStream);
        all_gather = ncclAllGather (send: u64, receive: u64, count: usize, format: u32, communicator: RawCommunicator,
            stream: RawStream);
        reduce_scatter = ncclReduceScatter (send: u64, receive: u64, count: usize, format: u32, reduction: u32,
            communicator: RawCommunicator, stream: RawStream);
        send = ncclSend (send: u64, count: usize, format: u32, peer: c_int, communicator: RawCommunicator, stream: RawStream);
        receive = ncclRecv (receive: u64, count: usize, format: u32, peer: c_int, communicator: RawCommunicator,
            stream: RawStream);
    }
}

type ErrorString = unsafe extern "C" fn(u32) -> *const c_char;
type LastError = unsafe extern "C" fn(RawCommunicator) -> *const c_char;

/// NCCL's library, loaded.
pub(in crate::cuda) struct Nccl {
    pub(in crate::cuda) table: NcclTable,
    pub(in crate::cuda) error_string: Option<ErrorString>,
    pub(in crate::cuda) last_error: Option<LastError>,
    pub(in crate::cuda) version: Version,
}

/// The memory that is registered with a rank, by its address.
pub(in crate::cuda) type Registrations = BTreeMap<u64, Registered>;

/// Memory that is registered with a rank.
pub(in crate::cuda) struct Registered {
    pub(in crate::cuda) bytes: u64,
    pub(in crate::cuda) raw: RawRegistration,
    pub(in crate::cuda) symmetric: bool,
}

/// A rank's communicator.
pub(in crate::cuda) struct Communicator {
    pub(in crate::cuda) raw: RawCommunicator,
    pub(in crate::cuda) info: CommunicatorInfo,
    /// The registrations, locked by the thread that uses the communicator.
    pub(in crate::cuda) in_use: Mutex<Registrations>,
    /// Whether the communicator was aborted, which makes `raw` invalid.
    is_over: AtomicBool,
}

/// The state of a communicator at its abort, with the result of the abort.
#[derive(PartialEq, Debug)]
pub(in crate::cuda) enum Ended {
    /// No thread used the communicator.
    Idle(Result<()>),
    /// A thread was in a call with the communicator.
    InCall(Result<()>),
    /// The communicator was aborted before.
    Before,
}

/// The limits of an abort's waits.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct Waits {
    /// The limit for a call that may end without the abort.
    pub(in crate::cuda) grace: Duration,
    /// The limit for a call after the abort.
    pub(in crate::cuda) after_abort: Duration,
}

impl Communicator {
    pub(in crate::cuda) const fn new(raw: RawCommunicator, info: CommunicatorInfo) -> Self {
        Self { raw, info, in_use: Mutex::new(Registrations::new()), is_over: AtomicBool::new(false) }
    }

    pub(in crate::cuda) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Waits until no thread uses the communicator, up to a limit.
    fn wait_until_unused(&self, limit: Duration) -> Option<MutexGuard<'_, Registrations>> {
        let begin = Instant::now();
        loop {
            match self.in_use.try_lock() {
                Some(guard) => return Some(guard),
                None if begin.elapsed() >= limit => return None,
                None => std::thread::sleep(CHECK_INTERVAL),
            }
        }
    }

    /// Ends the communicator once, even if a thread is blocked in a call with it. `enter` makes the device's context
    /// current.
    ///
    /// Such a call waits for another rank and only an abort ends it, so its lock cannot be waited for without a limit. If
    /// the lock is acquired, no other thread is in the library. If not, the holder is in the library and waits there, which
    /// is the case that the library's abort, called from another thread, is made for. `is_over` is set before either, and a
    /// group checks it with the lock held, so no call begins with a communicator that is gone.
    pub(in crate::cuda) fn end(
        &self,
        nccl: &Nccl,
        waits: Waits,
        enter: impl Fn() -> Result<()> + Sync,
    ) -> Ended {
        if self.is_over.swap(true, Ordering::AcqRel) {
            return Ended::Before;
        }
        if let Some(_alone) = self.wait_until_unused(waits.grace) {
            return Ended::Idle(enter().and_then(|()| nccl.abort(self)));
        }
        // The library's group belongs to the thread, and stays open if the call does not end. So it must not be opened on a
        // thread of the caller.
        let outcome = std::thread::scope(|scope| {
            let aborts = Builder::new().name("communicator-abort".to_owned());
            let started = aborts.spawn_scoped(scope, || {
                enter()?;
                nccl.abort_in_call(self, waits.after_abort)
            });
            let Ok(started) = started else { return Err(self.failed_abort("there is no thread for it")) };
            started.join().unwrap_or_else(|_| Err(self.failed_abort("its thread panicked")))
        });
        Ended::InCall(outcome)
    }

    fn failed_abort(&self, why: &str) -> Error {
        let CommunicatorInfo { rank, ranks, .. } = self.info;
        Error::new(Code::Timeout, "ncclCommAbort", format!("rank {rank} of {ranks} in a call: {why}"))
    }
}

/// Returns the `ncclDataType_t`.
pub(in crate::cuda) const fn data_type(format: ElementFormat) -> Option<u32> {
    Some(match format {
        ElementFormat::R_8I => 0,
        ElementFormat::R_8U => 1,
        ElementFormat::R_32I => 2,
        ElementFormat::R_32U => 3,
        ElementFormat::R_64I => 4,
        ElementFormat::R_64U => 5,
        ElementFormat::R_16F => 6,
        ElementFormat::R_32F => 7,
        ElementFormat::R_64F => 8,
        ElementFormat::R_16BF => 9,
        _ => return None,
    })
}

/// Returns the `ncclRedOp_t`.
pub(in crate::cuda) const fn reduction_operation(reduction: Reduction) -> u32 {
    match reduction {
        Reduction::Sum => 0,
        Reduction::Product => 1,
        Reduction::Maximum => 2,
        Reduction::Minimum => 3,
        Reduction::Average => 4,
    }
}

/// Makes NCCL leave the buffers of captured collectives unregistered with other GPUs, unless the environment sets this.
///
/// With registration, the default of NCCL 2.28.9, the first replay of GPT-2 XL sharded over two GPUs did not end in five of
/// seven runs, with threads and with processes. Without it all ended, and no captured step became slower.
fn leave_buffers_unregistered() {
    static ONCE: Once = Once::new();
    const VARIABLE: &str = "NCCL_GRAPH_REGISTER";
    ONCE.call_once(|| {
        if std::env::var_os(VARIABLE).is_none() {
            // SAFETY: readers in Rust are synchronized with this, and so are those in C from glibc 2.41 on. With an older
            // glibc, a thread of C code that reads the environment during this one call is not; NCCL, for which the
            // variable is, has no thread before it.
            unsafe { std::env::set_var(VARIABLE, "0") };
        }
    });
}

impl Nccl {
    pub(in crate::cuda) fn load(environment: &SearchEnvironment) -> Result<Self> {
        leave_buffers_unregistered();
        let library = OpenLibrary::open(Library::Nccl, environment, "ncclCommInitAll")?;
        let symbol = |name: &CStr| library.symbol(name);
        // SAFETY: the signatures are those that `nccl.h` declares for these symbols in version 2 (its pointers to device
        // memory are numbers here, its enumerations unsigned numbers); an `OpenLibrary` is never unloaded.
        let mut loaded = unsafe {
            Self {
                table: NcclTable::resolve(|entry| symbol(entry.symbol)),
                error_string: function_at(symbol(c"ncclGetErrorString")),
                last_error: function_at(symbol(c"ncclGetLastError")),
                version: Version::of_code(0),
            }
        };
        let mut code: c_int = 0;
        // SAFETY: there is room for a number; the call needs no device.
        let outcome = unsafe { loaded.table.get_version(&raw mut code) };
        loaded.check(outcome, || "its version".to_owned())?;
        loaded.version = Version::of_code(code.unsigned_abs());
        Ok(loaded)
    }

    pub(in crate::cuda) fn check(&self, outcome: CallStatus, detail: impl FnOnce() -> String) -> Result<()> {
        if outcome.is_success() {
            return Ok(());
        }
        let detail = detail();
        if outcome.missing.is_some() {
            let detail = format!("{detail}: the installed NCCL has no such call");
            return Err(Error::new(Code::LibraryMissing, outcome.call, detail));
        }
        // SAFETY: the first function takes any number; the second takes null for the last error of any communicator. Both
        // return a string of the library, which is read at once.
        let (name, last) = unsafe {
            let name = self.error_string.map(|name| text_at(name(outcome.status))).unwrap_or_default();
            (name, self.last_error.map(|last| text_at(last(0))).unwrap_or_default())
        };
        let mut text = format!("{name} ({}): {detail}", outcome.status);
        if !last.trim().is_empty() {
            text = format!("{text}: {}", last.trim());
        }
        Err(Error::new(Code::Library, outcome.call, text))
    }

    /// Checks a call that needs the other ranks. An error that is not the caller's mistake leaves a communicator that can
    /// only be aborted.
    pub(in crate::cuda) fn check_ranks(
        &self,
        outcome: CallStatus,
        detail: impl FnOnce() -> String,
    ) -> Result<()> {
        self.check(outcome, detail).map_err(|error| match error.code() {
            Code::Library if !MISTAKES.contains(&outcome.status) => {
                Error::new(Code::CommunicatorFailed, error.call(), error.detail().to_owned())
            }
            _ => error,
        })
    }

    /// Aborts a communicator that no other thread uses or will use.
    fn abort(&self, rank: &Communicator) -> Result<()> {
        // SAFETY: the communicator is passed to the library for the last time: `end` calls this once.
        let outcome = unsafe { self.table.abort(rank.raw) };
        self.check(outcome, || format!("rank {} of {}", rank.info.rank, rank.info.ranks))
    }

    /// Ends the call that another thread is in, and frees the communicator when that thread has left it. The calling thread
    /// may be left inside a group.
    fn abort_in_call(&self, rank: &Communicator, limit: Duration) -> Result<()> {
        // SAFETY: takes nothing; the group is ended below, or this thread ends.
        self.check(unsafe { self.table.group_start() }, || "an abort".to_owned())?;
        let aborted = self.abort(rank);
        let Some(_alone) = rank.wait_until_unused(limit) else {
            let why = format!("it has not ended {} ms after it was told to", limit.as_millis());
            return Err(rank.failed_abort(&why));
        };
        // SAFETY: ends the group that was begun above, on the same thread; with the lock held no other thread uses the
        // communicator.
        let ended = self.check(unsafe { self.table.group_end() }, || "an abort".to_owned());
        aborted.and(ended)
    }

    /// Queues one part, inside a group.
    ///
    /// # Safety
    /// The communicator and the stream are alive and of one device, and only the calling thread uses the communicator.
    pub(in crate::cuda) unsafe fn queue(
        &self,
        call: &Collective,
        format: u32,
        raw: RawCommunicator,
        stream: RawStream,
    ) -> CallStatus {
        let table = &self.table;
        let (send, receive) = (call.send.address(), call.receive.address());
        let count = usize::try_from(call.count).unwrap_or(usize::MAX);
        let rank = |rank: u32| c_int::try_from(rank).unwrap_or(c_int::MAX);
        // SAFETY: the caller's promise; the addresses are used by kernels only, and the contract leaves those to the
        // caller.
        unsafe {
            match call.operation {
                CollectiveOperation::AllReduce(reduction) => {
                    let reduction = reduction_operation(reduction);
                    table.all_reduce(send, receive, count, format, reduction, raw, stream)
                }
                CollectiveOperation::Broadcast { root } => {
                    table.broadcast(send, receive, count, format, rank(root), raw, stream)
                }
                CollectiveOperation::Reduce { root, reduction } => {
                    let reduction = reduction_operation(reduction);
                    table.reduce(send, receive, count, format, reduction, rank(root), raw, stream)
                }
                CollectiveOperation::AllGather => table.all_gather(send, receive, count, format, raw, stream),
                CollectiveOperation::ReduceScatter(reduction) => {
                    let reduction = reduction_operation(reduction);
                    table.reduce_scatter(send, receive, count, format, reduction, raw, stream)
                }
                CollectiveOperation::Send { peer } => {
                    table.send(send, count, format, rank(peer), raw, stream)
                }
                CollectiveOperation::Receive { peer } => {
                    table.receive(receive, count, format, rank(peer), raw, stream)
                }
            }
        }
    }
}

/// The library once it has been loaded, or the error of loading it.
pub(in crate::cuda) type LazyNccl = OnceLock<Result<Nccl>>;
