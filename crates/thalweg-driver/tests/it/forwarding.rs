//! Drivers around another driver: calls that they do not implement are forwarded to it.

use thalweg_driver::{
    Code, CommunicatorHandle, CommunicatorId, DevicePointer, Driver, EventHandle, PhysicalHandle, Result,
    StreamHandle, Version,
};
use thalweg_lock::Mutex;

/// A driver that implements four calls, and keeps the arguments of each.
#[derive(Default, Debug)]
struct Noting(Mutex<Vec<String>>);

impl Noting {
    fn note<T>(&self, arguments: String, answer: T) -> Result<T> {
        self.0.lock().push(arguments);
        Ok(answer)
    }
}

impl Driver for Noting {
    fn name(&self) -> &'static str {
        "noting"
    }

    fn version(&self) -> Version {
        Version { major: 12, minor: 4 }
    }

    fn device_count(&self) -> u32 {
        3
    }

    fn can_access_peer(&self, device: u32, peer: u32) -> Result<bool> {
        self.note(format!("can_access_peer {device} {peer}"), true)
    }

    fn event_elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        self.note(format!("event_elapsed_ms {} {}", start.raw(), end.raw()), 2.5)
    }

    fn memory_map(
        &self,
        pointer: DevicePointer,
        bytes: u64,
        physical: PhysicalHandle,
        offset: u64,
    ) -> Result<()> {
        self.note(format!("memory_map {} {bytes} {} {offset}", pointer.address(), physical.raw()), ())
    }

    fn communicator_join(
        &self,
        _: &CommunicatorId,
        device: u32,
        rank: u32,
        ranks: u32,
    ) -> Result<CommunicatorHandle> {
        let answer = CommunicatorHandle::from_raw(9);
        self.note(format!("communicator_join {device} {rank} {ranks}"), answer)
    }
}

#[derive(Debug)]
struct Around {
    noting: Box<Noting>,
}

impl Driver for Around {
    thalweg_driver::wraps!(noting);
}

#[derive(Debug)]
struct Renamed(Box<dyn Driver>);

impl Driver for Renamed {
    thalweg_driver::wraps!(0, own name);

    fn name(&self) -> &'static str {
        "renamed"
    }

    fn can_access_peer(&self, device: u32, peer: u32) -> Result<bool> {
        self.0.can_access_peer(device, peer).map(|answer| !answer)
    }
}

#[test]
fn calls_reach_the_inner_driver_with_their_arguments_in_order() {
    let around = Around { noting: Box::default() };
    assert!(around.can_access_peer(1, 2).unwrap());
    assert_eq!(around.event_elapsed_ms(EventHandle::from_raw(3), EventHandle::from_raw(4)).unwrap(), 2.5);
    around.memory_map(DevicePointer::new(5), 6, PhysicalHandle::from_raw(7), 8).unwrap();
    let joined = around.communicator_join(&CommunicatorId([0; 128]), 1, 2, 3).unwrap();
    assert_eq!(joined.raw(), 9);
    let expected =
        ["can_access_peer 1 2", "event_elapsed_ms 3 4", "memory_map 5 6 7 8", "communicator_join 1 2 3"];
    assert_eq!(*around.noting.0.lock(), expected);
}

#[test]
fn a_driver_around_another_answers_for_it() {
    let around = Around { noting: Box::default() };
    assert_eq!((around.name(), around.device_count()), ("noting", 3));
    assert_eq!(around.version(), Version { major: 12, minor: 4 });
    assert_eq!(around.inner().map(Driver::name), Some("noting"));
    let twice = Renamed(Box::new(around));
    assert_eq!((twice.name(), twice.device_count()), ("renamed", 3));
    assert!(!twice.can_access_peer(0, 1).unwrap(), "its own implementation comes first");
}

#[test]
fn a_call_that_no_driver_implements_is_an_error_that_names_it() {
    let twice = Renamed(Box::new(Around { noting: Box::default() }));
    let stream = StreamHandle::from_raw(1);
    let failures = [
        ("device_properties", twice.device_properties(0).map(drop)),
        ("stream_synchronize", twice.stream_synchronize(stream)),
        ("memory_allocate", twice.memory_allocate(0, 256).map(drop)),
        ("collectives_async", twice.collectives_async(&[])),
        ("stream_end_capture", twice.stream_end_capture(stream).map(drop)),
        ("activity_tracer", twice.activity_tracer().map(drop)),
    ];
    for (call, outcome) in failures {
        let error = outcome.unwrap_err();
        assert_eq!(error.code(), Code::NotSupported);
        assert!(error.to_string().contains(call), "{error}");
    }
}
