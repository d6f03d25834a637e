//! Conditional nodes: parts of a graph that a value on the device skips, selects or repeats.
//!
//! A *condition* is a number that belongs to a graph and is stored on the device. Each launch starts it at its initial
//! value; captured work sets it from device memory ([`Driver::condition_set_async`](crate::Driver::condition_set_async)).
//! One *conditional node* ([`Driver::conditional_node_add`](crate::Driver::conditional_node_add)) reads it. The node has
//! *bodies*: graphs of which it runs one in its own place, so that the node's successors run after all work of the body. A
//! body is filled by a capture ([`Driver::stream_begin_capture_to_graph`](crate::Driver::stream_begin_capture_to_graph)),
//! may have conditional nodes of its own, and belongs to the graph that contains it: it is never destroyed, instantiated or
//! updated separately.
//!
//! A body contains kernels, library work, copies, fills and conditional nodes, all of one device. It cannot contain host
//! functions, stream-ordered memory or collectives.

use std::fmt;

/// The control flow of a conditional node: how it uses its condition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Conditional {
    /// Runs its body if the condition is not 0.
    If,
    /// Runs its first body if the condition is not 0, and its second if it is 0.
    IfElse,
    /// Runs its body while the condition is not 0, which it checks before each iteration. The body sets the condition anew.
    While,
    /// Runs the body whose number, counted from 0, is the condition; no body if the number is too large.
    Switch {
        /// The number of bodies: 1 to [`Conditional::MOST_CASES`].
        cases: u32,
    },
}

impl Conditional {
    /// The number of cases that a switch may have.
    pub const MOST_CASES: u32 = 1024;

    /// Returns the number of bodies that the conditional node has.
    pub const fn bodies(self) -> u32 {
        match self {
            Self::If | Self::While => 1,
            Self::IfElse => 2,
            Self::Switch { cases } => cases,
        }
    }

    /// Checks whether the conditional node is possible; the error is the reason why it is not.
    pub fn check(self) -> Result<(), String> {
        match self {
            Self::Switch { cases } if cases == 0 || cases > Self::MOST_CASES => {
                Err(format!("a switch has 1 to {} cases", Self::MOST_CASES))
            }
            _ => Ok(()),
        }
    }

    /// Returns the name of the body with this number: `then`, `else`, `body`, `case 3`.
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

/// The format of a condition's value in device memory.
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
