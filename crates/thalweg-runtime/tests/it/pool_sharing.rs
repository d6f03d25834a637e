//! Graphs that share a pool: whose outputs are overwritten, and the pool's reaction. Also the memory use of graphs.

use thalweg_driver::{FillPattern, Label};
use thalweg_memory::SizeClass;
use thalweg_runtime::graph::{BoundGraph, OverwritePolicy};
use thalweg_runtime::{Buffer, CaptureOptions, Device, Graph, GraphPool, Result, Stream};

use crate::kernels::launch_sum;
use crate::support::{buffer_of, device, read, write};

const COUNT: usize = 64;

/// Captures `output = input + 1 + 1` on a stream that all captures share, with a buffer in between.
fn add_two(device: &Device, pool: &GraphPool, on: &Stream, input: &Buffer) -> (Graph, Buffer) {
    let options = CaptureOptions { pool: Some(pool.clone()), stream: Some(on.clone()), ..Default::default() };
    Graph::capture(device, options, || {
        let between = Buffer::new(on, input.size_bytes())?;
        launch_sum(on, &[input.pointer()], between.pointer(), input.size_bytes() / 4)?;
        let output = Buffer::new(on, input.size_bytes())?;
        launch_sum(on, &[between.pointer()], output.pointer(), input.size_bytes() / 4)?;
        Ok(output)
    })
    .unwrap()
}

/// Two graphs: a replay of the first overwrites the output of the second, which has the address of the first one's intermediate
/// buffer.
struct Pair {
    stream: Stream,
    inputs: [Buffer; 2],
    first: BoundGraph<Buffer>,
    second: BoundGraph<Buffer>,
}

fn pair(device: &Device, policy: OverwritePolicy) -> Pair {
    let [stream, on] = [(); 2].map(|()| Stream::new(device).unwrap());
    let inputs = [1.0, 10.0].map(|value| buffer_of(&stream, &vec![value; COUNT]));
    let pool = GraphPool::with_policy(device, policy);
    let (first, first_output) = add_two(device, &pool, &on, &inputs[0]);
    let options = CaptureOptions { pool: Some(pool), stream: Some(on.clone()), ..Default::default() };
    let (second, second_output) = Graph::capture(device, options, || {
        let output = Buffer::new(&on, inputs[1].size_bytes())?;
        launch_sum(&on, &[inputs[1].pointer()], output.pointer(), COUNT as u64)?;
        Ok(output)
    })
    .unwrap();
    assert_ne!(first_output.pointer(), second_output.pointer());
    Pair { stream, inputs, first: first.bind(first_output), second: second.bind(second_output) }
}

fn all(stream: &Stream, buffer: &Buffer, value: f32) {
    let found = read(stream, buffer);
    assert!(found.iter().all(|other| *other == value), "{} is not {value}", found[0]);
}

