//! Collectives of the simulator: their values, how parts are matched, and the reports about those that cannot run.

use std::sync::Arc;

use thalweg_lock::Mutex;
use thalweg_sim::schedules::{Late, Random, RoundRobin};
use thalweg_sim::{Fault, SimDriver, Trace};

use super::sim_support::{self, code};
use thalweg_conformance::ranks::{
    BYTES, FORMATS, RANKS, World, controlled, encode_all, expected, fast, operations, sent_elements, values,
};
use thalweg_driver::{
    CaptureMode, Code, Collective, CollectiveOperation, Copy, DevicePointer, Driver, ElementFormat, Endpoint,
    Error, EventFlags, Fill, FillPattern, GraphNodeKind, Label, Reduction, Registration,
};

const F32: ElementFormat = ElementFormat::R_32F;
const SUM: CollectiveOperation = CollectiveOperation::AllReduce(Reduction::Sum);

/// Returns the label of a part, as messages contain it.
fn at(collective: &Collective) -> String {
    collective.label.to_string()
}

/// Returns the error text of all devices, which must be lost with the same one.
#[track_caller]
fn loss(world: &World<SimDriver>, wanted: Code) -> String {
    let errors: Vec<Error> =
        world.streams.iter().map(|&stream| world.driver.stream_synchronize(stream).unwrap_err()).collect();
    for error in &errors {
        assert_eq!((error.code(), error.detail()), (wanted, errors[0].detail()), "{error}");
        assert!(error.is_asynchronous());
    }
    errors[0].to_string()
}

/// Submits one part after the other, until a circle has been noticed.
fn submit(world: &World<SimDriver>, parts: &[Collective]) {
    for part in parts {
        if let Err(error) = world.driver.collectives_async(&[*part]) {
            assert_eq!(error.code(), Code::LaunchTimeout, "{error}");
            return;
        }
    }
}

#[test]
fn values_are_those_of_the_model() {
    let world = fast();
    for format in FORMATS {
        for (salt, operation) in (0..RANKS).flat_map(operations).enumerate() {
            let count = 5;
            let size = format.bytes().unwrap();
            let inputs: Vec<Vec<f64>> =
                (0..RANKS).map(|rank| values(rank, sent_elements(operation, count), salt as u64)).collect();
            for (rank, input) in inputs.iter().enumerate() {
                world.write(rank, world.send[rank], &encode_all(format, input));
                world.write(rank, world.receive[rank], &[0xee; 256]);
            }
            world.driver.collectives_async(&world.all(operation, format, count)).unwrap();
            for (rank, expected) in expected(operation, &inputs).into_iter().enumerate() {
                let mut wanted = expected.map(|values| encode_all(format, &values)).unwrap_or_default();
                assert!(wanted.len() as u64 <= count * size * u64::from(RANKS));
                wanted.resize(256, 0xee);
                let seen = world.read(rank, world.receive[rank], 256);
                assert_eq!(seen, wanted, "{operation} of {format:?}, rank {rank}");
            }
        }
    }
}

#[test]
fn a_rank_may_get_its_result_where_it_gave() {
    let world = fast();
    let count = 8;
    for operation in operations(2) {
        let parts = sent_elements(operation, count);
        let inputs: Vec<Vec<f64>> = (0..RANKS).map(|rank| values(rank, parts, 3)).collect();
        let mut group = world.all(operation, F32, count);
        let mut places = Vec::new();
        for (rank, part) in group.iter_mut().enumerate() {
            let own = part.send.offset(rank as u64 * count * 4);
            match operation {
                CollectiveOperation::AllGather => (part.send, part.receive) = (own, part.send),
                CollectiveOperation::ReduceScatter(_) => part.receive = own,
                _ => part.receive = part.send,
            }
            world.write(rank, part.send, &encode_all(F32, &inputs[rank]));
            places.push(part.receive);
        }
        world.driver.collectives_async(&group).unwrap();
        for (rank, expected) in expected(operation, &inputs).into_iter().enumerate() {
            let wanted = encode_all(F32, &expected.unwrap_or_else(|| inputs[rank].clone()));
            assert_eq!(world.read(rank, places[rank], wanted.len()), wanted, "{operation}, rank {rank}");
        }
    }
}

