//! The sanitizer over several devices: peer copies, and the order that collectives establish.

use std::ops::Deref;
use std::sync::{Arc, Barrier};

use thalweg_sanitizer::{FindingKind, SanitizerDriver};
use thalweg_sim::SimDriver;

use thalweg_conformance::ranks::{RANKS, World, config};
use thalweg_driver::{
    CaptureMode, Collective, CollectiveOperation, Copy, DevicePointer, Driver, ElementFormat, Endpoint,
    EventFlags, Fill, FillPattern, Instrument, Label, Reduction, StreamHandle,
};

const BYTES: u64 = 64;
const U8: ElementFormat = ElementFormat::R_8U;
const SUM: CollectiveOperation = CollectiveOperation::AllReduce(Reduction::Sum);
const RACE: &[FindingKind] = &[FindingKind::Race];

/// Ranks whose driver is checked.
struct Checked(World<SanitizerDriver>);

impl Deref for Checked {
    type Target = World<SanitizerDriver>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Creates four checked devices, with memory that has been written and waited for.
fn checked() -> Checked {
    let world = World::new(SanitizerDriver::new(SimDriver::new(config(RANKS)).unwrap()), RANKS);
    for rank in 0..RANKS as usize {
        for target in [world.send[rank], world.receive[rank]] {
            world.write(rank, target, &[0; 1024]);
        }
    }
    world.synchronize().unwrap();
    Checked(world)
}

impl Checked {
    #[track_caller]
    fn copy(&self, stream: StreamHandle, source: DevicePointer, target: DevicePointer) {
        let (source, target) = (Endpoint::Device(source), Endpoint::Device(target));
        let copy = Copy { source, target, bytes: BYTES, label: Label::here("copy") };
        self.driver.copy_async(stream, &copy).unwrap();
    }

    #[track_caller]
    fn fill(&self, stream: StreamHandle, target: DevicePointer) {
        let label = Label::here("fill");
        let fill = Fill { target, pattern: FillPattern::U8(1), count: BYTES, label };
        self.driver.fill_async(stream, &fill).unwrap();
    }

    /// Makes `later` wait for the current work of `earlier`.
    fn order(&self, earlier: usize, later: usize) {
        let event = self.driver.event_create(earlier as u32, EventFlags::default()).unwrap();
        self.driver.event_record(event, self.streams[earlier]).unwrap();
        self.driver.stream_wait_event(self.streams[later], event).unwrap();
        self.driver.event_destroy(event).unwrap();
    }

    fn meet(&self, operation: CollectiveOperation) {
        self.driver.collectives_async(&self.all(operation, U8, BYTES)).unwrap();
    }

