//! Threads, forks, and the end of the process in whatever order it comes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use thalweg_driver::Code;
use thalweg_runtime::{Buffer, Device, Environment, PinnedBuffer};
use thalweg_sim::SimConfig;
use thalweg_torch::interface::*;
use thalweg_torch::{Allocator, Source, Status};

use crate::support::{Graph, Torch, read, sim};

#[test]
fn threads_work_on_streams_of_their_own() {
    let torch = Torch::new(&sim(1), "");
    let barrier = Arc::new(Barrier::new(4));
    let threads: Vec<_> = (0..4_u8)
        .map(|number| {
            let (torch, barrier) = (Arc::clone(&torch), Arc::clone(&barrier));
            std::thread::spawn(move || {
                let stream = torch.stream(0);
                barrier.wait();
                for round in 0..100 {
                    let x = torch.full(512 << (round % 8), number, &stream);
                    let y = torch.full(4096, number + 100, &stream);
                    assert_eq!((read(&stream, &x), read(&stream, &y)), (number, number + 100));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let statistics = torch.statistics(0);
    assert_eq!((statistics.allocation.all.allocated, statistics.allocation.all.current), (800, 0));
}

/// The backward pass frees the forward pass's memory on its own thread.
#[test]
fn memory_is_freed_on_another_thread() {
    let torch = Torch::small();
    let stream = torch.default_stream(0);
    for _ in 0..20 {
        let made: Vec<_> = (0..10).map(|value| torch.full(8192, value, &stream)).collect();
        std::thread::scope(|scope| {
            scope.spawn(move || drop(made));
        });
    }
    assert_eq!(torch.statistics(0).allocated_bytes.all.current, 0);
    assert!(torch.statistics(0).reserved_bytes.all.peak <= 2 << 20);
}

/// Forks, and returns whether `check` passed in the child.
fn in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs the check and leaves without unwinding or running anything of the parent's.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            let holds = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_or(false);
            libc::_exit(i32::from(!holds));
        }
        child
    };
    assert!(child > 0, "the process could fork");
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    (waited, status) == (child, 0)
}

/// A DataLoader's worker: it inherits tensors, drops them, and must neither crash nor wait.
#[test]
fn a_forked_child_can_drop_what_it_inherited() {
    let torch = Torch::small();
    let stream = torch.default_stream(0);
    let inherited = torch.full(4096, 7, &stream);
    let (other, second) = (Arc::clone(&torch), torch.empty(512, &stream).unwrap());
    let holds = in_child(|| {
        second.record_stream(&other.default_stream(0));
        drop(second);
        // `~CUDAGraph` and `~MemPool`, from which nothing may be thrown.
        // SAFETY: the allocator is open.
        let destroyed = unsafe {
            [
                thalweg_release_pool(other.raw(), 0, 0, 9),
                thalweg_pool_set_use_on_oom(other.raw(), 0, 0, 9, 0),
                thalweg_empty_pool_cache(other.raw(), 0, 9),
                thalweg_stop_stacks(other.raw()),
            ]
        };
        let refused = other.malloc(512, &stream).is_err_and(|(status, _)| status == Status::Forked);
        let empty = other.empty_cache().is_err_and(|(status, _)| status == Status::Forked);
        destroyed == [Status::Ok; 4] && refused && empty
    });
    assert!(holds);
    assert_eq!(read(&stream, &inherited), 7, "the parent goes on");
}

/// A program that has enabled the allocator and not used a GPU yet may fork, and the child may use one.
#[test]
fn a_child_may_be_the_first_to_use_a_gpu() {
    let torch = Arc::new(Allocator::new(Source::Sim, "").unwrap());
    // What a program asks before it has used anything, and which must not be a use.
    // SAFETY: the allocator is open, and there is a place.
    unsafe {
        assert_eq!(thalweg_empty_cache(Some(&*torch)), Status::Ok);
        assert_eq!(thalweg_device_statistics(Some(&*torch), 0, &mut StatisticsC::default()), Status::Ok);
        assert_eq!(thalweg_configured(Some(&*torch), 0, &mut ConfigurationC::default()), Status::Ok);
    }
    let holds = in_child(|| {
        let mut address = 0;
        // SAFETY: as above.
        let status = unsafe { thalweg_malloc(Some(&*torch), 0, 512, 0, &raw mut address) };
        status == Status::Ok && address != 0
    });
    assert!(holds);
}

/// Checks that whatever is alive when the allocator is destroyed is released with it, in any order.
#[test]
fn everything_may_be_alive_at_the_end() {
    let devices = sim(1);
    for order in 0..3 {
        let torch = Torch::new(&devices, "");
        let stream = torch.stream(0);
        let (graph, output) =
            Graph::capture(&torch, (order + 1, 0), &stream, || torch.full(4096, 1, &stream));
        graph.replay(&stream);
        let raw = torch.malloc(1 << 20, &stream).unwrap();
        assert_ne!(raw, 0);
        match order {
            0 => drop((graph, output)),
            1 => {
                output.without_deleter();
                drop(graph);
            }
            _ => {
                drop(graph);
                output.without_deleter();
            }
        }
        stream.synchronize().unwrap();
        drop(torch);
    }
    let allocator = devices[0].allocator();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.statistics().reserved_bytes.all.current, 0, "nothing was leaked");
}

/// A program in Rust that forks while another of its threads allocates: the lock may be locked in the child for ever.
#[test]
fn a_child_that_was_forked_beside_an_allocating_thread_is_refused() {
    let driver = thalweg_sim::SimDriver::new(SimConfig::default()).unwrap();
    let device = Device::all_of(driver, Environment::get()).unwrap().pop().expect("there is a device");
    let (stream, is_done) = (&device.default_stream(), &AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut held = Vec::new();
            for round in 0.. {
                held.push(Buffer::new(stream, 512 << (round % 12)).unwrap());
                held.truncate(20);
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                if round % 7 == 0 {
                    held.clear();
                }
            }
        });
        let refused = |answer: thalweg_runtime::Result<()>| {
            let error = answer.expect_err("the child has no right to the device");
            error.driver_error().is_some_and(|error| error.code() == Code::Forked)
        };
        let held = (0..60).filter(|_| {
            let inherited = Buffer::new(stream, 4096).unwrap();
            in_child(move || {
                let is_refused = refused(Buffer::new(stream, 512).map(drop))
                    && refused(PinnedBuffer::new(stream.device(), 512).map(drop))
                    && refused(stream.device().empty_cache());
                drop(inherited);
                is_refused
            })
        });
        let held = held.count();
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(held, 60);
    });
}

