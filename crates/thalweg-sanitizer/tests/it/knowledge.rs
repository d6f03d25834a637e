//! Lost knowledge: of ended threads, of the allocator's own calls, of uncertain work that is forgotten; and host functions that
//! panic.

use std::sync::mpsc::channel;

use thalweg_driver::{Access, AccessMode, BlockKind, Driver, Instrument, Label};
use thalweg_sanitizer::FindingKind::{Race, Uninitialised, UseAfterFree};

use super::support::{BYTES, ROW, World, verdict};

/// A thread writes on a stream and has seen the write complete when it ends; another then writes on a stream that waits for
/// nothing. The other makes its first call before that, and is younger or older than the ended thread.
fn after_another(w: &World, is_younger: bool) {
    std::thread::scope(|scope| {
        let (called, wait_for_call) = channel();
        let (go, wait_to_go) = channel::<()>();
        let other = move || {
            w.read(w.b, w.y);
            called.send(()).unwrap();
            wait_to_go.recv().unwrap();
            w.write(w.b, w.x);
        };
        let (begin, wait_to_begin) = channel::<()>();
        let ending = move || {
            wait_to_begin.recv().unwrap();
            w.write(w.a, w.x);
            w.driver.stream_synchronize(w.a).unwrap();
        };
        let (ends, writes) = if is_younger {
            let ends = scope.spawn(ending);
            (ends, scope.spawn(other))
        } else {
            let writes = scope.spawn(other);
            (scope.spawn(ending), writes)
        };
        wait_for_call.recv().unwrap();
        begin.send(()).unwrap();
        ends.join().unwrap();
        go.send(()).unwrap();
        writes.join().unwrap();
    });
}

#[test]
fn a_thread_that_ended_tells_those_that_may_have_joined_it() {
    verdict("an older thread may have joined it", &[], |w| after_another(w, false));
    verdict("a younger one was made by no one who could", &[Race], |w| after_another(w, true));
}

#[test]
fn what_the_allocator_sees_the_program_does_not_know() {
    let asks = |w: &World, is_internal: bool| {
        w.write(w.a, w.x);
        let before = w.driver.exchange_internal(is_internal);
        while !w.driver.stream_query(w.a).unwrap() {}
        w.driver.exchange_internal(before);
        w.write(w.b, w.x);
    };
    verdict("the program asks", &[], |w| asks(w, false));
    verdict("the allocator asks", &[Race], |w| asks(w, true));
}

#[test]
fn a_use_in_the_order_of_the_free_is_one_after_it() {
    verdict("on the stream of the free", &[UseAfterFree], |w| {
        let block = w.take(w.a);
        w.work(w.a, "fill", &[Access::write(block, BYTES)]);
        w.free(block);
        w.driver.device_synchronize(0).unwrap();
        w.read(w.a, block);
    });
}

#[test]
fn a_forgotten_write_of_some_rows_is_one_all_the_same() {
    let rows = |w: &World, reads: usize, row: u64| {
        let label = Label::here("empty");
        w.driver.block_allocated(w.x.address(), BYTES, BlockKind::Device, w.a, label);
        w.touch_rows(w.a, "index_copy_", AccessMode::Write, w.x, &[1]);
        for _ in 0..reads {
            w.touch_rows(w.a, "embedding", AccessMode::Read, w.x, &[1]);
        }
        w.work(w.a, "read", &[Access::new(w.x.address() + row * ROW, ROW, AccessMode::Read)]);
        w.driver.device_synchronize(0).unwrap();
    };
    verdict("the row that was written", &[], |w| rows(w, 3, 1));
    verdict("another row", &[Uninitialised], |w| rows(w, 3, 2));
    // More accesses of some rows than are remembered.
    verdict("the row that was written, long ago", &[], |w| rows(w, 80, 1));
    verdict("it is not known any more whether the row was written", &[], |w| rows(w, 80, 2));
}
