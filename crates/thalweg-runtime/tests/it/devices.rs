//! Devices by name and number, and the messages of their errors.

use thalweg_driver::FillPattern;
use thalweg_memory::Settings;
use thalweg_runtime::{Buffer, Device, Environment, Label, Result, Stream};

use crate::kernels::launch_sum;
use crate::support::{buffer_of, sim, sim_in};

#[test]
fn names_that_are_none_say_what_to_write() {
    for (name, words) in [
        ("gpu", "unknown kind 'gpu'"),
        ("", "unknown kind ''"),
        ("sim:", "'' is not a device number"),
        ("sim:one", "'one' is not a device number"),
        ("sim:-1", "'-1' is not a device number"),
        ("sim:0:0", "'0:0' is not a device number"),
    ] {
        let error = Device::from_name(name).unwrap_err();
        assert!(error.is_invalid_argument(), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("'{name}'")) && text.contains(words), "{text}");
        assert!(text.contains("`cuda:0`, `sim:0` or `meta`"), "{text}");
    }
}

#[test]
fn a_number_that_is_too_large_says_which_devices_there_are() {
    let error = Device::from_name("sim:4000").unwrap_err();
    assert!(error.is_invalid_argument());
    assert!(error.to_string().starts_with("there is no device sim:4000; there is sim:0"), "{error}");
    assert_eq!(Device::from_name("sim").unwrap(), Device::sim(0).unwrap());
    assert_eq!(Device::from_name("sim:0").unwrap().to_string(), "sim:0");
}

#[test]
fn a_machine_without_a_driver_says_where_it_was_looked_for() {
    match Device::cuda(0) {
        Ok(device) => {
            assert!(thalweg_runtime::is_available());
            println!("skipped: this machine has {:?}", device.properties().name);
        }
        Err(error) => {
            assert!(!thalweg_runtime::is_available());
            if error.is_library_missing() {
                assert!(error.to_string().contains("libcuda.so"), "{error}");
            }
        }
    }
}

#[test]
fn devices_of_two_machines_are_different() {
    let (first, second) = (sim(2), sim(1));
    assert_ne!(first[0], second[0]);
    assert_ne!(first[0], first[1]);
    assert_eq!(first[0], first[0].clone());
    assert_eq!((first[1].index(), first[1].to_string()), (1, "sim:1".to_owned()));
    assert!(first[0].is_simulated());
}

const CHILD: &str = "THALWEG_TEST_CHILD_WITH_MISTAKES";

/// The other process of the test below; without the variable it does nothing.
#[test]
fn child_process_with_mistakes() {
    if std::env::var_os(CHILD).is_some() {
        let error = Device::sim(0).unwrap_err();
        assert!(
            error.is_invalid_argument() && error.to_string().contains("THALWEG_SIM_DEVICES=two"),
            "{error}"
        );
    }
}

#[test]
fn mistakes_in_the_environment_are_errors() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["devices::child_process_with_mistakes", "--exact"])
        .env(CHILD, "1")
        .env("THALWEG_SIM_DEVICES", "two")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && output.contains("1 passed"), "{output}");
}

/// Launches a kernel on the second device that reads memory of the first.
fn read_from_afar(devices: &[Device], buffer: &Buffer) -> Result<()> {
    let there = Stream::new(&devices[1])?;
    let sum = Buffer::new(&there, 8)?;
    launch_sum(&there, &[buffer.pointer()], sum.pointer(), 2)?;
    there.synchronize()
}

#[test]
fn a_peer_may_touch_what_is_mapped_now_and_later() {
    for expandable_segments in [false, true] {
        let allocator = Settings::default().with_expandable_segments(expandable_segments);
        let environment = Environment { allocator, ..Environment::default() };
        let (_, devices) = sim_in(&environment, 2);
        let here = Stream::new(&devices[0]).unwrap();
        let early = buffer_of(&here, &[1.0, 2.0]);
        devices[0].enable_peer_access(&devices[1]).unwrap();
        devices[0].enable_peer_access(&devices[1]).unwrap();
        let late = Buffer::new(&here, 8 << 20).unwrap();
        here.fill(late.pointer(), FillPattern::U8(0), 8, Label::here("fill")).unwrap();
        here.synchronize().unwrap();
        read_from_afar(&devices, &early).unwrap();
        read_from_afar(&devices, &late).unwrap();
        let (_, strangers) = sim_in(&environment, 2);
        let closed = buffer_of(&Stream::new(&strangers[0]).unwrap(), &[1.0, 2.0]);
        strangers[0].synchronize().unwrap();
        assert!(read_from_afar(&strangers, &closed).is_err(), "without it they may not");
    }
}
