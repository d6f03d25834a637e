//! Statistics, snapshots, histories and observers.

use std::collections::BTreeSet;
use std::ffi::c_void;

use thalweg_lock::Mutex;
use thalweg_snapshot::Snapshot;
use thalweg_torch::Status;
use thalweg_torch::interface::*;

use crate::support::{Torch, answer, cuda_stream, sim};

const ALLOC: u8 = 0;
const FREE_REQUESTED: u8 = 1;
const FREE_COMPLETED: u8 = 2;
const SNAPSHOT: u8 = 7;

fn record(torch: &Torch, enabled: u8, skip_actions: u32) {
    record_with(torch, enabled, 0, skip_actions);
}

fn record_with(torch: &Torch, enabled: u8, context: u8, skip_actions: u32) {
    let settings = HistorySettingsC {
        enabled,
        context,
        clear_history: 0,
        compile_context: 1,
        record_annotations: 1,
        skip_actions,
        max_entries: 1000,
    };
    // SAFETY: the allocator is open, and the settings are whole.
    answer(unsafe { thalweg_record_history(torch.raw(), &raw const settings) }, ()).unwrap();
}

#[test]
fn statistics_have_pytorchs_keys() {
    let torch = Torch::small();
    let x = torch.empty(5000, &torch.default_stream(0)).unwrap();
    let text = torch.text(|allocator, write, user| {
        // SAFETY: the allocator is open, and the function accepts its arguments.
        unsafe { thalweg_memory_stats(allocator, 0, write, user) }
    });
    let text = String::from_utf8(text.unwrap()).unwrap();
    let value = |key: &str| -> i64 {
        let line = text.lines().find(|line| line.starts_with(&format!("{key} ")));
        line.unwrap_or_else(|| panic!("{key} is missing")).split(' ').nth(1).unwrap().parse().unwrap()
    };
    assert_eq!(value("requested_bytes.all.current"), 5000);
    assert_eq!(value("allocated_bytes.small_pool.peak"), 5120);
    assert_eq!(value("max_split_size"), -1);
    let statistics = torch.statistics(0);
    assert_eq!(statistics.requested_bytes.all.current, 5000);
    assert_eq!(statistics.num_device_alloc, value("num_device_alloc"));
    drop(x);
    // SAFETY: the allocator is open.
    unsafe {
        answer(thalweg_reset_peak_statistics(torch.raw(), 0), ()).unwrap();
        answer(thalweg_reset_accumulated_statistics(torch.raw(), 0), ()).unwrap();
    }
    let statistics = torch.statistics(0);
    assert_eq!((statistics.allocated_bytes.all.peak, statistics.allocation.all.allocated), (0, 0));
    let summary = torch.text(|allocator, write, user| {
        // SAFETY: as above.
        unsafe { thalweg_memory_summary(allocator, 0, 0, write, user) }
    });
    assert!(String::from_utf8(summary.unwrap()).unwrap().contains("GPU 0"));
}

#[test]
fn a_snapshot_is_in_pytorchs_words() {
    let torch = Torch::new(&sim(2), "");
    record(&torch, 2, 0);
    let streams = [torch.stream(0), torch.stream(1)];
    let x = torch.empty(3000, &streams[0]).unwrap();
    let y = torch.empty(70_000, &streams[1]).unwrap();
    drop(torch.empty(100, &streams[1]).unwrap());
    let snapshot = torch.snapshot((0, 0));
    assert_eq!(snapshot.segments.len(), 2);
    for (device, storage) in [(0, &x), (1, &y)] {
        let (segment, blocks) =
            snapshot.segments.iter().find(|(segment, _)| segment.device == device).unwrap();
        assert_eq!(segment.stream, cuda_stream(&streams[device as usize]));
        assert_eq!((segment.pool_first, segment.pool_second, segment.is_large), (0, 0, 0));
        let block = blocks.iter().find(|block| block.address == storage.address).unwrap();
        assert_eq!((block.requested_bytes, block.is_allocated, block.is_active), (storage.bytes, 1, 1));
        let sum: u64 = blocks.iter().map(|block| block.size_bytes).sum();
        assert_eq!(sum, segment.total_bytes, "blocks tile their segment");
    }
    let of_second: Vec<u8> =
        snapshot.events.iter().filter(|event| event.device == 1).map(|event| event.action).collect();
    assert_eq!(of_second.iter().filter(|action| **action == ALLOC).count(), 2);
    assert!(of_second.ends_with(&[FREE_REQUESTED, FREE_COMPLETED]), "{of_second:?}");
    assert!(snapshot.events.iter().all(|event| event.time_us > 1_600_000_000_000_000));
    let pickle = torch.text(|allocator, write, user| {
        // SAFETY: the allocator is open, and the function accepts its arguments.
        unsafe { thalweg_write_snapshot(allocator, 0, write, user) }
    });
    let read = Snapshot::from_pickle(&pickle.unwrap()).unwrap();
    assert_eq!((read.segments.len(), read.device_traces.len()), (2, 2));
    assert_eq!(read.segments[0].stream.raw(), cuda_stream(&streams[read.segments[0].device as usize]));
    record(&torch, 0, 0);
    assert!(torch.snapshot((0, 0)).events.is_empty(), "what was recorded is forgotten");
    drop((x, y));
}

