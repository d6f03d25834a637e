//! The end of a process while a watchdog aborts.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use thalweg_dist::store::HashStore;
use thalweg_dist::{GroupOptions, ProcessGroup, ReduceOp};
use thalweg_driver::{CommunicatorHandle, Driver, Version};
use thalweg_runtime::{Device, Environment};
use thalweg_sim::{SimConfig, SimDriver};

use crate::support::empty;

/// The variable by which the test tells its own binary that it is the program.
const CHILD: &str = "THALWEG_TEST_EXIT_PROCESS";

/// A simulated machine on which an abort takes its time.
#[derive(Debug)]
struct SlowAbort(Arc<SimDriver>);

impl Driver for SlowAbort {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn inner(&self) -> Option<&dyn Driver> {
        Some(&*self.0)
    }

    fn version(&self) -> Version {
        self.0.version()
    }

    fn device_count(&self) -> u32 {
        self.0.device_count()
    }

    fn communicator_abort(&self, communicator: CommunicatorHandle) -> thalweg_driver::Result<()> {
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

fn child() {
    let driver = SlowAbort(SimDriver::new(SimConfig { devices: 2, ..SimConfig::default() }).unwrap());
    let devices = Device::all_of(Arc::new(driver), Environment::get()).unwrap();
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