#[test]
fn a_live_output_is_not_overwritten() {
    let device = device();
    let Pair { stream, inputs: _inputs, mut first, mut second } = pair(&device, OverwritePolicy::Refuse);
    all(&stream, &first.replay_on(&stream).unwrap(), 3.0);
    let output = second.replay_on(&stream).unwrap();
    let error = first.replay_on(&stream).unwrap_err();
    assert!(error.is_invalid_argument());
    let text = error.to_string();
    let address = format!("{:#x}", output.pointer().address());
    for part in [
        "would overwrite 256 bytes",
        &address,
        "pool_sharing.rs",
        "release_outputs",
        "OverwritePolicy::Preserve",
    ] {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
    all(&stream, &output, 11.0);
    // The borrow ends, and the output is not needed any more.
    drop(output);
    all(&stream, &first.replay_on(&stream).unwrap(), 3.0);
    all(&stream, &second.replay_on(&stream).unwrap(), 11.0);
}

#[test]
fn outputs_without_a_handle_are_live_until_they_are_released_or_dropped() {
    let device = device();
    let Pair { stream, inputs: _inputs, first, second } = pair(&device, OverwritePolicy::Refuse);
    let ((first, _output), (second, output)) = (first.into_parts(), second.into_parts());
    first.replay_on(&stream).unwrap();
    second.replay_on(&stream).unwrap();
    assert!(first.replay_on(&stream).is_err());
    let copy = output.duplicate(&stream).unwrap();
    second.release_outputs();
    first.replay_on(&stream).unwrap();
    all(&stream, &copy, 11.0);
    second.replay_on(&stream).unwrap();
    assert!(first.replay_on(&stream).is_err());
    // The graph may go; its output is still there.
    drop(second);
    assert!(first.replay_on(&stream).is_err());
    all(&stream, &output, 11.0);
    drop(output);
    first.replay_on(&stream).unwrap();
}

#[test]
fn a_live_output_is_kept_by_copying() {
    let device = device();
    let Pair { stream, inputs, mut first, mut second } = pair(&device, OverwritePolicy::Preserve);
    let output = second.replay_on(&stream).unwrap();
    for round in 0..3 {
        write(&stream, &inputs[0], &vec![round as f32; COUNT]);
        all(&stream, &first.replay_on(&stream).unwrap(), round as f32 + 2.0);
        all(&stream, &output, 11.0);
    }
}

#[test]
fn all_outputs_in_the_way_are_kept_by_copying() {
    const BYTES: u64 = 4096;
    let device = device();
    let [stream, on] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let pool = GraphPool::with_policy(&device, OverwritePolicy::Preserve);
    let options = CaptureOptions { pool: Some(pool), stream: Some(on.clone()), ..Default::default() };
    let filled = |bytes: u64, value: f32| {
        let buffer = Buffer::new(&on, bytes)?;
        on.fill(buffer.pointer(), FillPattern::U32(value.to_bits()), bytes / 4, Label::here("fill"))?;
        Ok::<_, thalweg_runtime::Error>(buffer)
    };
    let (first, between) =
        Graph::capture(&device, options.clone(), || Ok(filled(3 * BYTES, 1.0)?.pointer().address())).unwrap();
    let values = [2.0, 3.0, 4.0];
    let (second, outputs) = Graph::capture(&device, options, || {
        values.iter().map(|&value| filled(BYTES, value)).collect::<Result<Vec<_>>>()
    })
    .unwrap();
    for output in &outputs {
        assert!((between..between + 3 * BYTES).contains(&output.pointer().address()), "{output:?}");
    }
    second.replay_on(&stream).unwrap();
    for _ in 0..2 {
        first.replay_on(&stream).unwrap();
        outputs.iter().zip(values).for_each(|(output, value)| all(&stream, output, value));
    }
}

#[test]
fn unchecked_is_as_in_cuda() {
    let device = device();
    let Pair { stream, inputs: _inputs, mut first, mut second } = pair(&device, OverwritePolicy::Unchecked);
    let output = second.replay_on(&stream).unwrap();
    drop(first.replay_on(&stream).unwrap());
    all(&stream, &output, 2.0);
}

/// The first graph's memory was remapped: the address that it writes is an alias of the second's output.
#[test]
fn an_output_is_not_overwritten_through_another_address() {
    let device = device();
    let page_bytes = device.allocator().settings().expandable_page_bytes(SizeClass::Large);
    let stream = Stream::new(&device).unwrap();
    let new = |pages| Buffer::new(&stream, pages * page_bytes);
    let fill = |buffer: &Buffer, value| {
        let pattern = FillPattern::U8(value);
        stream.fill(buffer.pointer(), pattern, buffer.size_bytes(), Label::here("fill"))
    };
    let options = CaptureOptions { stream: Some(stream.clone()), ..Default::default() };
    let (first, _held) = Graph::capture(&device, options.clone(), || {
        let pieces = (0..4).map(|_| new(1)).collect::<Result<Vec<_>>>()?;
        pieces.iter().try_for_each(|piece| fill(piece, 1))?;
        let held: Vec<Buffer> = pieces.into_iter().skip(1).step_by(2).collect();
        // The allocation is served from the free pieces, and nothing is written there.
        drop(new(2)?);
        Ok(held)
    })
    .unwrap();
    if device.allocator().aliases(first.pool().id()).is_empty() {
        assert!(!device.properties().virtual_memory, "four pages in pieces are enough");
        return;
    }
    assert_eq!(first.pool().reserved_bytes(), 4 * page_bytes);
    let options = CaptureOptions { pool: Some(first.pool().clone()), ..options };
    let (second, output) = Graph::capture(&device, options, || {
        let output = new(2)?;
        fill(&output, 2)?;
        Ok(output)
    })
    .unwrap();
    first.replay_on(&stream).unwrap();
    second.replay_on(&stream).unwrap();
    let error = first.replay_on(&stream).unwrap_err().to_string();
    assert!(error.contains("would overwrite"), "{error}");
    second.release_outputs();
    first.replay_on(&stream).unwrap();
    let mut bytes = vec![0; 2 * page_bytes as usize];
    stream.copy_to_host(&mut bytes, output.pointer(), Label::here("read")).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 1), "it is the same memory");
}

