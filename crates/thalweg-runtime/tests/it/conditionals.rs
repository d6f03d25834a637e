//! Conditional nodes in captured regions: which bodies run, what they may use, and which calls are refused.

use thalweg_runtime::graph::{self, Condition, Update};
use thalweg_runtime::{Buffer, CaptureOptions, Device, Error, Graph, Label, Result, Stream};

use crate::kernels::launch_sum;
use crate::support::{TestDevice, buffer_of, device, read, sim};

/// Returns a device whose graphs support every kind of conditional node.
fn able() -> TestDevice {
    let device = device();
    assert!(
        device.properties().conditional_nodes.else_and_switch,
        "these tests need a driver for CUDA 12.8 or later"
    );
    device
}

fn set(stream: &Stream, buffer: &Buffer, values: &[u32]) {
    stream.copy_from_host(buffer.pointer(), bytemuck::cast_slice(values), Label::here("set")).unwrap();
}

fn flag(stream: &Stream, value: u32) -> Buffer {
    let buffer = Buffer::new(stream, 4).unwrap();
    set(stream, &buffer, &[value]);
    buffer
}

/// Submits `data += 1`, on the current stream.
fn increment(device: &Device, data: &Buffer) -> Result<()> {
    launch_sum(&device.current_stream(), &[data.pointer()], data.pointer(), data.size_bytes() / 4)
}

/// Captures a region, which is passed its stream.
fn capture(device: &Device, region: impl FnOnce(&Stream) -> Result<()>) -> Result<Graph> {
    Graph::capture(device, CaptureOptions::default(), || region(&device.current_stream()))
        .map(|(graph, ())| graph)
}

#[test]
fn an_if_runs_or_not_as_the_device_says() {
    let device = able();
    let stream = Stream::new(&device).unwrap();
    let (condition, data) = (flag(&stream, 0), buffer_of(&stream, &[0.0; 4]));
    let graph = capture(&device, |stream| {
        increment(&device, &data)?;
        graph::if_(stream, Condition::u32(condition.pointer()), || {
            // Memory of its own, in the graph's pool.
            let inside = device.current_stream();
            let between = Buffer::new(&inside, 16)?;
            launch_sum(&inside, &[data.pointer()], between.pointer(), 4)?;
            launch_sum(&inside, &[between.pointer()], data.pointer(), 4)
        })?;
        increment(&device, &data)
    })
    .unwrap();
    let mut expected = 0.0;
    for value in [0, 1, 7, 0, 1] {
        set(&stream, &condition, &[value]);
        graph.replay_on(&stream).unwrap();
        expected += if value == 0 { 2.0 } else { 4.0 };
        assert_eq!(read(&stream, &data), [expected; 4]);
    }
    let inputs: Vec<_> = graph.contract().inputs().iter().map(|input| input.address).collect();
    assert!(inputs.contains(&condition.pointer().address()) && inputs.contains(&data.pointer().address()));
    assert_eq!(inputs.len(), 2, "the body's own memory is the graph's");
    drop(condition);
    assert!(graph.replay_on(&stream).unwrap_err().is_invalid_argument());
}

#[test]
fn an_else_runs_where_the_if_does_not() {
    let device = able();
    let stream = Stream::new(&device).unwrap();
    let condition = Buffer::new(&stream, 1).unwrap();
    let data = [(); 2].map(|()| buffer_of(&stream, &[0.0]));
    let graph = capture(&device, |stream| {
        let condition = Condition::u8(condition.pointer());
        graph::if_else(stream, condition, || increment(&device, &data[0]), || increment(&device, &data[1]))
    })
    .unwrap();
    for (value, expected) in [(1_u8, [1.0, 0.0]), (0, [1.0, 1.0]), (0, [1.0, 2.0]), (255, [2.0, 2.0])] {
        stream.copy_from_host(condition.pointer(), &[value], Label::here("set")).unwrap();
        graph.replay_on(&stream).unwrap();
        assert_eq!([0, 1].map(|place| read(&stream, &data[place])[0]), expected);
    }
}

#[test]
fn a_switch_runs_one_case() {
    let device = able();
    let stream = Stream::new(&device).unwrap();
    let index = flag(&stream, 0);
    let data = [(); 3].map(|()| buffer_of(&stream, &[0.0]));
    let graph = capture(&device, |stream| {
        let mut cases = [0, 1, 2].map(|place: usize| {
            let (device, data) = (&*device, &data);
            move || increment(device, &data[place])
        });
        let [first, second, third] = &mut cases;
        graph::switch(stream, Condition::u32(index.pointer()), &mut [first, second, third])
    })
    .unwrap();
    for value in [2, 2, 0, 3, 1000, 1] {
        set(&stream, &index, &[value]);
        graph.replay_on(&stream).unwrap();
    }
    assert_eq!([0, 1, 2].map(|place| read(&stream, &data[place])[0]), [1.0, 1.0, 2.0]);
    let error = capture(&device, |stream| graph::switch(stream, Condition::u32(index.pointer()), &mut []));
    assert!(error.unwrap_err().to_string().contains("switch"));
}

