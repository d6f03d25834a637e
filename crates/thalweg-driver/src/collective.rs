//! Collectives: operations of all devices of a communicator.
//!
//! A *communicator* is a set of devices, each with a *rank*, a number from 0 on. Each rank calls every collective itself
//! ([`Collective`]). Its call, a *part*, is a command of its stream like any other, with the memory that it touches. The
//! parts of all ranks run together, and each stream continues when its part is done. The verbs and their meaning are
//! NCCL's.
//!
//! One call creates all ranks ([`communicators_create`](crate::Driver::communicators_create)), or each rank joins under a
//! shared identifier ([`communicator_join`](crate::Driver::communicator_join)), from threads of one process or of several.
//! A communicator can be split into others ([`communicator_split`](crate::Driver::communicator_split)).
//!
//! # Which parts belong together
//! The *k*-th collective of a rank belongs to the *k*-th of every other rank of its communicator, counted in the order of
//! the calls. Sends and receives are matched in the same way, counted for each pair of ranks, separately from the
//! collectives. Parts that belong together agree in operation, root, reduction, format and count. If they do not, the
//! result depends on the driver: NCCL hangs or computes nonsense, the simulator names the calls.
//!
//! # Order
//! A part runs after the earlier work of its stream. The parts of one call of
//! [`Driver::collectives_async`](crate::Driver::collectives_async), a *group*, have no order among each other, even on the
//! same stream. A rank that receives data runs after the earlier work of the ranks that sent it. Nothing else is promised:
//! a broadcast may or may not make its root wait.
//!
//! Streams may wait for more than this: the groups of a rank in one communicator run one after the other, on whatever
//! streams.

use crate::command::{Access, Label};
use crate::library::ElementFormat;
use crate::{CommunicatorHandle, DevicePointer, StreamHandle};

/// An operation that combines elements of several ranks into one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reduction {
    /// The sum; integers wrap.
    Sum,
    /// The product; integers wrap.
    Product,
    /// The greatest.
    Maximum,
    /// The smallest.
    Minimum,
    /// The sum divided by the number of ranks; rounded towards 0 for integers.
    Average,
}

impl Reduction {
    /// Returns the name for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Product => "product",
            Self::Maximum => "maximum",
            Self::Minimum => "minimum",
            Self::Average => "average",
        }
    }
}

/// The operation of a collective. `count` is [`Collective::count`], and *n* the number of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CollectiveOperation {
    /// Every rank gets the reduction of all ranks' elements: `count` elements in, `count` out.
    AllReduce(Reduction),
    /// Every rank, the root included, gets `count` elements of the root.
    Broadcast {
        /// The rank that sends.
        root: u32,
    },
    /// The root gets the reduction of all ranks' elements, `count` elements each.
    Reduce {
        /// The rank that receives.
        root: u32,
        /// The reduction.
        reduction: Reduction,
    },
    /// Every rank gets the elements of all ranks, in the order of the ranks: `count` elements in, *n* · `count` out.
    AllGather,
    /// Rank *r* gets the *r*-th part of the reduction of all ranks' elements: *n* · `count` elements in, `count` out.
    ReduceScatter(Reduction),
    /// Sends `count` elements to another rank, which receives them. The part is done when they have been received.
    Send {
        /// The receiving rank.
        peer: u32,
    },
    /// Receives `count` elements from another rank, which sends them.
    Receive {
        /// The sending rank.
        peer: u32,
    },
}

impl CollectiveOperation {
    /// Returns the rank that the operation names: root or peer.
    pub const fn named_rank(self) -> Option<u32> {
        match self {
            Self::Broadcast { root: rank }
            | Self::Reduce { root: rank, .. }
            | Self::Send { peer: rank }
            | Self::Receive { peer: rank } => Some(rank),
            Self::AllReduce(_) | Self::AllGather | Self::ReduceScatter(_) => None,
        }
    }

    /// Returns whether one rank sends and another receives.
    pub const fn is_between_two(self) -> bool {
        matches!(self, Self::Send { .. } | Self::Receive { .. })
    }