#[test]
fn a_group_exchanges_in_a_ring() {
    for world in [fast(), controlled(Late::new(0)), controlled(RoundRobin::new(3))] {
        let ranks = RANKS as usize;
        let mut group = Vec::new();
        for rank in 0..ranks {
            world.write(rank, world.send[rank], &[rank as u8; 64]);
            let (next, last) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
            let bytes = ElementFormat::R_8U;
            group.push(world.part(rank, CollectiveOperation::Send { peer: next as u32 }, bytes, 64));
            group.push(world.part(rank, CollectiveOperation::Receive { peer: last as u32 }, bytes, 64));
        }
        world.driver.collectives_async(&group).unwrap();
        for rank in 0..ranks {
            let last = (rank + ranks - 1) % ranks;
            assert_eq!(world.read(rank, world.receive[rank], 64), [last as u8; 64]);
        }
        // A rank may also send to itself, in one group.
        let own = [CollectiveOperation::Send { peer: 1 }, CollectiveOperation::Receive { peer: 1 }];
        let own = own.map(|operation| world.part(1, operation, ElementFormat::R_8U, 64));
        world.driver.collectives_async(&own).unwrap();
        assert_eq!(world.read(1, world.receive[1], 64), [1; 64]);
    }
}

#[test]
fn a_part_is_in_the_order_of_its_stream() {
    let world = fast();
    let label = Label::here("fill");
    for round in 0..20_u8 {
        for rank in 0..RANKS as usize {
            let pattern = FillPattern::U8(round + rank as u8);
            let fill = |target| Fill { target, pattern, count: 64, label };
            world.driver.fill_async(world.streams[rank], &fill(world.send[rank])).unwrap();
            world.driver.fill_async(world.streams[rank], &fill(world.receive[rank])).unwrap();
        }
        let maximum = CollectiveOperation::AllReduce(Reduction::Maximum);
        // Rank by rank, because the simulator's calls never wait for other ranks.
        for part in world.all(maximum, ElementFormat::R_8U, 64).iter().rev() {
            world.driver.collectives_async(std::slice::from_ref(part)).unwrap();
        }
        for rank in 0..RANKS as usize {
            assert_eq!(world.read(rank, world.receive[rank], 64), [round + 3; 64]);
        }
    }
}

#[test]
fn peer_copies_are_commands_like_others() {
    for seed in 0..50 {
        let world = controlled(Random::new(seed));
        let ranks = RANKS as usize;
        let events: Vec<_> = (0..RANKS)
            .map(|device| world.driver.event_create(device, EventFlags::default()).unwrap())
            .collect();
        (0..ranks).for_each(|rank| world.write(rank, world.send[rank], &[rank as u8; 64]));
        world.synchronize().unwrap();
        for round in 0..3 {
            for rank in 0..ranks {
                let ends = [&world.send, &world.receive];
                let (from, to) = (ends[round % 2][rank], ends[1 - round % 2][(rank + 1) % ranks]);
                copy(&world, rank, from, to);
                world.driver.event_record(events[rank], world.streams[rank]).unwrap();
            }
            for rank in 0..ranks {
                for event in [(rank + 1) % ranks, (rank + ranks - 1) % ranks] {
                    world.driver.stream_wait_event(world.streams[rank], events[event]).unwrap();
                }
            }
        }
        for rank in 0..ranks {
            let origin = (rank + ranks - 3) % ranks;
            assert_eq!(world.read(rank, world.receive[rank], 64), [origin as u8; 64], "seed {seed}");
        }
    }
}

fn copy(world: &World<SimDriver>, rank: usize, source: DevicePointer, target: DevicePointer) {
    let (source, target) = (Endpoint::Device(source), Endpoint::Device(target));
    let copy = Copy { source, target, bytes: 64, label: Label::here("copy") };
    world.driver.copy_async(world.streams[rank], &copy).unwrap();
}

// ---- Threads ----------------------------------------------------------------------------------------------------------