#[test]
fn actions_can_be_left_out() {
    let torch = Torch::small();
    record(&torch, 2, 1 << FREE_REQUESTED | 1 << SNAPSHOT);
    drop(torch.empty(100, &torch.default_stream(0)).unwrap());
    let actions: Vec<u8> = torch.snapshot((0, 0)).events.iter().map(|event| event.action).collect();
    assert!(actions.contains(&ALLOC) && actions.contains(&FREE_COMPLETED), "{actions:?}");
    assert!(!actions.contains(&FREE_REQUESTED), "{actions:?}");
}

#[test]
fn observers_see_each_event_of_every_device() {
    unsafe extern "C" fn reported(user: *mut c_void, event: *const EventC) {
        // SAFETY: it is the list below, and the event is there during the call.
        let (list, event) = unsafe { (&*user.cast::<Mutex<Vec<_>>>(), *event) };
        list.lock().push((event.device, event.action, event.stream));
    }
    let events: Mutex<Vec<(i32, u8, u64)>> = Mutex::default();
    let torch = Torch::new(&sim(2), "");
    let first = torch.stream(0);
    let user = (&raw const events).cast_mut().cast();
    // SAFETY: the allocator is open, and the list outlives it.
    answer(unsafe { thalweg_observe_events(torch.raw(), reported, user) }, ()).unwrap();
    drop(torch.empty(100, &first).unwrap());
    let second = torch.stream(1);
    drop(torch.empty(100, &second).unwrap());
    let seen = events.lock().clone();
    for (device, stream) in [(0, cuda_stream(&first)), (1, cuda_stream(&second))] {
        for action in [ALLOC, FREE_REQUESTED, FREE_COMPLETED] {
            assert!(seen.contains(&(device, action, stream)), "{device} {action} in {seen:?}");
        }
    }
    drop((first, second, torch));
}

#[test]
fn words_stand_beside_events() {
    let torch = Torch::small();
    record(&torch, 2, 0);
    let stream = torch.default_stream(0);
    // SAFETY: texts that end with a zero.
    unsafe {
        answer(thalweg_set_user_metadata(c"forward".as_ptr()), ()).unwrap();
        answer(thalweg_push_compile_context(c"0/0".as_ptr()), ()).unwrap();
    }
    let metadata = torch.text(|_, write, user| {
        // SAFETY: the function accepts its arguments.
        unsafe { thalweg_user_metadata(write, user) }
    });
    assert_eq!(metadata.unwrap(), b"forward");
    drop(torch.empty(100, &stream).unwrap());
    answer(thalweg_pop_compile_context(), ()).unwrap();
    answer(thalweg_pop_compile_context(), ()).unwrap();
    // SAFETY: as above.
    answer(unsafe { thalweg_annotate_scope(torch.raw(), 0, c"step".as_ptr(), 1) }, ()).unwrap();
    // SAFETY: a text that ends with a zero.
    answer(unsafe { thalweg_set_user_metadata(c"".as_ptr()) }, ()).unwrap();
    let json = torch.text(|allocator, write, user| {
        // SAFETY: the allocator is open, and the function accepts its arguments.
        unsafe { thalweg_write_snapshot(allocator, 1, write, user) }
    });
    let json = String::from_utf8(json.unwrap()).unwrap();
    for part in ["\"user_metadata\":\"forward\"", "\"compile_context\":\"0/0\"", "\"name\":\"step\""] {
        assert!(json.contains(part), "{part} is not in {json}");
    }
}

