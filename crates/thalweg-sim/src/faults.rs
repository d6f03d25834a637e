//! Faults on request: errors of a GPU, at points of the run that the caller chooses.
//!
//! A fault is *fair*: CUDA may fail this very call in this way, with this code, and the fault leaves the machine in the
//! state in which CUDA would. So it is well defined what a program must preserve under each:
//!
//! | fault | meaning | guarantee |
//! |---|---|---|
//! | [`Fault::OutOfMemory`] | a request for device memory is refused | nothing was taken; the next request may succeed |
//! | [`Fault::MapFails`] | pages are not mapped | the range and the pages are as before |
//! | [`Fault::PinnedOutOfMemory`] | a request for pinned memory is refused | nothing was taken |
//! | [`Fault::LinkStalls`] | a collective never ends | the program waits for it, until it aborts the communicator |
//! | [`Fault::CommandFails`] | a command fails when it begins | the device is lost: every later use fails with the same code, memory can still be freed, other devices continue except for those that wait for it in a collective |
//!
//! An event that completes arbitrarily late is not a fault: it is an order of commands, and the schedule decides orders.
//!
//! The list is common to the machine; each fault strikes in the module of its subject. Those at a [`Point`] of the run
//! belong to the executor, as [`PlannedFault`]s. Those of links between devices are planned by `collective::links`, which the
//! executor does not know.
//!
//! Requests, calls, commands and collectives are counted from 0, over the entire machine, from the moment of
//! [`SimDriver::inject`](crate::SimDriver::inject) on.

use std::fmt;

use thalweg_driver::Code;

use crate::executor::faults::{PlannedFault, Point};
use crate::refusal::Refusal;

/// An error that happens once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// The request for device memory with this number (plain, managed, physical or stream-ordered) fails with
    /// [`Code::OutOfMemory`].
    OutOfMemory {
        /// The number of the request.
        request: u64,
    },
    /// The call of `memory_map` with this number fails with [`Code::MapFailed`].
    MapFails {
        /// The number of the call.
        call: u64,
    },
    /// The request for pinned memory with this number fails with [`Code::OutOfMemory`].
    PinnedOutOfMemory {
        /// The number of the request.
        request: u64,
    },
    /// The command (kernel, library call, copy or fill) with this number, in the order of their beginnings, fails, and its
    /// device is lost: [`Code::LaunchFailed`], or [`Code::EccUncorrectable`] if the hardware is the cause.
    CommandFails {
        /// The number of the command.
        command: u64,
        /// Whether the hardware is the cause.
        by_hardware: bool,
    },
    /// A link between devices stalls when the collective with this number would run (counting collectives at which all ranks have
    /// arrived). Neither this collective nor later ones over the link run, until
    /// [`SimDriver::set_link`](crate::SimDriver::set_link) sets another speed.
    LinkStalls {
        /// The number of the collective.
        collective: u64,
        /// The link in the ring of the communicator's ranks, modulo the number of ranks: link 0 is between the first two ranks.
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
    /// Returns the point of the run at which the fault strikes; `None` for a fault of a link.
    pub(crate) fn planned(self) -> Option<PlannedFault> {
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
        Some(PlannedFault { point, number, refusal: Refusal::new(code, format!("injected fault: {self}")) })
    }
}
