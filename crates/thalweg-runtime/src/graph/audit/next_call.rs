//! The code that makes a thread's next call of the driver, and what it is for, if that is known.

use std::cell::Cell;

use thalweg_driver::Label;

use super::obstacle::ObstacleKind;

thread_local! {
    static NEXT: Cell<Option<(Label, Option<ObstacleKind>)>> = const { Cell::new(None) };
}

/// Sets it.
pub(crate) fn set(label: Label, kind: Option<ObstacleKind>) {
    NEXT.set(Some((label, kind)));
}

/// Returns what was said of the next call.
pub(super) fn take() -> Option<(Label, Option<ObstacleKind>)> {
    NEXT.take()
}
