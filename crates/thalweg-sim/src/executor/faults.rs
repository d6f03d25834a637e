//! Refusals that are planned for points of the run.

use crate::refusal::{CallResult, Refusal};

/// The kind of a point at which a refusal can strike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    DeviceMemory,
    Map,
    PinnedMemory,
    Command,
}

const POINTS: usize = 4;

/// A planned fault: a refusal, and the call or command that is refused.
#[derive(Debug)]
pub(crate) struct PlannedFault {
    pub(crate) point: Point,
    /// The number of times that the run passes the point before that.
    pub(crate) number: u64,
    pub(crate) refusal: Refusal,
}

/// The refusals that have not struck yet, and the progress of the run.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    planned: Vec<PlannedFault>,
    passed: [u64; POINTS],
    struck: u64,
}

impl Faults {
    /// Plans these refusals, replacing those that were planned before; counting begins anew.
    pub(crate) fn plan(&mut self, faults: impl IntoIterator<Item = PlannedFault>) {
        *self = Self { planned: faults.into_iter().collect(), ..Self::default() };
    }

    /// Returns how many have struck.
    pub(crate) fn struck(&self) -> u64 {
        self.struck
    }

    /// Returns the refusal that strikes at this point of the run.
    pub(crate) fn pass(&mut self, point: Point) -> CallResult<()> {
        if self.planned.is_empty() {
            return Ok(());
        }
        let number = self.passed[point as usize];
        self.passed[point as usize] += 1;
        match self.planned.iter().position(|strike| strike.point == point && strike.number == number) {
            Some(position) => {
                self.struck += 1;
                Err(self.planned.swap_remove(position).refusal)
            }
            None => Ok(()),
        }
    }
}