unsafe extern "C-unwind" {
    fn pthread_cancel(thread: libc::pthread_t) -> libc::c_int;
    fn pthread_testcancel();
}

/// A filter in which the calling thread is cancelled.
extern "C-unwind" fn is_cancelled(_: *mut std::ffi::c_void, _: u64) -> u8 {
    // SAFETY: a thread may cancel itself; it takes effect at the next point at which it may, which is here.
    unsafe {
        pthread_cancel(libc::pthread_self());
        pthread_testcancel();
    }
    1
}

/// The process must neither continue without the thread, whose locks would be held forever, nor hang.
#[test]
fn a_thread_that_is_cancelled_inside_a_call_ends_the_process() {
    const CHILD: &str = "THALWEG_TEST_CANCELLED";
    if std::env::var_os(CHILD).is_some() {
        let torch = Torch::small();
        type Filter = unsafe extern "C" fn(*mut std::ffi::c_void, u64) -> u8;
        // SAFETY: they differ in whether the caller expects unwinding, which is what is tried.
        let filter: Filter = unsafe { std::mem::transmute(is_cancelled as *const ()) };
        // SAFETY: the allocator is open, and the filter takes anything.
        let begun = unsafe {
            thalweg_begin_allocate_to_pool(torch.raw(), 0, 0, 9, filter, std::ptr::null_mut(), None)
        };
        assert_eq!(begun, Status::Ok);
        let own = Arc::clone(&torch);
        let cancelled = std::thread::spawn(move || own.empty(512, &own.stream(0)).map(drop));
        let _ = cancelled.join();
        // The lock is the allocator's, so this hangs if it is held by a thread that is gone.
        drop(torch.empty(512, &torch.default_stream(0)));
        std::process::exit(0);
    }
    let name = "process::a_thread_that_is_cancelled_inside_a_call_ends_the_process";
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    use std::os::unix::process::ExitStatusExt;
    let text = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.signal(), Some(libc::SIGABRT), "{:?}: {text}", child.status);
}
