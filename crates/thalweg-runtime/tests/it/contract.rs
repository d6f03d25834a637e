//! The replay contract: the inputs and outputs that a graph reports, and the replays that it refuses.

use thalweg_driver::{Access, AccessMode, FillPattern};
use thalweg_runtime::graph::{CapturedGraph, InputKind};
use thalweg_runtime::{Buffer, CaptureOptions, Device, Graph, GraphPool, Label, Result, Stream};

use crate::kernels::launch_sum;
use crate::support::{buffer_of, device, read, sim, write};

/// Captures a region on a stream of its own.
fn capture<T>(
    device: &Device,
    pool: Option<&GraphPool>,
    region: impl FnOnce(&Stream) -> Result<T>,
) -> (CapturedGraph, T) {
    let options = CaptureOptions { pool: pool.cloned(), ..CaptureOptions::default() };
    let capture = Graph::capture_begin(device, options).unwrap();
    let result = region(capture.stream()).unwrap();
    (capture.end().unwrap(), result)
}

#[test]
fn a_contract_names_inputs_mutated_inputs_and_outputs() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let read_only = buffer_of(&stream, &[1.0; 100]);
    let mutated = buffer_of(&stream, &[2.0; 50]);
    let filled = buffer_of(&stream, &[2.0; 8]);
    let unused = buffer_of(&stream, &[2.0; 8]);
    let (captured, output) = capture(&device, None, |stream| {
        let between = Buffer::new(stream, 200)?;
        let output = Buffer::new(stream, 200)?;
        launch_sum(stream, &[read_only.pointer().offset(40)], between.pointer(), 50)?;
        launch_sum(stream, &[between.pointer(), mutated.pointer()], mutated.pointer(), 50)?;
        stream.fill(filled.pointer(), FillPattern::U32(0), 2, Label::here("fill"))?;
        launch_sum(stream, &[mutated.pointer()], output.pointer(), 50)?;
        Ok(output)
    });
    let contract = captured.contract();
    let reported: Vec<_> = contract
        .inputs()
        .iter()
        .map(|input| (input.address, input.size_bytes, input.is_read, input.is_written, input.kind))
        .collect();
    let address = |buffer: &Buffer| buffer.pointer().address();
    assert_eq!(
        reported,
        [
            (address(&read_only), 400, true, false, InputKind::Buffer),
            (address(&mutated), 200, true, true, InputKind::Buffer),
            (address(&filled), 32, false, true, InputKind::Buffer),
        ]
    );
    assert_eq!(contract.inputs()[0].touched, address(&read_only) + 40..address(&read_only) + 240);
    assert_eq!(contract.inputs()[2].touched.end - contract.inputs()[2].touched.start, 8);
    assert_eq!(contract.inputs()[2].label.operator, "fill");
    let changed: Vec<_> = contract.mutated().map(|input| input.address).collect();
    assert_eq!(changed, [address(&mutated), address(&filled)]);
    let outputs: Vec<_> =
        contract.outputs().iter().map(|output| (output.address, output.size_bytes)).collect();
    assert_eq!(outputs, [(address(&output), 200)]);
    assert!(contract.input_at(address(&read_only) + 399).is_some());
    assert!(contract.input_at(address(&read_only) + 400).is_none());
    assert!(contract.input_at(address(&unused)).is_none());
    assert!(contract.outputs()[0].is_held());
    drop(output);
    assert!(!contract.outputs()[0].is_held());
    assert!(contract.is_kept(), "outputs are the caller's to drop");
}

