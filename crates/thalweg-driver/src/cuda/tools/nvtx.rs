//! NVTX: ranges and marks of a program that Nsight Systems and other tools show next to their own traces
//! (`torch.cuda.nvtx`).
//!
//! The library is loaded at the first call. Without it nothing is shown, and ranges are counted all the same. Only a tool
//! that started the program sees them: without one a call costs some nanoseconds.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int};
use std::marker::PhantomData;
use std::sync::OnceLock;

use crate::cuda::search::{Library, OpenLibrary, SearchEnvironment};
use crate::cuda::table::function_at;

/// The functions of the library.
#[derive(Clone, Copy)]
struct Functions {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
    start: unsafe extern "C" fn(*const c_char) -> u64,
    end: unsafe extern "C" fn(u64),
    mark: unsafe extern "C" fn(*const c_char),
}

impl Functions {
    fn of(library: &OpenLibrary) -> Option<Self> {
        // SAFETY: the signatures are those of `nvToolsExt.h`, and a library is never unloaded.
        unsafe {
            Some(Self {
                push: function_at(library.symbol(c"nvtxRangePushA"))?,
                pop: function_at(library.symbol(c"nvtxRangePop"))?,
                start: function_at(library.symbol(c"nvtxRangeStartA"))?,
                end: function_at(library.symbol(c"nvtxRangeEnd"))?,
                mark: function_at(library.symbol(c"nvtxMarkA"))?,
            })
        }
    }
}

static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();

fn functions() -> Option<Functions> {
    *FUNCTIONS.get_or_init(|| {
        let library = OpenLibrary::open(Library::Nvtx, &SearchEnvironment::from_process(), "nvtxRangePushA");
        library.ok().as_ref().and_then(Functions::of)
    })
}

/// Returns whether the library was found. Without it, ranges and marks are not shown.
pub fn is_available() -> bool {
    functions().is_some()
}

thread_local! {
    /// The number of ranges that the thread has begun and not ended.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Converts a message for the library. A zero byte would end it, so it becomes a space.
fn text(message: &str) -> CString {
    CString::new(message.replace('\0', " ")).unwrap_or_default()
}

/// Begins a range inside the calling thread's open ranges, and returns how many were open (`torch.cuda.nvtx.range_push`).
pub fn range_push(message: &str) -> usize {
    if let Some(functions) = functions() {
        let message = text(message);
        // SAFETY: the library reads the text during the call.
        unsafe { (functions.push)(message.as_ptr()) };
    }
    DEPTH.replace(DEPTH.get() + 1)
}

/// Ends the range that the calling thread began last, and returns how many are left; `None` if the thread has none
/// (`torch.cuda.nvtx.range_pop`).
pub fn range_pop() -> Option<usize> {
    let left = DEPTH.get().checked_sub(1)?;
    if let Some(functions) = functions() {
        // SAFETY: the function has no arguments.
        unsafe { (functions.pop)() };
    }
    DEPTH.set(left);
    Some(left)
}

/// A range of the process, which any thread may end.
#[must_use = "the range lasts until `range_end`"]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RangeId(pub u64);

/// Begins a range of the process (`torch.cuda.nvtx.range_start`).
pub fn range_start(message: &str) -> RangeId {
    RangeId(functions().map_or(0, |functions| {
        let message = text(message);
        // SAFETY: the library reads the text during the call.
        unsafe { (functions.start)(message.as_ptr()) }
    }))
}

/// Ends a range of the process (`torch.cuda.nvtx.range_end`).
pub fn range_end(range: RangeId) {
    if let Some(functions) = functions() {
        // SAFETY: the library takes any number, and ignores unknown ones.
        unsafe { (functions.end)(range.0) };
    }
}

/// Marks a moment (`torch.cuda.nvtx.mark`).
pub fn mark(message: &str) {
    if let Some(functions) = functions() {
        let message = text(message);
        // SAFETY: the library reads the text during the call.
        unsafe { (functions.mark)(message.as_ptr()) };
    }
}

/// A range of the calling thread that ends when this is dropped.
#[must_use = "the range ends when this is dropped"]
#[derive(Debug)]
pub struct Range(PhantomData<*const ()>);

/// Begins a range of the calling thread that lasts until the returned guard is dropped (`torch.cuda.nvtx.range`).
pub fn range(message: &str) -> Range {
    range_push(message);
    Range(PhantomData)
}

impl Drop for Range {
    fn drop(&mut self) {
        range_pop();
    }
}

#[cfg(test)]
mod tests {
    use thalweg_lock::Mutex;

    use super::*;
    use crate::cuda::table::text_at;

    static CALLS: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn called(call: &str) {
        CALLS.lock().push(call.to_owned());
    }

    unsafe extern "C" fn push(message: *const c_char) -> c_int {
        // SAFETY: the caller passes a text.
        called(&format!("push {}", unsafe { text_at(message) }));
        0
    }

    unsafe extern "C" fn pop() -> c_int {
        called("pop");
        0
    }

    unsafe extern "C" fn start(message: *const c_char) -> u64 {
        // SAFETY: the caller passes a text.
        called(&format!("start {}", unsafe { text_at(message) }));
        41
    }

    unsafe extern "C" fn end(range: u64) {
        called(&format!("end {range}"));
    }

    unsafe extern "C" fn moment(message: *const c_char) {
        // SAFETY: the caller passes a text.
        called(&format!("mark {}", unsafe { text_at(message) }));
    }

    #[test]
    fn ranges_reach_the_library_whole_and_nested() {
        // This is the process's only test that uses NVTX, so the machine's library, if there is one, is not loaded.
        assert!(FUNCTIONS.set(Some(Functions { push, pop, start, end, mark: moment })).is_ok());
        assert!(is_available());
        {
            let _outer = range("outer");
            assert_eq!(range_push("inner\0part, größer"), 1);
            assert_eq!(range_pop(), Some(1));
            assert_eq!(
                std::thread::spawn(range_pop).join().expect("it ends"),
                None,
                "another thread has none"
            );
        }
        assert_eq!(range_pop(), None);
        let whole = range_start("whole");
        mark("now");
        range_end(whole);
        let calls = CALLS.lock().clone();
        let expected =
            ["push outer", "push inner part, größer", "pop", "pop", "start whole", "mark now", "end 41"];
        assert_eq!(calls, expected);
    }
}
