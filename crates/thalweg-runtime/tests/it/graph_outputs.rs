//! Outputs of graphs that callers hold, and pools that are restored: the duties of a graph's owner, and the findings if it
//! neglects them.

use thalweg_driver::FillPattern;
use thalweg_runtime::graph::OverwritePolicy;
use thalweg_runtime::sim::{Check, Failure, Problem};
use thalweg_runtime::{Buffer, CaptureOptions, Device, Graph, GraphPool, Label, Result, Stream};
use thalweg_sanitizer::FindingKind;

const BYTES: u64 = 4096;

fn fill(stream: &Stream, buffer: &Buffer, value: u8) -> Result<()> {
    stream.fill(buffer.pointer(), FillPattern::U8(value), BYTES, Label::here("fill"))
}

fn copy(stream: &Stream, target: &Buffer, source: &Buffer) -> Result<()> {
    stream.copy_on_device(target.pointer(), source.pointer(), BYTES, Label::here("copy"))
}

fn read(stream: &Stream, buffer: &Buffer) -> Result<u8> {
    let mut bytes = [0; BYTES as usize];
    stream.copy_to_host(&mut bytes, buffer.pointer(), Label::here("read"))?;
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    Ok(bytes[0])
}

fn kind(failure: &Failure) -> Option<FindingKind> {
    match failure.problem() {
        Problem::Finding(finding) => Some(finding.kind),
        _ => None,
    }
}

fn options(pool: &GraphPool) -> CaptureOptions {
    CaptureOptions { pool: Some(pool.clone()), ..CaptureOptions::default() }
}

/// Returns a graph that copies an input to memory of its pool.
fn copying(device: &Device, pool: &GraphPool, input: &Buffer) -> Result<(Graph, Buffer)> {
    Graph::capture(device, options(pool), || {
        let stream = device.current_stream();
        let output = Buffer::new(&stream, BYTES)?;
        copy(&stream, &output, input)?;
        Ok(output)
    })
}

/// Passes a graph's output to its caller twice; in between, another stream reads it.
fn write_twice(device: &Device, waits: bool) -> Result<()> {
    let (stream, reader) = (Stream::new(device)?, Stream::new(device)?);
    let _current = stream.make_current();
    let input = Buffer::new(&stream, BYTES)?;
    let pool = GraphPool::new(device);
    let (graph, mut first) = copying(device, &pool, &input)?;
    let address = first.pointer();
    let (held, handle) = first.make_graph_output(&pool, Label::here("first"))?;
    assert!(first.make_graph_output(&pool, Label::here("again")).is_err(), "it is an output already");
    assert_eq!((held.address(), held.size_bytes()), (address.address(), BYTES));
    fill(&stream, &input, 1)?;
    graph.replay()?;
    let aside = Buffer::new(&reader, BYTES)?;
    reader.wait_stream(&stream)?;
    copy(&reader, &aside, &first)?;
    first.record_use(&reader);
    assert!(handle.is_of(&first) && !handle.is_dropped());
    drop(first);
    assert!(handle.is_dropped());
    if waits {
        handle.wait_for_uses(&stream)?;
    }
    fill(&stream, &input, 2)?;
    let (second, handle) = pool.output_buffer(address, BYTES, &stream, Label::here("second"));
    graph.replay()?;
    assert_eq!(read(&stream, &second)?, 2);
    assert!(handle.is_of(&second));
    if waits {
        assert_eq!(read(&reader, &aside)?, 1);
    }
    device.synchronize()
}

#[test]
fn a_replay_waits_for_the_uses_of_what_was_returned() {
    Check::new().seeds(0..20).run(|gpu| write_twice(gpu.device(), true));
    let failure = Check::new().seeds(0..20).find(|gpu| write_twice(gpu.device(), false)).unwrap_err();
    assert_eq!(kind(&failure), Some(FindingKind::ReuseBeforeLastUse), "{failure}");
}

#[test]
fn what_is_still_held_moves_out_of_the_way() {
    Check::new().seeds(0..20).run(|gpu| -> Result<()> {
        let device = gpu.device();
        let stream = Stream::new(device)?;
        let _current = stream.make_current();
        let input = Buffer::new(&stream, BYTES)?;
        let pool = GraphPool::with_policy(device, OverwritePolicy::Unchecked);
        let (graph, mut first) = copying(device, &pool, &input)?;
        let (held, handle) = first.make_graph_output(&pool, Label::here("output"))?;
        fill(&stream, &input, 1)?;
        graph.replay()?;
        let address = first.pointer();
        handle.move_out(&stream)?;
        handle.move_out(&stream)?;
        assert!(first.pointer() != address && !handle.is_of(&first) && !handle.is_dropped());
        fill(&stream, &input, 2)?;
        let (second, other) = pool.output_buffer(address, BYTES, &stream, Label::here("output"));
        graph.replay()?;
        assert_eq!((read(&stream, &first)?, read(&stream, &second)?), (1, 2));
        // Whichever is dropped first, the output stays until it is dropped.
        drop((graph, held, pool, other));
        device.empty_cache()?;
        assert_eq!((read(&stream, &first)?, read(&stream, &second)?), (1, 2));
        drop(first);
        assert!(handle.is_dropped());
        Ok(())
    });
}

