//! Lifetimes: blocks of a caching allocator (with the truth table of Ascend's sanitizer for missing records), stream-ordered
//! memory, virtual memory, graphs, and reads of uninitialised memory. Every program has a twin with the opposite verdict.

use thalweg_driver::{
    Access, AccessMode, CaptureMode, DevicePointer, Driver, Instrument, Label, MemoryAccess, PhysicalFlags,
    Touch,
};
use thalweg_sanitizer::FindingKind::{
    self, EarlyRecord, FreeBeforeLastUse, MissingRecord, OutOfBounds, OutputBeforeLaunch, OverlappingBlocks,
    Race, ReuseBeforeLastUse, StaleGraphInput, Uninitialised, UnmapInUse, UseAfterFree, UseBeforeAllocation,
};

use super::support::{BYTES, World, verdict};

type Case = (&'static str, &'static [FindingKind], fn(&World));

fn run(cases: &[Case]) {
    for (name, expected, program) in cases {
        verdict(name, expected, program);
    }
}

/// A block that A makes and B uses, with the requested synchronisations.
fn use_elsewhere(w: &World, usage_waits: bool, creation_waits: bool, record: bool) {
    let block = w.take(w.a);
    w.work(w.a, "fill", &[Access::write(block, BYTES)]);
    if usage_waits {
        w.order(w.a, w.b);
    }
    w.read(w.b, block);
    if record {
        w.record_stream(block, w.b);
    }
    if creation_waits {
        w.order(w.b, w.a);
    }
    w.free(block);
}

const THE_TRUTH_TABLE_OF_MISSING_RECORDS: &[Case] = &[
    ("no sync", &[Race, MissingRecord], |w| use_elsewhere(w, false, false, false)),
    ("usage waits for creation", &[MissingRecord], |w| use_elsewhere(w, true, false, false)),
    ("creation waits for usage", &[Race], |w| use_elsewhere(w, false, true, false)),
    ("both wait", &[], |w| use_elsewhere(w, true, true, false)),
    ("record_stream alone", &[Race], |w| use_elsewhere(w, false, false, true)),
    ("usage waits, and record_stream", &[], |w| use_elsewhere(w, true, false, true)),
    ("device sync before and after", &[], |w| {
        let block = w.take(w.a);
        w.work(w.a, "fill", &[Access::write(block, BYTES)]);
        w.driver.device_synchronize(0).unwrap();
        w.read(w.b, block);
        w.driver.device_synchronize(0).unwrap();
        w.free(block);
    }),
];

#[test]
fn the_truth_table_of_missing_records() {
    run(THE_TRUTH_TABLE_OF_MISSING_RECORDS);
}

