//! Conditional nodes: parts of a graph that run or not, or again, as a value on the device says.
//!
//! A *condition* is a number that belongs to a graph and lives where its launches run. Each launch starts it at its initial
//! value; captured work sets it from device memory ([`Driver::condition_set_async`](crate::Driver::condition_set_async)). One
//! *conditional node* ([`Driver::conditional_node_add`](crate::Driver::conditional_node_add)) reads it, and has *bodies*: graphs
//! of which it runs one in its own place, so that what comes after the node comes after all that the body did. A body is filled
//! by a capture ([`Driver::stream_begin_capture_to_graph`](crate::Driver::stream_begin_capture_to_graph)), may have conditional
//! nodes of its own, and belongs to the graph that it is in: it is never destroyed, instantiated or updated by itself.
//!
//! A body holds kernels, library work, copies, fills and conditional nodes, all of one device. Host functions, stream-ordered
//! memory and collectives have no place there.

use std::fmt;

/// The control flow of a conditional node: how it uses its condition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Conditional {
    /// Runs its body if the condition is not 0.
    If,
    /// Runs its first body if the condition is not 0, and its second if it is.
    IfElse,
    /// Runs its body as long as the condition is not 0, which it reads before each time. The body sets it anew.
    While,
    /// Runs the body whose number the condition is, counted from 0; none if there are not so many.
    Switch {
        /// The number of bodies: 1 to [`Conditional::MOST_CASES`].
        cases: u32,
    },
}

impl Conditional {
    /// The number of cases that a switch may have.
    pub const MOST_CASES: u32 = 1024;

    /// Returns how many bodies such a node has.
    pub const fn bodies(self) -> u32 {
        match self {
            Self::If | Self::While => 1,
            Self::IfElse => 2,
            Self::Switch { cases } => cases,
        }
    }

    /// Returns why there can be no such node, if so.
    pub fn check(self) -> Result<(), String> {
        match self {
            Self::Switch { cases } if cases == 0 || cases > Self::MOST_CASES => {
                Err(format!("a switch has 1 to {} cases", Self::MOST_CASES))
            }
            _ => Ok(()),
        }
    }

    /// Returns what the body of this number is called: `then`, `else`, `body`, `case 3`.
    pub fn body_name(self, number: usize) -> String {
        match self {
            Self::If | Self::IfElse if number == 0 => "then".to_owned(),
            Self::If | Self::IfElse => "else".to_owned(),
            Self::While => "body".to_owned(),
            Self::Switch { .. } => format!("case {number}"),
        }
    }
}

impl fmt::Display for Conditional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::If => f.write_str("if"),
            Self::IfElse => f.write_str("if and else"),
            Self::While => f.write_str("while"),
            Self::Switch { cases } => write!(f, "switch of {cases}"),
        }
    }
}

/// The way in which the value of a condition lies in device memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ConditionFormat {
    /// One byte: a truth value, or a number below 256.
    U8,
    /// Four bytes, aligned to four.
    U32,
}

impl ConditionFormat {
    /// Returns the size of a value.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::U8 => 1,
            Self::U32 => 4,
        }
    }
}
