//! Capture: the calls that are refused, and that everything is usable afterwards.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use thalweg_driver::CaptureMode;
use thalweg_memory::{PoolId, SegmentSnapshot};
use thalweg_runtime::{Buffer, CaptureOptions, Device, Error, Graph, GraphPool, Result, Stream};

use crate::kernels::launch_sum;
use crate::support::{buffer_of, device, read, sim};

fn on(stream: &Stream) -> CaptureOptions {
    CaptureOptions { stream: Some(stream.clone()), ..CaptureOptions::default() }
}

/// Checks that the stream works, allocates outside any pool, and captures.
fn assert_usable(device: &Device, stream: &Stream) {
    assert!(!stream.is_capturing().unwrap());
    let data = buffer_of(stream, &[1.0]);
    launch_sum(stream, &[data.pointer()], data.pointer(), 1).unwrap();
    assert_eq!(read(stream, &data), [2.0]);
    let capture = || launch_sum(stream, &[data.pointer()], data.pointer(), 1);
    let (graph, ()) = Graph::capture(device, on(stream), capture).unwrap();
    let _current = stream.make_current();
    graph.replay().unwrap();
    assert_eq!(read(stream, &data), [3.0]);
}

/// Returns the private pool that a buffer's memory belongs to, if any.
fn pool_of(buffer: &Buffer) -> Option<PoolId> {
    let address = buffer.pointer().address();
    let segments = buffer.device().allocator().snapshot();
    let holds = |segment: &&SegmentSnapshot| {
        (segment.address..segment.address + segment.total_bytes).contains(&address)
    };
    segments.iter().find(holds).unwrap().pool
}

/// Captures a region that allocates and fails, and checks that nothing of it remains.
fn capture_that_fails(device: &Device, fail: impl FnOnce(&Stream) -> Result<()>) -> Error {
    let stream = Stream::new(device).unwrap();
    device.synchronize().unwrap();
    device.empty_cache().unwrap();
    let reserved = || device.allocator().statistics().reserved_bytes.all.current;
    let before = reserved();
    let error = Graph::capture(device, on(&stream), || {
        let buffer = Buffer::new(&stream, 8 << 20)?;
        launch_sum(&stream, &[buffer.pointer()], buffer.pointer(), 4)?;
        fail(&stream)
    })
    .unwrap_err();
    device.empty_cache().unwrap();
    assert_eq!(reserved(), before, "the pool is given back");
    assert_usable(device, &stream);
    error
}

#[test]
fn a_regions_error_ends_the_capture() {
    let error = capture_that_fails(&device(), |_| Err(Error::invalid("the region's own")));
    assert_eq!(error.to_string(), "the region's own");
}

#[test]
fn waiting_inside_is_an_error() {
    let device = device();
    type Wait = fn(&Device, &Stream) -> Result<()>;
    let waits: [(&str, Wait); 5] = [
        ("copy_to_host", |_, stream| {
            let data = Buffer::new(stream, 4)?;
            let mut value = [0; 4];
            stream.copy_to_host(&mut value, data.pointer(), thalweg_runtime::Label::here("item"))
        }),
        ("synchronize", |_, stream| stream.synchronize()),
        ("query", |_, stream| stream.query().map(drop)),
        ("device", |device, _| device.synchronize()),
        ("event", |_, stream| stream.record_event()?.synchronize()),
    ];
    for (name, wait) in waits {
        let error = capture_that_fails(&device, |stream| wait(&device, stream));
        assert!(error.is_capture() && !error.is_device_lost(), "{name}: {error}");
    }
    // An error that the region ignores is returned at the end.
    let error = capture_that_fails(&device, |stream| {
        stream.synchronize().unwrap_err();
        assert!(stream.is_capturing()?, "a capture that has failed goes on until its end");
        Ok(())
    });
    assert!(error.is_capture(), "{error}");
}

#[test]
fn emptying_the_cache_inside_is_an_error() {
    let device = device();
    let error = capture_that_fails(&device, |_| device.empty_cache());
    assert!(error.is_capture(), "{error}");
}