/// Captures a graph that reads memory of another capture which is no longer held.
fn read_freed(device: &Device, vouches: bool) -> Result<()> {
    let stream = Stream::new(device)?;
    let _current = stream.make_current();
    let input = Buffer::new(&stream, BYTES)?;
    let pool = GraphPool::with_policy(device, OverwritePolicy::Unchecked);
    let (first, between) = copying(device, &pool, &input)?;
    let result = Buffer::new(&stream, BYTES)?;
    let (second, ()) = Graph::capture(device, options(&pool), || {
        let stream = device.current_stream();
        if vouches {
            pool.vouch(&stream);
        }
        copy(&stream, &result, &between)
    })?;
    drop(between);
    fill(&stream, &input, 9)?;
    first.replay()?;
    second.replay()?;
    assert_eq!(read(&stream, &result)?, 9);
    Ok(())
}

#[test]
fn memory_of_other_captures_is_vouched_for_or_reported() {
    Check::new().seeds(0..5).run(|gpu| read_freed(gpu.device(), true));
    let failure = Check::new().seeds(0..5).find(|gpu| read_freed(gpu.device(), false)).unwrap_err();
    assert_eq!(kind(&failure), Some(FindingKind::StaleGraphInput), "{failure}");
}

#[test]
fn a_pool_is_put_back_to_what_a_path_left() {
    Check::new().seeds(0..10).run(|gpu| -> Result<()> {
        let device = gpu.device();
        let stream = Stream::new(device)?;
        let _current = stream.make_current();
        let input = Buffer::new(&stream, BYTES)?;
        fill(&stream, &input, 3)?;
        let pool = GraphPool::with_policy(device, OverwritePolicy::Unchecked);
        let capture_stream = Stream::new(device)?;
        let capture = || {
            let options = CaptureOptions { stream: Some(capture_stream.clone()), ..options(&pool) };
            Graph::capture(device, options, || {
                let stream = device.current_stream();
                let output = Buffer::new(&stream, BYTES)?;
                copy(&stream, &output, &input)?;
                Ok(output)
            })
        };
        let empty = pool.checkpoint()?;
        assert!(empty.live_addresses().is_empty());
        let (root, first) = capture()?;
        let behind_root = pool.checkpoint()?;
        assert_eq!(behind_root.live_addresses(), [first.pointer().address()]);
        let (_one, on_one_path) = capture()?;
        assert_ne!(on_one_path.pointer(), first.pointer());
        let held = pool.restore(&behind_root)?;
        assert_eq!(held.len(), 1);
        assert_eq!(held[0].address(), first.pointer().address());
        let (_other, on_another) = capture()?;
        assert_eq!(on_another.pointer(), on_one_path.pointer(), "the paths share what is behind the root");
        assert!(pool.owns(&on_another) && !pool.owns(&input));
        root.replay()?;
        assert_eq!(read(&stream, &first)?, 3);
        assert!(pool.restore(&empty)?.is_empty());
        let (_again, at_root) = capture()?;
        assert_eq!(at_root.pointer(), first.pointer());
        // While a capture is under way nothing can be waited for; here no wait is needed.
        let (_unrelated, within) = Graph::capture(device, CaptureOptions::default(), || pool.checkpoint())?;
        assert_eq!(within.live_addresses(), [at_root.pointer().address()]);
        Ok(())
    });
}

/// Before an output is overwritten, every stream that used it is waited for, not only the first.
#[test]
fn all_uses_of_an_output_are_waited_for() {
    let program = |gpu: &thalweg_runtime::sim::Gpu| -> Result<()> {
        let device = gpu.device();
        let stream = Stream::new(device)?;
        let readers = [Stream::new(device)?, Stream::new(device)?, Stream::new(device)?];
        let _current = stream.make_current();
        let input = Buffer::new(&stream, BYTES)?;
        let pool = GraphPool::new(device);
        let (graph, mut first) = copying(device, &pool, &input)?;
        let (_held, handle) = first.make_graph_output(&pool, Label::here("first"))?;
        fill(&stream, &input, 1)?;
        graph.replay()?;
        let mut copies = Vec::new();
        for reader in &readers {
            let aside = Buffer::new(reader, BYTES)?;
            reader.wait_stream(&stream)?;
            copy(reader, &aside, &first)?;
            first.record_use(reader);
            copies.push(aside);
        }
        drop(first);
        handle.wait_for_uses(&stream)?;
        fill(&stream, &input, 2)?;
        graph.replay()?;
        for (reader, aside) in readers.iter().zip(&copies) {
            assert_eq!(read(reader, aside)?, 1);
        }
        device.synchronize()
    };
    Check::new().seeds(0..30).run(program);
}