/// Runs the thread of one rank: a few collectives of the same kinds as the others', each on the result of the last.
fn rank_thread(world: &World<SimDriver>, rank: usize, seed: u64) -> Vec<u8> {
    let random = sim_support::Random::new(seed);
    let side = world.driver.stream_create(rank as u32, 0).unwrap();
    let event = world.driver.event_create(rank as u32, EventFlags::default()).unwrap();
    world.write(rank, world.send[rank], &encode_all(ElementFormat::R_32I, &values(rank as u32, 64, seed)));
    for _ in 0..4 {
        let all = operations(random.below(u64::from(RANKS)) as u32);
        let operation = all[random.below(all.len() as u64) as usize];
        let count = 1 + random.below(16);
        let on_side = random.below(2) == 0;
        let mut part = world.part(rank, operation, ElementFormat::R_32I, count);
        if on_side {
            part.stream = side;
            world.driver.event_record(event, world.streams[rank]).unwrap();
            world.driver.stream_wait_event(side, event).unwrap();
        }
        world.driver.collectives_async(&[part]).unwrap();
        if on_side {
            world.driver.event_record(event, side).unwrap();
            world.driver.stream_wait_event(world.streams[rank], event).unwrap();
        }
        copy(world, rank, world.receive[rank], world.send[rank]);
    }
    world.read(rank, world.receive[rank], 256)
}

/// Runs all ranks on threads of a controlled machine.
fn threads(seed: u64) -> (Vec<Vec<u8>>, Trace) {
    let world = Arc::new(controlled(Random::new(seed)));
    let threads: Vec<_> = (0..RANKS as usize)
        .map(|rank| {
            let own = Arc::clone(&world);
            world.driver.spawn(&format!("rank {rank}"), move || rank_thread(&own, rank, seed)).unwrap()
        })
        .collect();
    let seen = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    (seen, world.driver.trace().unwrap())
}

#[test]
fn one_seed_is_one_run_in_whatever_order_the_ranks_arrive() {
    let mut hashes = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let (seen, trace) = threads(seed);
        assert!(trace.is_controlled);
        let again = threads(seed);
        assert_eq!((&seen, &trace), (&again.0, &again.1), "seed {seed}");
        hashes.insert(trace.hash);

        // The order in which ranks arrive changes no value.
        if seed % 20 == 0 {
            let world = fast();
            let plain: Vec<Vec<u8>> = std::thread::scope(|scope| {
                let world = &world;
                let threads = [0, 1, 2, 3].map(|rank| scope.spawn(move || rank_thread(world, rank, seed)));
                threads.map(|thread| thread.join().unwrap()).to_vec()
            });
            assert_eq!(plain, seen, "seed {seed}");
        }
    }
    assert!(hashes.len() > 190, "{} different runs: the seed has no effect", hashes.len());
}

// ---- Failures ---------------------------------------------------------------------------------------------------------

#[test]
fn parts_that_differ_are_named() {
    let [two, three] = [2, 3].map(|root| CollectiveOperation::Broadcast { root });
    let maximum = CollectiveOperation::AllReduce(Reduction::Maximum);
    let cases = [
        ((SUM, F32, 4), (CollectiveOperation::AllGather, F32, 4), "all_gather, 4 elements of CUDA_R_32F"),
        ((SUM, F32, 4), (SUM, F32, 5), "all_reduce of the sum, 5 elements of CUDA_R_32F"),
        ((SUM, F32, 4), (SUM, ElementFormat::R_32I, 4), "all_reduce of the sum, 4 elements of CUDA_R_32I"),
        ((two, F32, 4), (three, F32, 4), "broadcast from rank 3, 4 elements of CUDA_R_32F"),
        ((SUM, F32, 4), (maximum, F32, 4), "all_reduce of the maximum, 4 elements of CUDA_R_32F"),
    ];
    for (left, right, wanted) in cases {
        for world in [fast(), controlled(Late::new(1)), controlled(Random::new(7))] {
            let one = world.part(0, left.0, left.1, left.2);
            let other = world.part(1, right.0, right.1, right.2);
            world.driver.collectives_async(&[one]).unwrap();
            world.driver.collectives_async(&[other]).unwrap();
            // The ranks that have not called are lost as well: they could only wait.
            let text = loss(&world, Code::LaunchFailed);
            assert!(text.contains("calls of a collective differ"), "{text}");
            assert!(text.contains(&format!("rank 0 calls {} (", at(&one))), "{text}");
            assert!(text.contains(&format!("rank 1 calls {} ({wanted})", at(&other))), "{text}");
        }
    }
}