#[test]
fn a_stream_that_is_not_joined_is_an_error() {
    let device = device();
    let side = Stream::new(&device).unwrap();
    let error = capture_that_fails(&device, |stream| {
        side.wait_stream(stream)?;
        let data = Buffer::new(&side, 64)?;
        launch_sum(&side, &[data.pointer()], data.pointer(), 4)
    });
    assert!(error.is_capture(), "{error}");
    assert_usable(&device, &side);
}

#[test]
fn a_panic_ends_the_capture() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        Graph::capture(&device, on(&stream), || -> Result<()> {
            let buffer = Buffer::new(&stream, 1 << 20)?;
            launch_sum(&stream, &[buffer.pointer()], buffer.pointer(), 4)?;
            panic!("in the region");
        })
    }));
    assert!(unwound.is_err());
    assert!(Stream::current(&device).is_default());
    assert_usable(&device, &stream);
}

#[test]
fn the_default_stream_cannot_capture() {
    let device = device();
    let error = Graph::capture(&device, on(&device.default_stream()), || Ok(())).unwrap_err();
    assert!(error.is_invalid_argument() && error.to_string().contains("Stream::new"), "{error}");
    let stream = Stream::new(&device).unwrap();
    assert_usable(&device, &stream);
}

#[test]
fn captures_do_not_nest_and_the_outer_one_goes_on() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[1.0]);
    stream.synchronize().unwrap();
    let (graph, ()) = Graph::capture(&device, on(&stream), || {
        let error = Graph::capture(&device, CaptureOptions::default(), || Ok(())).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains("do not nest"), "{error}");
        launch_sum(&stream, &[data.pointer()], data.pointer(), 1)
    })
    .unwrap();
    let _current = stream.make_current();
    graph.replay().unwrap();
    assert_eq!(read(&stream, &data), [2.0]);
}

#[test]
fn stream_and_pool_are_of_the_device() {
    let devices = sim(2);
    let elsewhere = Stream::new(&devices[1]).unwrap();
    let error = Graph::capture(&devices[0], on(&elsewhere), || Ok(())).unwrap_err();
    assert_eq!(error.to_string(), "graph capture: the stream is on sim:1, expected sim:0");
    let options = CaptureOptions { pool: Some(GraphPool::new(&devices[1])), ..CaptureOptions::default() };
    let error = Graph::capture(&devices[0], options, || Ok(())).unwrap_err();
    assert_eq!(error.to_string(), "graph capture: the pool is on sim:1, expected sim:0");
}

#[test]
fn bystanders_get_nothing_of_the_pool() {
    let device = device();
    let [bystander, stream] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let options = CaptureOptions { mode: CaptureMode::ThreadLocal, ..on(&stream) };
    let (graph, (inside, outside)) = Graph::capture(&device, options, || {
        let inside = Buffer::new(&stream, 1 << 20)?;
        let here = Buffer::new(&bystander, 1 << 20)?;
        let there =
            std::thread::scope(|scope| scope.spawn(|| Buffer::new(&bystander, 1 << 20)).join().unwrap())?;
        Ok((inside, [here, there]))
    })
    .unwrap();
    assert_eq!(pool_of(&inside), Some(graph.pool().id()));
    for buffer in &outside {
        assert_eq!(pool_of(buffer), None);
    }
}

#[test]
fn a_forked_stream_allocates_from_the_pool() {
    let device = device();
    let [side, stream] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let (graph, buffer) = Graph::capture(&device, on(&stream), || {
        side.wait_stream(&stream)?;
        let buffer = Buffer::new(&side, 1 << 20)?;
        launch_sum(&side, &[buffer.pointer()], buffer.pointer(), 4)?;
        stream.wait_stream(&side)?;
        Ok(buffer)
    })
    .unwrap();
    assert_eq!(pool_of(&buffer), Some(graph.pool().id()));
}

