//! The audit of regions: each class of obstacle, with its code and its line, and all of them in one region.

use std::panic::{AssertUnwindSafe, catch_unwind};

use thalweg_driver::{CaptureMode, Code, FillPattern};
use thalweg_execute::execute;
use thalweg_execute::products::Product;
use thalweg_ir::DType;
use thalweg_kernels::matmul::Matmul;
use thalweg_runtime::graph::audit::{Counts, explain, host_random};
use thalweg_runtime::graph::{Audit, Obstacle, ObstacleKind, audit};
use thalweg_runtime::{
    Buffer, CaptureOptions, Device, Environment, Event, Graph, Label, PinnedBuffer, Result, Stream,
};

use crate::kernels::launch_sum;
use crate::support::{buffer_of, pinned_of, read, sim, sim_in};

const UNSUPPORTED: Option<Code> = Some(Code::StreamCaptureUnsupported);

fn device() -> Device {
    sim(1).remove(0)
}

fn in_mode(mode: CaptureMode) -> CaptureOptions {
    CaptureOptions { mode, ..CaptureOptions::default() }
}

fn on(stream: &Stream) -> CaptureOptions {
    CaptureOptions { stream: Some(stream.clone()), ..CaptureOptions::default() }
}

/// Audits a region in global mode; the region is passed its stream.
fn audited(device: &Device, region: impl FnOnce(&Stream) -> Result<()>) -> Audit {
    audit(device, CaptureOptions::default(), || region(&device.current_stream())).unwrap()
}

/// Returns the only obstacle.
#[track_caller]
fn only(audit: &Audit) -> &Obstacle {
    let [obstacle] = audit.obstacles() else { panic!("one obstacle was expected:\n{audit}") };
    assert!(!audit.is_capturable());
    obstacle
}

/// Returns the findings: kind, code, line, count.
fn found(audit: &Audit) -> Vec<(ObstacleKind, Option<Code>, u32, u64)> {
    let line = |obstacle: &Obstacle| obstacle.location().map_or(0, |location| location.line);
    let essence = |obstacle: &Obstacle| (obstacle.kind(), obstacle.code(), line(obstacle), obstacle.count());
    audit.obstacles().iter().map(essence).collect()
}

#[track_caller]
fn launch(stream: &Stream, buffer: &Buffer) -> Result<()> {
    launch_sum(stream, &[buffer.pointer()], buffer.pointer(), 1)
}

/// Returns a device with a buffer on it whose kernel is loaded.
fn warm() -> (Device, Buffer) {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let buffer = buffer_of(&stream, &[0.0]);
    launch(&stream, &buffer).unwrap();
    stream.synchronize().unwrap();
    (device, buffer)
}

#[test]
fn a_region_without_obstacles_runs_and_is_counted() {
    let (device, buffer) = warm();
    let stream = Stream::new(&device).unwrap();
    let (pinned, square) = (pinned_of(&device, &[5.0]), buffer_of(&stream, &[2.0; 8]));
    let product = Matmul::contiguous(2, 2, 2, 1, DType::F64);
    let report = audit(&device, on(&stream), || {
        assert!(stream.is_capturing()?, "the answer is that of the capture");
        let label = Label::here("step");
        stream.copy_from_pinned(buffer.pointer(), &pinned, 0, 4, label)?;
        launch(&stream, &buffer)?;
        launch(&stream, &buffer)?;
        let result = Buffer::new(&stream, 32)?;
        let at = [square.pointer(), square.pointer(), result.pointer()];
        execute(Product(&product), at, &stream, label)?;
        stream.fill(result.pointer(), FillPattern::U32(0), 4, label)
    })
    .unwrap();
    assert!(report.is_capturable(), "{report}");
    assert_eq!(report.code(), None);
    let expected = Counts {
        kernels: 2,
        library_calls: 1,
        copies: 1,
        copied_bytes: 4,
        fills: 1,
        allocations: 1,
        allocated_bytes: 32,
        ..Counts::default()
    };
    assert_eq!(*report.counts(), expected);
    assert_eq!(report.counts().commands(), 5);
    assert_eq!(report.savings(), None, "the simulator measures no GPU");
    assert!(!stream.is_capturing().unwrap());
    assert_eq!(read(&stream, &buffer), [7.0], "the region ran, once");
}

