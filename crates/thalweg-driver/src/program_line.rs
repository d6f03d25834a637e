//! Source lines of programs in other languages, such as Python, whose calls all come through the same lines of Rust.
//!
//! The layer that such a program calls sets the origin of a call with [`called_from`]. Labels that are created meanwhile
//! have that line ([`Label::source`](crate::Label::source)).

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::Location;

/// A line of a program's source, in whatever language.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SourceLine {
    /// The file, as the compiler or the interpreter names it.
    pub file: &'static str,
    /// The line number, from 1 on.
    pub line: u32,
}

impl From<&'static Location<'static>> for SourceLine {
    fn from(location: &'static Location<'static>) -> Self {
        Self { file: location.file(), line: location.line() }
    }
}

thread_local! {
    static CURRENT: Cell<Option<&'static SourceLine>> = const { Cell::new(None) };
}

/// A guard: while it lives, the calls of this thread come from a line of a program.
#[must_use = "calls come from the line only while this lives"]
#[derive(Debug)]
pub struct CalledFrom {
    former: Option<&'static SourceLine>,
    /// Keeps the guard on the thread that created it.
    thread: PhantomData<*const ()>,
}

/// Sets the line of a program in another language that the calls of this thread come from, until the returned guard is
/// dropped.
pub fn called_from(line: &'static SourceLine) -> CalledFrom {
    CalledFrom { former: CURRENT.replace(Some(line)), thread: PhantomData }
}

impl Drop for CalledFrom {
    fn drop(&mut self) {
        CURRENT.set(self.former);
    }
}

/// Returns the line that the calls of this thread come from, if a layer above has set one.
pub fn program_line() -> Option<&'static SourceLine> {
    CURRENT.get()
}