#[test]
fn a_dead_input_is_an_error_before_the_launch() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let kept = buffer_of(&stream, &[1.0; 4]);
    let [dies, dies_too] = [(); 2].map(|()| buffer_of(&stream, &[1.0; 4]));
    let line = line!() + 2;
    let (captured, ()) = capture(&device, None, |stream| {
        launch_sum(stream, &[dies.pointer(), kept.pointer()], kept.pointer(), 4)?;
        launch_sum(stream, &[dies_too.pointer(), kept.pointer()], kept.pointer(), 4)
    });
    let graph = captured.instantiate().unwrap();
    graph.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &kept), [5.0; 4]);
    let address = dies.pointer();
    drop(dies);
    // Another owner has the memory: running now would read that owner's data.
    let heir = buffer_of(&stream, &[100.0; 4]);
    assert_eq!(heir.pointer(), address);
    let error = graph.replay_on(&stream).unwrap_err();
    assert!(error.is_invalid_argument());
    let text = error.to_string();
    for part in [
        "an input of the graph has died",
        "16 bytes at",
        &format!("{:#x}", address.address()),
        &format!("contract.rs:{line}"),
        "keep it for as long as the graph",
    ] {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
    assert_eq!(read(&stream, &kept), [5.0; 4], "nothing was launched");
    drop(dies_too);
    assert!(graph.replay_on(&stream).unwrap_err().to_string().contains("2 inputs"));
    // A new executable of the same capture is refused, too.
    assert!(captured.instantiate().unwrap().replay_on(&stream).is_err());
    assert_eq!(captured.contract().dead_inputs().len(), 2);
}

#[test]
fn an_input_that_dies_in_the_capture_is_dead() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[1.0; 4]);
    let passing = buffer_of(&stream, &[1.0; 4]);
    let (captured, ()) = capture(&device, None, |stream| {
        launch_sum(stream, &[passing.pointer(), data.pointer()], data.pointer(), 4)?;
        drop(passing);
        Ok(())
    });
    assert!(captured.instantiate().unwrap().replay_on(&stream).is_err());
}

#[test]
fn memory_of_the_capture_itself_is_no_input() {
    let device = device();
    let (captured, ()) = capture(&device, None, |stream| {
        for _ in 0..20 {
            let buffer = Buffer::new(stream, 4 << 20)?;
            stream.fill(buffer.pointer(), FillPattern::U8(0), 16, Label::here("fill"))?;
        }
        Ok(())
    });
    assert!(captured.contract().inputs().is_empty() && captured.contract().outputs().is_empty());
    assert_eq!(captured.memory().allocated_bytes, 80 << 20);
    assert_eq!(captured.memory().occupied_bytes, 4 << 20, "they have the same place");
}

#[test]
fn memory_of_another_stream_that_is_allocated_in_the_capture_is_an_input() {
    let device = device();
    let bystander = Stream::new(&device).unwrap();
    let early = buffer_of(&bystander, &[1.0; 4]);
    let (captured, late) = capture(&device, None, |stream| {
        launch_sum(stream, &[early.pointer()], early.pointer(), 4)?;
        let late = Buffer::new(&bystander, 16)?;
        launch_sum(stream, &[early.pointer()], late.pointer(), 4)?;
        Ok(late)
    });
    let addresses: Vec<_> = captured.contract().inputs().iter().map(|input| input.address).collect();
    assert_eq!(addresses, [early.pointer().address(), late.pointer().address()]);
    let graph = captured.instantiate().unwrap();
    graph.replay_on(&bystander).unwrap();
    assert_eq!(read(&bystander, &late), [3.0; 4]);
    drop(late);
    assert!(graph.replay_on(&bystander).is_err());
}

#[test]
fn unknown_memory_is_named_and_not_watched() {
    let device = sim(1).remove(0);
    let driver = device.driver();
    let raw = driver.memory_allocate(0, 4096).unwrap();
    let stream = Stream::new(&device).unwrap();
    stream.fill(raw, FillPattern::U32(0), 1024, Label::here("fill")).unwrap();
    let (captured, ()) = capture(&device, None, |stream| launch_sum(stream, &[raw], raw, 8));
    let [input] = captured.contract().inputs() else { panic!("one input") };
    assert_eq!((input.address, input.size_bytes, input.kind), (raw.address(), 32, InputKind::Unknown));
    captured.instantiate().unwrap().replay_on(&stream).unwrap();
    stream.synchronize().unwrap();
    driver.memory_free(raw).unwrap();
    assert!(captured.contract().is_kept());
}

