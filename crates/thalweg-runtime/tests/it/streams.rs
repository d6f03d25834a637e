//! The pool of streams, streams made elsewhere, and order between streams.

use thalweg_driver::{Code, Driver, FillPattern};
use thalweg_runtime::{Buffer, Device, Environment, Label, STREAMS_PER_PRIORITY, Stream};

use crate::support::{Gate, buffer_of, device, pinned_of, read, read_pinned, sim, sim_in};

#[test]
fn the_pool_has_32_streams_a_priority_and_hands_them_out_in_turn() {
    let device = device();
    // On a GPU other tests have taken some already: the position in the pool does not matter.
    let streams: Vec<_> = (0..2 * STREAMS_PER_PRIORITY).map(|_| Stream::new(&device).unwrap()).collect();
    for (index, stream) in streams.iter().enumerate().skip(STREAMS_PER_PRIORITY) {
        assert_eq!(*stream, streams[index - STREAMS_PER_PRIORITY]);
    }
    for (index, stream) in streams[..STREAMS_PER_PRIORITY].iter().enumerate() {
        assert!(!streams[..index].contains(stream) && !stream.is_default(), "{stream:?}");
    }
    let urgent = Stream::with_priority(&device, -1).unwrap();
    assert!(!streams.contains(&urgent), "each priority has streams of its own");
}

#[test]
fn priorities_are_clamped_to_the_devices_range() {
    let device = device();
    let (least, greatest) = device.properties().stream_priority_range;
    assert!(greatest < least, "the most urgent priority is the smallest number");
    for (asked, given) in [(0, 0), (i32::MAX, least), (i32::MIN, greatest), (greatest, greatest), (7, least)]
    {
        let stream = Stream::with_priority(&device, asked).unwrap();
        assert_eq!(stream.priority(), given, "{asked}");
        assert_eq!(device.driver().stream_priority(stream.handle()).unwrap(), given, "{asked}");
    }
    // A clamped priority uses the same pool.
    let ring: Vec<_> =
        (0..STREAMS_PER_PRIORITY).map(|_| Stream::with_priority(&device, greatest).unwrap()).collect();
    assert!(ring.contains(&Stream::with_priority(&device, i32::MIN).unwrap()));
}

#[test]
fn guards_are_dropped_in_any_order() {
    let (device, other) = (device(), sim(1).remove(0));
    let [one, two, three] = [(); 3].map(|()| Stream::new(&device).unwrap());
    let elsewhere = Stream::new(&other).unwrap();
    let guards = [one.make_current(), two.make_current(), elsewhere.make_current(), three.make_current()];
    let [first, second, third, fourth] = guards;
    drop(second);
    assert_eq!((device.current_stream(), other.current_stream()), (three.clone(), elsewhere));
    drop(fourth);
    assert_eq!((device.current_stream(), Device::current().unwrap()), (one, other.clone()));
    drop(first);
    assert!(device.current_stream().is_default() && Device::current().unwrap() == other);
    drop(third);
    assert!(other.current_stream().is_default());
    // More guards than fit inline, and none remains.
    let many: Vec<_> = (0..40).map(|_| two.make_current()).collect();
    many.into_iter().for_each(drop);
    assert!(device.current_stream().is_default());
}

#[test]
fn wait_stream_orders_work_that_conflicts() {
    let device = device();
    let [producer, consumer] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let data = buffer_of(&producer, &[1.0; 64]);
    let result = pinned_of(&device, &[0.0; 64]);
    let gate = Gate::close(&producer);
    let seven = FillPattern::U32(7.0_f32.to_bits());
    producer.fill(data.pointer(), seven, 64, Label::here("fill")).unwrap();
    consumer.wait_stream(&producer).unwrap();
    consumer.copy_to_pinned(&result, 0, data.pointer(), 256, Label::here("copy")).unwrap();
    assert!(!consumer.query().unwrap(), "it waits for the producer, which the gate holds up");
    gate.open();
    consumer.synchronize().unwrap();
    assert_eq!(read_pinned(&result), [7.0; 64]);
    assert!(consumer.query().unwrap());
}

#[test]
fn wait_event_waits_for_the_record_and_for_nothing_later() {
    let device = device();
    let [producer, consumer] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let event = producer.record_event().unwrap();
    let _gate = Gate::close(&producer);
    consumer.wait_event(&event).unwrap();
    consumer.synchronize().unwrap();
    assert!(!producer.query().unwrap());
}