#[test]
fn the_host_does_not_wait() {
    let (device, buffer) = warm();
    let event = Event::new();
    let first = line!() + 3;
    let report = audited(&device, |stream| {
        launch(stream, &buffer)?;
        stream.synchronize()?;
        while !stream.query()? {}
        event.record(stream)?;
        event.synchronize()?;
        event.query()?;
        device.synchronize()?;
        device.default_stream().synchronize()
    });
    let captured = Some(Code::CapturedEvent);
    let expected = [(0, UNSUPPORTED), (1, UNSUPPORTED), (3, captured), (4, captured), (5, UNSUPPORTED)];
    let mut expected: Vec<_> =
        expected.map(|(line, code)| (ObstacleKind::HostSynchronisation, code, first + line, 1)).to_vec();
    expected.push((ObstacleKind::HostSynchronisation, UNSUPPORTED, first + 6, 1));
    let mut seen = found(&report);
    // The stream was queried as often as needed.
    assert!(seen[1].3 >= 1);
    seen[1].3 = 1;
    assert_eq!(seen, expected, "{report}");
    assert_eq!(report.obstacles()[0].operator(), "synchronize");
    assert_eq!(report.code(), UNSUPPORTED);
}

#[test]
fn in_a_relaxed_capture_the_host_may_wait_for_others() {
    let (device, _buffer) = warm();
    let other = Stream::new(&device).unwrap();
    for (mode, count) in [(CaptureMode::Global, 1), (CaptureMode::ThreadLocal, 1), (CaptureMode::Relaxed, 0)]
    {
        let report = audit(&device, in_mode(mode), || other.synchronize()).unwrap();
        assert_eq!(report.obstacles().len(), count, "{report}");
        assert_eq!(report.mode(), mode);
    }
}

#[test]
fn the_legacy_stream_is_no_part_of_a_capture() {
    let (device, buffer) = warm();
    let line = line!() + 1;
    let report = audited(&device, |_| launch(&device.default_stream(), &buffer));
    assert_eq!(found(&report), [(ObstacleKind::LegacyStream, None, line, 1)], "{report}");

    let line = line!() + 1;
    let report = audited(&device, |stream| device.default_stream().wait_stream(stream));
    let code = Some(Code::StreamCaptureImplicit);
    assert_eq!(found(&report), [(ObstacleKind::LegacyStream, code, line, 1)], "{report}");
}

#[test]
fn a_blocking_stream_that_captures_keeps_the_legacy_stream_from_everything() {
    let (driver, devices) = sim_in(&Environment::default(), 1);
    let device = &devices[0];
    let blocking = driver.external_stream_create(0, 0, true).unwrap();
    let stream = Stream::from_external(device, blocking).unwrap();
    let default = device.default_stream();
    let buffer = buffer_of(&default, &[0.0]);
    let region = || default.fill(buffer.pointer(), FillPattern::U32(0), 1, Label::here("fill"));
    let report = audit(device, on(&stream), region).unwrap();
    let code = Some(Code::StreamCaptureImplicit);
    assert_eq!(only(&report).code(), code);
    let error = Graph::capture(device, on(&stream), region).unwrap_err();
    assert_eq!(error.driver_error().map(thalweg_driver::Error::code), code, "{error}");
}

#[test]
fn memory_is_not_taken_from_the_driver() {
    let (device, _buffer) = warm();
    let driver = || device.driver().clone();
    let report = audited(&device, |_| {
        let pointer = driver().memory_allocate(0, 256)?;
        driver().memory_free(pointer)?;
        // Calls of the caching allocator are allowed, whatever it asks of the driver.
        let stream = device.current_stream();
        drop((Buffer::new(&stream, 8 << 20)?, PinnedBuffer::new(&device, 1 << 20)?));
        Ok(())
    });
    let kinds: Vec<_> = report.obstacles().iter().map(|found| (found.kind(), found.operator())).collect();
    let kind = ObstacleKind::SynchronousAllocation;
    assert_eq!(kinds, [(kind, "memory_allocate"), (kind, "memory_free")], "{report}");
    assert_eq!(report.code(), UNSUPPORTED);
    assert_eq!(report.obstacles()[0].location(), None, "the caller is not known");
}

#[test]
fn ordinary_memory_is_not_copied() {
    let (device, buffer) = warm();
    let line = line!() + 3;
    let report = audited(&device, |stream| {
        let (pointer, mut bytes) = (buffer.pointer(), [0; 4]);
        (0..3).try_for_each(|_| stream.copy_from_host(pointer, &bytes, Label::here("from_slice")))?;
        stream.copy_to_host(&mut bytes, pointer, Label::here("to_vec"))
    });
    let kind = ObstacleKind::PageableCopy;
    assert_eq!(found(&report), [(kind, UNSUPPORTED, line, 3), (kind, UNSUPPORTED, line + 1, 1)], "{report}");
    let counts = report.counts();
    assert_eq!((counts.copies, counts.staging_copies, counts.copied_bytes), (4, 3, 16));
}