const BLOCKS: &[Case] = &[
    ("a block used on its own stream", &[], |w| {
        let block = w.take(w.a);
        w.write(w.a, block);
        w.free(block);
        let again = w.take(w.a);
        w.write(w.a, again);
    }),
    ("used elsewhere without waiting for the allocation", &[UseBeforeAllocation, MissingRecord], |w| {
        w.write(w.a, w.y);
        let block = w.take(w.a);
        w.write(w.b, block);
        w.free(block);
    }),
    ("record_use after the last use", &[], |w| {
        let block = w.take(w.a);
        w.order(w.a, w.b);
        w.write(w.b, block);
        w.record_use(block, w.b);
        w.free(block);
    }),
    ("record_use before the last use", &[EarlyRecord], |w| {
        let block = w.take(w.a);
        w.order(w.a, w.b);
        w.write(w.b, block);
        w.record_use(block, w.b);
        w.read(w.b, block);
        w.free(block);
    }),
    ("record_use again after the last use", &[], |w| {
        let block = w.take(w.a);
        w.order(w.a, w.b);
        w.write(w.b, block);
        w.record_use(block, w.b);
        w.read(w.b, block);
        w.record_use(block, w.b);
        w.free(block);
    }),
    ("record_use of another stream", &[MissingRecord], |w| {
        let block = w.take(w.a);
        w.order(w.a, w.b);
        w.write(w.b, block);
        w.record_use(block, w.c);
        w.free(block);
    }),
    ("used after the free", &[UseAfterFree], |w| {
        let block = w.take(w.a);
        w.write(w.a, block);
        w.free(block);
        w.write(w.a, block);
    }),
    ("used after another got it", &[], |w| {
        let block = w.take(w.a);
        w.write(w.a, block);
        w.free(block);
        let again = w.take(w.a);
        w.write(w.a, again);
    }),
    ("reused on another stream, too early", &[ReuseBeforeLastUse], |w| {
        let block = w.take(w.a);
        w.write(w.a, block);
        w.free(block);
        w.take(w.b);
    }),
    ("reused on another stream behind an event", &[], |w| {
        let block = w.take(w.a);
        w.write(w.a, block);
        w.free(block);
        w.order(w.a, w.b);
        w.take(w.b);
    }),
    ("reused on another stream once a query said that it is done", &[], |w| {
        let block = w.take(w.a);
        w.write(w.a, block);
        w.free(block);
        w.driver.stream_synchronize(w.a).unwrap();
        w.take(w.b);
    }),
    ("recorded, and reused before that use is over", &[ReuseBeforeLastUse], |w| {
        let block = w.take(w.a);
        w.order(w.a, w.b);
        w.write(w.b, block);
        w.record_stream(block, w.b);
        w.free(block);
        w.take(w.a);
    }),
    ("given out twice", &[OverlappingBlocks], |w| {
        w.take(w.a);
        w.take(w.a);
    }),
    ("beyond the end", &[OutOfBounds], |w| {
        let label = Label::here("empty");
        let kind = thalweg_driver::BlockKind::Device;
        w.driver.block_allocated(w.x.address(), 512, kind, w.a, label);
        w.work(w.a, "write", &[Access::write(w.x, 513)]);
    }),
    ("up to the end", &[], |w| {
        let label = Label::here("empty");
        let kind = thalweg_driver::BlockKind::Device;
        w.driver.block_allocated(w.x.address(), 512, kind, w.a, label);
        w.work(w.a, "write", &[Access::write(w.x, 512)]);
    }),
];

#[test]
fn blocks() {
    run(BLOCKS);
}

