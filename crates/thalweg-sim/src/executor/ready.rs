//! The choice of the ready command that runs next.
//!
//! This is the only place where the order of unordered commands is decided. The rule here serves speed: the most urgent
//! stream first, and within a priority the command that became ready first, skipping those that conflict with running ones.
//! Other rules, made to find bugs, are in [`schedules`](crate::schedules): a controlled machine asks a schedule, and takes
//! the command that it chose from here.
//!
//! Host functions have a queue and threads of their own: a host function that waits for the program delays its stream and
//! nothing else.

use std::collections::VecDeque;

/// The number of priorities.
pub(crate) const LEVELS: usize = 6;

/// The number of commands of one priority that a worker checks before it gives up. The first is always among them, and it
/// can run as soon as nothing conflicts with it, so this bounds the search and delays nothing forever.
const WINDOW: usize = 64;

/// Commands that wait only for a worker.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    /// The queues by level, the most urgent level last.
    levels: [VecDeque<u32>; LEVELS],
    queued: usize,
    host: VecDeque<u32>,
}

impl Ready {
    /// Adds a command that became ready.
    pub(crate) fn push(&mut self, level: u8, command: u32) {
        self.levels[level as usize].push_back(command);
        self.queued += 1;
    }

    /// Adds a host function that became ready.
    pub(crate) fn push_host(&mut self, command: u32) {
        self.host.push_back(command);
    }

    /// Returns the next command that may run now.
    pub(crate) fn take(&mut self, mut admissible: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.queued == 0 {
            return None;
        }
        for level in self.levels.iter_mut().rev() {
            if let Some(position) = level.iter().take(WINDOW).position(|&command| admissible(command)) {
                self.queued -= 1;
                return level.remove(position);
            }
        }
        None
    }

    /// Returns the next host function.
    pub(crate) fn take_host(&mut self) -> Option<u32> {
        self.host.pop_front()
    }

    /// Returns all commands and host functions that are ready, in no particular order.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> {
        self.levels.iter().flatten().chain(&self.host).copied()
    }

    /// Removes a command.
    pub(crate) fn remove(&mut self, command: u32) {
        for level in &mut self.levels {
            if let Some(position) = level.iter().position(|&other| other == command) {
                level.remove(position);
                self.queued -= 1;
                return;
            }
        }
        self.host.retain(|&other| other != command);
    }

    /// Returns how many commands are ready, without host functions.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Returns how many host functions are ready.
    pub(crate) fn host_queued(&self) -> usize {
        self.host.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgent_first_then_first_come() {
        let mut ready = Ready::default();
        for (level, command) in [(0, 1), (2, 2), (0, 3), (2, 4)] {
            ready.push(level, command);
        }
        assert_eq!(ready.take(|command| command != 2), Some(4), "2 may not run now");
        let rest: Vec<_> = std::iter::from_fn(|| ready.take(|_| true)).collect();
        assert_eq!(rest, [2, 1, 3]);
        assert_eq!(ready.queued(), 0);
    }
}