#[test]
fn two_threads_may_capture_at_once_each_into_its_own_pool() {
    let device = device();
    let device: &Device = &device;
    let [first, second] = [(); 2].map(|()| Stream::new(device).unwrap());
    let local = |stream: &Stream| CaptureOptions { mode: CaptureMode::ThreadLocal, ..on(stream) };
    let (begun, wait_begun) = mpsc::channel();
    let (ended, wait_ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (outer_options, first) = (local(&first), &first);
        let outer = scope.spawn(move || {
            Graph::capture(device, outer_options, || {
                begun.send(()).unwrap();
                wait_ended.recv().unwrap();
                let buffer = Buffer::new(first, 1 << 20)?;
                launch_sum(first, &[buffer.pointer()], buffer.pointer(), 4)?;
                Ok(buffer)
            })
        });
        wait_begun.recv().unwrap();
        let (inner_graph, inner) = Graph::capture(device, local(&second), || {
            // The first capture allocates while this one, begun later, is under way.
            ended.send(()).unwrap();
            let (outer_graph, outer) = outer.join().unwrap()?;
            let buffer = Buffer::new(&second, 1 << 20)?;
            launch_sum(&second, &[buffer.pointer()], buffer.pointer(), 4)?;
            Ok((outer_graph, outer, buffer))
        })
        .unwrap();
        let (outer_graph, outer, buffer) = inner;
        assert_eq!(pool_of(&outer), Some(outer_graph.pool().id()));
        assert_eq!(pool_of(&buffer), Some(inner_graph.pool().id()));
    });
}

#[test]
fn allocation_goes_on_while_another_thread_captures_globally() {
    let device = sim(1).remove(0);
    let [stream, own, other] = [(); 3].map(|()| Stream::new(&device).unwrap());
    // A block that waits for an event, so that the allocator has a reason to query one.
    let pending = Buffer::new(&own, 1 << 20).unwrap();
    pending.record_stream(&other);
    drop(pending);
    let device: &Device = &device;
    let capture = || {
        std::thread::scope(|scope| scope.spawn(|| Buffer::new(&own, 30 << 20).map(drop)).join().unwrap())?;
        Ok(())
    };
    Graph::capture(device, on(&stream), capture).unwrap();
    assert_usable(device, &stream);
}

#[test]
fn launch_blocking_breaks_no_capture() {
    let environment = thalweg_runtime::Environment { launch_blocking: true, ..Default::default() };
    let (_, devices) = crate::support::sim_in(&environment, 1);
    let [stream, other] = [(); 2].map(|()| Stream::new(&devices[0]).unwrap());
    let data = buffer_of(&other, &[1.0]);
    let (graph, ()) = Graph::capture(&devices[0], on(&stream), || {
        launch_sum(&other, &[data.pointer()], data.pointer(), 1)?;
        launch_sum(&stream, &[data.pointer()], data.pointer(), 1)
    })
    .unwrap();
    let _current = other.make_current();
    graph.replay().unwrap();
    assert_eq!(read(&other, &data), [3.0]);
}

#[test]
fn within_a_capture_memory_is_reused_where_the_graph_orders_it() {
    let device = device();
    let [stream, side] = [(); 2].map(|()| Stream::new(&device).unwrap());
    for precise in [true, false] {
        let (graph, (before_join, after_join)) = Graph::capture(&device, on(&stream), || {
            let buffer = Buffer::new(&stream, 4 << 20)?;
            let address = buffer.pointer();
            launch_sum(&stream, &[address], address, 4)?;
            side.wait_stream(&stream)?;
            launch_sum(&side, &[address], address, 4)?;
            if precise {
                buffer.record_use(&side);
            } else {
                buffer.record_stream(&side);
            }
            drop(buffer);
            let early = Buffer::new(&stream, 4 << 20)?;
            let before_join = early.pointer() == address;
            drop(early);
            stream.wait_stream(&side)?;
            let late = [(); 2].map(|()| Buffer::new(&stream, 4 << 20));
            let after_join = late.iter().flatten().any(|buffer| buffer.pointer() == address);
            Ok((before_join, after_join))
        })
        .unwrap();
        assert!(!before_join, "the other stream's work is not ordered before this one's");
        assert!(after_join, "the join orders it (precise: {precise})");
        let _current = stream.make_current();
        graph.replay().unwrap();
        device.synchronize().unwrap();
    }
}
