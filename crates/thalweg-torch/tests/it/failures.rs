//! Memory that runs out, callers that are wrong, and panics: each is a status with a message, and the next call works.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use thalweg_lock::Mutex;
use thalweg_torch::interface::*;
use thalweg_torch::{Allocator, Source, Status};

use crate::support::{MIB, Torch, answer, message, read, sim};

/// A training loop that runs out of memory, and continues with smaller batches.
#[test]
fn a_run_goes_on_after_memory_ran_out() {
    let torch = Torch::small();
    let stream = torch.default_stream(0);
    let mut batch = 96 * MIB;
    let mut failures = 0;
    let x = loop {
        match torch.empty(batch, &stream) {
            Ok(x) => break x,
            Err((status, text)) => {
                assert_eq!(status, Status::OutOfMemory);
                assert!(text.starts_with("CUDA out of memory. Tried to allocate"), "{text}");
                assert!(text.contains("GPU 0 has a total capacity of 64.00 MiB"), "{text}");
                failures += 1;
                batch /= 2;
            }
        }
    };
    assert_eq!((failures, batch), (1, 48 * MIB));
    assert_eq!(torch.statistics(0).num_ooms, 1);
    drop(x);
    let y = torch.full(4096, 1, &stream);
    assert_eq!(read(&stream, &y), 1);
}

/// Checks that cached memory is released before a request fails, as in PyTorch.
#[test]
fn cached_memory_goes_back_before_a_request_fails() {
    let torch = Torch::new(&sim(1), "policy:pytorch");
    let (one, two) = (torch.stream(0), torch.stream(0));
    drop(torch.empty(40 * MIB, &one).unwrap());
    drop(torch.empty(40 * MIB, &two).unwrap());
    let statistics = torch.statistics(0);
    assert_eq!((statistics.num_alloc_retries, statistics.num_ooms), (1, 0));
}

#[test]
fn observers_are_told_when_memory_runs_out() {
    unsafe extern "C" fn reported(user: *mut c_void, device: i32, size: u64, allowed: u64, free: u64) {
        // SAFETY: it is the list below.
        unsafe { &*user.cast::<Mutex<Vec<_>>>() }.lock().push((device, size, allowed, free));
    }
    unsafe extern "C" fn asked(user: *mut c_void) -> u8 {
        // SAFETY: it is the number below.
        unsafe { &*user.cast::<AtomicU32>() }.fetch_add(1, Ordering::Relaxed);
        0
    }
    let failures: Mutex<Vec<(i32, u64, u64, u64)>> = Mutex::default();
    let requests = AtomicU32::new(0);
    let torch = Torch::small();
    let user = (&raw const failures).cast_mut().cast();
    // SAFETY: the allocator is open; the list and the number outlive it.
    unsafe {
        answer(thalweg_observe_out_of_memory(torch.raw(), reported, user), ()).unwrap();
        let user = (&raw const requests).cast_mut().cast();
        answer(thalweg_add_free_memory_callback(torch.raw(), asked, user), ()).unwrap();
    }
    let stream = torch.default_stream(0);
    assert!(torch.empty(100 * MIB, &stream).is_err());
    assert_eq!(*failures.lock(), [(0, 104 * MIB, 64 * MIB, 64 * MIB)]);
    assert!(requests.load(Ordering::Relaxed) > 0);
    drop((stream, torch));
}

/// `attachOomRejectionObserver`.
#[test]
fn observers_are_told_when_a_request_is_refused_at_once() {
    unsafe extern "C" fn reported(user: *mut c_void, _: i32, size: u64, allowed: u64, _: u64) {
        // SAFETY: it is the list below.
        unsafe { &*user.cast::<Mutex<Vec<_>>>() }.lock().push((size, allowed));
    }
    let rejections: Mutex<Vec<(u64, u64)>> = Mutex::default();
    let torch = Torch::new(&sim(1), "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True");
    let user = (&raw const rejections).cast_mut().cast();
    // SAFETY: the allocator is open, and the list outlives it.
    answer(unsafe { thalweg_observe_rejections(torch.raw(), reported, user) }, ()).unwrap();
    let stream = torch.default_stream(0);
    assert_eq!(torch.empty(40 * MIB, &stream).err().unwrap().0, Status::OutOfMemory);
    assert_eq!(*rejections.lock(), [(40 * MIB, 32 * MIB)]);
    assert_eq!(torch.statistics(0).num_oom_rejections, 1);
    drop((stream, torch));
}

#[test]
fn what_is_no_block_is_refused() {
    let torch = Torch::small();
    let stream = torch.default_stream(0);
    let x = torch.malloc(512, &stream).unwrap();
    assert_eq!(torch.free(x + 512).unwrap_err().0, Status::Invalid);
    torch.free(x).unwrap();
    let (status, text) = torch.free(x).unwrap_err();
    assert_eq!(status, Status::Invalid);
    assert!(text.contains(&format!("{x:#x}")) && text.contains("freed before"), "{text}");
}

