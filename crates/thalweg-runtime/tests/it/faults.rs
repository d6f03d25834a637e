//! Work that fails later. All on simulated devices: a GPU's context would be lost to the tests that follow.

use thalweg_driver::DevicePointer;
use thalweg_runtime::{Buffer, CaptureOptions, Device, Environment, Error, Graph, Label, Stream};
use thalweg_sim::SimDriver;

use crate::kernels::launch_sum;
use crate::support::{Gate, buffer_of, read, sim, sim_in};

/// An address outside of all allocations.
const WILD: DevicePointer = DevicePointer::new(1 << 20);

fn expect_suspects(error: &Error, lines: &[u32]) {
    assert!(error.is_asynchronous() && error.is_device_lost(), "{error}");
    let found: Vec<_> = error.possible_causes().iter().filter(|label| label.operator == "sum").collect();
    assert_eq!(found.iter().map(|label| label.location.line()).collect::<Vec<_>>(), lines, "{error}");
    for label in found {
        assert_eq!(label.location.file(), file!());
        assert!(error.to_string().contains(&label.to_string()), "{error}");
    }
}

#[test]
fn a_fault_comes_later_names_its_suspects_and_stays() {
    let devices = sim(2);
    let stream = Stream::new(&devices[0]).unwrap();
    let data = buffer_of(&stream, &[1.0; 4]);
    stream.synchronize().unwrap();
    let gate = Gate::close(&stream);
    launch_sum(&stream, &[data.pointer()], data.pointer(), 4).unwrap();
    launch_sum(&stream, &[WILD], data.pointer(), 4).unwrap();
    let first = line!() - 2;
    gate.open();
    let error = stream.synchronize().unwrap_err();
    expect_suspects(&error, &[first, first + 1]);
    let text = error.to_string();
    assert!(
        text.starts_with("work submitted earlier failed: `sum at ") && text.contains("ILLEGAL_ADDRESS"),
        "{text}"
    );
    assert!(!error.to_string().contains("write"), "what was complete before is not a suspect: {error}");

    // Everything on the device fails from now on, with the same suspects.
    expect_suspects(
        &launch_sum(&stream, &[data.pointer()], data.pointer(), 4).unwrap_err(),
        &[first, first + 1],
    );
    expect_suspects(&stream.query().unwrap_err(), &[first, first + 1]);
    expect_suspects(&devices[0].synchronize().unwrap_err(), &[first, first + 1]);
    expect_suspects(&stream.record_event().unwrap_err(), &[first, first + 1]);
    expect_suspects(&Buffer::new(&stream, 32 << 20).unwrap_err(), &[first, first + 1]);
    let mut byte = [0];
    expect_suspects(
        &stream.copy_to_host(&mut byte, data.pointer(), Label::here("read")).unwrap_err(),
        &[first, first + 1],
    );

    // The other device still works.
    let sound = Stream::new(&devices[1]).unwrap();
    let data = buffer_of(&sound, &[1.0; 4]);
    launch_sum(&sound, &[data.pointer()], data.pointer(), 4).unwrap();
    assert_eq!(read(&sound, &data), [2.0; 4]);
}

#[test]
fn a_result_that_was_read_back_clears_what_came_before() {
    let devices = sim(1);
    let stream = Stream::new(&devices[0]).unwrap();
    let data = buffer_of(&stream, &[1.0; 4]);
    launch_sum(&stream, &[data.pointer()], data.pointer(), 4).unwrap();
    assert_eq!(read(&stream, &data), [2.0; 4]);
    launch_sum(&stream, &[WILD], data.pointer(), 4).unwrap();
    let error = stream.synchronize().unwrap_err();
    expect_suspects(&error, &[line!() - 2]);
    assert_eq!(error.possible_causes().len(), 1, "{error}");
    assert!(error.to_string().contains("\npossible cause:\n  sum at "), "{error}");
}

#[test]
fn a_refused_command_is_no_suspect() {
    let devices = sim(1);
    let stream = Stream::new(&devices[0]).unwrap();
    let data = buffer_of(&stream, &[1.0; 4]);
    stream.synchronize().unwrap();
    let refused = stream.copy_on_device(data.pointer(), WILD, 16, Label::here("refused"));
    assert!(refused.unwrap_err().to_string().starts_with("refused: "));
    launch_sum(&stream, &[WILD], data.pointer(), 4).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert_eq!(error.possible_causes().len(), 1, "{error}");
}

#[test]
fn launch_blocking_makes_the_error_come_at_the_call() {
    let environment = Environment { launch_blocking: true, ..Environment::default() };
    let (_, devices) = sim_in(&environment, 1);
    let stream = Stream::new(&devices[0]).unwrap();
    let data = buffer_of(&stream, &[1.0; 4]);
    launch_sum(&stream, &[data.pointer()], data.pointer(), 4).unwrap();
    let error = launch_sum(&stream, &[WILD], data.pointer(), 4).unwrap_err();
    expect_suspects(&error, &[line!() - 1]);
    assert_eq!(error.possible_causes().len(), 1);
}

