//! A shadow of memory: which use may touch which byte, and from when on.
//!
//! A range is live, or was freed after given points of given streams. Whether a stream is past such a point is for the
//! caller to say. The ranges are of a space of the caller's: addresses, or bytes of physical pages.

use std::collections::BTreeMap;

use thalweg_memory::StreamId;

/// A point on a stream: so many things were done there before it, itself included.
pub type Point = (StreamId, u64);

#[derive(Clone, Debug)]
struct Range {
    end: u64,
    /// `None` while it is live.
    after: Option<Vec<Point>>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Shadow {
    ranges: BTreeMap<u64, Range>,
}

impl Shadow {
    /// Makes a range live. Says why if it may not be.
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

    /// Forgets a range. Says why if something may still touch it.
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

    /// Takes out what overlaps the range; what sticks out on either side stays in.
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