#[test]
fn external_events_are_no_obstacles_and_bring_no_stream_in() {
    let (device, buffer) = warm();
    let other = Stream::new(&device).unwrap();
    let [ready, done] = [(); 2].map(|()| Event::new().external());
    ready.record(&other).unwrap();
    let report = audited(&device, |stream| {
        ready.wait(stream)?;
        launch(stream, &buffer)?;
        done.record(stream)?;
        done.wait(&other)?;
        assert!(!other.is_capturing()?);
        Ok(())
    });
    assert!(report.is_capturable(), "{report}");
    let fork = Stream::new(&device).unwrap();
    let report = audited(&device, |stream| {
        fork.wait_stream(stream)?;
        done.record(&fork)
    });
    assert_eq!(only(&report).code(), Some(Code::StreamCaptureUnjoined));
}

#[test]
fn a_fork_is_joined() {
    let (device, buffer) = warm();
    let (fork, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let report = audited(&device, |stream| {
        launch(stream, &buffer)?;
        fork.wait_stream(stream)?;
        assert!(fork.is_capturing()? && !other.is_capturing()?);
        launch(&fork, &buffer)?;
        other.wait_stream(&fork)?;
        launch(&other, &buffer)?;
        stream.wait_stream(&other)
    });
    assert!(report.is_capturable(), "{report}");

    let forked = line!() + 3;
    let report = audited(&device, |stream| {
        launch(stream, &buffer)?;
        fork.wait_stream(stream)?;
        launch(&fork, &buffer)?;
        stream.wait_stream(&fork)?;
        launch(&fork, &buffer)?;
        launch(stream, &buffer)
    });
    let code = Some(Code::StreamCaptureUnjoined);
    assert_eq!(found(&report), [(ObstacleKind::UnjoinedFork, code, forked + 3, 1)], "{report}");
    let detail = only(&report).detail();
    let cuda_stream = format!("{:#x}", fork.cuda_stream().unwrap());
    for part in [cuda_stream, format!("audit.rs:{forked}"), format!("sum at {}:{}", file!(), forked + 3)] {
        assert!(detail.contains(&part), "{part} is not in: {detail}");
    }
}

#[test]
fn other_threads_are_bound_or_not_seen() {
    let (device, buffer) = warm();
    let allocate = |mode: CaptureMode| {
        let mut pointer = None;
        let report = audit(&device, in_mode(mode), || {
            let allocated = std::thread::scope(|scope| {
                scope.spawn(|| device.driver().memory_allocate(0, 256)).join().expect("no panic")
            });
            pointer = Some(allocated?);
            Ok(())
        })
        .unwrap();
        device.driver().memory_free(pointer.expect("it was allocated")).unwrap();
        report
    };
    let report = allocate(CaptureMode::Global);
    assert_eq!(only(&report).kind(), ObstacleKind::OtherThread, "{report}");
    assert_eq!(report.code(), UNSUPPORTED);
    assert!(allocate(CaptureMode::ThreadLocal).is_capturable());

    // A thread begins with the default stream as its current one, so a capture would lose its work.
    let line = line!() + 3;
    let report = audited(&device, |_| {
        std::thread::scope(|scope| {
            scope.spawn(|| launch(&device.current_stream(), &buffer)).join().expect("no panic")
        })
    });
    assert_eq!(found(&report), [(ObstacleKind::OtherThread, None, line, 1)], "{report}");

    // Work of another thread on the region's stream is a part of the capture.
    let report = audited(&device, |stream| {
        std::thread::scope(|scope| scope.spawn(|| launch(stream, &buffer)).join().expect("no panic"))
    });
    assert!(report.is_capturable(), "{report}");
}

#[test]
fn what_operators_tell_is_heard() {
    let (device, buffer) = warm();
    let label = Label::here("uniform");
    host_random(label);
    let report = audited(&device, |stream| {
        host_random(label);
        host_random(label);
        let read = Label::here("item");
        explain(&device, ObstacleKind::DataDependentShape, read);
        stream.copy_to_host(&mut [0; 4], buffer.pointer(), read)?;
        stream.copy_to_host(&mut [0; 4], buffer.pointer(), Label::here("to_vec"))
    });
    let kinds: Vec<_> =
        report.obstacles().iter().map(|found| (found.kind(), found.code(), found.count())).collect();
    let expected = [
        (ObstacleKind::HostRandomState, None, 2),
        (ObstacleKind::DataDependentShape, UNSUPPORTED, 1),
        (ObstacleKind::PageableCopy, UNSUPPORTED, 1),
    ];
    assert_eq!(kinds, expected, "{report}");
    assert_eq!(report.code(), UNSUPPORTED);
}

#[test]
fn a_kernel_is_loaded_once() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let buffer = buffer_of(&stream, &[0.0]);
    let line = line!() + 1;
    let region = || launch(&stream, &buffer);
    let report = audit(&device, on(&stream), region).unwrap();
    assert_eq!(found(&report), [(ObstacleKind::LazyModuleLoad, UNSUPPORTED, line, 1)], "{report}");
    assert!(only(&report).detail().contains("the kernel sum_1"), "{report}");
    assert_eq!(only(&report).operator(), "sum");
    assert!(audit(&device, on(&stream), region).unwrap().is_capturable());
}