#[test]
fn a_loop_runs_until_its_condition_is_zero() {
    let device = able();
    let stream = Stream::new(&device).unwrap();
    // The remaining values of the condition, round by round: each round copies the next one to the front.
    let queue = Buffer::new(&stream, 16).unwrap();
    let data = buffer_of(&stream, &[0.0]);
    let graph = capture(&device, |stream| {
        graph::while_(stream, Condition::u32(queue.pointer()), || {
            increment(&device, &data)?;
            let (stream, label) = (device.current_stream(), Label::here("next"));
            for place in 0..3_u64 {
                let target = queue.pointer().offset(place * 4);
                stream.copy_on_device(target, target.offset(4), 4, label)?;
            }
            Ok(())
        })
    })
    .unwrap();
    for (values, rounds) in [([1, 1, 1, 0], 3.0), ([0, 1, 1, 1], 0.0), ([5, 0, 0, 0], 1.0)] {
        crate::support::write(&stream, &data, &[0.0]);
        set(&stream, &queue, &values);
        graph.replay_on(&stream).unwrap();
        assert_eq!(read(&stream, &data), [rounds], "{values:?}");
    }
}

#[test]
fn conditionals_nest_and_follow_one_another() {
    let device = able();
    let stream = Stream::new(&device).unwrap();
    let flags = [(); 2].map(|()| flag(&stream, 0));
    let condition = |place: usize| Condition::u32(flags[place].pointer());
    let data = buffer_of(&stream, &[0.0; 4]);
    let graph = capture(&device, |stream| {
        for _ in 0..20 {
            graph::if_(stream, condition(0), || {
                increment(&device, &data)?;
                graph::if_(&device.current_stream(), condition(1), || increment(&device, &data))?;
                increment(&device, &data)
            })?;
        }
        Ok(())
    })
    .unwrap();
    let mut expected = 0.0;
    for (values, each) in [([1, 1], 3.0), ([0, 1], 0.0), ([1, 0], 2.0)] {
        flags.iter().zip(values).for_each(|(flag, value)| set(&stream, flag, &[value]));
        graph.replay_on(&stream).unwrap();
        expected += 20.0 * each;
        assert_eq!(read(&stream, &data), [expected; 4]);
    }
}

#[test]
fn many_graphs_may_have_many_conditionals() {
    let device = able();
    let stream = Stream::new(&device).unwrap();
    let (condition, data) = (flag(&stream, 1), buffer_of(&stream, &[0.0]));
    for _ in 0..40 {
        let graph = capture(&device, |stream| {
            graph::if_(stream, Condition::u32(condition.pointer()), || increment(&device, &data))
        });
        graph.unwrap().replay_on(&stream).unwrap();
    }
    assert_eq!(read(&stream, &data), [40.0]);
}

#[test]
fn a_body_that_fails_breaks_the_capture_even_if_its_error_is_swallowed() {
    let device = able();
    let stream = Stream::new(&device).unwrap();
    let (condition, data) = (flag(&stream, 1), buffer_of(&stream, &[0.0]));
    let at = Condition::u32(condition.pointer());
    let fails = || {
        increment(&device, &data)?;
        Err(Error::invalid("the body's own"))
    };
    let error = capture(&device, |stream| graph::if_(stream, at, fails)).unwrap_err();
    assert_eq!(error.to_string(), "the body's own");
    let error = capture(&device, |stream| {
        graph::if_(stream, at, fails).unwrap_err();
        increment(&device, &data)
    })
    .unwrap_err();
    assert!(error.is_capture() && error.to_string().contains("the body's own"), "{error}");
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        capture(&device, |stream| graph::if_(stream, at, || panic!("in the body")))
    }));
    assert!(unwound.is_err());
    // A stream that a body forks is joined in the body.
    let side = Stream::new(&device).unwrap();
    let error = capture(&device, |stream| {
        graph::if_(stream, at, || {
            let inside = device.current_stream();
            side.wait_stream(&inside)?;
            launch_sum(&side, &[data.pointer()], data.pointer(), 1)
        })
    })
    .unwrap_err();
    assert!(error.to_string().contains("was forked and not joined: its last command is sum"), "{error}");
    // All of it is still usable.
    let graph = capture(&device, |stream| graph::if_(stream, at, || increment(&device, &data))).unwrap();
    graph.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &data), [1.0]);
}