const UNINITIALISED_MEMORY: &[Case] = &[
    ("fresh memory is read", &[Uninitialised], |w| {
        let fresh = w.driver.memory_allocate(0, BYTES).unwrap();
        w.read(w.a, fresh);
    }),
    ("fresh memory is written first", &[], |w| {
        let fresh = w.driver.memory_allocate(0, BYTES).unwrap();
        w.write(w.a, fresh);
        w.read(w.a, fresh);
    }),
    ("its last byte is not", &[Uninitialised], |w| {
        let fresh = w.driver.memory_allocate(0, BYTES).unwrap();
        w.work(w.a, "write", &[Access::write(fresh, BYTES - 1)]);
        w.read(w.a, fresh);
    }),
    ("read and written at once", &[Uninitialised], |w| {
        let fresh = w.driver.memory_allocate(0, BYTES).unwrap();
        w.work(w.a, "add", &[Access::read_write(fresh, BYTES)]);
    }),
    ("some of it is read, and some was written", &[], |w| {
        let fresh = w.driver.memory_allocate(0, BYTES).unwrap();
        w.work(w.a, "write", &[Access::write(fresh, 64)]);
        w.work(w.a, "gather", &[Access::read(fresh, BYTES).touching(Touch::Some { most_bytes: 64 })]);
    }),
    ("some of it is read, and nothing was written", &[Uninitialised], |w| {
        let fresh = w.driver.memory_allocate(0, BYTES).unwrap();
        w.work(w.a, "gather", &[Access::read(fresh, BYTES).touching(Touch::Some { most_bytes: 64 })]);
    }),
    ("some of it is written, and as much is read", &[], |w| {
        let fresh = w.driver.memory_allocate(0, BYTES).unwrap();
        let some = Touch::Some { most_bytes: 64 };
        w.work(w.a, "scatter", &[Access::write(fresh, BYTES).touching(some)]);
        w.work(w.a, "scatter", &[Access::write(fresh, BYTES).touching(some)]);
        w.work(w.a, "read", &[Access::read(fresh.offset(64), 128)]);
    }),
    ("some of it is written, and more is read", &[Uninitialised], |w| {
        let fresh = w.driver.memory_allocate(0, BYTES).unwrap();
        let some = Touch::Some { most_bytes: 64 };
        w.work(w.a, "scatter", &[Access::write(fresh, BYTES).touching(some)]);
        w.work(w.a, "scatter", &[Access::write(fresh, BYTES).touching(some)]);
        w.work(w.a, "read", &[Access::read(fresh.offset(64), 129)]);
    }),
    ("some columns of many rows are written, and more are read", &[Uninitialised], |w| {
        let fresh = w.driver.memory_allocate(0, 64 * 4096).unwrap();
        let columns = |bytes| Touch::rows(bytes, 64, 4096);
        w.work(w.a, "write", &[Access::write(fresh, 64 * 4095 + 16).touching(columns(16))]);
        w.work(w.a, "read", &[Access::read(fresh, 64 * 4095 + 16).touching(columns(16))]);
        w.work(w.a, "read more", &[Access::read(fresh, 64 * 4095 + 17).touching(columns(17))]);
    }),
    ("a scatter hides no race of what came before it", &[Race], |w| {
        w.work(w.a, "write", &[Access::write(w.x, 64)]);
        w.order(w.a, w.b);
        w.work(w.b, "scatter", &[Access::write(w.x, BYTES).touching(Touch::Some { most_bytes: 64 })]);
        w.work(w.c, "read", &[Access::read(w.x, 64)]);
    }),
    ("a block that comes back is fresh", &[Uninitialised], |w| {
        let block = w.take(w.a);
        w.write(w.a, block);
        w.free(block);
        let again = w.take(w.a);
        w.read(w.a, again);
    }),
    ("the gaps between rows are not read", &[], |w| {
        let fresh = w.driver.memory_allocate(0, BYTES).unwrap();
        let rows = Touch::rows(64, 256, 16);
        w.work(w.a, "write rows", &[Access::write(fresh, BYTES).touching(rows)]);
        w.work(w.a, "read rows", &[Access::read(fresh, BYTES).touching(rows)]);
    }),
    ("the gaps between rows are read", &[Uninitialised], |w| {
        let fresh = w.driver.memory_allocate(0, BYTES).unwrap();
        let rows = Touch::rows(64, 256, 16);
        w.work(w.a, "write rows", &[Access::write(fresh, BYTES).touching(rows)]);
        w.read(w.a, fresh);
    }),
    ("rows between rows do not meet", &[], |w| {
        let rows = Touch::rows(128, 256, 16);
        w.work(w.a, "even", &[Access::write(w.x, BYTES).touching(rows)]);
        w.work(w.b, "odd", &[Access::write(w.x.offset(128), BYTES - 128).touching(rows)]);
    }),
    ("rows that overlap do", &[Race], |w| {
        let rows = Touch::rows(129, 256, 15);
        w.work(w.a, "even", &[Access::write(w.x, BYTES).touching(rows)]);
        w.work(w.b, "odd", &[Access::write(w.x.offset(128), BYTES - 128).touching(rows)]);
    }),
];

#[test]
fn uninitialised_memory() {
    run(UNINITIALISED_MEMORY);
}

fn map(w: &World, at: DevicePointer, bytes: u64, physical: thalweg_driver::PhysicalHandle) {
    w.driver.memory_map(at, bytes, physical, 0).unwrap();
    w.driver.memory_set_access(at, bytes, 0, MemoryAccess::ReadWrite).unwrap();
}

/// Returns a reserved range with a page of physical memory at its start.
fn page(w: &World) -> (DevicePointer, u64, thalweg_driver::PhysicalHandle) {
    let bytes = w.driver.device_properties(0).unwrap().virtual_memory_granularity_bytes;
    let range = w.driver.address_reserve(0, 2 * bytes).unwrap();
    let physical = w.driver.physical_create(0, bytes, PhysicalFlags::default()).unwrap();
    map(w, range, bytes, physical);
    (range, bytes, physical)
}