#[test]
fn a_send_and_a_receive_that_differ_are_named() {
    let world = fast();
    let one = world.part(0, CollectiveOperation::Send { peer: 1 }, F32, 4);
    let other = world.part(1, CollectiveOperation::Receive { peer: 0 }, F32, 3);
    world.driver.collectives_async(&[one, other]).unwrap();
    let text = loss(&world, Code::LaunchFailed);
    assert!(text.contains("send to rank 1, 4 elements"), "{text}");
    assert!(text.contains("receive from rank 0, 3 elements"), "{text}");
}

#[test]
fn two_communicators_in_different_orders_are_a_circle() {
    for world in [fast(), controlled(Late::new(1)), controlled(Random::new(7))] {
        let second = world.driver.communicators_create(&[0, 1, 2, 3]).unwrap();
        let of_second = |mut part: Collective| {
            let rank = world.communicator.iter().position(|&handle| handle == part.communicator).unwrap();
            part.communicator = second[rank];
            part
        };
        let gather = CollectiveOperation::AllGather;
        let mut waits = Vec::new();
        for rank in 0..RANKS as usize {
            let reduce = world.part(rank, SUM, F32, 4);
            let gather = of_second(world.part(rank, gather, F32, 4));
            let pair = if rank == 1 { [gather, reduce] } else { [reduce, gather] };
            submit(&world, &pair);
            waits.push(pair[0]);
        }
        let text = loss(&world, Code::LaunchTimeout);
        assert!(text.contains("deadlock of collectives: rank "), "{text}");
        let [zero, one] = [at(&waits[0]), at(&waits[1])];
        let wanted = format!(
            "rank 0 of communicator 1 waits in {zero} for rank 1, which as rank 1 of communicator 2 waits in {one} for rank 0"
        );
        assert!(text.contains(&wanted), "{text}");
    }
}

#[test]
fn an_exchange_without_a_group_is_a_circle() {
    for world in [fast(), controlled(Late::new(1))] {
        let mut first = Vec::new();
        for (rank, peer) in [(0, 1), (1, 0)] {
            let send = world.part(rank, CollectiveOperation::Send { peer }, F32, 4);
            let receive = world.part(rank, CollectiveOperation::Receive { peer }, F32, 4);
            submit(&world, &[send, receive]);
            first.push(send);
        }
        let text = loss(&world, Code::LaunchTimeout);
        let [zero, one] = [at(&first[0]), at(&first[1])];
        let wanted = format!("rank 0 waits in {zero} for rank 1, which waits in {one} for rank 0");
        assert!(text.contains(&wanted), "{text}");
    }
}

#[test]
fn a_collective_against_a_send_is_a_circle_though_more_may_come() {
    for world in [fast(), controlled(RoundRobin::new(1))] {
        let parts =
            [world.part(0, SUM, F32, 4), world.part(1, CollectiveOperation::Send { peer: 0 }, F32, 4)];
        parts.iter().for_each(|part| world.driver.collectives_async(&[*part]).unwrap());
        let text = loss(&world, Code::LaunchTimeout);
        let [zero, one] = [at(&parts[0]), at(&parts[1])];
        assert!(
            text.contains(&format!("rank 0 waits in {zero} for rank 1, which waits in {one} for rank 0")),
            "{text}"
        );
    }
}

