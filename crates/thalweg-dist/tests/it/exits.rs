//! The exit of a process while a watchdog aborts its collectives, and collectives that find that a rank has ended.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use thalweg_dist::store::{HashStore, Store};
use thalweg_dist::{GroupOptions, ProcessGroup, ReduceOp};
use thalweg_driver::{Code, Collective, CommunicatorHandle, Driver};
use thalweg_runtime::{Device, Environment};
use thalweg_sim::{SimConfig, SimDriver};

use crate::support::empty;

/// The environment variable by which the test runs its own binary as the program.
const CHILD: &str = "THALWEG_TEST_EXIT_PROCESS";

/// The fault of a simulated machine.
#[derive(PartialEq, Debug)]
enum Fault {
    /// An abort takes a long time.
    SlowAbort,
    /// A collective finds that a rank has ended.
    LostRank,
}

/// A simulated machine with a fault.
#[derive(Debug)]
struct Faulty(Arc<SimDriver>, Fault);

impl Driver for Faulty {
    thalweg_driver::wraps!(0);

    fn collectives_async(&self, group: &[Collective]) -> thalweg_driver::Result<()> {
        match self.1 {
            Fault::LostRank => Err(thalweg_driver::Error::new(
                Code::CommunicatorFailed,
                "ncclGroupEnd",
                "remote process exited or there was a network error (6)",
            )),
            Fault::SlowAbort => self.0.collectives_async(group),
        }
    }

    fn communicator_abort(&self, communicator: CommunicatorHandle) -> thalweg_driver::Result<()> {
        if self.1 != Fault::SlowAbort {
            return self.0.communicator_abort(communicator);
        }
        eprintln!("the abort begins");
        std::thread::sleep(Duration::from_millis(400));
        let aborted = self.0.communicator_abort(communicator);
        eprintln!("the abort ends");
        aborted
    }
}

#[test]
fn the_end_of_a_process_waits_for_an_abort() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "exits::the_end_of_a_process_waits_for_an_abort", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(7), "{text}");
    let [begins, exits, ends] =
        ["the abort begins", "exit is called", "the abort ends"].map(|line| text.find(line));
    assert!(begins.is_some() && begins < exits && exits < ends, "{text}");
}

fn devices(fault: Fault) -> Vec<Device> {
    let machine = SimDriver::new(SimConfig { devices: 2, ..SimConfig::default() }).unwrap();
    Device::all_of(Arc::new(Faulty(machine, fault)), Environment::get()).unwrap()
}

fn child() {
    let devices = devices(Fault::SlowAbort);
    let store = Arc::new(HashStore::new());
    let group = |rank: u32, watchdog: bool| {
        let options = GroupOptions {
            timeout: Duration::from_millis(100),
            watchdog: Some(watchdog),
            ..GroupOptions::default()
        };
        ProcessGroup::new(store.clone(), rank, 2, &devices[rank as usize], options).unwrap()
    };
    std::thread::scope(|scope| {
        let silent = scope.spawn(|| group(1, false));
        let group = group(0, true);
        let _silent = silent.join().unwrap();
        let _work = group.all_reduce(&empty(&group, 4).unwrap(), ReduceOp::Sum).unwrap();
        while group.check().is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(50));
        eprintln!("exit is called");
        std::process::exit(7);
    });
}

#[test]
fn a_collective_that_finds_a_rank_gone_says_which_and_ends_the_group() {
    let devices = devices(Fault::LostRank);
    let store = Arc::new(HashStore::new());
    let group = |rank: u32| {
        ProcessGroup::new(store.clone(), rank, 2, &devices[rank as usize], GroupOptions::default()).unwrap()
    };
    let (left, _gone) = std::thread::scope(|scope| {
        let gone = scope.spawn(|| group(1));
        (group(0), gone.join().unwrap())
    });
    let x = empty(&left, 4).unwrap();
    let error = left.all_reduce(&x, ReduceOp::Sum).unwrap_err();
    assert!(error.is_distributed(), "{error}");
    let wanted = [
        "rank 0 of the group \"world\" lost another rank in all_reduce at",
        "remote process exited",
        "Rank 1 has made 0 of 1 calls; its last is none.",
        "The last calls of this rank:\n  call 1 is all_reduce at",
    ];
    for text in wanted {
        assert!(error.to_string().contains(text), "no \"{text}\" in {error}");
    }
    assert!(left.check().is_err());
    let reported = String::from_utf8(store.get("group/world/failed").unwrap()).unwrap();
    assert!(reported.contains("rank 0 of the group \"world\" lost another rank"), "{reported}");
}