const VIRTUAL_MEMORY: &[Case] = &[
    ("two addresses of one page", &[Race], |w| {
        let (range, bytes, physical) = page(w);
        map(w, range.offset(bytes), bytes, physical);
        w.write(w.a, range);
        w.write(w.b, range.offset(bytes));
    }),
    ("two addresses of one page, ordered", &[], |w| {
        let (range, bytes, physical) = page(w);
        map(w, range.offset(bytes), bytes, physical);
        w.write(w.a, range);
        w.order(w.a, w.b);
        w.write(w.b, range.offset(bytes));
    }),
    ("an address that means another page now", &[], |w| {
        let (range, bytes, _) = page(w);
        w.write(w.a, range);
        w.driver.stream_synchronize(w.a).unwrap();
        w.driver.memory_unmap(range, bytes).unwrap();
        let other = w.driver.physical_create(0, bytes, PhysicalFlags::default()).unwrap();
        map(w, range, bytes, other);
        w.write(w.b, range);
    }),
    ("a page that moved keeps its history", &[Race], |w| {
        let (range, bytes, physical) = page(w);
        w.write(w.a, range);
        w.driver.stream_synchronize(w.a).unwrap();
        map(w, range.offset(bytes), bytes, physical);
        w.write(w.b, range.offset(bytes));
        w.driver.stream_synchronize(w.b).unwrap();
        w.driver.memory_unmap(range, bytes).unwrap();
        w.read(w.c, range.offset(bytes));
        w.write(w.a, range.offset(bytes));
    }),
    ("unmapped while in use", &[UnmapInUse], |w| {
        let (range, bytes, _) = page(w);
        w.write(w.a, range);
        while !w.sim.stream_query(w.a).unwrap() {
            std::thread::yield_now();
        }
        w.driver.memory_unmap(range, bytes).unwrap();
    }),
    ("unmapped behind a synchronisation", &[], |w| {
        let (range, bytes, _) = page(w);
        w.write(w.a, range);
        w.driver.stream_synchronize(w.a).unwrap();
        w.driver.memory_unmap(range, bytes).unwrap();
    }),
];

#[test]
fn virtual_memory() {
    run(VIRTUAL_MEMORY);
}

const STREAM_ORDERED_MEMORY: &[Case] = &[
    ("used on its stream and freed there", &[], |w| {
        let pool = w.driver.pool_create(0).unwrap();
        let memory = w.driver.memory_allocate_async(pool, BYTES, w.a).unwrap();
        w.write(w.a, memory);
        w.driver.memory_free_async(memory, w.a).unwrap();
    }),
    ("used on another stream before it is there", &[UseBeforeAllocation], |w| {
        let pool = w.driver.pool_create(0).unwrap();
        let memory = w.driver.memory_allocate_async(pool, BYTES, w.a).unwrap();
        w.write(w.b, memory);
    }),
    ("used on another stream that waits", &[], |w| {
        let pool = w.driver.pool_create(0).unwrap();
        let memory = w.driver.memory_allocate_async(pool, BYTES, w.a).unwrap();
        w.order(w.a, w.b);
        w.write(w.b, memory);
        w.order(w.b, w.a);
        w.driver.memory_free_async(memory, w.a).unwrap();
    }),
    ("freed before another stream's use", &[FreeBeforeLastUse], |w| {
        let pool = w.driver.pool_create(0).unwrap();
        let memory = w.driver.memory_allocate_async(pool, BYTES, w.a).unwrap();
        w.order(w.a, w.b);
        w.write(w.b, memory);
        w.driver.memory_free_async(memory, w.a).unwrap();
    }),
    ("read before it is written", &[Uninitialised], |w| {
        let pool = w.driver.pool_create(0).unwrap();
        let memory = w.driver.memory_allocate_async(pool, BYTES, w.a).unwrap();
        w.read(w.a, memory);
    }),
];

#[test]
fn stream_ordered_memory() {
    run(STREAM_ORDERED_MEMORY);
}