#[test]
fn what_another_graph_of_the_pool_left_is_told_apart() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let pool = GraphPool::new(&device);
    let input = buffer_of(&stream, &[1.0; 4]);
    let (first, middle) = capture(&device, Some(&pool), |stream| {
        let middle = Buffer::new(stream, 16)?;
        launch_sum(stream, &[input.pointer()], middle.pointer(), 4)?;
        Ok(middle)
    });
    let (second, output) = capture(&device, Some(&pool), |stream| {
        let output = Buffer::new(stream, 16)?;
        launch_sum(stream, &[middle.pointer()], output.pointer(), 4)?;
        Ok(output)
    });
    let [found] = second.contract().inputs() else { panic!("one input") };
    assert_eq!((found.address, found.kind), (middle.pointer().address(), InputKind::Pool));
    let graphs = [first, second].map(|captured| captured.instantiate().unwrap());
    graphs.iter().for_each(|graph| graph.replay_on(&stream).unwrap());
    assert_eq!(read(&stream, &output), [3.0; 4]);
}

/// Captures `middle = 2 · input + 1` into a pool of its own, and `output = 2 · middle + 1` into another, and drops `middle`.
fn in_two_pools(device: &Device, input: &Buffer) -> (CapturedGraph, CapturedGraph, Buffer) {
    let double = |pool: Option<&GraphPool>, from: &Buffer| {
        capture(device, pool, |stream| {
            let to = Buffer::new(stream, 16)?;
            launch_sum(stream, &[from.pointer(), from.pointer()], to.pointer(), 4)?;
            Ok(to)
        })
    };
    let (first, middle) = double(None, input);
    let (second, output) = double(None, &middle);
    let [found] = second.contract().inputs() else { panic!("one input") };
    assert_eq!((found.address, found.kind), (middle.pointer().address(), InputKind::OtherPool));
    (first, second, output)
}

#[test]
fn memory_of_another_graphs_pool_is_kept_when_its_buffer_and_its_graph_are_dropped() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let input = buffer_of(&stream, &[1.0; 4]);
    let (first, second, output) = in_two_pools(&device, &input);
    let [one, other] = [&first, &second].map(|captured| captured.instantiate().unwrap());
    for value in [1.0, 5.0] {
        write(&stream, &input, &[value; 4]);
        one.replay_on(&stream).unwrap();
        other.replay_on(&stream).unwrap();
        assert_eq!(read(&stream, &output), [4.0 * value + 3.0; 4]);
    }
    drop((one, first));
    device.synchronize().unwrap();
    device.empty_cache().unwrap();
    // Another capture would take what is left of a pool, and write there.
    let (captured, taken) = capture(&device, None, |stream| {
        let taken = Buffer::new(stream, 16)?;
        launch_sum(stream, &[input.pointer()], taken.pointer(), 4)?;
        Ok(taken)
    });
    captured.instantiate().unwrap().replay_on(&stream).unwrap();
    other.replay_on(&stream).unwrap();
    assert_eq!((read(&stream, &output), read(&stream, &taken)), (vec![23.0; 4], vec![6.0; 4]));
}

#[test]
fn memory_of_another_graphs_pool_that_a_third_graph_overwrote_is_refused() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let input = buffer_of(&stream, &[1.0; 4]);
    let (first, second, output) = in_two_pools(&device, &input);
    let (third, own) = capture(&device, Some(first.pool()), |stream| {
        let own = Buffer::new(stream, 16)?;
        launch_sum(stream, &[input.pointer()], own.pointer(), 4)?;
        Ok(own)
    });
    drop(own);
    let [first, second, third] = [first, second, third].map(|captured| captured.instantiate().unwrap());
    first.replay_on(&stream).unwrap();
    third.replay_on(&stream).unwrap();
    let error = second.replay_on(&stream).unwrap_err();
    assert!(error.is_invalid_argument() && error.to_string().contains("overwritten since"), "{error}");
    first.replay_on(&stream).unwrap();
    second.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &output), [7.0; 4]);
}