/// Calls that later versions of PyTorch make: the pool of a block, metadata that is added later, and the contents of pools.
#[test]
fn blocks_and_pools_can_be_asked_about() {
    unsafe extern "C" fn reported(user: *mut c_void, first: u64, second: u64, reserved: *const StatisticC) {
        // SAFETY: it is the list below, and the statistics are there during the call.
        unsafe { (*user.cast::<Vec<_>>()).push((first, second, (*reserved).current)) };
    }
    let torch = Torch::small();
    record(&torch, 2, 0);
    let stream = torch.stream(0);
    let x = torch.empty(100, &stream).unwrap();
    let mut stack = 7;
    // SAFETY: the allocator is open, and there is a place.
    answer(unsafe { thalweg_stack_of_block(torch.raw(), x.address, &raw mut stack) }, ()).unwrap();
    assert_eq!(stack, 0, "a process without an interpreter has no stacks");
    // SAFETY: the allocator is open, and the text ends with a zero.
    answer(unsafe { thalweg_annotate_block(torch.raw(), x.address, c"weights".as_ptr()) }, ()).unwrap();
    let annotated = torch.snapshot((0, 0)).events.into_iter().find(|event| event.action == 9);
    assert_eq!(annotated.expect("an event of its own").address, x.address);
    torch.begin((0, 5), |_| true).unwrap();
    let y = torch.empty(100, &stream).unwrap();
    torch.end((0, 5)).unwrap();
    let mut pools: Vec<(u64, u64, i64)> = Vec::new();
    let user = (&raw mut pools).cast();
    // SAFETY: the allocator is open, and the function accepts its arguments.
    answer(unsafe { thalweg_private_pool_statistics(torch.raw(), 0, reported, user) }, ()).unwrap();
    assert_eq!(pools, [(0, 5, 2 << 20)]);
    drop((x, y));
    torch.release((0, 5)).unwrap();
}

/// A recorder that keeps the stacks that it received until it must forget them.
#[derive(Default)]
struct Numbers(Mutex<(BTreeSet<u32>, usize)>);

unsafe extern "C" fn take(user: *mut c_void, stack: u32) -> u8 {
    // SAFETY: it is the list below.
    let mut numbers = unsafe { &*user.cast::<Numbers>() }.0.lock();
    assert!(numbers.0.insert(stack), "the number is new");
    numbers.1 += 1;
    1
}

unsafe extern "C" fn forget(user: *mut c_void, stack: u32) {
    // SAFETY: it is the list below.
    let mut numbers = unsafe { &*user.cast::<Numbers>() }.0.lock();
    assert!(numbers.0.remove(&stack), "it was given");
}

/// Each event has a stack of its own, and those that nothing refers to are forgotten.
#[test]
fn a_recorder_keeps_the_stacks_that_are_referred_to() {
    let numbers: &'static Numbers = Box::leak(Box::default());
    let torch = Torch::small();
    let recorder = StackRecorderC { user: (&raw const *numbers).cast_mut().cast(), take, forget };
    // SAFETY: the allocator is open, and the recorder lives as long as the process.
    let set = || answer(unsafe { thalweg_record_stacks_by(torch.raw(), &raw const recorder) }, ());
    set().unwrap();
    assert_eq!(set().unwrap_err().0, Status::Invalid, "there is one");
    record_with(&torch, 2, 3, 0);
    let stream = torch.default_stream(0);
    let (kept, freed) = (torch.empty(100, &stream).unwrap(), torch.empty(100, &stream).unwrap());
    drop(freed);
    torch.empty_cache().unwrap();
    let events = torch.snapshot((0, 0)).events;
    let stacks = |action: u8| -> Vec<u32> {
        events.iter().filter(|event| event.action == action).map(|event| event.stack).collect()
    };
    assert_eq!((stacks(0), stacks(1)), (vec![1, 2], vec![3]), "an allocation and a free");
    for _ in 0..40_000 {
        drop(torch.empty(100, &stream).unwrap());
    }
    let (still_there, taken) = {
        let numbers = numbers.0.lock();
        (numbers.0.clone(), numbers.1)
    };
    assert!(taken > 80_000 && still_there.len() < 50_000, "{taken} and {}", still_there.len());
    let snapshot = torch.snapshot((0, 0));
    let live = snapshot.segments.iter().flat_map(|(_, blocks)| blocks).find(|block| block.is_allocated != 0);
    assert_eq!(live.expect("it is there").stack, 1, "a live block keeps its stack");
    let newest = snapshot.events.iter().filter(|event| event.action < 4);
    assert!(newest.rev().take(100).all(|event| still_there.contains(&event.stack)));
    // Recording ends: nothing refers to anything.
    record(&torch, 0, 0);
    assert!(numbers.0.lock().0.is_empty());
    drop(kept);
}
