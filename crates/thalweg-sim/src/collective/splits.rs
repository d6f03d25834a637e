//! Splits: communicators that consist of some ranks of another.
//!
//! Each rank names the ranks of its part. The part is checked against those that the other ranks have named, and the split
//! is removed when all have called. No call waits; a part's first collective waits for its ranks that have not called yet.

use std::collections::BTreeMap;

use thalweg_driver::{Code, CommunicatorHandle};

use crate::refusal::{CallResult, Refusal};
use crate::state::MachineState;

/// The splits that only some ranks have called yet, by communicator and number.
pub(super) type Splits = BTreeMap<(u64, u64), Split>;

/// A split that some ranks have called.
#[derive(Default)]
pub(super) struct Split {
    /// The part that each rank has named.
    said: BTreeMap<u32, Vec<u32>>,
    /// The communicators of the parts, by their first ranks.
    parts: BTreeMap<u32, u64>,
}

impl Split {
    /// Returns a rank whose part contradicts this part of `rank`, and its part.
    fn contradiction(&self, rank: u32, part: &[u32]) -> Option<(u32, &[u32])> {
        let differs = |(other, said): &(&u32, &Vec<u32>)| {
            (part.contains(other) || said.contains(&rank)) && said[..] != *part
        };
        self.said.iter().find(differs).map(|(&other, said)| (other, &said[..]))
    }
}

impl MachineState {
    pub(crate) fn communicator_split(
        &mut self,
        own: CommunicatorHandle,
        part: &[u32],
    ) -> CallResult<Option<CommunicatorHandle>> {
        self.forbid_in_capture("communicator_split")?;
        let (parent, rank) = self.communicator(own)?;
        let info = self.communicator_info(own)?;
        self.usable(info.device)?;
        let refuse = |text: String| Refusal::new(Code::InvalidValue, text);
        let place = info.rank_in_part(part).map_err(refuse)?;
        let gate = &mut self.executor.gate;
        let found = gate.communicators.get_mut(&parent).expect("a rank of it is there");
        let splits = &mut found.ranks[rank as usize].splits;
        let key = (parent, *splits);
        let split = gate.splits.entry(key).or_default();
        if let Some((other, said)) = split.contradiction(rank, part) {
            return Err(refuse(format!(
                "ranks of a split name different parts: rank {rank} {part:?}, rank {other} {said:?}. All ranks split a communicator in the same order, \
                 and those of one part name the same ranks"
            )));
        }
        *splits += 1;
        split.said.insert(rank, part.to_vec());
        let made = part.first().and_then(|first| split.parts.get(first)).copied();
        let communicator = match (place, made) {
            (None, _) => None,
            (Some(_), Some(made)) => Some(made),
            (Some(_), None) => {
                let made = gate.create(part.iter().map(|_| None));
                gate.splits.entry(key).or_default().parts.insert(part[0], made);
                Some(made)
            }
        };
        if gate.splits[&key].said.len() == info.ranks as usize {
            gate.splits.remove(&key);
        }
        let (Some(communicator), Some(place)) = (communicator, place) else { return Ok(None) };
        let Some(found) = gate.communicators.get_mut(&communicator) else {
            return Err(refuse(format!("all other ranks of the part {part:?} have given it up")));
        };
        found.ranks[place as usize].device = Some(info.device);
        Ok(Some(CommunicatorHandle::from_raw(self.communicators.insert((communicator, place)))))
    }
}