    /// Returns how many elements the part of `rank` reads and writes; `None` if the numbers overflow.
    pub const fn elements(self, count: u64, rank: u32, ranks: u32) -> Option<(u64, u64)> {
        let Some(all) = count.checked_mul(ranks as u64) else { return None };
        Some(match self {
            Self::AllReduce(_) => (count, count),
            Self::Broadcast { root } => (if rank == root { count } else { 0 }, count),
            Self::Reduce { root, .. } => (count, if rank == root { count } else { 0 }),
            Self::AllGather => (count, all),
            Self::ReduceScatter(_) => (all, count),
            Self::Send { .. } => (count, 0),
            Self::Receive { .. } => (0, count),
        })
    }

    /// Returns whether the result of `rank` depends on data of `other`. If so, `rank` runs after the earlier work of
    /// `other`.
    pub const fn is_fed_by(self, rank: u32, other: u32) -> bool {
        match self {
            Self::AllReduce(_) | Self::AllGather | Self::ReduceScatter(_) => true,
            Self::Broadcast { root } => other == root,
            Self::Reduce { root, .. } => rank == root,
            Self::Send { .. } => false,
            Self::Receive { peer } => other == peer,
        }
    }
}

impl std::fmt::Display for CollectiveOperation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AllReduce(reduction) => write!(f, "all_reduce of the {}", reduction.name()),
            Self::Broadcast { root } => write!(f, "broadcast from rank {root}"),
            Self::Reduce { root, reduction } => {
                write!(f, "reduce of the {} to rank {root}", reduction.name())
            }
            Self::AllGather => f.write_str("all_gather"),
            Self::ReduceScatter(reduction) => write!(f, "reduce_scatter of the {}", reduction.name()),
            Self::Send { peer } => write!(f, "send to rank {peer}"),
            Self::Receive { peer } => write!(f, "receive from rank {peer}"),
        }
    }
}

/// One rank's part of a collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Collective {
    /// The rank, by its handle.
    pub communicator: CommunicatorHandle,
    /// A stream of the rank's device.
    pub stream: StreamHandle,
    /// The operation, the same for all ranks.
    pub operation: CollectiveOperation,
    /// The format of the elements.
    pub format: ElementFormat,
    /// The number of elements, as each operation defines it.
    pub count: u64,
    /// The memory that this rank sends. Ignored where the rank sends nothing.
    pub send: DevicePointer,
    /// The address of this rank's result. Ignored if the rank receives nothing. The result may overlap the data that the
    /// rank sends only as follows: it is `send` itself, for a gather `send` is this rank's part of `receive`, for a scatter
    /// `receive` is this rank's part of `send`.
    pub receive: DevicePointer,
    /// The operator and the source line that submitted it.
    pub label: Label,
}

impl Collective {
    /// Returns the bytes that the part of `rank` reads and those that it writes, 0 bytes for nothing. `None` if the format
    /// is unknown or the sizes exceed the address space.
    pub fn accesses(&self, rank: u32, ranks: u32) -> Option<[Access; 2]> {
        let (read, written) = self.operation.elements(self.count, rank, ranks)?;
        let bytes = self.format.bytes()?;
        let (read, written) = (read.checked_mul(bytes)?, written.checked_mul(bytes)?);
        Some([Access::read(self.send, read), Access::write(self.receive, written)])
    }
}

/// Memory of a rank's device that is registered with its communicator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration {
    /// The rank, by its handle.
    pub communicator: CommunicatorHandle,
    /// The first address of the memory.
    pub pointer: DevicePointer,
    /// The size of the memory.
    pub bytes: u64,
    /// Whether the memory is symmetric: all ranks register memory of the same size in the same call (an NCCL window with
    /// `NCCL_WIN_COLL_SYMMETRIC`).
    pub symmetric: bool,
    /// The operator and the source line that submitted it.
    pub label: Label,
}