#[test]
fn long_lists_of_suspects_are_short_to_read() {
    let devices = sim(1);
    let stream = Stream::new(&devices[0]).unwrap();
    let data = buffer_of(&stream, &[1.0; 4]);
    stream.synchronize().unwrap();
    let gate = Gate::close(&stream);
    for _ in 0..1000 {
        launch_sum(&stream, &[data.pointer()], data.pointer(), 4).unwrap();
    }
    launch_sum(&stream, &[WILD], data.pointer(), 4).unwrap();
    gate.open();
    let error = stream.synchronize().unwrap_err();
    assert_eq!(error.possible_causes().len(), 64, "the latest are remembered");
    let text = error.to_string();
    assert!(text.contains("(63 times)") && text.contains("CUDA_LAUNCH_BLOCKING=1"), "{text}");
    assert!(text.lines().count() == 4, "{text}");
}

/// Returns all suspects of `error`, by operator and line.
fn suspects(error: &Error) -> Vec<(&'static str, u32)> {
    error.possible_causes().iter().map(|label| (label.operator, label.location.line())).collect()
}

#[test]
fn a_query_forgets_what_is_complete_and_nothing_else() {
    let devices = sim(1);
    let stream = Stream::new(&devices[0]).unwrap();
    let data = buffer_of(&stream, &[1.0; 4]);
    launch_sum(&stream, &[data.pointer()], data.pointer(), 4).unwrap();
    while !stream.query().unwrap() {
        std::thread::yield_now();
    }
    let gate = Gate::close(&stream);
    launch_sum(&stream, &[WILD], data.pointer(), 4).unwrap();
    let line = line!() - 1;
    assert!(!stream.query().unwrap(), "the gate is closed");
    gate.open();
    assert_eq!(suspects(&stream.synchronize().unwrap_err()), [("sum", line)]);
}

#[test]
fn work_of_every_stream_is_suspect() {
    let environment = Environment::default();
    let run = |choose: &dyn Fn(&SimDriver, &Device) -> Stream| {
        let (driver, devices) = sim_in(&environment, 1);
        let stream = choose(&driver, &devices[0]);
        let data = buffer_of(&stream, &[1.0; 4]);
        stream.synchronize().unwrap();
        launch_sum(&stream, &[WILD], data.pointer(), 4).unwrap();
        assert_eq!(suspects(&devices[0].synchronize().unwrap_err()), [("sum", line!() - 1)], "{stream:?}");
    };
    run(&|_, device| device.default_stream());
    run(&|_, device| Stream::with_priority(device, -1).unwrap());
    run(&|driver, device| {
        let external = driver.external_stream_create(0, 0, false).unwrap();
        Stream::from_external(device, external).unwrap()
    });
    // The stream on which captures run, when none is under way.
    run(&|_, device| {
        let capture = Graph::capture_begin(device, CaptureOptions::default()).unwrap();
        let stream = capture.stream().clone();
        capture.end().unwrap();
        stream
    });
}

#[test]
fn what_is_captured_is_no_suspect_and_its_errors_have_its_name() {
    let devices = sim(1);
    let stream = Stream::new(&devices[0]).unwrap();
    let data = buffer_of(&stream, &[1.0; 4]);
    stream.synchronize().unwrap();
    let options = CaptureOptions { stream: Some(stream.clone()), ..CaptureOptions::default() };
    let (_graph, ()) = Graph::capture(&devices[0], options.clone(), || {
        launch_sum(&stream, &[data.pointer()], data.pointer(), 4)
    })
    .unwrap();
    let refused = Graph::capture(&devices[0], options, || {
        stream.copy_on_device(data.pointer(), WILD, 16, Label::here("refused"))
    });
    let error = refused.unwrap_err();
    assert!(error.to_string().starts_with("refused: "), "{error}");
    launch_sum(&stream, &[WILD], data.pointer(), 4).unwrap();
    assert_eq!(suspects(&stream.synchronize().unwrap_err()), [("sum", line!() - 1)]);
}

#[test]
fn nothing_panics_when_things_of_a_lost_device_are_dropped() {
    let devices = sim(1);
    let [stream, other] = [(); 2].map(|()| Stream::new(&devices[0]).unwrap());
    let data = buffer_of(&stream, &[1.0; 4]);
    data.record_stream(&other);
    let event = stream.record_event().unwrap();
    launch_sum(&stream, &[WILD], data.pointer(), 4).unwrap();
    stream.synchronize().unwrap_err();
    drop((data, event, stream, other));
    drop(devices);
}

#[test]
fn the_first_allocation_on_a_lost_device_names_the_loss() {
    let device = sim(1).remove(0);
    let stream = device.current_stream();
    launch_sum(&stream, &[WILD], WILD, 4).unwrap();
    let line = line!() - 1;
    expect_suspects(&device.synchronize().unwrap_err(), &[line]);
    for bytes in [256, 32 << 20] {
        let error = Buffer::new(&stream, bytes).unwrap_err();
        assert!(!error.is_out_of_memory(), "{error}");
        expect_suspects(&error, &[line]);
    }
}
