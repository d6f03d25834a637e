//! Collectives through NCCL.
//!
//! The library is looked for when the first communicator is asked for. Its communicators are made for all devices at once, in
//! this process (`ncclCommInitAll`), or rank by rank under an identifier that the program carries from one to the others
//! (`ncclCommInitRank`). It runs over the primary contexts, as we do.
//!
//! NCCL wants each communicator used by one thread at a time, and calls that belong together inside a group, so each rank has
//! a lock that a group holds from its first call to its end. Ranks are locked in the order of their handles: groups of
//! several threads never wait for each other's locks in a circle.
//!
//! An abort alone does not wait for that lock without a limit: what holds it may be blocked until the abort.
//!
//! The version is asked once, and what a version lacks is refused by name (`nccl_version`).
//!
//! What goes wrong between devices later (parts that differ, a rank that never comes) NCCL does not say: its kernels wait.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use super::nccl_version::Version;
use super::search::{Library, OpenLibrary, SearchEnvironment};
use super::sys::RawStream;
use super::table::{CallStatus, entry_points, function_at, text_at};
use crate::collective::{Collective, CollectiveOperation, CommunicatorId, CommunicatorInfo, Reduction};
use crate::library::ElementFormat;
use crate::{Code, Error, Result};

/// How often an abort looks whether a call is done.
const LOOK: Duration = Duration::from_millis(5);

/// `ncclComm_t`, as a number.
pub(super) type RawCommunicator = usize;

/// The handle that `ncclCommRegister` answers, as a number.
pub(super) type RawRegistration = usize;

/// `NCCL_SPLIT_NOCOLOR`: a rank that is in no part of a split.
pub(super) const NO_COLOR: c_int = -1;

/// `ncclUniqueId`, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawId(pub(super) [u8; CommunicatorId::BYTES]);

entry_points! {
    /// libnccl.
    NcclTable {
        init_all = "ncclCommInitAll" @ 0 c"ncclCommInitAll"
            (communicators: *mut RawCommunicator, count: c_int, devices: *const c_int);
        get_version = "ncclGetVersion" @ 0 c"ncclGetVersion" (version: *mut c_int);
        unique_id = "ncclGetUniqueId" @ 0 c"ncclGetUniqueId" (id: *mut RawId);
        init_rank = "ncclCommInitRank" @ 0 c"ncclCommInitRank"
            (communicator: *mut RawCommunicator, ranks: c_int, id: RawId, rank: c_int);
        split = "ncclCommSplit" @ 0 c"ncclCommSplit"
            (communicator: RawCommunicator, color: c_int, key: c_int, part: *mut RawCommunicator, config: *const c_void);
        memory_allocate = "ncclMemAlloc" @ 0 c"ncclMemAlloc" (pointer: *mut u64, bytes: usize);
        memory_free = "ncclMemFree" @ 0 c"ncclMemFree" (pointer: u64);
        register = "ncclCommRegister" @ 0 c"ncclCommRegister"
            (communicator: RawCommunicator, pointer: u64, bytes: usize, registration: *mut RawRegistration);
        deregister = "ncclCommDeregister" @ 0 c"ncclCommDeregister"
            (communicator: RawCommunicator, registration: RawRegistration);
        abort = "ncclCommAbort" @ 0 c"ncclCommAbort" (communicator: RawCommunicator);
        destroy = "ncclCommDestroy" @ 0 c"ncclCommDestroy" (communicator: RawCommunicator);
        group_start = "ncclGroupStart" @ 0 c"ncclGroupStart" ();
        group_end = "ncclGroupEnd" @ 0 c"ncclGroupEnd" ();
        all_reduce = "ncclAllReduce" @ 0 c"ncclAllReduce"
            (send: u64, receive: u64, count: usize, format: u32, reduction: u32, communicator: RawCommunicator,
             stream: RawStream);
        broadcast = "ncclBroadcast" @ 0 c"ncclBroadcast"
            (send: u64, receive: u64, count: usize, format: u32, root: c_int, communicator: RawCommunicator,
             stream: RawStream);
        reduce = "ncclReduce" @ 0 c"ncclReduce"
            (send: u64, receive: u64, count: usize, format: u32, reduction: u32, root: c_int,
             communicator: RawCommunicator, stream: RawStream);
        all_gather = "ncclAllGather" @ 0 c"ncclAllGather"
            (send: u64, receive: u64, count: usize, format: u32, communicator: RawCommunicator, stream: RawStream);
        reduce_scatter = "ncclReduceScatter" @ 0 c"ncclReduceScatter"
            (send: u64, receive: u64, count: usize, format: u32, reduction: u32, communicator: RawCommunicator,
             stream: RawStream);
        send = "ncclSend" @ 0 c"ncclSend"
            (send: u64, count: usize, format: u32, peer: c_int, communicator: RawCommunicator, stream: RawStream);
        receive = "ncclRecv" @ 0 c"ncclRecv"
            (receive: u64, count: usize, format: u32, peer: c_int, communicator: RawCommunicator, stream: RawStream);
    }
}

