//! The memory that one recording has and another does not have.

use std::collections::BTreeMap;

use thalweg_snapshot::{FrameView, Recording};

use super::summary::Moment;

/// A group of live blocks in two recordings. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Growth<K> {
    /// The key that the blocks of the group share.
    pub key: K,
    /// The number of blocks in the first recording, and in the second.
    pub blocks: (usize, usize),
    /// The requested bytes of these blocks, in the first recording and in the second.
    pub bytes: (u64, u64),
}

impl<K> Growth<K> {
    /// Returns how many more bytes the second recording has; negative if it has fewer.
    pub fn change_bytes(&self) -> i128 {
        i128::from(self.bytes.1) - i128::from(self.bytes.0)
    }
}

/// Returns the live blocks at moment `b` compared with moment `a`, by size and by stack (without frames if the stack is not
/// known). Groups with the largest growth are first. Groups that are equal at both moments are left out.
pub fn diff<'r>(
    (a, in_a): (&'r Recording, &Moment),
    (b, in_b): (&'r Recording, &Moment),
) -> (Vec<Growth<u64>>, Vec<Growth<Vec<FrameView<'r>>>>) {
    let by_size = |moment: &Moment| {
        moment.by_size.iter().map(|group| (group.size_bytes, (group.blocks, group.bytes))).collect::<Vec<_>>()
    };
    let by_stack = |recording: &'r Recording, moment: &Moment| {
        let groups = moment.by_stack.iter().map(|group| {
            let frames = group.stack.map(|stack| recording.stack(stack).collect()).unwrap_or_default();
            (frames, (group.blocks, group.bytes))
        });
        groups.collect::<Vec<(Vec<FrameView<'r>>, _)>>()
    };
    (compare(by_size(in_a), by_size(in_b)), compare(by_stack(a, in_a), by_stack(b, in_b)))
}

fn compare<K: Ord>(a: Vec<(K, (usize, u64))>, b: Vec<(K, (usize, u64))>) -> Vec<Growth<K>> {
    let mut groups: BTreeMap<K, [(usize, u64); 2]> = BTreeMap::new();
    for (side, list) in [a, b].into_iter().enumerate() {
        for (key, (blocks, bytes)) in list {
            let group = &mut groups.entry(key).or_default()[side];
            *group = (group.0 + blocks, group.1.saturating_add(bytes));
        }
    }
    let changed = groups.into_iter().filter(|(_, [a, b])| a != b);
    let mut changed: Vec<_> =
        changed.map(|(key, [a, b])| Growth { key, blocks: (a.0, b.0), bytes: (a.1, b.1) }).collect();
    changed.sort_by_key(|group| std::cmp::Reverse(group.change_bytes()));
    changed
}
