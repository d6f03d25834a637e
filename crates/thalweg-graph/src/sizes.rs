//! [`Sizes`]: the segments that a program has for other values of one size, learned from two of them.

use std::ops::RangeInclusive;
use std::sync::Arc;

use thalweg_ops::Placement;
use thalweg_ops::lower::LoopLaunch;

use crate::segment::{Memory, Node, Operand, Segment};

/// A family of segments that differ in one size: every extent, stride and offset is a constant times a power of it.
#[derive(Clone, Debug)]
pub struct Sizes {
    former: Segment,
    latter: Segment,
    /// The size in both.
    base: [u64; 2],
}

/// The greatest power of the size: scores of attention have two dimensions of it.
const MOST_POWER: u32 = 2;

impl Sizes {
    /// Returns the family of two segments that have the same loops. Returns `None` if their extents do not differ by one factor and its
    /// powers.
    pub fn between(former: &Segment, latter: &Segment) -> Option<Self> {
        if !has_same_loops(former, latter) {
            return None;
        }
        let extents = |segment: &Segment| -> Vec<u64> {
            let of = |node: &Node| -> Vec<u64> {
                let LoopLaunch { rows, inner, .. } = &*node.launch;
                rows.iter().chain(inner).map(|&extent| extent as u64).collect()
            };
            segment.nodes.iter().flat_map(of).collect()
        };
        let changed = extents(former).into_iter().zip(extents(latter)).filter(|(old, new)| old != new);
        let (old, new) = changed.min()?;
        let sizes = Self { former: former.clone(), latter: latter.clone(), base: [old, new] };
        (old > 0 && new > 0 && sizes.at(new).is_some()).then_some(sizes)
    }

    /// Returns whether a segment is of the family, with a size among which the [others](Self::others) are.
    pub fn covers(&self, segment: &Segment) -> bool {
        let size = Self::between(&self.former, segment).map(|sizes| sizes.base[1]);
        size.is_some_and(|size| self.range().contains(&size))
    }

    /// The sizes from half of the smaller one that was seen to twice the larger one.
    fn range(&self) -> RangeInclusive<u64> {
        let [old, new] = self.base;
        (old.min(new) / 2).max(1)..=old.max(new).saturating_mul(2)
    }

    /// Returns sizes around those that were seen: four for each power of two, of every divisibility that plans distinguish.
    pub fn others(&self) -> impl Iterator<Item = u64> {
        let range = self.range();
        let most = *range.end();
        let octaves = (0..u64::BITS - most.leading_zeros()).map(move |shift| most >> shift);
        let quarters = octaves.flat_map(|top| [8, 7, 6, 5].map(|eighths| top.saturating_mul(eighths) / 8));
        quarters
            .flat_map(|size| {
                let whole = size / 8 * 8;
                [whole, whole + 4, whole + 2, whole + 1]
            })
            .filter(move |size| range.contains(size))
            .take(MOST_OTHERS)
    }

    /// Returns the segment of the family with a size. Returns `None` if there is none.
    pub fn at(&self, size: u64) -> Option<Segment> {
        let memories = self.former.memories.iter().zip(&self.latter.memories);
        let memories = memories
            .map(|(old, new)| Some(Memory { bytes: self.value(old.bytes, new.bytes, size)?, ..*new }));
        let nodes = self.former.nodes.iter().zip(&self.latter.nodes);
        Some(Segment {
            memories: memories.collect::<Option<_>>()?,
            nodes: nodes.map(|(old, new)| self.node(old, new, size)).collect::<Option<_>>()?,
        })
    }

    /// Returns what two values become: a constant times a power of the size.
    fn value(&self, old: u64, new: u64, size: u64) -> Option<u64> {
        let [former, latter] = self.base.map(u128::from);
        let (old, new) = (u128::from(old), u128::from(new));
        let power = (0..=MOST_POWER).find(|&power| {
            let product = |value: u128, base: u128| value.checked_mul(base.checked_pow(power)?);
            product(new, former).is_some_and(|it| Some(it) == product(old, latter))
        })?;
        let unit = latter.pow(power);
        let value = new
            .is_multiple_of(unit)
            .then(|| (new / unit).checked_mul(u128::from(size).checked_pow(power)?))??;
        u64::try_from(value).ok()
    }

    fn node(&self, old: &Node, new: &Node, size: u64) -> Option<Node> {
        let extents = |old: &[usize], new: &[usize]| {
            let values = old.iter().zip(new);
            values
                .map(|(&old, &new)| self.value(old as u64, new as u64, size).map(|it| it as usize))
                .collect::<Option<_>>()
        };
        let strides = |old: &[u64], new: &[u64]| {
            old.iter().zip(new).map(|(&old, &new)| self.value(old, new, size)).collect::<Option<_>>()
        };
        let placement = |(old, new): (&Placement, &Placement)| match (old, new) {
            (Placement::Gathered(old), Placement::Gathered(new)) => {
                Some(Placement::Gathered(self.value(*old, *new, size)?))
            }
            (Placement::Strided { rows: r, inner: i }, Placement::Strided { rows, inner }) => {
                Some(Placement::Strided { rows: strides(r, rows)?, inner: strides(i, inner)? })
            }
            _ => None,
        };
        let operand = |(old, new): (&Operand, &Operand)| {
            Some(Operand { offset: self.value(old.offset, new.offset, size)?, ..*new })
        };
        let (former, latter) = (&old.launch, &new.launch);
        let launch = LoopLaunch {
            rows: extents(&former.rows, &latter.rows)?,
            inner: extents(&former.inner, &latter.inner)?,
            placements: former
                .placements
                .iter()
                .zip(&latter.placements)
                .map(placement)
                .collect::<Option<_>>()?,
            ..LoopLaunch::clone(latter)
        };
        Some(Node {
            launch: Arc::new(launch),
            inputs: old.inputs.iter().zip(&new.inputs).map(operand).collect::<Option<_>>()?,
            outputs: old.outputs.iter().zip(&new.outputs).map(operand).collect::<Option<_>>()?,
            numbers_of: new.numbers_of,
        })
    }
}

/// The most sizes that are looked at.
const MOST_OTHERS: usize = 64;

/// Returns whether two segments differ in nothing but sizes.
fn has_same_loops(one: &Segment, other: &Segment) -> bool {
    let memories = one.memories.iter().zip(&other.memories);
    let nodes = one.nodes.iter().zip(&other.nodes);
    let is_same_memory = |(one, other): (&Memory, &Memory)| {
        (one.alignment_bytes, one.lifetime) == (other.alignment_bytes, other.lifetime)
    };
    let is_same_node = |(one, other): (&Node, &Node)| {
        let (first, second) = (&one.launch, &other.launch);
        let memory_of = |node: &Node| -> Vec<u32> {
            node.inputs.iter().chain(&node.outputs).map(|operand| operand.memory).collect()
        };
        let shape = |launch: &LoopLaunch| (launch.id, launch.rows.len(), launch.inner.len(), launch.lanes);
        shape(first) == shape(second)
            && first.dtypes() == second.dtypes()
            && one.numbers_of == other.numbers_of
            && memory_of(one) == memory_of(other)
    };
    let counts = |segment: &Segment| (segment.memories.len(), segment.nodes.len());
    counts(one) == counts(other)
        && memories.into_iter().all(is_same_memory)
        && nodes.into_iter().all(is_same_node)
}