#[test]
fn streams_of_two_devices_wait_for_each_other() {
    let devices = sim(2);
    let [producer, consumer] = [0, 1].map(|index: usize| Stream::new(&devices[index]).unwrap());
    let gate = Gate::close(&producer);
    consumer.wait_stream(&producer).unwrap();
    assert!(!consumer.query().unwrap());
    gate.open();
    consumer.synchronize().unwrap();
}

#[test]
fn a_stream_of_another_driver_cannot_be_waited_for() {
    let [producer, consumer] = [(); 2].map(|()| Stream::new(&sim(1)[0]).unwrap());
    let error = consumer.wait_stream(&producer).unwrap_err();
    assert!(error.is_invalid_argument() && error.to_string().contains("shares no driver"), "{error}");
}

#[test]
fn external_streams_are_wrapped_and_left_alone() {
    let (driver, devices) = sim_in(&Environment::default(), 1);
    let external = driver.external_stream_create(0, 0, true).unwrap();
    let stream = Stream::from_external(&devices[0], external).unwrap();
    assert_eq!(stream.cuda_stream().unwrap(), external.cuda_stream());
    assert!(!stream.is_default());
    let buffer = buffer_of(&stream, &[1.0, 2.0]);
    assert_eq!(read(&stream, &buffer), [1.0, 2.0]);
    // The stream is forgotten, not destroyed: its owner can still destroy it, once.
    let clone = stream.clone();
    drop(stream);
    clone.synchronize().unwrap();
    drop(clone);
    assert!(Stream::from_external(&devices[0], external).unwrap().query().unwrap());
    driver.external_stream_destroy(external).unwrap();
    let error = Stream::from_external(&devices[0], external).unwrap_err();
    assert!(error.is_invalid_argument(), "{error}");
}

#[test]
fn memory_used_on_a_forgotten_stream_comes_back() {
    let (driver, devices) = sim_in(&Environment::default(), 1);
    let own = Stream::new(&devices[0]).unwrap();
    let external = driver.external_stream_create(0, 0, false).unwrap();
    let external = Stream::from_external(&devices[0], external).unwrap();
    let gate = Gate::close(&external);
    let buffer = Buffer::new(&own, 1 << 20).unwrap();
    let address = buffer.pointer();
    buffer.record_stream(&external);
    drop(external);
    drop(buffer);
    let other = Buffer::new(&own, 1 << 20).unwrap();
    assert_ne!(other.pointer(), address, "the forgotten stream's work is not done");
    gate.open();
    devices[0].synchronize().unwrap();
    let again = Buffer::new(&own, 1 << 20).unwrap();
    assert_eq!(again.pointer(), address);
}

#[test]
fn an_external_stream_has_the_priority_that_its_owner_gave_it() {
    let (driver, devices) = sim_in(&Environment::default(), 1);
    for priority in [0, -1] {
        let external = driver.external_stream_create(0, priority, false).unwrap();
        assert_eq!(Stream::from_external(&devices[0], external).unwrap().priority(), priority);
    }
}

#[test]
fn handles_end_with_their_streams() {
    let (driver, mut devices) = sim_in(&Environment::default(), 1);
    let ended = |handle| driver.stream_query(handle).unwrap_err().code() == Code::InvalidHandle;
    let created = driver.external_stream_create(0, 0, false).unwrap();
    let external = Stream::from_external(&devices[0], created).unwrap();
    let of_external = external.handle();
    assert!(driver.stream_query(of_external).unwrap());
    drop(external);
    assert!(ended(of_external), "it is given up, and the stream is its owner's");
    driver.external_stream_destroy(created).unwrap();
    let pooled = Stream::new(&devices[0]).unwrap();
    let of_pooled = pooled.handle();
    drop(pooled);
    assert!(driver.stream_query(of_pooled).unwrap(), "the pool keeps it");
    devices.clear();
    assert!(ended(of_pooled), "the pool goes with its device");
}

#[test]
fn memory_of_a_transient_stream_comes_back_without_the_stream_being_named() {
    let (driver, devices) = sim_in(&Environment::default(), 1);
    let external = driver.external_stream_create(0, 0, false).unwrap();
    let transient = Stream::from_external(&devices[0], external).unwrap();
    transient.set_transient();
    drop(Buffer::new(&transient, 40 << 20).unwrap());
    driver.external_stream_destroy(external).unwrap();
    let own = Stream::new(&devices[0]).unwrap();
    drop(Buffer::new(&own, 48 << 20).unwrap());
    devices[0].empty_cache().unwrap();
    assert_eq!(devices[0].memory_reserved(), 0);
    assert_eq!(driver.ended_streams_named(), 0);
}
