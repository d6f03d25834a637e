//! A gate in a stream, for tests that need work to wait. The tests of other crates include this file.

use std::sync::Arc;

use thalweg_driver::Label;
use thalweg_lock::{Condvar, Mutex};
use thalweg_runtime::Stream;

/// A gate that blocks a stream until it is opened, or dropped.
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    /// Makes later work on the stream wait.
    pub fn close(stream: &Stream) -> Self {
        let state = Arc::new((Mutex::new(false), Condvar::new()));
        let shared = state.clone();
        let wait = move || {
            let (is_open, changed) = &*shared;
            drop(changed.wait_while(is_open.lock(), |is_open| !*is_open));
        };
        let driver = stream.device().driver();
        driver.host_function_async(stream.handle(), Arc::new(wait), Label::here("gate")).unwrap();
        Self(state)
    }

    /// Lets the stream continue.
    pub fn open(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}
