//! Small programs with a bug, each next to its correct twin, and the sanitizer's findings in both.

use thalweg_driver::{DevicePointer, FillPattern};
use thalweg_memory::Settings;
use thalweg_runtime::sim::{Check, Failure, Gpu, Problem};
use thalweg_runtime::{Buffer, CaptureOptions, Graph, Label, Result, Stream};
use thalweg_sanitizer::FindingKind;

const BYTES: u64 = 1024;

#[track_caller]
fn fill(stream: &Stream, buffer: &Buffer) -> Result<()> {
    stream.fill(buffer.pointer(), FillPattern::U8(1), BYTES, Label::here("fill"))
}

#[track_caller]
fn read(stream: &Stream, from: DevicePointer) -> Result<()> {
    stream.copy_to_host(&mut [0; BYTES as usize], from, Label::here("read"))
}

/// Copies on the device: the host waits for nothing.
#[track_caller]
fn copy(stream: &Stream, target: &Buffer, source: DevicePointer) -> Result<()> {
    stream.copy_on_device(target.pointer(), source, BYTES, Label::here("copy"))
}

#[track_caller]
fn kind(failure: &Failure) -> FindingKind {
    match failure.problem() {
        Problem::Finding(finding) => finding.kind,
        problem => panic!("{problem}"),
    }
}

fn stream_ordered() -> Check {
    Check::new().allocator(Settings::parse("backend:cudaMallocAsync").unwrap())
}

/// Makes a stream overwrite what another writes. In between, memory of one is used on the other and dropped, and the allocator
/// queries whether that use is over before it reuses the memory.
fn freed(gpu: &Gpu, waits: bool) -> Result<()> {
    let [a, b] = [Stream::new(gpu.device())?, Stream::new(gpu.device())?];
    let shared = Buffer::new(&a, BYTES)?;
    b.wait_stream(&a)?;
    fill(&a, &shared)?;
    let passing = Buffer::new(&b, BYTES)?;
    a.wait_stream(&b)?;
    fill(&a, &passing)?;
    passing.record_use(&a);
    drop(passing);
    let next = Buffer::new(&b, BYTES)?;
    fill(&b, &next)?;
    if waits {
        b.wait_stream(&a)?;
    }
    fill(&b, &shared)?;
    shared.record_stream(&b);
    Ok(())
}

#[test]
fn what_the_allocator_asks_orders_nothing_of_the_program() {
    for seed in 0..200 {
        let check = || Check::new().seeds(seed..seed + 1).without_shrinking();
        let failure =
            check().find(|gpu| freed(gpu, false)).expect_err("the wait is missing under every schedule");
        assert_eq!(kind(&failure), FindingKind::Race, "{failure}");
    }
    Check::new().seeds(0..200).run(|gpu| freed(gpu, true));
}

/// Makes one stream overwrite what another writes. The second waits for an event at the first's end, or for one after other work;
/// in between an event is dropped, which the runtime may record again.
fn recorded_again(gpu: &Gpu, is_of_writer: bool) -> Result<()> {
    let [writer, other, reader] =
        [Stream::new(gpu.device())?, Stream::new(gpu.device())?, Stream::new(gpu.device())?];
    let shared = Buffer::new(&writer, BYTES)?;
    reader.wait_stream(&writer)?;
    fill(&writer, &shared)?;
    let first = writer.record_event()?;
    other.wait_event(&first)?;
    if is_of_writer {
        reader.wait_event(&first)?;
    }
    drop(first);
    // After no work of the writer.
    let idle = Stream::new(gpu.device())?;
    let second = idle.record_event()?;
    reader.wait_event(&second)?;
    fill(&reader, &shared)?;
    shared.record_stream(&reader);
    Ok(())
}

#[test]
fn an_event_that_is_dropped_and_recorded_again_orders_what_each_of_its_waits_found() {
    let failure = Check::new()
        .without_shrinking()
        .find(|gpu| recorded_again(gpu, false))
        .expect_err("the reader waits for an event of an idle stream");
    assert_eq!(kind(&failure), FindingKind::Race, "{failure}");
    Check::new().run(|gpu| recorded_again(gpu, true));
}

/// Launches a graph whose memory is the driver's own again while another stream reads its output.
fn relaunched(gpu: &Gpu, waits: bool) -> Result<()> {
    let (main, side) = (Stream::new(gpu.device())?, Stream::new(gpu.device())?);
    let target = Buffer::new(&side, BYTES)?;
    let options = CaptureOptions { stream: Some(main.clone()), ..CaptureOptions::default() };
    let (graph, output) = Graph::capture(gpu.device(), options, || {
        let output = Buffer::new(&main, BYTES)?;
        fill(&main, &output)?;
        Ok(output)
    })?;
    graph.replay_on(&main)?;
    side.wait_stream(&main)?;
    copy(&side, &target, output.pointer())?;
    if waits {
        main.wait_stream(&side)?;
    }
    graph.replay_on(&main)?;
    gpu.device().synchronize()
}

#[test]
fn a_graph_that_is_launched_again_waits_for_the_readers_of_what_it_gave() {
    for check in [Check::new, stream_ordered] {
        let failure =
            check().find(|gpu| relaunched(gpu, false)).expect_err("the graph overwrites what is read");
        assert_eq!(kind(&failure), FindingKind::Race, "{failure}");
        check().run(|gpu| relaunched(gpu, true));
    }
}

#[test]
fn an_output_of_a_graph_may_be_dropped_before_and_after_the_graph() {
    // With memory of the driver's own: a free counts only if a launch has left the memory allocated.
    for replays in 0..3 {
        for graph_first in [false, true] {
            stream_ordered().seeds(0..20).run(|gpu| -> Result<()> {
                let stream = gpu.device().current_stream();
                let (graph, output) = Graph::capture(gpu.device(), CaptureOptions::default(), || {
                    let stream = gpu.device().current_stream();
                    let output = Buffer::new(&stream, BYTES)?;
                    fill(&stream, &output)?;
                    Ok(output)
                })?;
                for _ in 0..replays {
                    graph.replay()?;
                }
                if replays > 0 {
                    read(&stream, output.pointer())?;
                }
                if graph_first {
                    drop(graph);
                    drop(output);
                } else {
                    drop(output);
                    graph.replay()?;
                    drop(graph);
                }
                Ok(())
            });
        }
    }
}

#[test]
fn a_fault_that_strikes_in_the_last_wait_is_not_the_programs() {
    // The only command runs while the machine waits for the end.
    let program = |gpu: &Gpu| -> Result<()> {
        let stream = Stream::new(gpu.device())?;
        let buffer = Buffer::new(&stream, BYTES)?;
        fill(&stream, &buffer)
    };
    Check::new().seeds(0..400).with_faults().run(program);
}