#[test]
fn streams_of_one_rank_do_not_pass_each_other() {
    // Rank 0 lets its first collective, on one stream, wait for its second, on another.
    for world in [fast(), controlled(Late::new(1))] {
        let side = world.driver.stream_create(0, 0).unwrap();
        let event = world.driver.event_create(0, EventFlags::default()).unwrap();
        let gather = CollectiveOperation::AllGather;
        let send =
            |rank: usize| world.part(rank, CollectiveOperation::Send { peer: 1 - rank as u32 }, F32, 4);
        let take =
            |rank: usize| world.part(rank, CollectiveOperation::Receive { peer: 1 - rank as u32 }, F32, 4);
        world.driver.collectives_async(&[take(0)]).unwrap();
        world
            .driver
            .collectives_async(&[Collective { stream: side, ..world.part(0, gather, F32, 4) }])
            .unwrap();
        world.driver.event_record(event, side).unwrap();
        world.driver.stream_wait_event(world.streams[1], event).unwrap();
        world.driver.collectives_async(&[send(1)]).unwrap();
        (1..4).for_each(|rank| submit(&world, &[world.part(rank, gather, F32, 4)]));
        let text = loss(&world, Code::LaunchTimeout);
        assert!(
            text.contains("rank 0 waits in receive at ")
                && text.contains("for rank 1, whose call comes after that of rank 0"),
            "{text}"
        );
    }
}

#[test]
fn a_rank_that_never_comes_is_named_in_the_deadlock() {
    let world = controlled(Late::new(0));
    let part = world.part(0, SUM, F32, 4);
    world.driver.collectives_async(&[part]).unwrap();
    let error = world.driver.stream_synchronize(world.streams[0]).unwrap_err();
    assert_eq!(error.code(), Code::Timeout);
    let wanted = format!("rank 0 waits in {} for rank 1, which has not made this call", at(&part));
    assert!(error.to_string().contains(&wanted), "{error}");
    // The missing rank may still call.
    (1..4).for_each(|rank| world.driver.collectives_async(&[world.part(rank, SUM, F32, 4)]).unwrap());
    world.synchronize().unwrap();
}

#[test]
fn a_lost_device_takes_those_along_that_wait_for_it() {
    for world in [fast(), controlled(Late::new(2))] {
        let pair = world.driver.communicators_create(&[2, 3]).unwrap();
        world.driver.device_synchronize(0).unwrap();
        world.driver.inject(&[Fault::CommandFails { command: 0, by_hardware: true }]);
        let fill =
            Fill { target: world.send[1], pattern: FillPattern::U8(0), count: 4, label: Label::here("fill") };
        world.driver.fill_async(world.streams[1], &fill).unwrap();
        assert_eq!(code(world.driver.stream_synchronize(world.streams[1])), Code::EccUncorrectable);
        // A communicator without that rank still works.
        let part = |rank: usize| Collective {
            communicator: pair[rank],
            ..world.part(rank + 2, CollectiveOperation::AllGather, F32, 4)
        };
        world.driver.collectives_async(&[part(0), part(1)]).unwrap();
        world.driver.stream_synchronize(world.streams[3]).unwrap();

        let waits = world.part(2, SUM, F32, 4);
        world.driver.collectives_async(&[waits]).unwrap();
        let error = world.driver.stream_synchronize(world.streams[2]).unwrap_err();
        assert_eq!(error.code(), Code::LaunchTimeout);
        let wanted = format!("rank 2 waits in {} for rank 1, whose device 1 is lost", at(&waits));
        assert!(error.to_string().contains(&wanted), "{error}");
        assert_eq!(code(world.driver.stream_synchronize(world.streams[0])), Code::LaunchTimeout);
    }
}

#[test]
fn a_failing_collective_costs_all_its_devices() {
    let world = fast();
    world.synchronize().unwrap();
    world.driver.inject(&[Fault::CommandFails { command: 0, by_hardware: false }]);
    world.driver.collectives_async(&world.all(SUM, F32, 4)).unwrap();
    assert!(loss(&world, Code::LaunchFailed).contains("injected fault"));
}

// ---- Calls ------------------------------------------------------------------------------------------------------------