#[test]
fn graphs_and_communicators_are_no_part_of_a_graph() {
    let (device, buffer) = warm();
    let (graph, ()) =
        Graph::capture(&device, CaptureOptions::default(), || launch(&device.current_stream(), &buffer))
            .unwrap();
    let line = line!() + 2;
    let report = audited(&device, |_| {
        graph.replay()?;
        for communicator in device.driver().communicators_create(&[0])? {
            device.driver().communicator_destroy(communicator)?;
        }
        Ok(())
    });
    let kind = ObstacleKind::UncapturableCall;
    let expected = [(kind, UNSUPPORTED, line, 1), (kind, UNSUPPORTED, 0, 1), (kind, UNSUPPORTED, 0, 1)];
    assert_eq!(found(&report), expected, "{report}");
    assert_eq!(report.counts().graph_launches, 1);
}

#[test]
fn the_outside_stays_outside() {
    let (device, buffer) = warm();
    let (other, event) = (Stream::new(&device).unwrap(), Event::new());
    event.record(&other).unwrap();
    let line = line!() + 2;
    let report = audited(&device, |stream| {
        event.wait(stream)?;
        launch(&other, &buffer)?;
        stream.wait_stream(&other)
    });
    let isolated = Some(Code::StreamCaptureIsolation);
    let expected = [
        (ObstacleKind::OutsideEvent, isolated, line, 1),
        (ObstacleKind::OutsideStream, None, line + 1, 1),
        (ObstacleKind::OutsideEvent, isolated, line + 2, 1),
    ];
    assert_eq!(found(&report), expected, "{report}");
}

/// Does everything at once: one run finds all obstacles, in the order of their occurrence, unjoined forks last.
fn everything(device: &Device, buffer: &Buffer) -> Audit {
    let (fork, other) = (Stream::new(device).unwrap(), Stream::new(device).unwrap());
    let (graph, ()) = Graph::capture(device, CaptureOptions::default(), || {
        device.current_stream().fill(buffer.pointer(), FillPattern::U32(0), 1, Label::here("fill"))
    })
    .unwrap();
    let mut pointer = None;
    let report = audited(device, |stream| {
        launch(stream, buffer)?;
        let copy = Label::here("from_slice");
        stream.copy_from_host(buffer.pointer(), &[0; 4], copy)?;
        pointer = Some(device.driver().memory_allocate(0, 256)?);
        stream.synchronize()?;
        host_random(Label::here("uniform"));
        let read = Label::here("item");
        explain(device, ObstacleKind::DataDependentShape, read);
        stream.copy_to_host(&mut [0; 4], buffer.pointer(), read)?;
        launch(&device.default_stream(), buffer)?;
        std::thread::scope(|scope| {
            scope.spawn(|| launch(&device.current_stream(), buffer)).join().expect("no panic")
        })?;
        graph.replay()?;
        launch(&other, buffer)?;
        stream.wait_stream(&other)?;
        fork.wait_stream(stream)?;
        launch(&fork, buffer)
    });
    device.driver().memory_free(pointer.expect("it was allocated")).unwrap();
    report
}

