//! Events.

use thalweg_driver::{Code, GraphNodeKind};
use thalweg_runtime::{CaptureOptions, Event, Graph, Stream};

use crate::support::{Gate, device, sim};

#[test]
fn an_event_that_was_never_recorded_is_complete_and_holds_nothing_up() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let event = Event::new();
    assert!(event.query().unwrap());
    event.synchronize().unwrap();
    event.wait(&stream).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn an_event_is_complete_when_the_work_before_it_is() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let gate = Gate::close(&stream);
    let event = stream.record_event().unwrap();
    assert!(!event.query().unwrap());
    gate.open();
    event.synchronize().unwrap();
    assert!(event.query().unwrap());
    // After another record, the event refers to the later one.
    let gate = Gate::close(&stream);
    event.record(&stream).unwrap();
    assert!(!event.query().unwrap());
    gate.open();
    event.synchronize().unwrap();
}

#[test]
fn an_event_can_be_dropped_while_streams_wait_for_it() {
    let device = device();
    let [first, second] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let gate = Gate::close(&first);
    let event = first.record_event().unwrap();
    second.wait_event(&event).unwrap();
    drop(event);
    assert!(!second.query().unwrap());
    gate.open();
    second.synchronize().unwrap();
}

#[test]
fn the_first_record_fixes_the_device() {
    let devices = sim(2);
    let [first, second] = [0, 1].map(|index: usize| Stream::new(&devices[index]).unwrap());
    let event = Event::new();
    event.record(&first).unwrap();
    let error = event.record(&second).unwrap_err();
    assert!(error.is_invalid_argument(), "{error}");
    assert_eq!(error.to_string(), "the stream to record the event on is on sim:1, expected sim:0");
    // Nothing has changed, and streams of other devices may wait.
    event.record(&first).unwrap();
    event.wait(&second).unwrap();
    second.synchronize().unwrap();
}

#[test]
fn elapsed_time_needs_timing_and_records() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let [start, end] = [(); 2].map(|()| Event::with_timing());
    let says = |result: thalweg_runtime::Result<f32>, words: &str| {
        let error = result.unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains(words), "{error}");
        assert_eq!(error.location().map(|location| location.file()), Some(file!()), "{error}");
    };
    says(start.elapsed_ms(&end), "recorded");
    start.record(&stream).unwrap();
    says(start.elapsed_ms(&end), "recorded");
    let untimed = stream.record_event().unwrap();
    says(start.elapsed_ms(&untimed), "Event::with_timing");
    says(untimed.elapsed_ms(&start), "Event::with_timing");
    let gate = Gate::close(&stream);
    end.record(&stream).unwrap();
    let error = start.elapsed_ms(&end).unwrap_err();
    assert_eq!(error.driver_error().map(|error| error.code()), Some(Code::NotReady), "{error}");
    gate.open();
    end.synchronize().unwrap();
    assert!(start.elapsed_ms(&end).unwrap() >= 0.0);
    assert!(end.elapsed_ms(&start).unwrap() <= 0.0);
}

#[test]
fn elapsed_time_is_of_one_device() {
    let devices = sim(2);
    let [start, end] = [(); 2].map(|()| Event::with_timing());
    start.record(&devices[0].default_stream()).unwrap();
    end.record(&devices[1].default_stream()).unwrap();
    let error = start.elapsed_ms(&end).unwrap_err();
    assert!(error.to_string().starts_with("the end event is on sim:1, expected sim:0"), "{error}");
}

#[test]
fn an_external_event_orders_replays_with_work_outside() {
    let device = device();
    let [inside, outside] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let [ready, done] = [(); 2].map(|()| Event::new().external());
    let options = CaptureOptions { stream: Some(inside.clone()), ..CaptureOptions::default() };
    let capture = Graph::capture_begin(&device, options).unwrap();
    ready.wait(&inside).unwrap();
    done.record(&inside).unwrap();
    let captured = capture.end().unwrap();
    let kinds: Vec<_> = captured.description().unwrap().nodes.iter().map(|node| node.kind).collect();
    assert_eq!(kinds, [GraphNodeKind::WaitEvent, GraphNodeKind::RecordEvent]);
    let graph = captured.instantiate().unwrap();
    for _ in 0..2 {
        let gate = Gate::close(&outside);
        ready.record(&outside).unwrap();
        graph.replay_on(&inside).unwrap();
        assert!(!done.query().unwrap());
        gate.open();
        done.synchronize().unwrap();
    }
}
