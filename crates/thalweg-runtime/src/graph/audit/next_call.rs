//! The code that makes a thread's next call of the driver, and the purpose of the call, if they are known.

use std::cell::Cell;

use thalweg_driver::Label;

use super::obstacle::ObstacleKind;

thread_local! {
    static NEXT: Cell<Option<(Label, Option<ObstacleKind>)>> = const { Cell::new(None) };
}

/// Sets the label and the kind of the next call.
pub(crate) fn set(label: Label, kind: Option<ObstacleKind>) {
    NEXT.set(Some((label, kind)));
}

/// Returns and clears the label and the kind of the next call.
pub(super) fn take() -> Option<(Label, Option<ObstacleKind>)> {
    NEXT.take()
}
