//! The current device and the current stream.

use std::panic::{AssertUnwindSafe, catch_unwind};

use thalweg_runtime::{Device, Stream};

use crate::support::{device, sim};

#[test]
fn the_default_stream_is_current_at_first() {
    let device = device();
    assert!(Stream::current(&device).is_default());
    assert_eq!(device.current_stream(), device.default_stream());
    assert_eq!(device.default_stream().priority(), 0);
}

#[test]
fn guards_nest_and_restore() {
    let device = device();
    let [outer, inner] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let outer_guard = outer.make_current();
    assert_eq!(Stream::current(&device), outer);
    {
        let _inner_guard = inner.make_current();
        assert_eq!(Stream::current(&device), inner);
        let _again = outer.make_current();
        assert_eq!(Stream::current(&device), outer);
    }
    assert_eq!(Stream::current(&device), outer);
    drop(outer_guard);
    assert!(Stream::current(&device).is_default());
}

#[test]
fn a_panic_restores_what_was_current() {
    let devices = sim(2);
    let stream = Stream::new(&devices[0]).unwrap();
    let _device = devices[1].make_current();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _stream = stream.make_current();
        let _default = devices[0].default_stream().make_current();
        panic!("inside the guards");
    }));
    assert!(unwound.is_err());
    assert!(Stream::current(&devices[0]).is_default());
    assert_eq!(Device::current().unwrap(), devices[1]);
}

#[test]
fn each_device_has_its_own_current_stream() {
    let devices = sim(2);
    let [first, second] = [0, 1].map(|index: usize| Stream::new(&devices[index]).unwrap());
    let _first = first.make_current();
    assert!(Stream::current(&devices[1]).is_default());
    let _second = second.make_current();
    assert_eq!(Stream::current(&devices[0]), first);
    assert_eq!(Stream::current(&devices[1]), second);
}

#[test]
fn making_a_stream_current_switches_the_device_too() {
    let devices = sim(2);
    let stream = Stream::new(&devices[1]).unwrap();
    let _outer = devices[0].make_current();
    {
        let _guard = stream.make_current();
        assert_eq!(Device::current().unwrap(), devices[1]);
        let _back = devices[0].make_current();
        assert_eq!(Device::current().unwrap(), devices[0]);
    }
    assert_eq!(Device::current().unwrap(), devices[0]);
}

#[test]
fn what_is_current_belongs_to_the_thread() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let _guard = stream.make_current();
    let device = &*device;
    let elsewhere =
        std::thread::scope(|scope| scope.spawn(|| Stream::current(device).is_default()).join().unwrap());
    assert!(elsewhere);
    assert_eq!(Stream::current(device), stream);
}