/// `test_out_of_memory`: PyTorch has a special message for requests beyond any device.
#[test]
fn more_than_an_exbibyte_is_out_of_memory_in_pytorchs_words() {
    let torch = Torch::small();
    let stream = torch.default_stream(0);
    for (bytes, words) in [
        (1 << 60, "Tried to allocate more than 1EB memory"),
        (u64::MAX, "Tried to allocate more than 1EB memory"),
    ] {
        let (status, text) = torch.malloc(bytes, &stream).unwrap_err();
        assert_eq!(status, Status::OutOfMemory, "{bytes}: {text}");
        assert!(text.starts_with("CUDA out of memory. ") && text.contains(words), "{text}");
    }
    assert_eq!(read(&stream, &torch.full(4096, 1, &stream)), 1);
}

#[test]
fn wrong_arguments_are_refused() {
    let torch = Torch::small();
    let mut address = 0;
    // SAFETY: null and out-of-range arguments are refused, as this test checks.
    unsafe {
        let place = &raw mut address;
        assert_eq!(thalweg_malloc(torch.raw(), 1, 512, 0, place), Status::Invalid, "{}", message());
        assert_eq!(thalweg_malloc(torch.raw(), -1, 512, 0, place), Status::Invalid);
        assert_eq!(thalweg_malloc(torch.raw(), 1000, 512, 0, place), Status::Invalid);
        assert_eq!(thalweg_malloc(None, 0, 512, 0, place), Status::Invalid);
        assert_ne!(thalweg_malloc(torch.raw(), 0, 512, 0xdead_0000, place), Status::Ok, "no such stream");
        assert_eq!(thalweg_malloc(torch.raw(), 0, u64::MAX, 0, place), Status::OutOfMemory);
        assert_eq!(thalweg_memory_fraction(torch.raw(), 0, std::ptr::null_mut()), Status::Invalid);
        assert_eq!(thalweg_set_settings(torch.raw(), std::ptr::null()), Status::Invalid);
        let mut opened = std::ptr::null_mut();
        assert_eq!(thalweg_open(c"tpu".as_ptr(), c"".as_ptr(), &raw mut opened), Status::Invalid);
        assert_eq!(thalweg_open(c"sim".as_ptr(), c"polcy:x".as_ptr(), &raw mut opened), Status::Invalid);
        assert!(message().contains("policy"), "{}", message());
        let backend = c"backend:cudaMallocAsync";
        assert_eq!(thalweg_open(c"sim".as_ptr(), backend.as_ptr(), &raw mut opened), Status::Invalid);
        let garbage = [3_u8, b'x', 1, 2];
        let (mut shared, count) = (std::ptr::null_mut(), garbage.len());
        let bytes = garbage.as_ptr();
        let status = thalweg_open_shared(torch.raw(), 0, bytes, count, &raw mut shared, place);
        assert_eq!(status, Status::Invalid);
        assert_eq!(thalweg_close(std::ptr::null_mut()), Status::Ok);
    }
}

/// An observer panics: the caller gets a status, and the allocator continues to work.
#[test]
fn a_panic_does_not_unwind_into_c() {
    let torch = Torch::small();
    let stream = torch.default_stream(0);
    let is_planted = AtomicBool::new(true);
    torch.devices[0].allocator().add_free_memory_callback(std::sync::Arc::new(move || {
        assert!(!is_planted.swap(false, Ordering::Relaxed), "a planted panic");
        false
    }));
    let (status, text) = torch.empty(100 * MIB, &stream).err().unwrap();
    assert_eq!(status, Status::Panic);
    assert!(text.contains("thalweg_malloc") && text.contains("a planted panic"), "{text}");
    let x = torch.full(4096, 6, &stream);
    assert_eq!(read(&stream, &x), 6);
}

#[test]
fn messages_are_the_threads_own() {
    let torch = Torch::small();
    assert_eq!(torch.free(512).unwrap_err().0, Status::Invalid);
    let here = message();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(message(), "");
            assert_eq!(torch.free(1024).unwrap_err().0, Status::Invalid);
        });
    });
    assert_eq!(message(), here);
}

#[test]
fn an_allocator_of_its_own_kind_of_devices() {
    assert!(Allocator::new(Source::Sim, "").is_ok(), "nothing is opened");
    let (mut opened, mut address) = (std::ptr::null_mut(), 0);
    // SAFETY: texts that end with a zero, and places; it is closed once.
    unsafe {
        answer(thalweg_open(c"sim".as_ptr(), c"".as_ptr(), &raw mut opened), ()).unwrap();
        answer(thalweg_malloc(opened.as_ref(), 0, 100, 0, &raw mut address), ()).unwrap();
        assert_ne!(address, 0);
        answer(thalweg_free(opened.as_ref(), address), ()).unwrap();
        answer(thalweg_close(opened), ()).unwrap();
    }
}
