//! [`Case`]: one program of the suite, and how it ends.

use std::fmt;
use std::panic::Location;

use thalweg_driver::Error;

use crate::fixture::Fixture;

/// The reason why a case ended early.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The driver broke the contract: what was expected, what was seen, and where.
    Failed(String),
    /// The case does not apply to this driver or device, and why.
    Skipped(String),
}

impl From<Error> for Stop {
    #[track_caller]
    fn from(error: Error) -> Self {
        Self::Failed(format!("expected success, got {error} (at {})", place(Location::caller())))
    }
}

/// The result of a case.
pub type CaseResult<T = ()> = std::result::Result<T, Stop>;

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    /// The part of the contract and the rule, as in `streams/run_in_order`.
    pub name: &'static str,
    /// The program.
    pub run: fn(&Fixture) -> CaseResult,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Case({})", self.name)
    }
}

/// Makes the list of a module's cases: the functions, named after the group.
macro_rules! group {
    ($name:literal: $($function:ident),* $(,)?) => {
        pub(super) const CASES: &[crate::Case] = &[
            $(crate::Case {
                name: concat!($name, "/", stringify!($function)),
                run: $function,
            }),*
        ];
    };
}
pub(crate) use group;

/// Returns the file's own name and the line: enough to find a case, and the same wherever the sources lie.
pub(crate) fn place(location: &Location<'_>) -> String {
    let file = location.file().rsplit(['/', '\\']).next().unwrap_or_default();
    format!("{file}:{}", location.line())
}