#[test]
fn a_wait_in_a_body_is_refused_and_breaks_the_capture() {
    let device = able();
    let stream = Stream::new(&device).unwrap();
    let (condition, data) = (flag(&stream, 1), buffer_of(&stream, &[0.0]));
    let at = Condition::u32(condition.pointer());
    let refused = |wait: &dyn Fn(&Stream) -> Result<()>| {
        let inside = || wait(&device.current_stream());
        let error = capture(&device, |stream| graph::if_(stream, at, inside)).unwrap_err();
        assert!(error.is_capture() && error.to_string().contains("none of it has run"), "{error}");
        let swallowed = capture(&device, |stream| {
            graph::if_(stream, at, || {
                inside().unwrap_err();
                increment(&device, &data)
            })
        });
        assert!(swallowed.unwrap_err().to_string().contains("waited in the body"));
    };
    refused(&|stream| stream.synchronize());
    refused(&|stream| stream.query().map(drop));
    refused(&|stream| stream.copy_to_host(&mut [0; 4], data.pointer(), Label::here("read")));
    let graph = capture(&device, |stream| graph::if_(stream, at, || increment(&device, &data))).unwrap();
    graph.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &data), [1.0]);
}

#[test]
fn a_capture_that_another_thread_breaks_while_a_body_is_captured_ends() {
    let device = able();
    let stream = Stream::new(&device).unwrap();
    let (condition, data) = (flag(&stream, 1), buffer_of(&stream, &[0.0]));
    let at = Condition::u32(condition.pointer());
    let breaks = || {
        let waited = std::thread::scope(|scope| scope.spawn(|| device.synchronize()).join().unwrap());
        assert!(waited.unwrap_err().is_capture(), "the device may not be waited for");
        increment(&device, &data)
    };
    let error = capture(&device, |stream| graph::if_(stream, at, breaks)).unwrap_err();
    assert!(error.is_capture(), "{error}");
    let graph = capture(&device, |stream| graph::if_(stream, at, || increment(&device, &data))).unwrap();
    graph.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &data), [1.0]);
}

#[test]
fn what_does_not_capture_has_no_conditional_nodes() {
    let device = able();
    let stream = Stream::new(&device).unwrap();
    let condition = flag(&stream, 1);
    let at = Condition::u32(condition.pointer());
    let error = graph::if_(&stream, at, || panic!("it is not run")).unwrap_err();
    assert!(error.is_capture() && error.to_string().contains("does not capture"), "{error}");
    // Outside the capture, too; and that capture continues.
    let data = buffer_of(&stream, &[0.0]);
    let captured = capture(&device, |_| {
        assert!(graph::while_(&stream, at, || panic!("it is not run")).is_err());
        increment(&device, &data)
    });
    captured.unwrap().replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &data), [1.0]);
}

#[test]
fn graphs_with_conditionals_are_instantiated_again() {
    let device = sim(1).remove(0);
    let stream = Stream::new(&device).unwrap();
    let (condition, data) = (flag(&stream, 1), buffer_of(&stream, &[0.0]));
    let region = |stream: &Stream| {
        graph::if_(stream, Condition::u32(condition.pointer()), || increment(&device, &data))
    };
    let mut graph = capture(&device, region).unwrap();
    let (update, ()) =
        graph.recapture(CaptureOptions::default(), || region(&device.current_stream())).unwrap();
    assert!(matches!(update, Update::Instantiated(_)), "{update:?}");
    graph.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &data), [1.0]);
}

#[test]
fn conditionals_are_right_under_every_schedule() {
    thalweg_runtime::sim::check(|gpu| -> Result<()> {
        let device = gpu.device();
        let [stream, side] = [Stream::new(device)?, Stream::new(device)?];
        let (condition, data) = (flag(&stream, 1), buffer_of(&stream, &[0.0; 4]));
        let graph = capture(device, |origin| {
            let between = Buffer::new(origin, 16)?;
            launch_sum(origin, &[data.pointer()], between.pointer(), 4)?;
            side.wait_stream(origin)?;
            graph::if_(&side, Condition::u32(condition.pointer()), || {
                let inside = device.current_stream();
                let more = Buffer::new(&inside, 16)?;
                launch_sum(&inside, &[between.pointer()], more.pointer(), 4)?;
                launch_sum(&inside, &[more.pointer()], between.pointer(), 4)
            })?;
            origin.wait_stream(&side)?;
            launch_sum(origin, &[between.pointer()], data.pointer(), 4)
        })?;
        graph.replay_on(&stream)?;
        set(&stream, &condition, &[0]);
        graph.replay_on(&stream)?;
        assert_eq!(read(&stream, &data), [6.0; 4]);
        Ok(())
    });
}
