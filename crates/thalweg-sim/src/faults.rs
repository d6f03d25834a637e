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
//! The list is the whole machine's; each fault strikes where its subject is. Those at a [`Point`] of the run are the executor's, as
//! [`Strike`]s; those of links between devices are planned by `collective::links`, of which the executor knows nothing.
//!
//! Requests, calls, commands and collectives are counted from 0, over the whole machine, from the moment of
//! [`SimDriver::inject`](crate::SimDriver::inject) on.

use std::fmt;

use thalweg_driver::Code;

use crate::executor::faults::{Point, Strike};
use crate::refusal::Refusal;

/// Something that goes wrong once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// The request for device memory of this number (plain, managed, physical or stream-ordered) answers
    /// [`Code::OutOfMemory`].
    OutOfMemory {
        /// The number of the request.
        request: u64,
    },
    /// The call of `memory_map` of this number answers [`Code::MapFailed`].
    MapFails {
        /// The number of the call.
        call: u64,
    },
    /// The request for pinned memory of this number answers [`Code::OutOfMemory`].
    PinnedOutOfMemory {
        /// The number of the request.
        request: u64,
    },
    /// The command (kernel, library call, copy or fill) that is the one of this number to begin fails, and with it its
    /// device: [`Code::LaunchFailed`], or [`Code::EccUncorrectable`] if the hardware is to blame.
    CommandFails {
        /// The number of the command.
        command: u64,
        /// Whether it is the hardware's fault.
        by_hardware: bool,
    },
    /// A link between devices stalls when the collective of this number (of those at which all ranks have arrived) would run. Neither that
    /// one nor any later one over the link runs, until [`SimDriver::set_link`](crate::SimDriver::set_link) gives it another speed.
    LinkStalls {
        /// The number of the collective.
        collective: u64,
        /// The link of the ring of its ranks, counted around it as often as need be: link 0 is between the first two.
        link: u32,
    },
}

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
    /// Returns the place in the run at which it strikes, unless that is a link.
    pub(crate) fn strike(self) -> Option<Strike> {
        let (point, number, code) = match self {
            Self::OutOfMemory { request } => (Point::DeviceMemory, request, Code::OutOfMemory),
            Self::MapFails { call } => (Point::Map, call, Code::MapFailed),
            Self::PinnedOutOfMemory { request } => (Point::PinnedMemory, request, Code::OutOfMemory),
            Self::CommandFails { command, by_hardware: false } => {
                (Point::Command, command, Code::LaunchFailed)
            }
            Self::CommandFails { command, by_hardware: true } => {
                (Point::Command, command, Code::EccUncorrectable)
            }
            Self::LinkStalls { .. } => return None,
        };
        Some(Strike { point, number, refusal: Refusal::new(code, format!("injected fault: {self}")) })
    }
}
