//! Machines on which links between ranks are slow or stop.

use std::sync::Arc;
use std::time::Duration;

use thalweg_dist::ReduceOp::Sum;
use thalweg_dist::{
    DataParallelOptions, DistributedDataParallel, GroupOptions, ProcessGroup, run_ranks, run_ranks_with,
};
use thalweg_nn::module::{Forward, Linear, Module};
use thalweg_runtime::sim::Check;
use thalweg_runtime::{Device, Environment, Result};
use thalweg_sim::{Link, SimConfig, SimDriver};
use thalweg_tensor::random::Generator;

use crate::support::{batch, descend, empty, find, loss, parameter_values};

fn machine(devices: u32) -> (Arc<SimDriver>, Vec<Device>) {
    let config = SimConfig { devices, memory_bytes: 64 << 20, ..SimConfig::default() };
    let driver = SimDriver::new(config).unwrap();
    (driver.clone(), Device::all_of(driver, &Environment::default()).unwrap())
}

/// Runs a call of three ranks over a link that stalls, and returns for each rank the reason why the group failed, and its
/// device's error.
fn stalled(call: fn(&ProcessGroup) -> Result<()>) -> Vec<[String; 2]> {
    let (driver, devices) = machine(3);
    let options =
        GroupOptions { timeout: Duration::from_millis(300), watchdog: Some(true), ..GroupOptions::default() };
    let all_know = std::sync::Barrier::new(3);
    run_ranks_with(&devices, &options, |group| {
        group.barrier()?;
        driver.set_link([1, 2], Link::Stalled)?;
        // Where it has a part in the call, it learns so there.
        let _ = call(&group);
        let begin = std::time::Instant::now();
        let why = loop {
            match group.check() {
                Err(error) => break error.to_string(),
                Ok(()) if begin.elapsed() > Duration::from_secs(20) => panic!("no rank learns of it"),
                Ok(()) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        all_know.wait();
        let device = group.device().synchronize().err().map(|error| error.to_string()).unwrap_or_default();
        Ok([why, device])
    })
    .unwrap()
}

#[test]
fn a_message_over_a_stalled_link_names_its_ranks() {
    let messages = stalled(|group| {
        let x = empty(group, 4)?;
        match group.rank() {
            1 => group.send(&x, 2)?.synchronize(),
            2 => group.recv(&x, 1)?.synchronize(),
            _ => Ok(()),
        }
    });
    for [why, _] in messages {
        assert!(why.contains("watchdog caught collective operation timeout: rank"), "{why}");
        assert!(why.contains("rank 1 to rank 2)"), "{why}");
    }
}

#[test]
fn a_collective_over_a_stalled_link_names_its_ranks() {
    let messages = stalled(|group| group.all_reduce(&empty(group, 4)?, Sum)?.synchronize());
    for [why, device] in messages {
        assert!(why.contains("watchdog caught collective operation timeout: rank"), "{why}");
        assert!(why.contains("all ranks have made the call, and a device or a link between them"), "{why}");
        assert!(
            device.contains("the link between rank 1 and rank 2 (devices 1 and 2) has stalled"),
            "{device}"
        );
    }
}

fn trained(group: &ProcessGroup) -> Result<Vec<f32>> {
    let linear = Linear::new(6, 3, &mut Generator::new(7), group.device())?;
    let network = DistributedDataParallel::new(linear, group, DataParallelOptions::default())?;
    for step in 0..4 {
        let (input, target) = batch(group.rank(), group.size(), step, group.device())?;
        loss(&network.forward(&input)?, &target)?.backward()?;
        descend(&network.parameters())?;
    }
    parameter_values(&network.parameters())
}

#[test]
fn slow_links_change_no_value() {
    let wanted = run_ranks(&machine(3).1, |group| trained(&group)).unwrap();
    for pairs in [vec![[0, 1]], vec![[0, 1], [1, 2], [2, 0]]] {
        let (driver, devices) = machine(3);
        for (latency, pair) in (1..).zip(pairs) {
            let latency = Duration::from_micros(300 * latency);
            driver.set_link(pair, Link::Timed { latency, bytes_per_second: 1 << 20 }).unwrap();
        }
        assert_eq!(run_ranks(&devices, |group| trained(&group)).unwrap(), wanted);
    }
}

fn hangs(group: &ProcessGroup, _: u64) -> Result<()> {
    let x = empty(group, 4)?;
    (0..4).try_for_each(|_| group.all_reduce(&x, Sum)?.wait())?;
    x.to_vec::<f32>().map(drop)
}

/// A program that waits without a limit is found, with the ranks of the link.
#[test]
fn an_adversary_may_stall_a_link() {
    let check = || Check::new().seeds(0..100).quarantine(false);
    find(check(), 2, hangs).expect("no link stalls");
    let failure = find(check().with_stalled_links(), 2, hangs).expect_err("a link stalls").to_string();
    assert!(failure.contains("All ranks wait in all_reduce at"), "{failure}");
    assert!(
        failure.contains("the link between rank 0 and rank 1 (devices 0 and 1) has stalled"),
        "{failure}"
    );
    assert!(failure.contains("links.rs:"), "{failure}");
}