#[test]
fn graphs_in_the_order_of_their_capture_need_no_check() {
    let device = device();
    let [stream, on] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let pool = GraphPool::new(&device);
    let input = buffer_of(&stream, &vec![1.0; COUNT]);
    let (first, middle) = add_two(&device, &pool, &on, &input);
    let (second, output) = add_two(&device, &pool, &on, &middle);
    for round in 0..3 {
        write(&stream, &input, &vec![round as f32; COUNT]);
        // The second one's intermediate buffer has the address of the first one's own: nothing needs it.
        first.replay_on(&stream).unwrap();
        second.replay_on(&stream).unwrap();
        all(&stream, &output, round as f32 + 4.0);
    }
}

#[test]
fn a_graph_does_not_read_what_a_third_one_has_overwritten() {
    let device = device();
    let [stream, on] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let pool = GraphPool::new(&device);
    let input = buffer_of(&stream, &vec![1.0; COUNT]);
    let (makes, middle) = add_two(&device, &pool, &on, &input);
    let options =
        || CaptureOptions { pool: Some(pool.clone()), stream: Some(on.clone()), ..Default::default() };
    let other = buffer_of(&stream, &vec![0.0; COUNT]);
    let (reads, ()) = Graph::capture(&device, options(), || {
        launch_sum(&on, &[middle.pointer()], other.pointer(), COUNT as u64)
    })
    .unwrap();
    // Nothing holds the memory between them any more, so a third graph gets it.
    let address = middle.pointer();
    drop(middle);
    let (third, third_output) = Graph::capture(&device, options(), || {
        let outputs = [(); 2].map(|()| Buffer::new(&on, (COUNT * 4) as u64).unwrap());
        outputs
            .iter()
            .try_for_each(|output| launch_sum(&on, &[input.pointer()], output.pointer(), COUNT as u64))?;
        Ok(outputs)
    })
    .unwrap();
    assert!(third_output.iter().any(|output| output.pointer() == address));
    makes.replay_on(&stream).unwrap();
    reads.replay_on(&stream).unwrap();
    all(&stream, &other, 4.0);
    third.replay_on(&stream).unwrap();
    let error = reads.replay_on(&stream).unwrap_err();
    assert!(error.to_string().contains("replay the graph that makes them first"), "{error}");
    // Computing it again would overwrite the third one's outputs, which are live.
    assert!(makes.replay_on(&stream).unwrap_err().to_string().contains("would overwrite"));
    third.release_outputs();
    makes.replay_on(&stream).unwrap();
    reads.replay_on(&stream).unwrap();
    all(&stream, &other, 4.0);
}

#[test]
fn preserved_outputs_are_right_under_every_schedule() {
    thalweg_runtime::sim::check(|gpu| -> Result<()> {
        let Pair { stream, inputs: _inputs, mut first, mut second } =
            pair(gpu.device(), OverwritePolicy::Preserve);
        let output = second.replay_on(&stream)?;
        drop(first.replay_on(&stream)?);
        let mut value = [0.0_f32];
        stream.copy_to_host(
            bytemuck::cast_slice_mut(&mut value),
            output.pointer(),
            thalweg_runtime::Label::here("read"),
        )?;
        assert_eq!(value, [11.0]);
        Ok(())
    });
}

#[test]
fn graph_memory_is_told_by_graph_and_by_pool() {
    const MIB: u64 = 1 << 20;
    let device = device();
    let [stream, on] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let pool = GraphPool::new(&device);
    assert_eq!(pool.memory().reserved_bytes, 0);
    let input = buffer_of(&stream, &vec![1.0; 1 << 20]);
    let (first, output) = add_two(&device, &pool, &on, &input);
    let memory = first.memory().clone();
    assert_eq!((memory.reserved_before_bytes, memory.input_bytes, memory.pinned_bytes), (0, 4 * MIB, 0));
    assert_eq!(
        (memory.allocated_bytes, memory.occupied_bytes, memory.output_bytes),
        (8 * MIB, 8 * MIB, 4 * MIB)
    );
    assert!(memory.reserved_after_bytes >= 8 * MIB);
    let (second, other) = add_two(&device, &pool, &on, &output);
    assert_eq!(second.memory().reserved_before_bytes, memory.reserved_after_bytes);
    let reported = pool.memory();
    assert_eq!(reported.reserved_bytes, second.memory().reserved_after_bytes);
    assert_eq!(reported.held_bytes, 8 * MIB);
    assert_eq!(reported.graphs, [memory, second.memory().clone()]);
    drop((first, other));
    let reported = pool.memory();
    assert_eq!((reported.held_bytes, reported.graphs.len()), (4 * MIB, 1));
    drop((second, output));
    device.empty_cache().unwrap();
    assert!(pool.memory().reserved_bytes > 0, "a handle of the pool keeps its addresses");
}