#[test]
fn static_inputs_are_copied_only_from_elsewhere() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let [input, elsewhere] = [[1.0; 4], [7.0; 4]].map(|values| buffer_of(&stream, &values));
    let output = buffer_of(&stream, &[0.0; 4]);
    let (captured, ()) =
        capture(&device, None, |stream| launch_sum(stream, &[input.pointer()], output.pointer(), 4));
    let graph = captured.instantiate().unwrap();
    assert!(!graph.write_input(&stream, input.pointer(), input.pointer(), 16).unwrap());
    graph.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &output), [2.0; 4]);
    assert!(graph.write_input(&stream, input.pointer(), elsewhere.pointer(), 16).unwrap());
    graph.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &output), [8.0; 4]);
    for (target, bytes) in [(elsewhere.pointer(), 16), (input.pointer(), 17), (input.pointer().offset(4), 16)]
    {
        let error = graph.write_input(&stream, target, elsewhere.pointer(), bytes).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains("no input"), "{error}");
    }
}

#[test]
fn inputs_are_watched_under_every_schedule() {
    thalweg_runtime::sim::check(|gpu| -> Result<()> {
        let device = gpu.device();
        let stream = Stream::new(device)?;
        let input = buffer_of(&stream, &[1.0; 4]);
        let output = buffer_of(&stream, &[0.0; 4]);
        let (captured, ()) =
            capture(device, None, |stream| launch_sum(stream, &[input.pointer()], output.pointer(), 4));
        let graph = captured.instantiate()?;
        graph.replay_on(&stream)?;
        write(&stream, &input, &[2.0; 4]);
        graph.replay_on(&stream)?;
        // Replays are under way; the next one is refused, and these are not harmed.
        drop(input);
        let heir = buffer_of(&stream, &[9.0; 4]);
        assert!(graph.replay_on(&stream).is_err());
        assert_eq!(read(&stream, &output), [3.0; 4]);
        drop(heir);
        Ok(())
    });
}

#[test]
fn commands_past_the_runtime_are_declared_or_not_replayed() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let label = Label::here("unseen");
    let fill = |stream: &Stream, target: &Buffer| -> Result<()> {
        let fill =
            thalweg_driver::Fill { target: target.pointer(), pattern: FillPattern::U32(0), count: 1, label };
        Ok(device.driver().fill_async(stream.handle(), &fill)?)
    };
    // On its own, and before, between and after commands of ours, on a stream that is joined.
    for place in 0..5 {
        for declares in [false, true] {
            let (data, unseen) = (buffer_of(&stream, &[1.0; 4]), buffer_of(&stream, &[7.0; 4]));
            let (captured, ()) = capture(&device, None, |stream| {
                let ours = || launch_sum(stream, &[data.pointer()], data.pointer(), 4);
                let theirs = |stream: &Stream| -> Result<()> {
                    fill(stream, &unseen)?;
                    if declares {
                        stream
                            .declare(&[Access::new(unseen.pointer().address(), 4, AccessMode::Write)], label);
                    }
                    Ok(())
                };
                match place {
                    0 => theirs(stream),
                    1 => theirs(stream).and_then(|()| ours()),
                    2 => ours().and_then(|()| theirs(stream)),
                    3 => ours().and_then(|()| theirs(stream)).and_then(|()| ours()),
                    _ => {
                        let side = Stream::new(&device)?;
                        side.wait_stream(stream)?;
                        theirs(&side)?;
                        stream.wait_stream(&side)?;
                        ours()
                    }
                }
            });
            assert_eq!(captured.contract().has_undeclared_commands(), !declares, "place {place}");
            let graph = captured.instantiate().unwrap();
            if declares {
                graph.replay_on(&stream).unwrap();
                assert_eq!(read(&stream, &unseen), [0.0, 7.0, 7.0, 7.0]);
                drop(unseen);
                let error = graph.replay_on(&stream).unwrap_err().to_string();
                assert!(error.contains("input of the graph has died") && error.contains("unseen"), "{error}");
            } else {
                let error = graph.replay_on(&stream).unwrap_err();
                assert!(
                    error.is_invalid_argument() && error.to_string().contains("Stream::declare"),
                    "{error}"
                );
                assert_eq!(read(&stream, &unseen), [7.0; 4]);
            }
        }
    }
}