/// The identifier of a communicator whose ranks join it one by one, from one process or several (`ncclUniqueId`). Only the
/// driver that created it can interpret its bytes; the program passes them to the other ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommunicatorId(pub [u8; Self::BYTES]);

impl CommunicatorId {
    /// Bytes of an identifier.
    pub const BYTES: usize = 128;
}

impl std::fmt::Debug for CommunicatorId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommunicatorId").finish_non_exhaustive()
    }
}

/// The properties of a communicator's handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CommunicatorInfo {
    /// The rank, from 0 on.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// The rank's device.
    pub device: u32,
}

impl CommunicatorInfo {
    /// Returns this rank's number in the part of a split that consists of these ranks; `None` if it is not in the part.
    ///
    /// # Errors
    /// The reason why such a part is impossible.
    pub fn rank_in_part(&self, part: &[u32]) -> std::result::Result<Option<u32>, String> {
        let Self { rank: own, ranks, .. } = *self;
        for (place, rank) in part.iter().enumerate() {
            if *rank >= ranks {
                return Err(format!("there is no rank {rank} in a communicator of {ranks} ranks"));
            }
            if part[..place].contains(rank) {
                return Err(format!("rank {rank} is named twice in the part {part:?}"));
            }
        }
        match part.iter().position(|&rank| rank == own) {
            None if !part.is_empty() => Err(format!("rank {own} is not in its part {part:?}")),
            place => Ok(place.map(|place| place as u32)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_orders_and_nothing_else_does() {
        let sum = Reduction::Sum;
        let feeds = |operation: CollectiveOperation| {
            let pairs = (0..3).flat_map(|rank| (0..3).map(move |other| (rank, other)));
            pairs
                .filter(|&(rank, other)| rank != other && operation.is_fed_by(rank, other))
                .collect::<Vec<_>>()
        };
        assert_eq!(feeds(CollectiveOperation::AllReduce(sum)).len(), 6);
        assert_eq!(feeds(CollectiveOperation::Broadcast { root: 1 }), [(0, 1), (2, 1)]);
        assert_eq!(feeds(CollectiveOperation::Reduce { root: 1, reduction: sum }), [(1, 0), (1, 2)]);
        assert!(feeds(CollectiveOperation::Send { peer: 1 }).is_empty());
    }

    #[test]
    fn a_part_of_a_split_has_its_rank_once() {
        let info = CommunicatorInfo { rank: 2, ranks: 4, device: 0 };
        assert_eq!(info.rank_in_part(&[3, 2]), Ok(Some(1)));
        assert_eq!(info.rank_in_part(&[]), Ok(None));
        for (part, wanted) in [
            (&[0, 4, 2][..], "there is no rank 4 in a communicator of 4 ranks"),
            (&[2, 1, 2], "rank 2 is named twice in the part [2, 1, 2]"),
            (&[0, 1], "rank 2 is not in its part [0, 1]"),
        ] {
            assert_eq!(info.rank_in_part(part), Err(wanted.to_owned()));
        }
    }

    #[test]
    fn sizes_that_overflow_are_none() {
        let collective = |operation, format, count| Collective {
            communicator: CommunicatorHandle::from_raw(1),
            stream: StreamHandle::from_raw(1),
            operation,
            format,
            count,
            send: DevicePointer::new(1024),
            receive: DevicePointer::new(2048),
            label: Label::here("test"),
        };
        let scatter = CollectiveOperation::ReduceScatter(Reduction::Sum);
        let [read, write] = collective(scatter, ElementFormat::R_64F, 3).accesses(1, 4).unwrap();
        assert_eq!((read.start, read.bytes, write.start, write.bytes), (1024, 96, 2048, 24));
        assert_eq!(collective(scatter, ElementFormat::R_64F, 1 << 59).accesses(0, 4), None);
        assert_eq!(collective(scatter, ElementFormat::R_8U, u64::MAX / 2).accesses(0, 4), None);
        assert_eq!(collective(scatter, ElementFormat(9999), 1).accesses(0, 4), None);
    }
}
