//! Faults on request: what a GPU does on a bad day, at a place in the run that the caller chooses.
//!
//! A fault is *fair*: it is something that CUDA may answer to this very call, with the code that CUDA has for it, and it
//! leaves the machine in the state in which CUDA would. So what a program must keep under each is not a matter of taste:
//!
//! | fault | what it is | what holds under it |
//! |---|---|---|
//! | [`Fault::OutOfMemory`] | a request for device memory is refused | nothing was taken; the next request may succeed |
//! | [`Fault::MapFails`] | pages are not mapped | the range and the pages are as before |
//! | [`Fault::PinnedOutOfMemory`] | a request for pinned memory is refused | nothing was taken |
//! | [`Fault::LinkStalls`] | a collective never ends | the program waits for it, until it aborts the communicator |
//! | [`Fault::CommandFails`] | a command fails when it begins | the device is lost: every later use answers the same code, memory can still be given back, other devices go on but those that wait for it in a collective |
//!
//! An event that completes arbitrarily late is not a fault: it is an order of commands, and orders are the affair of the
//! schedule.
//!
//! Requests, calls and commands are counted from 0, over the whole machine, from the moment of
//! [`SimDriver::inject`](crate::SimDriver::inject) on.

use std::fmt;

use thalweg_driver::Code;

use crate::refusal::{CallResult, Refusal};

/// Something that goes wrong once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// The request for device memory of this number (plain, managed, physical or stream-ordered) answers
    /// [`Code::OutOfMemory`].
    OutOfMemory {
        /// Which request.
        request: u64,
    },
    /// The call of `memory_map` of this number answers [`Code::MapFailed`].
    MapFails {
        /// Which call.
        call: u64,
    },
    /// The request for pinned memory of this number answers [`Code::OutOfMemory`].
    PinnedOutOfMemory {
        /// Which request.
        request: u64,
    },
    /// The command (kernel, library call, copy or fill) that is the one of this number to begin fails, and with it its
    /// device: [`Code::LaunchFailed`], or [`Code::EccUncorrectable`] if the hardware is to blame.
    CommandFails {
        /// Which command.
        command: u64,
        /// Whether it is the hardware's fault.
        by_hardware: bool,
    },
    /// A link between devices stalls when the collective of this number (of those at which all ranks have arrived) would run. Neither that
    /// one nor any later one over the link runs, until [`SimDriver::set_link`](crate::SimDriver::set_link) gives it another speed.
    LinkStalls {
        /// Which collective.
        collective: u64,
        /// Which link of the ring of its ranks, counted around it as often as need be: link 0 is between the first two.
        link: u32,
    },
}

/// The place where a fault can strike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    DeviceMemory,
    Map,
    PinnedMemory,
    Command,
    /// The collectives strike these by themselves.
    Link,
}

const POINTS: usize = 5;

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory { request } => write!(f, "request {request} for device memory"),
            Self::MapFails { call } => write!(f, "call {call} of memory_map"),
            Self::PinnedOutOfMemory { request } => write!(f, "request {request} for pinned memory"),
            Self::CommandFails { command, by_hardware: false } => write!(f, "command {command}"),
            Self::CommandFails { command, by_hardware: true } => {
                write!(f, "command {command}, by a fault of the hardware,")
            }
            Self::LinkStalls { collective, link } => {
                return write!(f, "link {link} of collective {collective} stalls");
            }
        }?;
        f.write_str(" fails")
    }
}

impl Fault {
    fn point(self) -> Point {
        match self {
            Self::OutOfMemory { .. } => Point::DeviceMemory,
            Self::MapFails { .. } => Point::Map,
            Self::PinnedOutOfMemory { .. } => Point::PinnedMemory,
            Self::CommandFails { .. } => Point::Command,
            Self::LinkStalls { .. } => Point::Link,
        }
    }

    fn number(self) -> u64 {
        match self {
            Self::OutOfMemory { request } | Self::PinnedOutOfMemory { request } => request,
            Self::MapFails { call } => call,
            Self::CommandFails { command, .. } => command,
            Self::LinkStalls { collective, .. } => collective,
        }
    }

    fn refusal(self) -> Refusal {
        let code = match self {
            Self::OutOfMemory { .. } | Self::PinnedOutOfMemory { .. } => Code::OutOfMemory,
            Self::MapFails { .. } => Code::MapFailed,
            Self::CommandFails { by_hardware: false, .. } => Code::LaunchFailed,
            Self::CommandFails { by_hardware: true, .. } => Code::EccUncorrectable,
            Self::LinkStalls { .. } => Code::LaunchTimeout,
        };
        Refusal::new(code, format!("injected fault: {self}"))
    }
}

/// The faults that are still to come, and how far the run is.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    planned: Vec<Fault>,
    passed: [u64; POINTS],
    struck: u64,
}

impl Faults {
    /// Plans faults; counting begins anew.
    pub(crate) fn plan(&mut self, faults: &[Fault]) {
        *self = Self { planned: faults.to_vec(), passed: [0; POINTS], struck: 0 };
    }

    /// Returns how many have struck.
    pub(crate) fn struck(&self) -> u64 {
        self.struck
    }

    /// Returns the fault that strikes at this point of the run.
    pub(crate) fn pass(&mut self, point: Point) -> CallResult<()> {
        if self.planned.is_empty() {
            return Ok(());
        }
        let number = self.passed[point as usize];
        self.passed[point as usize] += 1;
        let strikes = |fault: &Fault| fault.point() == point && fault.number() == number;
        match self.planned.iter().position(strikes) {
            Some(position) => {
                self.struck += 1;
                Err(self.planned.swap_remove(position).refusal())
            }
            None => Ok(()),
        }
    }
}
