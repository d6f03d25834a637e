//! Machines on which links between ranks take time, or stop.

use std::time::Duration;

use thalweg_conformance::ranks::{RANKS, World, config, controlled, encode_all, expected, fast, values};
use thalweg_driver::{Code, Collective, CollectiveOperation, Driver, ElementFormat, EventFlags, Reduction};
use thalweg_sim::schedules::{Late, Random, RoundRobin};
use thalweg_sim::{Fault, Link, SimDriver};

const F32: ElementFormat = ElementFormat::R_32F;
const SUM: CollectiveOperation = CollectiveOperation::AllReduce(Reduction::Sum);

/// Longer than any test.
const FOR_EVER: Link = Link::Timed { latency: Duration::from_secs(1 << 20), bytes_per_second: 1 };

const SHORT: Link = Link::Timed { latency: Duration::from_millis(2), bytes_per_second: 1 << 20 };

/// Returns a message of four elements.
fn message(world: &World<SimDriver>, from: u32, to: u32) -> [Collective; 2] {
    [
        world.part(from as usize, CollectiveOperation::Send { peer: to }, F32, 4),
        world.part(to as usize, CollectiveOperation::Receive { peer: from }, F32, 4),
    ]
}

/// Writes numbers to the memory of all ranks, sums them by a collective, and returns the sums.
fn sums_over_ranks(world: &World<SimDriver>) -> Vec<u8> {
    let inputs: Vec<Vec<f64>> = (0..RANKS).map(|rank| values(rank, 4, 3)).collect();
    for (rank, input) in inputs.iter().enumerate() {
        world.write(rank, world.send[rank], &encode_all(F32, input));
    }
    encode_all(F32, expected(SUM, &inputs)[0].as_ref().unwrap())
}

fn has_sums(world: &World<SimDriver>, wanted: &[u8]) {
    for rank in 0..RANKS as usize {
        assert_eq!(world.read(rank, world.receive[rank], wanted.len()), wanted, "rank {rank}");
    }
}

#[test]
fn only_what_goes_over_a_slow_link_waits_for_it() {
    let world = fast();
    world.driver.set_link([1, 0], FOR_EVER).unwrap();
    let event = world.driver.event_create(1, EventFlags::default()).unwrap();
    world.driver.collectives_async(&message(&world, 0, 1)).unwrap();
    world.driver.event_record(event, world.streams[1]).unwrap();
    // In the other direction of the ring.
    world.driver.collectives_async(&message(&world, 2, 3)).unwrap();
    world.driver.stream_synchronize(world.streams[3]).unwrap();
    assert!(!world.driver.event_query(event).unwrap());
}

#[test]
fn what_is_slow_comes_in_the_end() {
    let world = fast();
    for pair in [[0, 1], [2, 1], [3, 0]] {
        world.driver.set_link(pair, SHORT).unwrap();
    }
    for _ in 0..3 {
        let wanted = sums_over_ranks(&world);
        world.driver.collectives_async(&world.all(SUM, F32, 4)).unwrap();
        has_sums(&world, &wanted);
    }
    world.driver.collectives_async(&message(&world, 0, 1)).unwrap();
    world.synchronize().unwrap();
}

#[test]
fn a_stall_lasts_until_the_link_is_set_anew() {
    for world in [fast(), controlled(Late::new(1)), controlled(Random::new(5))] {
        let wanted = sums_over_ranks(&world);
        // This link is not on the ring of four.
        world.driver.set_link([0, 2], Link::Stalled).unwrap();
        world.driver.collectives_async(&world.all(SUM, F32, 4)).unwrap();
        has_sums(&world, &wanted);
        world.driver.set_link([3, 2], Link::Stalled).unwrap();
        let wanted = sums_over_ranks(&world);
        let event = world.driver.event_create(0, EventFlags::default()).unwrap();
        world.driver.collectives_async(&world.all(SUM, F32, 4)).unwrap();
        world.driver.event_record(event, world.streams[0]).unwrap();
        for _ in 0..3 {
            assert!(!world.driver.event_query(event).unwrap());
        }
        world.driver.set_link([2, 3], Link::Instant).unwrap();
        has_sums(&world, &wanted);
    }
}

#[test]
fn who_gives_up_says_which_link_stalls() {
    let world = fast();
    world.driver.set_link([1, 2], Link::Stalled).unwrap();
    world.driver.collectives_async(&world.all(SUM, F32, 4)).unwrap();
    world.driver.communicator_abort(world.communicator[0]).unwrap();
    let error = world.driver.stream_synchronize(world.streams[3]).unwrap_err();
    assert_eq!(error.code(), Code::LaunchTimeout);
    let text = error.to_string();
    assert!(text.contains("the link between rank 1 and rank 2 (devices 1 and 2) has stalled"), "{text}");
}

#[test]
fn a_planned_stall_is_a_deadlock_with_its_ranks() {
    for (link, ranks) in [(0, [0, 1]), (3, [3, 0]), (6, [2, 3])] {
        for world in [controlled(Late::new(1)), controlled(RoundRobin::new(2)), controlled(Random::new(3))] {
            world.driver.inject(&[Fault::LinkStalls { collective: 2, link }]);
            for _ in 0..2 {
                world.driver.collectives_async(&world.all(SUM, F32, 4)).unwrap();
                world.synchronize().unwrap();
            }
            assert_eq!(world.driver.faults_struck(), 0);
            world.driver.collectives_async(&world.all(SUM, F32, 4)).unwrap();
            let text = world.synchronize().unwrap_err().to_string();
            let [one, other] = ranks;
            assert!(text.contains("All ranks wait in"), "{text}");
            assert!(text.contains(&format!("the link between rank {one} and rank {other}")), "{text}");
            assert_eq!(world.driver.faults_struck(), 1);
        }
    }
    assert_eq!(Fault::LinkStalls { collective: 2, link: 1 }.to_string(), "link 1 of collective 2 stalls");
}

#[test]
fn links_are_between_two_devices() {
    let driver = SimDriver::new(config(2)).unwrap();
    for pair in [[0, 0], [0, 2], [7, 1]] {
        let error = driver.set_link(pair, Link::Stalled).unwrap_err();
        assert_eq!(error.code(), Code::InvalidValue);
        assert!(error.detail().contains("name two of them"), "{error}");
    }
}