#[test]
fn one_run_finds_every_class() {
    let device = device();
    let buffer = buffer_of(&device.default_stream(), &[0.0]);
    let report = everything(&device, &buffer);
    let kinds: Vec<_> = report.obstacles().iter().map(Obstacle::kind).collect();
    use ObstacleKind as Kind;
    let expected = [
        Kind::LazyModuleLoad,
        Kind::PageableCopy,
        Kind::SynchronousAllocation,
        Kind::HostSynchronisation,
        Kind::HostRandomState,
        Kind::DataDependentShape,
        Kind::LegacyStream,
        Kind::OtherThread,
        Kind::UncapturableCall,
        Kind::OutsideStream,
        Kind::OutsideEvent,
        Kind::UnjoinedFork,
    ];
    assert_eq!(kinds, expected, "{report}");
    assert!(Kind::ALL.iter().all(|kind| kinds.contains(kind)));
    assert!(report.obstacles().iter().all(|found| !found.repair().is_empty() && !found.detail().is_empty()));
}

#[test]
fn the_table_lines_up_and_fits() {
    let device = device();
    let buffer = buffer_of(&device.default_stream(), &[0.0]);
    let report = everything(&device, &buffer);
    let wide = format!("{report:160}");
    let heading = wide.lines().find(|line| line.contains("obstacle  ")).expect("there is a table");
    let end = heading.find("code").expect("a heading") + "code".len();
    let rows = wide.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.is_empty());
    let mut count = 0;
    for row in rows {
        let code = row[..end].rsplit(' ').next().expect("a row has words");
        assert!(code == "-" || code.parse::<u32>().is_ok_and(|code| (900..=907).contains(&code)), "{wide}");
        count += 1;
    }
    assert_eq!(count, report.obstacles().len());
    for width in [40, 60, 100, 160] {
        for line in format!("{report:width$}").lines() {
            let is_one_word = !line.trim_start().contains(' ') || line.contains("audit.rs:");
            assert!(line.chars().count() <= width || is_one_word, "wider than {width}: {line}");
        }
    }
    let narrow = format!("{report:40}").to_lowercase();
    for obstacle in report.obstacles() {
        assert!(narrow.contains(obstacle.kind().name()), "{narrow}");
    }
    assert!(!narrow.contains("obstacle  "), "no room for a table:\n{narrow}");
}

#[test]
fn an_audit_ends_whatever_the_region_does() {
    let (device, buffer) = warm();
    let stream = Stream::new(&device).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _ = audit::<()>(&device, on(&stream), || panic!("the region's own"));
    }));
    assert!(panicked.is_err());
    assert!(!stream.is_capturing().unwrap());
    let error = audit(&device, on(&stream), || {
        launch(&stream, &buffer)?;
        stream.copy_to_pinned(&PinnedBuffer::new(&device, 4)?, 0, buffer.pointer(), 8, Label::here("read"))
    })
    .unwrap_err();
    assert!(error.is_invalid_argument() && error.to_string().starts_with("audit: "), "{error}");
    assert!(audit(&device, on(&stream), || launch(&stream, &buffer)).unwrap().is_capturable());
}

#[test]
fn what_cannot_be_audited_is_refused_and_harms_nothing() {
    let (device, buffer) = warm();
    let stream = Stream::new(&device).unwrap();
    let refused = |result: Result<Audit>| {
        let error = result.unwrap_err();
        assert!(error.is_invalid_argument(), "{error}");
    };
    refused(audit(&device, on(&device.default_stream()), || Ok(())));
    let other = sim(1).remove(0);
    refused(audit(&device, on(&Stream::new(&other).unwrap()), || Ok(())));
    // In a capture, which continues.
    let (graph, ()) = Graph::capture(&device, on(&stream), || {
        launch(&stream, &buffer)?;
        refused(audit(&device, CaptureOptions::default(), || Ok(())));
        std::thread::scope(|scope| {
            scope
                .spawn(|| refused(audit(&device, CaptureOptions::default(), || Ok(()))))
                .join()
                .expect("no panic")
        });
        launch(&stream, &buffer)
    })
    .unwrap();
    assert_eq!(graph.description().unwrap().nodes.len(), 2);
    // In an audit, which continues too; a capture in it is refused as one in a capture is.
    let report = audit(&device, on(&stream), || {
        refused(audit(&device, CaptureOptions::default(), || Ok(())));
        assert!(
            Graph::capture(&device, CaptureOptions::default(), || Ok(())).unwrap_err().is_invalid_argument()
        );
        launch(&stream, &buffer)
    })
    .unwrap();
    assert!(report.is_capturable(), "{report}");
}