#[test]
fn wrong_calls_are_refused_and_queue_nothing() {
    let world = fast();
    let driver = &world.driver;
    assert_eq!(code(driver.communicators_create(&[])), Code::InvalidValue);
    assert_eq!(code(driver.communicators_create(&[0, 1, 0])), Code::InvalidValue);
    assert_eq!(code(driver.communicators_create(&[0, RANKS])), Code::InvalidDevice);
    let info = driver.communicator_info(world.communicator[2]).unwrap();
    assert_eq!((info.rank, info.ranks, info.device), (2, RANKS, 2));

    let good = world.all(SUM, F32, 4);
    let root = CollectiveOperation::Broadcast { root: RANKS };
    let peer = CollectiveOperation::Send { peer: RANKS };
    let wrong = [
        (Collective { stream: world.streams[0], ..good[1] }, "stream is one of device 0"),
        (Collective { operation: root, ..good[1] }, "no rank 4"),
        (Collective { operation: peer, ..good[1] }, "no rank 4"),
        (Collective { format: ElementFormat(77), ..good[1] }, "unknown format 77"),
        (Collective { count: u64::MAX, ..good[1] }, "no such size"),
        (Collective { count: BYTES, ..good[1] }, "leaves live memory"),
        (Collective { send: world.send[0], ..good[1] }, "enable_peer_access"),
    ];
    for (wrong, why) in wrong {
        let error = driver.collectives_async(&[good[0], wrong, good[2], good[3]]).unwrap_err();
        assert_eq!(error.code(), Code::InvalidValue, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    // Nothing of that was queued, or the first rank would be ahead.
    driver.collectives_async(&[]).unwrap();
    driver.collectives_async(&good).unwrap();
    world.synchronize().unwrap();

    driver.communicator_destroy(world.communicator[1]).unwrap();
    assert_eq!(code(driver.communicator_destroy(world.communicator[1])), Code::InvalidHandle);
    assert_eq!(code(driver.communicator_info(world.communicator[1])), Code::InvalidHandle);
    assert_eq!(code(driver.collectives_async(&good)), Code::InvalidHandle);
    driver.collectives_async(&good[..1]).unwrap();
    let error = driver.stream_synchronize(world.streams[0]).unwrap_err();
    assert!(error.to_string().contains("for rank 1, which has been given up"), "{error}");
}

#[test]
fn destroying_a_rank_waits_for_its_parts() {
    for world in [fast(), controlled(Late::new(0))] {
        world.write(0, world.send[0], &encode_all(F32, &[1.0; 4]));
        (1..4).for_each(|rank| world.write(rank, world.send[rank], &encode_all(F32, &[2.0; 4])));
        world.driver.collectives_async(&world.all(SUM, F32, 4)).unwrap();
        for &handle in &world.communicator {
            world.driver.communicator_destroy(handle).unwrap();
        }
        assert!(world.driver.stream_query(world.streams[3]).unwrap());
        assert_eq!(world.read(0, world.receive[0], 16), encode_all(F32, &[7.0; 4]));
    }
}

#[test]
fn a_graph_repeats_its_collectives() {
    for world in [fast(), controlled(Late::new(0)), controlled(Random::new(5))] {
        let driver = &world.driver;
        let events: Vec<_> =
            (0..RANKS).map(|device| driver.event_create(device, EventFlags::default()).unwrap()).collect();
        let origin = world.streams[0];
        driver.stream_begin_capture(origin, CaptureMode::Relaxed).unwrap();
        driver.event_record(events[0], origin).unwrap();
        world.streams[1..].iter().for_each(|&stream| driver.stream_wait_event(stream, events[0]).unwrap());
        let mut group = world.all(SUM, ElementFormat::R_32I, 4);
        group.iter_mut().for_each(|part| part.receive = part.send);
        driver.collectives_async(&group).unwrap();
        driver.collectives_async(&group).unwrap();
        for (&event, &stream) in events.iter().zip(&world.streams).skip(1) {
            driver.event_record(event, stream).unwrap();
            driver.stream_wait_event(origin, event).unwrap();
        }
        let graph = driver.stream_end_capture(origin).unwrap();
        let nodes = driver.graph_describe(graph).unwrap().nodes;
        assert_eq!(nodes.len(), 8);
        assert!(nodes.iter().all(|node| node.kind == GraphNodeKind::Library && node.label.is_some()));
        let exec = driver.graph_instantiate(graph, 0).unwrap();
        for rank in 0..RANKS as usize {
            world.write(rank, world.send[rank], &encode_all(ElementFormat::R_32I, &[1.0; 4]));
        }
        world.synchronize().unwrap();
        (0..3).for_each(|_| driver.graph_launch(exec, origin).unwrap());
        driver.stream_synchronize(origin).unwrap();
        let wanted = encode_all(ElementFormat::R_32I, &[4096.0; 4]);
        (0..4).for_each(|rank| assert_eq!(world.read(rank, world.send[rank], 16), wanted));
        driver.communicator_destroy(world.communicator[3]).unwrap();
        assert_eq!(code(driver.graph_launch(exec, origin)), Code::InvalidHandle);
    }
}

#[test]
fn the_fast_machine_waits_for_a_rank_that_comes_late() {
    let world = Arc::new(fast());
    let order = Arc::new(Mutex::new(Vec::new()));
    (1..4).for_each(|rank| world.driver.collectives_async(&[world.part(rank, SUM, F32, 4)]).unwrap());
    let late = {
        let (world, order) = (Arc::clone(&world), Arc::clone(&order));
        std::thread::spawn(move || {
            assert!(!world.driver.stream_query(world.streams[1]).unwrap());
            order.lock().push("came");
            world.driver.collectives_async(&[world.part(0, SUM, F32, 4)]).unwrap();
        })
    };
    world.driver.stream_synchronize(world.streams[1]).unwrap();
    order.lock().push("met");
    late.join().unwrap();
    assert_eq!(*order.lock(), ["came", "met"]);
}

#[test]
fn ranks_that_join_are_checked() {
    let driver = SimDriver::new(thalweg_conformance::ranks::config(3)).unwrap();
    let id = driver.communicator_id().unwrap();
    let first = driver.communicator_join(&id, 2, 0, 2).unwrap();
    let mut unknown = id;
    unknown.0[100] = 1;
    let cases = [
        (driver.communicator_join(&id, 1, 2, 2), "there is no rank 2"),
        (driver.communicator_join(&id, 1, 1, 3), "rank 1 joins a communicator of 3 ranks, others one of 2"),
        (driver.communicator_join(&id, 2, 1, 2), "device 2 is rank 0 already"),
        (driver.communicator_join(&id, 1, 0, 2), "rank 0 has joined before"),
        (driver.communicator_join(&unknown, 1, 1, 2), "gave this identifier"),
    ];
    for (result, wanted) in cases {
        let error = result.unwrap_err();
        assert_eq!(error.code(), Code::InvalidValue, "{error}");
        assert!(error.to_string().contains(wanted), "{error}");
    }
    driver.communicator_join(&id, 0, 1, 2).unwrap();
    assert_eq!(driver.communicator_info(first).unwrap().device, 2);
}

#[test]
fn a_collective_waits_for_a_rank_that_joins_late() {
    let world = fast();
    let id = world.driver.communicator_id().unwrap();
    world.write(0, world.send[0], &encode_all(F32, &[2.0]));
    world.write(1, world.send[1], &encode_all(F32, &[3.0]));
    let part = |rank: usize, communicator| Collective { communicator, ..world.part(rank, SUM, F32, 1) };
    let one = world.driver.communicator_join(&id, 0, 0, 2).unwrap();
    world.driver.collectives_async(&[part(0, one)]).unwrap();
    assert!(!world.driver.stream_query(world.streams[0]).unwrap());
    let other = world.driver.communicator_join(&id, 1, 1, 2).unwrap();
    world.driver.collectives_async(&[part(1, other)]).unwrap();
    assert_eq!(world.read(0, world.receive[0], 4), encode_all(F32, &[5.0]));
}

#[test]
fn an_abort_releases_those_who_wait_and_says_who_it_was() {
    for world in [fast(), controlled(Late::new(1)), controlled(Random::new(7))] {
        let first = world.part(1, SUM, F32, 4);
        world.driver.collectives_async(&world.all(SUM, F32, 4)).unwrap();
        world.synchronize().unwrap();
        let waits = world.part(0, SUM, F32, 4);
        world.driver.collectives_async(&[waits]).unwrap();
        world.driver.communicator_abort(world.communicator[1]).unwrap();
        let text = loss(&world, Code::LaunchTimeout);
        assert!(text.contains(&format!("rank 0 waits in {}", at(&waits))), "{text}");
        assert!(text.contains("for rank 1, which has aborted the communicator after all_reduce"), "{text}");
        let error = world.driver.collectives_async(&[first]).unwrap_err();
        assert_ne!(error.code(), Code::InvalidValue, "{error}");
    }
}

#[test]
fn ranks_that_split_differently_are_named() {
    let world = fast();
    let split = |rank: usize, part: &[u32]| world.driver.communicator_split(world.communicator[rank], part);
    let first = split(0, &[0, 1]).unwrap().expect("a rank of the part");
    // A rank's part binds the ranks in it, and later ranks that name that rank in another part.
    for (rank, part) in [(1, &[1][..]), (1, &[]), (1, &[1, 0]), (2, &[2, 0])] {
        let error = split(rank, part).unwrap_err();
        assert_eq!(error.code(), Code::InvalidValue);
        let wanted = format!("rank {rank} {part:?}, rank 0 [0, 1]");
        assert!(error.detail().contains(&wanted), "{error}, not {wanted}");
    }
    let others = [split(1, &[0, 1]), split(2, &[2]), split(3, &[])].map(Result::unwrap);
    assert_eq!(others.map(|other| other.is_some()), [true, true, false]);
    // The next split is independent.
    assert_eq!(world.driver.communicator_info(split(3, &[3, 0]).unwrap().unwrap()).unwrap().ranks, 2);
    // A part works once all of its ranks have called, whether the others have or not.
    let mut parts = [world.part(0, SUM, F32, 1), world.part(1, SUM, F32, 1)];
    for (rank, (part, communicator)) in parts.iter_mut().zip([first, others[0].unwrap()]).enumerate() {
        part.communicator = communicator;
        world.write(rank, world.send[rank], &(rank as f32 + 1.0).to_le_bytes());
    }
    world.driver.collectives_async(&parts).unwrap();
    assert_eq!(world.read(1, world.receive[1], 4), 3.0_f32.to_le_bytes());
}

#[test]
fn registered_memory_is_not_freed() {
    let world = fast();
    let driver = &world.driver;
    let pointer = driver.memory_allocate_collective(1, 4096).unwrap();
    let label = Label::here("register_mem_pool");
    let registration = Registration {
        communicator: world.communicator[1],
        pointer: pointer.offset(1024),
        bytes: 512,
        symmetric: false,
        label,
    };
    driver.memory_register(&registration).unwrap();
    let error = driver.memory_free(pointer).unwrap_err();
    assert_eq!(error.code(), Code::IllegalState);
    let label = label.to_string();
    for wanted in [&format!("{:#x}", pointer.address()), "512 bytes", "rank 1 of a communicator", &label] {
        assert!(error.detail().contains(wanted), "no {wanted} in {error}");
    }
    let elsewhere = Registration { communicator: world.communicator[0], ..registration };
    assert_eq!(driver.memory_register(&elsewhere).map_err(|error| error.code()), Err(Code::InvalidValue));
    // A destroyed rank has nothing registered.
    driver.communicator_destroy(world.communicator[1]).unwrap();
    driver.memory_free(pointer).unwrap();
}

#[test]
fn ranks_register_as_much_symmetric_memory() {
    let world = fast();
    let driver = &world.driver;
    let label = Label::here("register_mem_pool");
    let registration = |rank: usize, bytes: u64| Registration {
        communicator: world.communicator[rank],
        pointer: driver.memory_allocate_collective(rank as u32, 4096).unwrap(),
        bytes,
        symmetric: true,
        label,
    };
    // No rank waits, whichever calls first.
    driver.memory_register(&registration(0, 4096)).unwrap();
    driver.memory_register(&registration(0, 2048)).unwrap();
    driver.memory_register(&registration(1, 4096)).unwrap();
    let error = driver.memory_register(&registration(1, 4096)).unwrap_err();
    assert_eq!(error.code(), Code::InvalidValue);
    for wanted in ["rank 1 registers 4096 bytes of symmetric memory, rank 0 2048", &label.to_string()] {
        assert!(error.detail().contains(wanted), "no {wanted} in {error}");
    }
    driver.memory_register(&registration(1, 2048)).unwrap();
}