const GRAPHS: &[Case] = &[
    ("a launch is ordered with its stream", &[], |w| {
        let graph = w.capture(w.a, || w.write(w.a, w.x));
        w.write(w.a, w.x);
        w.launch(graph, w.a);
        w.read(w.a, w.x);
    }),
    ("a launch is not ordered with other streams", &[Race], |w| {
        let graph = w.capture(w.a, || w.write(w.a, w.x));
        w.launch(graph, w.b);
        w.read(w.a, w.x);
    }),
    ("branches", &[Race], |w| {
        let graph = w.capture(w.a, || {
            w.order(w.a, w.b);
            w.work(w.a, "left", &[Access::write(w.x, BYTES)]);
            w.work(w.b, "right", &[Access::write(w.x, BYTES)]);
            w.order(w.b, w.a);
        });
        w.launch(graph, w.a);
    }),
    ("branches that are joined first", &[], |w| {
        let graph = w.capture(w.a, || {
            w.order(w.a, w.b);
            w.work(w.b, "right", &[Access::write(w.x, BYTES)]);
            w.order(w.b, w.a);
            w.work(w.a, "left", &[Access::write(w.x, BYTES)]);
        });
        w.launch(graph, w.a);
        w.launch(graph, w.b);
    }),
    ("nothing of a capture has run", &[], |w| {
        w.capture(w.a, || w.write(w.a, w.x));
        w.write(w.b, w.x);
    }),
    ("two executables", &[Race], |w| {
        let [g, h] = [0; 2].map(|_| w.capture(w.a, || w.write(w.a, w.x)));
        w.launch(g, w.a);
        w.launch(h, w.b);
    }),
    ("the graph's input lives", &[], |w| {
        let block = w.take(w.a);
        w.write(w.a, block);
        let graph = w.capture(w.a, || w.read(w.a, block));
        w.launch(graph, w.a);
        w.free(block);
    }),
    ("the graph's input has died", &[StaleGraphInput], |w| {
        let block = w.take(w.a);
        w.write(w.a, block);
        let graph = w.capture(w.a, || w.read(w.a, block));
        w.launch(graph, w.a);
        w.free(block);
        w.launch(graph, w.a);
    }),
    ("the graph's input belongs to another", &[StaleGraphInput], |w| {
        let block = w.take(w.a);
        w.write(w.a, block);
        let graph = w.capture(w.a, || w.read(w.a, block));
        w.free(block);
        let other = w.take(w.a);
        w.write(w.a, other);
        w.launch(graph, w.a);
    }),
    ("memory of the driver that the graph uses was freed", &[StaleGraphInput], |w| {
        let graph = w.capture(w.a, || w.read(w.a, w.y));
        w.driver.memory_free(w.y).unwrap();
        // The simulator would refuse the launch later: only the verdict counts.
        w.launch(graph, w.a);
    }),
    ("memory of the graph's own", &[], |w| {
        let graph = w.capture(w.a, || {
            let block = w.take(w.a);
            w.write(w.a, block);
            w.read(w.a, block);
            w.free(block);
        });
        w.launch(graph, w.a);
        w.launch(graph, w.a);
    }),
    ("the output is read after a launch", &[], |w| {
        let graph = w.capture(w.a, || w.write(w.a, w.take(w.a)));
        w.launch(graph, w.a);
        w.read(w.a, w.x);
    }),
    ("the output is read before any launch", &[OutputBeforeLaunch], |w| {
        w.capture(w.a, || w.write(w.a, w.take(w.a)));
        w.read(w.a, w.x);
    }),
    ("used in a capture after it was freed", &[UseAfterFree], |w| {
        let block = w.take(w.a);
        w.write(w.a, block);
        w.free(block);
        w.capture(w.a, || w.read(w.a, block));
    }),
];

#[test]
fn graphs() {
    run(GRAPHS);
}

#[test]
fn freed_memory_of_the_driver_is_remembered() {
    let findings = verdict("free and read", &[UseAfterFree], |w| {
        w.driver.memory_free(w.y).unwrap();
        w.read(w.a, w.y);
    });
    let freed = findings[0].history.freed.expect("it is remembered");
    assert_eq!(freed.to_string(), "`memory_free`");
}

