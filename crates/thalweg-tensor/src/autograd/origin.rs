//! [`Origin`]: the call that recorded a node, which anomaly mode stores.

use std::sync::{Arc, OnceLock};

use crate::caller::{CallLocation, entered};
use crate::dispatch::{Anomaly, anomaly};

/// The call that recorded a node.
pub(super) struct Origin {
    pub(super) operator: &'static str,
    location: Option<CallLocation>,
    /// The program's call stack at that time, in another language.
    stack: Option<String>,
    /// The call whose gradient the node computes, if gradients of gradients are requested.
    pub(super) parent: Option<Arc<Origin>>,
}

/// A function that returns the call stack that led to an operator, in another language.
type StackSource = Box<dyn Fn() -> Option<String> + Send + Sync>;

static STACKS: OnceLock<StackSource> = OnceLock::new();

/// Sets the function that returns, as lines of a text, the program's call stack that led to the running operator; anomaly mode
/// stores it with each node. Only the first function set is used.
pub fn set_stack_source(source: impl Fn() -> Option<String> + Send + Sync + 'static) {
    _ = STACKS.set(Box::new(source));
}

/// Returns the origin that anomaly mode stores for the operator that records a node now, as a part of the call `parent`.
pub(super) fn origin(
    operator: &'static str,
    parent: impl FnOnce() -> Option<Arc<Origin>>,
) -> Option<Arc<Origin>> {
    if anomaly() == Anomaly::Off {
        return None;
    }
    let stack = STACKS.get().and_then(|source| source());
    Some(Arc::new(Origin { operator, location: entered(), stack, parent: parent() }))
}

impl Origin {
    /// Returns the call stack that led to the operator, or the operator and its line.
    pub(super) fn calls(&self) -> String {
        self.stack.clone().unwrap_or_else(|| self.text())
    }

    /// Returns the operator and the line of the call.
    pub(super) fn text(&self) -> String {
        match self.location {
            Some(location) => format!("{} at {location}", self.operator),
            None => self.operator.to_owned(),
        }
    }
}