type ErrorString = unsafe extern "C" fn(u32) -> *const c_char;
type LastError = unsafe extern "C" fn(RawCommunicator) -> *const c_char;

/// The library.
pub(super) struct Nccl {
    pub(super) table: NcclTable,
    pub(super) error_string: Option<ErrorString>,
    pub(super) last_error: Option<LastError>,
    pub(super) version: Version,
}

/// The memory that is registered with a rank, by its address.
pub(super) type Registrations = BTreeMap<u64, Registered>;

/// Memory that is registered with a rank.
pub(super) struct Registered {
    pub(super) bytes: u64,
    pub(super) raw: RawRegistration,
}

/// A rank.
pub(super) struct Communicator {
    pub(super) raw: RawCommunicator,
    pub(super) info: CommunicatorInfo,
    /// Held by the thread that uses it.
    pub(super) in_use: Mutex<Registrations>,
    /// Whether it was aborted: the number then names nothing.
    is_over: AtomicBool,
}

/// The state in which an abort found a communicator, with its outcome.
#[derive(PartialEq, Debug)]
pub(super) enum Ended {
    /// No thread used the communicator.
    Idle(Result<()>),
    /// A thread was in a call with it.
    InCall(Result<()>),
    /// It was over.
    Before,
}

impl Communicator {
    pub(super) const fn new(raw: RawCommunicator, info: CommunicatorInfo) -> Self {
        Self { raw, info, in_use: Mutex::new(Registrations::new()), is_over: AtomicBool::new(false) }
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Ends the communicator once, by `abort`, though a thread may be blocked in a call with it.
    ///
    /// Such a call waits for another rank and ends by nothing but `abort`, so its lock cannot be waited for without a
    /// limit. With the lock, which may take `grace`, the abort is alone. After that the holder is in the library and waits
    /// there: to abort from another thread then is what the library has the call for. `is_over` is set before either,
    /// and a group looks at it with the lock held, so no call begins with a communicator that is gone.
    pub(super) fn end(&self, grace: Duration, abort: impl FnOnce(RawCommunicator) -> Result<()>) -> Ended {
        if self.is_over.swap(true, Ordering::AcqRel) {
            return Ended::Before;
        }
        let begin = Instant::now();
        loop {
            let alone = match self.in_use.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            match alone {
                Some(_guard) => return Ended::Idle(abort(self.raw)),
                None if begin.elapsed() >= grace => return Ended::InCall(abort(self.raw)),
                None => std::thread::sleep(LOOK),
            }
        }
    }
}

/// Returns the `ncclDataType_t`.
pub(super) const fn data_type(format: ElementFormat) -> Option<u32> {
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
pub(super) const fn reduction_operation(reduction: Reduction) -> u32 {
    match reduction {
        Reduction::Sum => 0,
        Reduction::Product => 1,
        Reduction::Maximum => 2,
        Reduction::Minimum => 3,
        Reduction::Average => 4,
    }
}

/// Has NCCL leave the buffers of captured collectives unregistered with other GPUs, unless the environment says which it is to be.
///
/// With registration, the default of NCCL 2.28.9, the first replay of GPT-2 XL sharded over two GPUs did not end in five of seven runs, of threads and of
/// processes; without, all ended, and no captured step became slower.
fn leave_buffers_unregistered() {
    static ONCE: Once = Once::new();
    const VARIABLE: &str = "NCCL_GRAPH_REGISTER";
    ONCE.call_once(|| {
        if std::env::var_os(VARIABLE).is_none() {
            // SAFETY: readers in Rust take turns with this, and so do those in C from glibc 2.41 on. With an older one a thread of C code that reads the
            // environment during this one call is not synchronized with it; NCCL, for which the variable is, has no thread before it.
            unsafe { std::env::set_var(VARIABLE, "0") };
        }
    });
}

impl Nccl {
    pub(super) fn load(environment: &SearchEnvironment) -> Result<Self> {
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

    pub(super) fn check(&self, outcome: CallStatus, detail: impl FnOnce() -> String) -> Result<()> {
        if outcome.is_success() {
            return Ok(());
        }
        let detail = detail();
        if outcome.missing.is_some() {
            let detail = format!("{detail}: the installed NCCL has no such call");
            return Err(Error::new(Code::LibraryMissing, outcome.call, detail));
        }
        // SAFETY: the first function takes any number; the second takes null for the last error of any communicator. Both
        // answer with a string of the library, which is read at once.
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

    /// Returns one part, inside a group.
    ///
    /// # Safety
    /// The communicator and the stream live and are of one device, and the calling thread alone uses the communicator.
    pub(super) unsafe fn queue(
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
        // SAFETY: the caller's promise; the addresses are used by kernels only, whose affair they are.
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

/// The library where it has been loaded, or why it could not be.
pub(super) type LazyNccl = OnceLock<Result<Nccl>>;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::cuda::handles::{Table, lock};

    const INFO: CommunicatorInfo = CommunicatorInfo { rank: 0, ranks: 2, device: 0 };

    #[test]
    fn an_abort_ends_a_call_that_is_blocked_in_the_library() {
        let table = Table::new("communicator");
        let handle = table.insert(Communicator::new(7, INFO));
        let (began, begins) = mpsc::channel();
        let (release, released) = mpsc::channel();
        std::thread::scope(|scope| {
            let table = &table;
            let blocked = scope.spawn(move || {
                let rank = table.get(handle, "call").expect("live");
                let _in_use = lock(&rank.in_use);
                began.send(()).expect("the test waits");
                // As a call that ends by the abort alone.
                released.recv_timeout(Duration::from_secs(20)).expect("the abort comes")
            });
            begins.recv().expect("the call begins");
            let rank = table.get(handle, "abort").expect("live");
            let ended = rank.end(Duration::from_millis(20), |raw| {
                release.send(raw).expect("the call waits");
                Ok(())
            });
            assert_eq!(ended, Ended::InCall(Ok(())));
            assert_eq!(blocked.join().expect("no panic"), 7);
            assert!(rank.is_over());
            assert_eq!(rank.end(Duration::ZERO, |_| panic!("aborted twice")), Ended::Before);
        });
    }

    #[test]
    fn an_abort_waits_for_a_call_that_ends_by_itself() {
        let rank = Communicator::new(7, INFO);
        let (began, begins) = mpsc::channel();
        std::thread::scope(|scope| {
            let rank = &rank;
            scope.spawn(move || {
                let _in_use = lock(&rank.in_use);
                began.send(()).expect("the test waits");
                std::thread::sleep(Duration::from_millis(50));
            });
            begins.recv().expect("the call begins");
            assert_eq!(rank.end(Duration::from_secs(20), |_| Ok(())), Ended::Idle(Ok(())));
        });
    }
}