#[test]
fn host_threads_are_ordered_by_what_they_tell_one_another() {
    let program = |hand_over: bool| {
        move |w: &World| {
            let pinned = w.pinned();
            w.write(w.a, w.x);
            w.driver.stream_synchronize(w.a).unwrap();
            let clock = w.driver.host_release();
            w.host_write(pinned);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    w.driver.introduce_thread("loader");
                    if hand_over {
                        w.driver.host_acquire(&clock);
                    }
                    w.write(w.b, w.x);
                });
            });
        }
    };
    verdict("handed over", &[], program(true));
    verdict("not handed over", &[Race], program(false));
}

#[test]
fn a_race_that_an_unseen_flag_may_order_says_how_to_report_the_flag() {
    let hinted = |name: &str, program: &dyn Fn(&World)| {
        let world = World::new();
        program(&world);
        let [finding] = &world.findings()[..] else { panic!("{name}: one race") };
        assert!(finding.kind == Race && finding.is_certain, "{name}: {finding}");
        finding.to_string().contains("`gpu.channel`")
    };
    let on_a_thread = |w: &World, sees: bool| {
        w.write(w.a, w.x);
        if sees {
            w.driver.stream_synchronize(w.a).unwrap();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                w.driver.introduce_thread("consumer");
                w.write(w.b, w.x);
            });
        });
    };
    assert!(hinted("a channel", &|w| on_a_thread(w, true)));
    assert!(!hinted("no thread has seen it", &|w| on_a_thread(w, false)));
    let after_a_function = |w: &World| {
        w.write(w.a, w.x);
        w.driver.host_function_async(w.a, std::sync::Arc::new(|| ()), Label::here("callback")).unwrap();
        w.write(w.b, w.x);
    };
    assert!(hinted("a host function", &after_a_function));
}

#[test]
fn a_finding_is_said_once_and_can_fail_the_call() {
    let world = World::new();
    for _ in 0..3 {
        world.read(world.a, world.x);
        world.write(world.b, world.x);
    }
    assert!(world.kinds().len() <= 3, "each pair once: {:?}", world.kinds());
    world.driver.fail_on_findings(true);
    let fresh = world.driver.memory_allocate(0, BYTES).unwrap();
    let refused = world.driver.copy_to_host(world.a, &mut [0; 8], fresh, Label::here("download"));
    let error = refused.unwrap_err();
    assert_eq!(error.code(), thalweg_driver::Code::Finding);
    assert!(error.to_string().contains("read of uninitialised memory"), "{error}");
}

/// The text of a report is part of the product.
#[test]
fn a_report_reads_well() {
    let findings = verdict("a race", &[Race], |w| {
        w.driver.name_stream(w.a, "main");
        w.driver.name_stream(w.b, "side");
        w.work(w.a, "mul", &[Access::write(w.x, BYTES)]);
        w.work(w.b, "add", &[Access::new(w.x.address() + 8, 16, AccessMode::Read)]);
    });
    let text = findings[0].to_string();
    for part in [
        "data race: 16 bytes",
        "`mul` at crates",
        "writes 4096 bytes",
        "on main",
        "then:     `add`",
        "had waited for main only up to number 2",
        "`side.wait_stream(&main)`",
        "memory:",
    ] {
        assert!(text.contains(part), "{part:?} is missing:\n{text}");
    }
    println!("{text}");
}

#[test]
fn what_was_captured_behind_the_sanitizer_is_learned_from_the_driver() {
    let world = World::new();
    world.driver.stream_begin_capture(world.a, CaptureMode::Relaxed).unwrap();
    world.write(world.a, world.x);
    // Another library works on the stream, which the sanitizer cannot observe.
    let label = Label::here("behind");
    let fill = thalweg_driver::Fill {
        target: world.y,
        pattern: thalweg_driver::FillPattern::U8(0),
        count: 8,
        label,
    };
    world.sim.fill_async(world.a, &fill).unwrap();
    world.write(world.a, world.x);
    let graph = world.driver.stream_end_capture(world.a).unwrap();
    let exec = world.driver.graph_instantiate(graph, 0).unwrap();
    world.launch(exec, world.a);
    assert_eq!(world.findings(), [], "the path leads through the unknown node");
}
