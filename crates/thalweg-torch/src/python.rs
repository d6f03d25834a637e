//! The Python stack of the calling thread, for histories.
//!
//! The process may or may not have an interpreter; its functions are looked up among the symbols of the process when a stack is
//! first needed. Stacks are only taken of threads that the interpreter knows. PyTorch releases the interpreter's lock while it
//! runs an operator, so such a thread usually does not hold it, and acquires it for the duration, as PyTorch's own allocator
//! does. That may wait for another thread, which may be waiting for us, so no lock may be held when a stack is requested.
//! `thalweg_memory` requests stacks before it takes any lock. A caller's function that is called with a lock held and may free
//! memory runs in [`without_stacks`](crate::stacks::without_stacks).
//!
//! Frames get their names when they are first seen, while the interpreter's lock is held, so a snapshot does not need the lock. A
//! frame is a code object and a line. Seen code objects are kept alive, so that their addresses identify them. That memory grows
//! with the program's code, not with time.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_snapshot::Frame;

type Object = *mut c_void;

/// The functions of Python's C interface that are used. All are part of it since 3.9.
struct Interpreter {
    is_initialized: unsafe extern "C" fn() -> c_int,
    /// Returns whether the interpreter is ending. The function's name changed in Python 3.13.
    is_finalizing: Option<unsafe extern "C" fn() -> c_int>,
    thread_state: unsafe extern "C" fn() -> Object,
    hold: unsafe extern "C" fn() -> c_int,
    let_go: unsafe extern "C" fn(c_int),
    current_frame: unsafe extern "C" fn() -> Object,
    frame_back: unsafe extern "C" fn(Object) -> Object,
    frame_code: unsafe extern "C" fn(Object) -> Object,
    frame_line: unsafe extern "C" fn(Object) -> c_int,
    attribute: unsafe extern "C" fn(Object, *const c_char) -> Object,
    text: unsafe extern "C" fn(Object) -> *const c_char,
    retain: unsafe extern "C" fn(Object),
    release: unsafe extern "C" fn(Object),
    /// Takes the thread's pending exception; `restore_error` sets it again.
    fetch_error: unsafe extern "C" fn(*mut Object, *mut Object, *mut Object),
    restore_error: unsafe extern "C" fn(Object, Object, Object),
}

/// Returns a symbol of the process.
///
/// # Safety
/// `F` is a function pointer of the symbol's type.
unsafe fn symbol<F: Copy>(name: &CStr) -> Option<F> {
    // SAFETY: a text that ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(size_of::<F>() == size_of::<*mut c_void>(), "a function pointer is asked for");
    // SAFETY: the caller's promise; the sizes are equal.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
}

