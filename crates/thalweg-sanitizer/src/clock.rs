//! Vector clocks: the work of others that each thread and stream is known to come after.
//!
//! Everything that does work in an order of its own is a *strand*: a stream, a host thread, a chain of nodes of an executable
//! graph. Every piece of work has a number, and numbers only grow, over all strands. A [`Clock`] stores for each strand the
//! number up to which its work is known to come before: work `n` of strand `s` comes before an actor whose clock is at least `n`
//! for `s`. So one number and one strand identify a piece of work (an *epoch*), and a query is one look-up in a clock.

/// An actor that works in an order of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Strand(pub(super) u32);

impl Strand {
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// For each strand, the number of its last known piece of work. Nothing is known of strands that are not listed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Clock(Vec<u64>);

impl Clock {
    /// Returns the number of the strand's last known piece of work; 0 if none is known.
    pub(super) fn of(&self, strand: Strand) -> u64 {
        self.0.get(strand.index()).copied().unwrap_or(0)
    }

    /// Returns whether a piece of work is known.
    pub(super) fn covers(&self, strand: Strand, number: u64) -> bool {
        self.of(strand) >= number
    }

    /// Adds a strand's work up to a number.
    pub(super) fn learn(&mut self, strand: Strand, number: u64) {
        if self.0.len() <= strand.index() {
            self.0.resize(strand.index() + 1, 0);
        }
        let known = &mut self.0[strand.index()];
        *known = number.max(*known);
    }

    /// Adds everything that another clock covers.
    pub(super) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (known, &new) in self.0.iter_mut().zip(&other.0) {
            *known = new.max(*known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joining_takes_the_greater_of_each() {
        let [a, b, c] = [0, 1, 2].map(Strand);
        let (mut left, mut right) = (Clock::default(), Clock::default());
        left.learn(a, 7);
        left.learn(b, 2);
        right.learn(b, 5);
        right.learn(c, 1);
        right.join(&left);
        left.join(&right);
        assert_eq!([a, b, c].map(|strand| left.of(strand)), [7, 5, 1]);
        assert_eq!(left, right);
        left.learn(a, 3);
        assert!(left.covers(a, 7) && !left.covers(a, 8), "what is known is never forgotten");
    }
}
