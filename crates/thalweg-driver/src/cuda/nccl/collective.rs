//! Communicators and collectives.

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use smallvec::SmallVec;

use super::version::Feature;
use super::{Communicator, Ended, NO_COLOR, Nccl, RawCommunicator, RawId, Waits, data_type};
use crate::collective::{Collective, CommunicatorId, CommunicatorInfo};
use crate::cuda::objects::Stream;
use crate::cuda::objects::handles::Entry;
use crate::cuda::state::CudaDriver;
use crate::cuda::sys;
use crate::{Code, CommunicatorHandle, Error, Result};

/// The limits of an abort's waits. `grace` is for a call that has begun, and far longer than a call that does not wait for
/// another rank takes. `after_abort` is for a call that was aborted: NCCL checks for an abort every 3.4 s at the latest, while it tries
/// to reach a rank again.
const WAITS: Waits = Waits { grace: Duration::from_secs(1), after_abort: Duration::from_secs(30) };

/// The objects of a group, each looked up once, because a thread must not hold two guards of one slot.
struct Members<'a> {
    ranks: SmallVec<[(u64, Entry<'a, Communicator>); 1]>,
    streams: SmallVec<[(u64, Entry<'a, Stream>); 1]>,
}

impl Members<'_> {
    fn of(&self, call: &Collective) -> (&Communicator, &Stream) {
        let rank = self.ranks.iter().find(|(handle, _)| *handle == call.communicator.raw());
        let stream = self.streams.iter().find(|(handle, _)| *handle == call.stream.raw());
        let looked_up = "everything in the group was looked up";
        (&rank.expect(looked_up).1, &stream.expect(looked_up).1)
    }
}

pub(in crate::cuda) fn aborted(handle: u64, call: &'static str) -> Error {
    Error::new(Code::InvalidHandle, call, format!("communicator {handle:#x} was aborted"))
}

impl CudaDriver {
    /// Returns NCCL, or the error of loading it. Loaded at the first call.
    pub(in crate::cuda) fn nccl(&self) -> Result<&Nccl> {
        self.nccl.get_or_init(|| Nccl::load(&self.environment)).as_ref().map_err(Error::clone)
    }

    pub(in crate::cuda) fn communicators_create(&self, devices: &[u32]) -> Result<Vec<CommunicatorHandle>> {
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
            let handle = self.communicators.insert(Communicator::new(raw, info));
            CommunicatorHandle::from_raw(handle)
        };
        Ok((0..).zip(devices).zip(raw).map(rank).collect())
    }

    pub(in crate::cuda) fn communicator_id(&self) -> Result<CommunicatorId> {
        let nccl = self.nccl()?;
        let mut id = RawId([0; CommunicatorId::BYTES]);
        // SAFETY: there is room for an identifier.
        let outcome = unsafe { nccl.table.unique_id(&raw mut id) };
        nccl.check(outcome, || "a new identifier".to_owned())?;
        Ok(CommunicatorId(id.0))
    }

    pub(in crate::cuda) fn communicator_join(
        &self,
        id: &CommunicatorId,
        device: u32,
        rank: u32,
        ranks: u32,
    ) -> Result<CommunicatorHandle> {
        let call = "ncclCommInitRank";
        let (Ok(count), Ok(number)) = (c_int::try_from(ranks), c_int::try_from(rank)) else {
            return Err(Error::new(Code::InvalidValue, call, format!("rank {rank} of {ranks}")));
        };
        if rank >= ranks {
            let detail = format!("there is no rank {rank} in a communicator of {ranks} ranks");
            return Err(Error::new(Code::InvalidValue, call, detail));
        }
        let nccl = self.nccl()?;
        self.enter(device)?;
        let mut raw: RawCommunicator = 0;
        // SAFETY: there is room for a communicator; the device's context is current, and the library uses the current one.
        let outcome = unsafe { nccl.table.init_rank(&raw mut raw, count, RawId(id.0), number) };
        nccl.check(outcome, || format!("rank {rank} of {ranks} on device {device}"))?;
        let info = CommunicatorInfo { rank, ranks, device };
        let handle = self.communicators.insert(Communicator::new(raw, info));
        Ok(CommunicatorHandle::from_raw(handle))
    }

    pub(in crate::cuda) fn communicator_split(
        &self,
        own: CommunicatorHandle,
        part: &[u32],
    ) -> Result<Option<CommunicatorHandle>> {
        let call = "ncclCommSplit";
        let nccl = self.nccl()?;
        let parent = self.communicator(own.raw(), call)?;
        let CommunicatorInfo { rank, ranks, device } = parent.info;
        let place =
            parent.info.rank_in_part(part).map_err(|text| Error::new(Code::InvalidValue, call, text))?;
        let part_of = format!("rank {rank} of {ranks} on device {device}, for a part {part:?}");
        nccl.version.require(Feature::Split, call, &part_of)?;
        self.enter(device)?;
        // Disjoint parts have different ranks, so the least rank identifies a part. The configuration is the parent's:
        // nothing is shared with it.
        let color = part.iter().min().map_or(NO_COLOR, |&least| least as c_int);
        let key = place.unwrap_or_default() as c_int;
        let mut raw: RawCommunicator = 0;
        {
            let _in_use = parent.in_use.lock();
            if parent.is_over() {
                return Err(aborted(own.raw(), call));
            }
            let _relaxed = self.cuda.relaxed();
            // SAFETY: the communicator is alive, only this thread uses it, and its device's context is current; there is
            // room for a communicator, and no configuration is passed.
            let outcome = unsafe { nccl.table.split(parent.raw, color, key, &raw mut raw, ptr::null()) };
            nccl.check(outcome, || part_of)?;
        }
        drop(parent);
        let Some(rank) = place else { return Ok(None) };
        let info = CommunicatorInfo { rank, ranks: part.len() as u32, device };
        let handle = self.communicators.insert(Communicator::new(raw, info));
        Ok(Some(CommunicatorHandle::from_raw(handle)))
    }

    pub(in crate::cuda) fn communicator_abort(&self, communicator: CommunicatorHandle) -> Result<()> {
        let call = "ncclCommAbort";
        let rank = self.communicator(communicator.raw(), call)?;
        let device = rank.info.device;
        let ended = rank.end(self.nccl()?, WAITS, || self.enter(device).map(drop));
        drop(rank);
        match ended {
            Ended::Idle(outcome) => {
                outcome?;
                self.communicators.remove(communicator.raw(), call, |_| Ok(()))
            }
            // The blocked call still holds the slot, which no caller can use again: it stays taken.
            Ended::InCall(outcome) => outcome,
            Ended::Before => Err(aborted(communicator.raw(), call)),
        }
    }

    /// Returns a communicator that has not been aborted.
    pub(in crate::cuda) fn communicator(
        &self,
        handle: u64,
        call: &'static str,
    ) -> Result<Entry<'_, Communicator>> {
        let rank = self.communicators.get(handle, call)?;
        if rank.is_over() {
            return Err(aborted(handle, call));
        }
        Ok(rank)
    }

    pub(in crate::cuda) fn communicator_info(
        &self,
        communicator: CommunicatorHandle,
    ) -> Result<CommunicatorInfo> {
        Ok(self.communicator(communicator.raw(), "ncclCommUserRank")?.info)
    }

    pub(in crate::cuda) fn communicator_destroy(&self, communicator: CommunicatorHandle) -> Result<()> {
        self.communicators.remove(communicator.raw(), "ncclCommDestroy", |rank| {
            if rank.is_over() {
                return Err(aborted(communicator.raw(), "ncclCommDestroy"));
            }
            self.enter(rank.info.device)?;
            let nccl = self.nccl()?;
            for (pointer, registered) in std::mem::take(&mut *rank.in_use.lock()) {
                self.give_up_registration(nccl, rank, pointer, &registered)?;
            }
            // SAFETY: the communicator is this driver's, and nothing else holds its entry.
            let outcome = unsafe { nccl.table.destroy(rank.raw) };
            nccl.check(outcome, || format!("rank {} of {}", rank.info.rank, rank.info.ranks))
        })
    }

    /// Looks up all objects of a group, and checks each call.
    fn members(&self, group: &[Collective]) -> Result<Members<'_>> {
        let call = "ncclGroupStart";
        let mut ranks: SmallVec<[u64; 4]> = group.iter().map(|call| call.communicator.raw()).collect();
        let mut streams: SmallVec<[u64; 4]> = group.iter().map(|call| call.stream.raw()).collect();
        for handles in [&mut ranks, &mut streams] {
            handles.sort_unstable();
            handles.dedup();
        }
        let ranks = ranks.into_iter().map(|handle| Ok((handle, self.communicator(handle, call)?)));
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

    /// Checks that the library has all features that a group needs.
    fn check_version(&self, nccl: &Nccl, group: &[Collective], members: &Members<'_>) -> Result<()> {
        let call = "ncclGroupStart";
        for part in group {
            nccl.version.allows(part, call)?;
            if nccl.version.has(Feature::Capture) {
                continue;
            }
            let (rank, stream) = members.of(part);
            self.enter(rank.info.device)?;
            if self.capture_status(stream, call)? != sys::CAPTURE_NONE {
                nccl.version.require(Feature::Capture, call, &part.label)?;
            }
        }
        Ok(())
    }

    pub(in crate::cuda) fn collectives_async(&self, group: &[Collective]) -> Result<()> {
        if group.is_empty() {
            return Ok(());
        }
        let members = self.members(group)?;
        let nccl = self.nccl()?;
        self.check_version(nccl, group, &members)?;
        for (_, rank) in &members.ranks {
            self.submit(rank.info.device)?;
        }
        // In the order of the handles: see the module.
        let _in_use: SmallVec<[_; 1]> = members.ranks.iter().map(|(_, rank)| rank.in_use.lock()).collect();
        // The abort of a rank that no thread uses needs its lock, so none can happen between this line and the call.
        if let Some((handle, _)) = members.ranks.iter().find(|(_, rank)| rank.is_over()) {
            return Err(aborted(*handle, "ncclGroupStart"));
        }
        // The library's first use of a connection allocates, which is not part of another capture.
        let _relaxed = self.cuda.relaxed();
        // SAFETY: takes nothing; the group is ended below on every path.
        nccl.check(unsafe { nccl.table.group_start() }, || "a group".to_owned())?;
        let mut first_error = None;
        for call in group {
            let (rank, stream) = members.of(call);
            let format = data_type(call.format).expect("checked above");
            // SAFETY: both are looked up and of one device, and the rank is locked.
            let outcome = unsafe { nccl.queue(call, format, rank.raw, stream.raw) };
            let checked = nccl.check_ranks(outcome, || format!("{}, for {}", call.operation, call.label));
            if let Err(error) = checked {
                first_error = Some(error);
                break;
            }
        }
        // SAFETY: ends the group that was begun above, on the same thread.
        let ended = nccl.check_ranks(unsafe { nccl.table.group_end() }, || format!("for {}", group[0].label));
        first_error.map_or(ended, Err)
    }
}