    #[track_caller]
    fn finds(&self, expected: &[FindingKind]) {
        let findings = self.driver.findings();
        let kinds: Vec<_> = findings.iter().map(|finding| finding.kind).collect();
        let text: Vec<_> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(kinds, expected, "{}", text.join("\n"));
    }
}

/// Makes each device copy to the next, which then works on the received data.
fn ring(is_ordered: bool) -> Checked {
    let world = checked();
    let ranks = RANKS as usize;
    for rank in 0..ranks {
        world.copy(world.streams[rank], world.send[rank], world.receive[(rank + 1) % ranks]);
    }
    if is_ordered {
        (0..ranks).for_each(|rank| world.order(rank, (rank + 1) % ranks));
    }
    for rank in 0..ranks {
        world.copy(world.streams[rank], world.receive[rank], world.receive[rank].offset(512));
    }
    world
}

#[test]
fn a_ring_of_peer_copies_needs_its_events() {
    ring(true).finds(&[]);
    let world = ring(false);
    world.finds(RACE);
    let text = world.driver.findings()[0].to_string();
    assert!(text.contains("of device 3") && text.contains("of device 0"), "{text}");
}

#[test]
fn data_that_comes_orders() {
    let all = [SUM, CollectiveOperation::AllGather];
    let cases: Vec<(CollectiveOperation, usize, usize, &[FindingKind])> = all
        .into_iter()
        .flat_map(|operation| [(operation, 0, 1, &[][..]), (operation, 3, 2, &[][..])])
        .chain([
            (CollectiveOperation::Broadcast { root: 1 }, 1, 0, &[][..]),
            (CollectiveOperation::Broadcast { root: 1 }, 0, 1, RACE),
            (CollectiveOperation::Broadcast { root: 1 }, 0, 2, RACE),
            (CollectiveOperation::Reduce { root: 1, reduction: Reduction::Sum }, 0, 1, &[][..]),
            (CollectiveOperation::Reduce { root: 1, reduction: Reduction::Sum }, 1, 0, RACE),
        ])
        .collect();
    for (operation, first, second, expected) in cases {
        let world = checked();
        let place = world.send[first].offset(512);
        world.fill(world.streams[first], place);
        world.meet(operation);
        world.copy(world.streams[second], place, world.send[second].offset(512));
        world.finds(expected);
    }
}

#[test]
fn a_part_itself_is_over_for_its_own_stream_only() {
    let world = checked();
    world.meet(SUM);
    world.copy(world.streams[0], world.receive[0], world.send[0].offset(512));
    world.finds(&[]);
    // Rank 0 has all data. Whether rank 1 has written its result is not known.
    world.copy(world.streams[0], world.receive[1], world.send[0].offset(512));
    world.finds(RACE);
}

#[test]
fn buffers_of_collectives_race_like_others() {
    let race = |submit: fn(&Checked, StreamHandle)| {
        let world = checked();
        let side = world.driver.stream_create(2, 0).unwrap();
        submit(&world, side);
        world.driver.findings().iter().map(|finding| finding.kind).collect::<Vec<_>>()
    };
    let written_before = |world: &Checked, side| {
        world.fill(side, world.send[2]);
        world.meet(SUM);
    };
    let written_after = |world: &Checked, side| {
        world.meet(SUM);
        world.fill(side, world.send[2]);
    };
    let read_after = |world: &Checked, side| {
        world.meet(SUM);
        world.copy(side, world.receive[2], world.send[2].offset(512));
    };
    let both_read = |world: &Checked, side| {
        world.meet(SUM);
        world.copy(side, world.send[2], world.send[2].offset(512));
    };
    assert_eq!(race(written_before), RACE);
    assert_eq!(race(written_after), RACE);
    assert_eq!(race(read_after), RACE);
    assert_eq!(race(both_read), []);
}

#[test]
fn parts_of_one_group_are_not_ordered() {
    let world = checked();
    let mut second = world.all(SUM, U8, BYTES);
    for part in &mut second {
        (part.send, part.receive) = (part.receive, part.receive.offset(512));
    }
    let first = world.all(SUM, U8, BYTES);
    first.iter().chain(&second).for_each(|part| assert_eq!(part.count, BYTES));
    // One after the other, the second works on the result of the first.
    world.driver.collectives_async(&first).unwrap();
    world.driver.collectives_async(&second).unwrap();
    world.finds(&[]);
    let group: Vec<Collective> = first.into_iter().chain(second).collect();
    world.driver.collectives_async(&group).unwrap();
    world.finds(RACE);
    // Work after the group comes after both.
    world.copy(world.streams[0], world.receive[0].offset(512), world.send[0]);
    world.finds(RACE);
}

#[test]
fn a_receive_comes_after_what_the_sender_did() {
    for (is_receiver, expected) in [(true, &[][..]), (false, RACE)] {
        let world = checked();
        let (first, second) = if is_receiver { (0, 1) } else { (1, 0) };
        let place = world.send[first].offset(512);
        world.fill(world.streams[first], place);
        let send = world.part(0, CollectiveOperation::Send { peer: 1 }, U8, BYTES);
        let receive = world.part(1, CollectiveOperation::Receive { peer: 0 }, U8, BYTES);
        world.driver.collectives_async(&[receive]).unwrap();
        world.driver.collectives_async(&[send]).unwrap();
        world.copy(world.streams[second], place, world.send[second].offset(512));
        world.finds(expected);
    }
}

/// Rank 0 reads memory of rank 1 after a collective; rank 1's thread arrives late, and wrote there before.
#[test]
fn a_rank_that_comes_late_raises_no_alarm() {
    for is_ordered in [true, false] {
        let world = Arc::new(checked());
        let place = world.send[1].offset(512);
        let barrier = Arc::new(Barrier::new(2));
        let late = {
            let (world, barrier) = (Arc::clone(&world), Arc::clone(&barrier));
            std::thread::spawn(move || {
                world.driver.introduce_thread("rank 1");
                barrier.wait();
                if is_ordered {
                    world.fill(world.streams[1], place);
                }
                (1..4).for_each(|rank| {
                    world.driver.collectives_async(&[world.part(rank, SUM, U8, BYTES)]).unwrap();
                });
                if !is_ordered {
                    world.fill(world.streams[1], place);
                }
            })
        };
        world.driver.collectives_async(&[world.part(0, SUM, U8, BYTES)]).unwrap();
        world.copy(world.streams[0], place, world.send[0].offset(512));
        barrier.wait();
        late.join().unwrap();
        world.finds(if is_ordered { &[] } else { RACE });
    }
}

#[test]
fn captured_parts_are_judged_at_each_launch() {
    let world = checked();
    let driver = &world.driver;
    let pair = driver.communicators_create(&[0]).unwrap();
    let stream = world.streams[0];
    driver.stream_begin_capture(stream, CaptureMode::Relaxed).unwrap();
    let part = Collective { communicator: pair[0], ..world.part(0, SUM, U8, BYTES) };
    driver.collectives_async(&[part]).unwrap();
    let graph = driver.stream_end_capture(stream).unwrap();
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_launch(exec, stream).unwrap();
    world.copy(stream, world.receive[0], world.send[0].offset(512));
    world.finds(&[]);
    let side = driver.stream_create(0, 0).unwrap();
    world.fill(side, world.receive[0]);
    world.finds(RACE);
}
