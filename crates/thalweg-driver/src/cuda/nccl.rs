//! Collectives through NCCL.
//!
//! The library is looked for when the first communicator is asked for. Its communicators are made for all devices at once, in
//! this process (`ncclCommInitAll`), so no identifier travels. It runs over the primary contexts, as we do.
//!
//! NCCL wants each communicator used by one thread at a time, and calls that belong together inside a group, so each rank has
//! a lock that a group holds from its first call to its end. Ranks are locked in the order of their handles: groups of
//! several threads never wait for each other's locks in a circle.
//!
//! What goes wrong between devices later (parts that differ, a rank that never comes) NCCL does not say: its kernels wait.

use std::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, OnceLock};

use super::driver::CudaDriver;
use super::handles::{Entry, lock};
use super::search::{Library, OpenLibrary, SearchEnvironment};
use super::stream::Stream;
use super::sys::RawStream;
use super::table::{CallStatus, entry_points, function_at, text_at};
use crate::collective::{Collective, CollectiveOperation, CommunicatorInfo, Reduction};
use crate::library::ElementFormat;
use crate::{Code, CommunicatorHandle, Error, Result};

/// `ncclComm_t`, as a number.
type RawCommunicator = usize;

entry_points! {
    /// libnccl.
    NcclTable {
        init_all = "ncclCommInitAll" @ 0 c"ncclCommInitAll"
            (communicators: *mut RawCommunicator, count: c_int, devices: *const c_int);
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
    table: NcclTable,
    error_string: Option<ErrorString>,
    last_error: Option<LastError>,
}

/// A rank.
pub(super) struct Communicator {
    raw: RawCommunicator,
    info: CommunicatorInfo,
    /// Held by the thread that uses it.
    in_use: Mutex<()>,
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

impl Nccl {
    fn load(environment: &SearchEnvironment) -> Result<Self> {
        let library = OpenLibrary::open(Library::Nccl, environment, "ncclCommInitAll")?;
        let symbol = |name: &CStr| library.symbol(name);
        // SAFETY: the signatures are those that `nccl.h` declares for these symbols in version 2 (its pointers to device
        // memory are numbers here, its enumerations unsigned numbers); an `OpenLibrary` is never unloaded.
        unsafe {
            Ok(Self {
                table: NcclTable::resolve(|entry| symbol(entry.symbol)),
                error_string: function_at(symbol(c"ncclGetErrorString")),
                last_error: function_at(symbol(c"ncclGetLastError")),
            })
        }
    }

    fn check(&self, outcome: CallStatus, detail: impl FnOnce() -> String) -> Result<()> {
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
    unsafe fn queue(
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

/// The objects of a group, each looked up once: a thread must not hold two guards of one slot.
struct Members<'a> {
    ranks: Vec<(u64, Entry<'a, Communicator>)>,
    streams: Vec<(u64, Entry<'a, Stream>)>,
}

impl Members<'_> {
    fn of(&self, call: &Collective) -> (&Communicator, &Stream) {
        let rank = self.ranks.iter().find(|(handle, _)| *handle == call.communicator.raw());
        let stream = self.streams.iter().find(|(handle, _)| *handle == call.stream.raw());
        let looked_up = "everything in the group was looked up";
        (&rank.expect(looked_up).1, &stream.expect(looked_up).1)
    }
}

impl CudaDriver {
    /// Returns NCCL, or why there is none. Loaded at the first call.
    fn nccl(&self) -> Result<&Nccl> {
        self.nccl.get_or_init(|| Nccl::load(&self.environment)).as_ref().map_err(Error::clone)
    }

    pub(super) fn communicators_create(&self, devices: &[u32]) -> Result<Vec<CommunicatorHandle>> {
        let call = "ncclCommInitAll";
        for (rank, device) in devices.iter().enumerate() {
            self.submit(*device)?;
            if devices[..rank].contains(device) {
                let detail = format!("device {device} is named twice: each device has one rank");
                return Err(Error::new(Code::InvalidValue, call, detail));
            }
        }
        let ordinals: Vec<c_int> = devices.iter().map(|&device| device as c_int).collect();
        if devices.is_empty() {
            return Err(Error::new(Code::InvalidValue, call, "a communicator of no devices"));
        }
        let nccl = self.nccl()?;
        let mut raw: Vec<RawCommunicator> = vec![0; devices.len()];
        // SAFETY: there is room for a communicator per device, and as many ordinals are read.
        let outcome =
            unsafe { nccl.table.init_all(raw.as_mut_ptr(), ordinals.len() as c_int, ordinals.as_ptr()) };
        nccl.check(outcome, || format!("devices {devices:?}"))?;
        let ranks = devices.len() as u32;
        let rank = |((rank, &device), raw): ((u32, &u32), usize)| {
            let info = CommunicatorInfo { rank, ranks, device };
            let handle = self.communicators.insert(Communicator { raw, info, in_use: Mutex::new(()) });
            CommunicatorHandle::from_raw(handle)
        };
        Ok((0..).zip(devices).zip(raw).map(rank).collect())
    }

    pub(super) fn communicator_info(&self, communicator: CommunicatorHandle) -> Result<CommunicatorInfo> {
        Ok(self.communicators.get(communicator.raw(), "ncclCommUserRank")?.info)
    }

    pub(super) fn communicator_destroy(&self, communicator: CommunicatorHandle) -> Result<()> {
        self.communicators.remove(communicator.raw(), "ncclCommDestroy", |rank| {
            self.enter(rank.info.device)?;
            let nccl = self.nccl()?;
            // SAFETY: the communicator is this driver's, and nothing else holds its entry.
            let outcome = unsafe { nccl.table.destroy(rank.raw) };
            nccl.check(outcome, || format!("rank {} of {}", rank.info.rank, rank.info.ranks))
        })
    }

    /// Looks everything up that a group uses, and checks each call.
    fn members(&self, group: &[Collective]) -> Result<Members<'_>> {
        let call = "ncclGroupStart";
        let mut ranks: Vec<u64> = group.iter().map(|call| call.communicator.raw()).collect();
        let mut streams: Vec<u64> = group.iter().map(|call| call.stream.raw()).collect();
        for handles in [&mut ranks, &mut streams] {
            handles.sort_unstable();
            handles.dedup();
        }
        let ranks = ranks.into_iter().map(|handle| Ok((handle, self.communicators.get(handle, call)?)));
        let streams = streams.into_iter().map(|handle| Ok((handle, self.streams.get(handle, call)?)));
        let members =
            Members { ranks: ranks.collect::<Result<_>>()?, streams: streams.collect::<Result<_>>()? };
        for part in group {
            let (rank, stream) = members.of(part);
            let CommunicatorInfo { rank, ranks, device } = rank.info;
            let refuse =
                |text: String| Err(Error::new(Code::InvalidValue, call, format!("`{}`: {text}", part.label)));
            if stream.device != device {
                let other = stream.device;
                return refuse(format!(
                    "rank {rank} is device {device}, and the stream is one of device {other}"
                ));
            }
            if let Some(named) = part.operation.named_rank().filter(|&named| named >= ranks) {
                return refuse(format!("there is no rank {named} in a communicator of {ranks} ranks"));
            }
            let Some(accesses) = part.accesses(rank, ranks).filter(|_| data_type(part.format).is_some())
            else {
                return refuse(format!("{} elements of format {}: no such size", part.count, part.format.0));
            };
            for access in accesses.iter().filter(|access| access.bytes > 0) {
                self.check_device_range(access.start, access.bytes, call)?;
            }
        }
        Ok(members)
    }

    pub(super) fn collectives_async(&self, group: &[Collective]) -> Result<()> {
        if group.is_empty() {
            return Ok(());
        }
        let members = self.members(group)?;
        let nccl = self.nccl()?;
        for (_, rank) in &members.ranks {
            self.submit(rank.info.device)?;
        }
        // In the order of the handles: see the module.
        let _in_use: Vec<_> = members.ranks.iter().map(|(_, rank)| lock(&rank.in_use)).collect();
        // The library's first use of a connection allocates, which is no part of another capture.
        let _relaxed = self.cuda.relaxed();
        // SAFETY: takes nothing; the group is ended below on every path.
        nccl.check(unsafe { nccl.table.group_start() }, || "a group".to_owned())?;
        let mut first_error = None;
        for call in group {
            let (rank, stream) = members.of(call);
            let format = data_type(call.format).expect("checked above");
            // SAFETY: both are looked up and of one device, and the rank is locked.
            let outcome = unsafe { nccl.queue(call, format, rank.raw, stream.raw) };
            let checked = nccl.check(outcome, || format!("{}, for {}", call.operation, call.label));
            if let Err(error) = checked {
                first_error = Some(error);
                break;
            }
        }
        // SAFETY: ends the group that was begun above, on the same thread.
        let ended = nccl.check(unsafe { nccl.table.group_end() }, || format!("for {}", group[0].label));
        first_error.map_or(ended, Err)
    }
}

/// The library where it has been loaded, or why it could not be.
pub(super) type LazyNccl = OnceLock<Result<Nccl>>;