impl Interpreter {
    fn find() -> Option<&'static Self> {
        static FOUND: OnceLock<Option<Interpreter>> = OnceLock::new();
        // SAFETY: the types are those of Python's C interface.
        let find = || unsafe {
            Some(Self {
                is_initialized: symbol(c"Py_IsInitialized")?,
                is_finalizing: symbol(c"Py_IsFinalizing").or_else(|| symbol(c"_Py_IsFinalizing")),
                thread_state: symbol(c"PyGILState_GetThisThreadState")?,
                hold: symbol(c"PyGILState_Ensure")?,
                let_go: symbol(c"PyGILState_Release")?,
                current_frame: symbol(c"PyEval_GetFrame")?,
                frame_back: symbol(c"PyFrame_GetBack")?,
                frame_code: symbol(c"PyFrame_GetCode")?,
                frame_line: symbol(c"PyFrame_GetLineNumber")?,
                attribute: symbol(c"PyObject_GetAttrString")?,
                text: symbol(c"PyUnicode_AsUTF8")?,
                retain: symbol(c"Py_IncRef")?,
                release: symbol(c"Py_DecRef")?,
                fetch_error: symbol(c"PyErr_Fetch")?,
                restore_error: symbol(c"PyErr_Restore")?,
            })
        };
        FOUND.get_or_init(find).as_ref()
    }

    /// Runs `body` while the calling thread holds the interpreter's lock; `None` if the interpreter does not know the thread, or
    /// no longer exists.
    fn held<T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        struct LetGo<'a>(&'a Interpreter, c_int);
        impl Drop for LetGo<'_> {
            fn drop(&mut self) {
                // SAFETY: the interpreter's lock was acquired, and its state is passed back.
                unsafe { (self.0.let_go)(self.1) };
            }
        }
        // SAFETY: any thread may call these at any time; they return whether the other functions may be called.
        let is_known = unsafe {
            let ends = self.is_finalizing.is_some_and(|is_finalizing| is_finalizing() != 0);
            (self.is_initialized)() != 0 && !ends && !(self.thread_state)().is_null()
        };
        if !is_known {
            return None;
        }
        // SAFETY: the thread is the interpreter's. Acquiring the lock recursively is allowed.
        let _held = LetGo(self, unsafe { (self.hold)() });
        let (mut kind, mut value, mut trace) = (null_mut(), null_mut(), null_mut());
        // A tensor may be freed while an exception propagates. The exception is not ours: clear it, do our work, and restore it.
        // SAFETY: the interpreter's lock is held, and there are places for the three objects, which are restored once.
        unsafe { (self.fetch_error)(&raw mut kind, &raw mut value, &raw mut trace) };
        let result = body();
        // SAFETY: as above. It drops an exception that the body left.
        unsafe { (self.restore_error)(kind, value, trace) };
        Some(result)
    }

    /// Returns the code object and the line of each frame, innermost first. The caller must release the code objects.
    ///
    /// # Safety
    /// The calling thread holds the interpreter.
    unsafe fn walk(&self) -> Vec<(Object, u32)> {
        let mut frames = Vec::with_capacity(32);
        // SAFETY: the interpreter's lock is held. The first frame is borrowed, and retained here; the others are owned.
        unsafe {
            let mut frame = (self.current_frame)();
            if !frame.is_null() {
                (self.retain)(frame);
            }
            while !frame.is_null() {
                let code = (self.frame_code)(frame);
                frames.push((code, u32::try_from((self.frame_line)(frame)).unwrap_or(0)));
                let back = (self.frame_back)(frame);
                (self.release)(frame);
                frame = back;
            }
        }
        frames
    }

    /// Returns an object's attribute that is a string.
    ///
    /// # Safety
    /// The calling thread holds the interpreter, and `object` is one.
    unsafe fn text_of(&self, object: Object, name: &CStr) -> Arc<str> {
        // SAFETY: the caller's promise; the result is owned and released here, after the text is copied.
        unsafe {
            let value = (self.attribute)(object, name.as_ptr());
            let text = if value.is_null() { std::ptr::null() } else { (self.text)(value) };
            let copied = if text.is_null() {
                // The exception with the reason is not needed.
                (self.restore_error)(null_mut(), null_mut(), null_mut());
                Arc::from("?")
            } else {
                Arc::from(&*CStr::from_ptr(text).to_string_lossy())
            };
            if !value.is_null() {
                (self.release)(value);
            }
            copied
        }
    }
}

/// The frames that were seen.
#[derive(Default)]
pub(crate) struct PythonStacks {
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// The numbers of frames by code object and line.
    frames: FxHashMap<(usize, u32), u32>,
    frame_texts: Vec<Frame>,
}

impl PythonStacks {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }
}

impl Seen {
    /// Returns the number of a frame that was seen before.
    fn known(&self, frame: (Object, u32)) -> Option<u32> {
        self.frames.get(&(frame.0 as usize, frame.1)).copied()
    }

    /// Returns the number of a frame, which is added with its names if it is new.
    fn add(&mut self, frame: (Object, u32), texts: Frame) -> u32 {
        *self.frames.entry((frame.0 as usize, frame.1)).or_insert_with(|| {
            self.frame_texts.push(texts);
            u32::try_from(self.frame_texts.len() - 1).expect("a program has fewer than 2^32 lines")
        })
    }
}

