//! The sanitizer, with reports like those of the Python package.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use thalweg_runtime::Stream;
use thalweg_torch::interface::*;
use thalweg_torch::{Allocator, Sanitizer, Source, Status};

use crate::support::{Answer, answer};

/// A program on a watched device, whose source lines are the numbers of its calls.
struct Program {
    allocator: Allocator,
    device: thalweg_runtime::Device,
}

impl Program {
    fn new() -> Self {
        let sanitizer = Arc::new(Sanitizer::sim());
        let device = sanitizer.device(0).unwrap();
        let allocator = Allocator::new(Source::Sanitized(sanitizer), "").unwrap();
        Self { allocator, device }
    }

    /// Returns a stream of PyTorch's, by its `cudaStream_t`.
    fn stream(&self) -> u64 {
        let cuda_stream = Stream::new(&self.device).unwrap().cuda_stream().unwrap();
        self.allocator.stream(0, cuda_stream).unwrap();
        cuda_stream
    }

    fn malloc(&self, bytes: u64, stream: u64) -> u64 {
        let mut address = 0;
        // SAFETY: the allocator is open, and there is a place.
        answer(unsafe { thalweg_malloc(Some(&self.allocator), 0, bytes, stream, &raw mut address) }, ())
            .unwrap();
        address
    }

    fn free(&self, address: u64) {
        // SAFETY: the allocator is open.
        answer(unsafe { thalweg_free(Some(&self.allocator), address) }, ()).unwrap();
    }

    fn record_stream(&self, address: u64, stream: u64) {
        // SAFETY: the allocator is open.
        answer(unsafe { thalweg_record_stream(Some(&self.allocator), address, 0, stream) }, ()).unwrap();
    }

    fn work(&self, stream: u64, operation: &str, line: u32, operands: &[i64]) -> Answer<()> {
        let (operation, file) = (CString::new(operation).unwrap(), c"train.py");
        let allocator = Some(&self.allocator);
        // SAFETY: the allocator is open, and the texts and numbers are there.
        let status = unsafe {
            thalweg_sanitizer_work(
                allocator,
                0,
                stream,
                operation.as_ptr(),
                file.as_ptr(),
                line,
                operands.as_ptr(),
                operands.len(),
            )
        };
        answer(status, ())
    }

    fn event(&self, what: i32, event: u64, stream: u64) {
        // SAFETY: the allocator is open.
        answer(unsafe { thalweg_sanitizer_event(Some(&self.allocator), what, event, 0, stream) }, ())
            .unwrap();
    }

    fn findings(&self) -> Vec<String> {
        unsafe extern "C" fn write(user: *mut c_void, bytes: *const u8, count: usize) {
            // SAFETY: `user` is the list below, and the bytes are there.
            let (list, bytes) =
                unsafe { (&mut *user.cast::<Vec<String>>(), std::slice::from_raw_parts(bytes, count)) };
            list.push(String::from_utf8(bytes.to_vec()).unwrap());
        }
        let (mut list, mut count): (Vec<String>, u64) = (Vec::new(), 0);
        let user = (&raw mut list).cast();
        // SAFETY: the allocator is open, and the function takes the list.
        let status =
            unsafe { thalweg_sanitizer_findings(Some(&self.allocator), 0, &raw mut count, write, user) };
        answer(status, ()).unwrap();
        assert_eq!(list.len() as u64, count);
        list
    }
}

const READ: i64 = 0;
const WRITE: i64 = 1;

/// Returns a contiguous operand of 32-bit numbers.
fn floats(address: u64, count: i64, mode: i64) -> Vec<i64> {
    vec![address.cast_signed(), 4, mode, 1, count, 1]
}

#[test]
fn a_missing_wait_is_found_with_both_lines_of_the_program() {
    let program = Program::new();
    let (first, second) = (program.stream(), program.stream());
    let x = program.malloc(4096, first);
    program.work(first, "aten.fill_", 10, &floats(x, 1024, WRITE)).unwrap();
    program.work(second, "aten.sum", 12, &floats(x, 1024, READ)).unwrap();
    let [finding] = &program.findings()[..] else { panic!("one finding: {:?}", program.findings()) };
    assert!(finding.starts_with("data race"), "{finding}");
    let one_line = finding.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "`aten.fill_` at train.py:10 writes",
        "`aten.sum` at train.py:12 reads",
        "later.wait_stream(earlier)",
    ] {
        assert!(one_line.contains(part), "{part} is missing in: {finding}");
    }
}

#[test]
fn events_order_work_and_only_what_was_before_them() {
    let program = Program::new();
    let (first, second) = (program.stream(), program.stream());
    let x = program.malloc(4096, first);
    program.work(first, "aten.fill_", 1, &floats(x, 512, WRITE)).unwrap();
    program.event(0, 0x77, first);
    program.work(first, "aten.fill_", 2, &floats(x + 2048, 512, WRITE)).unwrap();
    program.event(1, 0x77, second);
    program.work(second, "aten.sum", 3, &floats(x, 512, READ)).unwrap();
    assert_eq!(program.findings(), Vec::<String>::new());
    program.work(second, "aten.sum", 4, &floats(x + 2048, 512, READ)).unwrap();
    assert_eq!(program.findings().len(), 1);
}

