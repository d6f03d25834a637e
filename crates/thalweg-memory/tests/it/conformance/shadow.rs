//! A shadow of memory: which use may touch which byte, and from when on.
//!
//! A range is live, or was freed after given points of given streams. The caller decides whether a stream is past such a point.
//! The ranges belong to a space that the caller chooses: addresses, or bytes of physical pages.

use std::collections::BTreeMap;

use thalweg_memory::StreamId;

/// A point on a stream: the number of actions there up to and including this one.
pub type Point = (StreamId, u64);

#[derive(Clone, Debug)]
struct Range {
    end: u64,
    /// The points of the free; `None` while the range is live.
    after: Option<Vec<Point>>,
}

/// The shadow of one space. See the [module's essay](self).
#[derive(Debug, Default)]
pub struct Shadow {
    ranges: BTreeMap<u64, Range>,
}

impl Shadow {
    /// Makes a range live. The error is the reason why it may not be.
    pub fn claim(&mut self, from: u64, end: u64, is_past: impl Fn(Point) -> bool) -> Result<(), String> {
        let result = self.forget(from, end, is_past);
        self.ranges.insert(from, Range { end, after: None });
        result
    }

    /// Frees the live range from `from` to `end`.
    pub fn release(&mut self, from: u64, end: u64, after: Vec<Point>) {
        self.cut_out(from, end);
        self.ranges.insert(from, Range { end, after: Some(after) });
    }

    /// Forgets a range. The error names what may still touch it.
    pub fn forget(&mut self, from: u64, end: u64, is_past: impl Fn(Point) -> bool) -> Result<(), String> {
        let mut result = Ok(());
        for (start, range) in self.cut_out(from, end) {
            let what = match &range.after {
                None => Some("is live".to_owned()),
                Some(after) => {
                    let ahead = after.iter().find(|point| !is_past(**point));
                    ahead.map(|(stream, point)| format!("may be touched by {stream:?}, up to {point}"))
                }
            };
            if let Some(what) = what {
                result = Err(format!("{start:#x} to {:#x} {what}", range.end));
            }
        }
        result
    }

    /// Removes all ranges that overlap the given one; parts outside of it stay.
    fn cut_out(&mut self, from: u64, end: u64) -> Vec<(u64, Range)> {
        let before = self.ranges.range(..from).next_back().filter(|(_, range)| range.end > from);
        let first = before.map_or(from, |(&start, _)| start);
        let starts: Vec<u64> = self.ranges.range(first..end).map(|(&start, _)| start).collect();
        let mut cut = Vec::new();
        for start in starts {
            let range = self.ranges.remove(&start).expect("it was just seen");
            if start < from {
                self.ranges.insert(start, Range { end: from, ..range.clone() });
            }
            if range.end > end {
                self.ranges.insert(end, range.clone());
            }
            cut.push((start.max(from), Range { end: range.end.min(end), ..range }));
        }
        cut
    }
}