impl PythonStacks {
    /// Returns the numbers of the frames of a stack. No lock is held while the interpreter is called: any allocation there may
    /// collect garbage, which may free our memory and request a stack in turn.
    ///
    /// # Safety
    /// The calling thread holds the interpreter, and the code objects of `frames` are retained.
    unsafe fn numbers(&self, interpreter: &Interpreter, frames: &[(Object, u32)]) -> Vec<u32> {
        let known: Vec<Option<u32>> = {
            let seen = self.seen();
            frames.iter().map(|frame| seen.known(*frame)).collect()
        };
        let number = |(known, frame): (Option<u32>, &(Object, u32))| {
            known.unwrap_or_else(|| {
                let (code, line) = *frame;
                // SAFETY: the caller's promise. The code object is kept forever, so that no other gets its address.
                let texts = unsafe {
                    (interpreter.retain)(code);
                    let filename = interpreter.text_of(code, c"co_filename");
                    Frame { filename, line, name: interpreter.text_of(code, c"co_name") }
                };
                self.seen().add(*frame, texts)
            })
        };
        known.into_iter().zip(frames).map(number).collect()
    }
}

impl PythonStacks {
    /// Returns the numbers of the frames of the calling thread's stack, innermost first; `None` if the interpreter does not know
    /// the thread.
    pub(crate) fn take(&self) -> Option<Vec<u32>> {
        let interpreter = Interpreter::find()?;
        // SAFETY: the interpreter's lock is held, and the code objects are released after they are numbered.
        interpreter.held(|| unsafe {
            let frames = interpreter.walk();
            let numbers = self.numbers(interpreter, &frames);
            frames.iter().for_each(|(code, _)| (interpreter.release)(*code));
            numbers
        })
    }

    /// Returns the frames with these numbers.
    pub(crate) fn frames(&self, numbers: &[u32]) -> Vec<Frame> {
        let seen = self.seen();
        numbers.iter().map(|frame| seen.frame_texts[*frame as usize].clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The only object.
    const OBJECT: Object = std::ptr::without_provenance_mut(16);

    thread_local! {
        /// The exceptions that the thread has under way, by number; 0 for none.
        static PENDING: Cell<usize> = const { Cell::new(0) };
    }

    extern "C" fn yes() -> c_int {
        1
    }

    extern "C" fn object() -> Object {
        OBJECT
    }

    extern "C" fn no_object(_: Object) -> Object {
        null_mut()
    }

    extern "C" fn line(_: Object) -> c_int {
        7
    }

    extern "C" fn ignore(_: Object) {}

    extern "C" fn ignore_number(_: c_int) {}

    /// Raises an exception of its own, as Python does for a name that is not text.
    extern "C" fn fail(_: Object, _: *const c_char) -> Object {
        assert_eq!(PENDING.replace(9), 0, "Python's functions are not called while an exception travels");
        null_mut()
    }

    extern "C" fn no_text(_: Object) -> *const c_char {
        std::ptr::null()
    }

    unsafe extern "C" fn fetch(kind: *mut Object, _: *mut Object, _: *mut Object) {
        // SAFETY: the caller has a place for it.
        unsafe { *kind = PENDING.take() as Object };
    }

    extern "C" fn restore(kind: Object, _: Object, _: Object) {
        PENDING.set(kind as usize);
    }

    const INTERPRETER: Interpreter = Interpreter {
        is_initialized: yes,
        is_finalizing: None,
        thread_state: object,
        hold: yes,
        let_go: ignore_number,
        current_frame: object,
        frame_back: no_object,
        frame_code: object_of,
        frame_line: line,
        attribute: fail,
        text: no_text,
        retain: ignore,
        release: ignore,
        fetch_error: fetch,
        restore_error: restore,
    };

    extern "C" fn object_of(_: Object) -> Object {
        OBJECT
    }

    #[test]
    fn an_exception_that_travels_survives_a_stack_whose_names_are_no_texts() {
        for travelling in [0, 3] {
            PENDING.set(travelling);
            // SAFETY: these functions take any object.
            let name = INTERPRETER.held(|| unsafe {
                let frames = INTERPRETER.walk();
                assert_eq!(frames, [(OBJECT, 7)]);
                INTERPRETER.text_of(frames[0].0, c"co_name")
            });
            assert_eq!(name.as_deref(), Some("?"));
            assert_eq!(PENDING.take(), travelling, "the program's exception, and none of ours");
        }
    }
}