#[test]
fn what_the_host_saw_complete_is_before_what_it_submits_next() {
    let program = Program::new();
    let (first, second) = (program.stream(), program.stream());
    let x = program.malloc(4096, first);
    program.work(first, "aten.fill_", 1, &floats(x, 1024, WRITE)).unwrap();
    // SAFETY: the allocator is open.
    answer(unsafe { thalweg_sanitizer_stream_done(Some(&program.allocator), 0, first) }, ()).unwrap();
    program.work(second, "aten.fill_", 2, &floats(x, 1024, WRITE)).unwrap();
    // SAFETY: the allocator is open.
    answer(unsafe { thalweg_sanitizer_device_done(Some(&program.allocator), 0) }, ()).unwrap();
    program.work(first, "aten.fill_", 3, &floats(x, 1024, WRITE)).unwrap();
    assert_eq!(program.findings(), Vec::<String>::new());
}

#[test]
fn columns_of_two_streams_do_not_meet() {
    let program = Program::new();
    let (first, second) = (program.stream(), program.stream());
    let x = program.malloc(4096, first);
    let columns = |from: u64| vec![(x + from * 4).cast_signed(), 4, WRITE, 2, 32, 16, 32, 1];
    program.event(0, 1, first);
    program.event(1, 1, second);
    program.work(first, "aten.fill_", 1, &columns(0)).unwrap();
    program.work(second, "aten.fill_", 2, &columns(16)).unwrap();
    assert_eq!(program.findings(), Vec::<String>::new());
}

#[test]
fn memory_that_is_freed_under_another_streams_work_has_to_be_recorded() {
    for is_recorded in [false, true] {
        let program = Program::new();
        let (first, second) = (program.stream(), program.stream());
        let x = program.malloc(4096, first);
        program.event(0, 1, first);
        program.event(1, 1, second);
        program.work(second, "aten.sum", 5, &floats(x, 1024, READ)).unwrap();
        if is_recorded {
            program.record_stream(x, second);
        }
        program.free(x);
        let findings = program.findings();
        assert_eq!(findings.len(), usize::from(!is_recorded), "{findings:?}");
        assert!(findings.iter().all(|finding| finding.starts_with("missing record_stream")), "{findings:?}");
    }
}

#[test]
fn memory_with_no_known_writer_may_be_read() {
    let program = Program::new();
    let stream = program.stream();
    let x = program.malloc(4096, stream);
    program.work(stream, "aten.sum", 1, &floats(x, 1024, READ)).unwrap();
    assert_eq!(program.findings(), Vec::<String>::new());
}

#[test]
fn the_line_that_was_told_is_where_memory_is_allocated() {
    let program = Program::new();
    let (first, second) = (program.stream(), program.stream());
    let at = |operation: *const _| {
        // SAFETY: the allocator is open, and the texts are there.
        let status =
            unsafe { thalweg_sanitizer_at(Some(&program.allocator), operation, c"model.py".as_ptr(), 7) };
        answer(status, ()).unwrap();
    };
    at(c"aten.empty".as_ptr());
    let x = program.malloc(4096, first);
    at(ptr::null());
    program.work(first, "aten.fill_", 8, &floats(x, 1024, WRITE)).unwrap();
    program.work(second, "aten.fill_", 9, &floats(x, 1024, WRITE)).unwrap();
    let findings = program.findings().join(" ");
    let one_line = findings.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(one_line.contains("allocated by `aten.empty` at model.py:7"), "{findings}");
}

#[test]
fn numbers_that_describe_no_operands_are_refused() {
    let program = Program::new();
    let stream = program.stream();
    let wrong: [&[i64]; 7] = [
        &[1],
        &[0, 4, 0],
        &[0, 4, 0, 1, 5],
        &[0, 4, 3, 0],
        &[0, -4, 0, 0],
        &[0, 4, 0, -1],
        &[0, 4, 0, 1, i64::MAX, i64::MAX],
    ];
    for words in wrong {
        let refused = program.work(stream, "aten.sum", 1, words).unwrap_err();
        assert_eq!(refused.0, Status::Invalid, "{words:?}");
    }
    program.work(stream, "aten.sum", 1, &[]).unwrap();
    program.work(stream, "aten.sum", 1, &[512, 4, 0, 2, 0, 7, 1, 1]).unwrap();
    let plain = Allocator::new(Source::Sim, "").unwrap();
    // SAFETY: the allocator is open.
    let refused = answer(unsafe { thalweg_sanitizer_device_done(Some(&plain), 0) }, ()).unwrap_err();
    assert_eq!(refused.0, Status::Invalid);
    assert!(refused.1.contains("+sanitizer"), "{}", refused.1);
}
