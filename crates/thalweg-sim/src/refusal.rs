//! Refusals of parts of the machine: a code and a detail. The driver adds the name of the call.

use thalweg_driver::{Code, Error};

/// The result of a part of the machine.
pub(super) type CallResult<T> = Result<T, Refusal>;

/// A code and a detail in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    pub(super) code: Code,
    pub(super) detail: String,
}

impl Refusal {
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }

    /// Returns the error of a call.
    pub(super) fn of(self, call: &'static str) -> Error {
        let sticky = self.code.is_sticky();
        let error = Error::new(self.code, call, self.detail);
        if sticky { error.asynchronous() } else { error }
    }
}
