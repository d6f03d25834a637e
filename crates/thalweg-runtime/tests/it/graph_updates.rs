//! One executable for several captures: the outcome of an update, and that the executable does the new work.

use thalweg_driver::{Access, AccessMode, DevicePointer, FillPattern, UpdateReason};
use thalweg_runtime::graph::{CapturedGraph, Update, UpdateCounts};
use thalweg_runtime::{Buffer, CaptureOptions, Device, Graph, Label, Result, Stream};

use crate::kernels::launch_sum;
use crate::support::{buffer_of, device, read, sim, write};

fn capture(device: &Device, region: impl FnOnce(&Stream) -> Result<()>) -> CapturedGraph {
    let capture = Graph::capture_begin(device, CaptureOptions::default()).unwrap();
    region(capture.stream()).unwrap();
    capture.end().unwrap()
}

/// Submits `data[place] += 1` for each place.
fn increments(device: &Device, data: &Buffer, places: &[u64]) -> CapturedGraph {
    capture(device, |stream| {
        places.iter().try_for_each(|place| {
            let address = data.pointer().offset(place * 4);
            launch_sum(stream, &[address], address, 1)
        })
    })
}

#[test]
fn the_cheapest_way_is_chosen_and_counted() {
    let device = sim(1).remove(0);
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[0.0; 32]);
    let every: Vec<u64> = (0..32).collect();
    let mut graph = increments(&device, &data, &every).instantiate().unwrap();
    let mut expected = vec![0.0_f32; 32];
    let mut step = |graph: &Graph, places: &[u64]| {
        graph.replay_on(&stream).unwrap();
        places.iter().for_each(|place| expected[*place as usize] += 1.0);
        assert_eq!(read(&stream, &data), expected);
    };
    step(&graph, &every);
    assert_eq!(graph.update(&increments(&device, &data, &every)).unwrap(), Update::Unchanged);
    step(&graph, &every);
    let mut few = every.clone();
    (few[3], few[7]) = (0, 0);
    assert_eq!(graph.update(&increments(&device, &data, &few)).unwrap(), Update::Kernels(2));
    step(&graph, &few);
    let reversed: Vec<u64> = every.iter().rev().copied().collect();
    assert_eq!(graph.update(&increments(&device, &data, &reversed)).unwrap(), Update::Whole);
    step(&graph, &reversed);
    // The handles of the nodes are still known.
    let mut other = reversed.clone();
    other[31] = 5;
    assert_eq!(graph.update(&increments(&device, &data, &other)).unwrap(), Update::Kernels(1));
    step(&graph, &other);
    let changed = graph.update(&increments(&device, &data, &every[..31])).unwrap();
    assert_eq!(changed, Update::Instantiated(Some(UpdateReason::TopologyChanged)));
    step(&graph, &every[..31]);
    let mut last = every[..31].to_vec();
    last[0] = 9;
    assert_eq!(graph.update(&increments(&device, &data, &last)).unwrap(), Update::Kernels(1));
    step(&graph, &last);
    let counts = UpdateCounts { unchanged: 1, kernels: 3, whole: 1, instantiated: 1 };
    assert_eq!(graph.update_counts(), counts);
}

#[test]
fn copies_fills_and_other_kinds_are_seen() {
    let device = sim(1).remove(0);
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[0.0; 8]);
    let label = Label::here("node");
    let fill = |value: u32, count: u64| {
        capture(&device, |stream| stream.fill(data.pointer(), FillPattern::U32(value), count, label))
    };
    let copy = |from: DevicePointer| {
        capture(&device, |stream| stream.copy_on_device(data.pointer(), from, 4, label))
    };
    let mut graph = fill(1.0_f32.to_bits(), 8).instantiate().unwrap();
    assert_eq!(graph.update(&fill(1.0_f32.to_bits(), 8)).unwrap(), Update::Unchanged);
    assert_eq!(graph.update(&fill(2.0_f32.to_bits(), 8)).unwrap(), Update::Whole);
    graph.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &data), [2.0; 8]);
    let update = graph.update(&copy(data.pointer().offset(4))).unwrap();
    assert_eq!(update, Update::Instantiated(Some(UpdateReason::KindChanged)));
    assert_eq!(graph.update(&copy(data.pointer().offset(8))).unwrap(), Update::Whole);
    write(&stream, &data, &[0.0, 1.0, 5.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
    graph.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &data)[0], 5.0);
}

#[test]
fn a_region_is_captured_anew_into_the_same_pool_and_contract() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let inputs = [[1.0; 4], [10.0; 4]].map(|values| buffer_of(&stream, &values));
    let target = buffer_of(&stream, &[0.0; 4]);
    let region = |input: &Buffer| {
        let stream = device.current_stream();
        let between = Buffer::new(&stream, 16)?;
        launch_sum(&stream, &[input.pointer()], between.pointer(), 4)?;
        launch_sum(&stream, &[between.pointer()], target.pointer(), 4)
    };
    let options = CaptureOptions { stream: Some(Stream::new(&device).unwrap()), ..Default::default() };
    let (mut graph, ()) = Graph::capture(&device, options.clone(), || region(&inputs[0])).unwrap();
    let [first, second] = inputs;
    graph.replay_on(&stream).unwrap();
    let pool = graph.pool().id();
    let (update, ()) = graph.recapture(options, || region(&second)).unwrap();
    assert_eq!((update, graph.pool().id()), (Update::Whole, pool));
    // The old input is not needed any more, the new one is.
    drop(first);
    graph.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &target), [12.0; 4]);
    drop(second);
    assert!(graph.replay_on(&stream).is_err());
}

#[test]
fn an_update_that_fails_leaves_the_graph_as_it_was() {
    let devices = sim(2);
    let stream = Stream::new(&devices[0]).unwrap();
    let elsewhere = Stream::new(&devices[1]).unwrap();
    let [here, there] = [&stream, &elsewhere].map(|stream| buffer_of(stream, &[0.0]));
    let mut graph = increments(&devices[0], &here, &[0]).instantiate().unwrap();
    let error = graph.update(&increments(&devices[1], &there, &[0])).unwrap_err();
    assert_eq!(error.to_string(), "graph update: the captured graph is on sim:1, expected sim:0");
    let failed = graph.recapture(CaptureOptions::default(), || -> Result<()> {
        Err(thalweg_runtime::Error::invalid("the region's own"))
    });
    assert_eq!(failed.unwrap_err().to_string(), "the region's own");
    graph.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &here), [1.0]);
    assert_eq!(graph.update_counts(), UpdateCounts::default());
}

#[test]
fn nodes_that_we_did_not_submit_are_left_to_the_driver() {
    let device = sim(1).remove(0);
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[0.0; 4]);
    let with_other = |value: u32| {
        capture(&device, |stream| {
            launch_sum(stream, &[data.pointer()], data.pointer(), 4)?;
            // Past the runtime, as another library does.
            let fill = thalweg_driver::Fill {
                target: data.pointer(),
                pattern: FillPattern::U32(value),
                count: 1,
                label: Label::here("outside"),
            };
            device.driver().fill_async(stream.handle(), &fill)?;
            stream.declare(&[Access::new(data.pointer().address(), 4, AccessMode::Write)], fill.label);
            Ok(())
        })
    };
    let mut graph = with_other(0).instantiate().unwrap();
    // The commands that we see are the same; the others are not.
    assert_eq!(graph.update(&with_other(7.0_f32.to_bits())).unwrap(), Update::Whole);
    graph.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &data), [7.0, 1.0, 1.0, 1.0]);
}

#[test]
fn replays_before_an_update_do_the_old_work_under_every_schedule() {
    thalweg_runtime::sim::check(|gpu| -> Result<()> {
        let device = gpu.device();
        let stream = Stream::new(device)?;
        let data = buffer_of(&stream, &[0.0; 10]);
        let places: Vec<u64> = (0..10).collect();
        let mut graph = increments(device, &data, &places).instantiate()?;
        graph.replay_on(&stream)?;
        let mut other = places.clone();
        other[0] = 9;
        assert_eq!(graph.update(&increments(device, &data, &other))?, Update::Kernels(1));
        graph.replay_on(&stream)?;
        assert_eq!(graph.update(&increments(device, &data, &[9; 10]))?, Update::Whole);
        graph.replay_on(&stream)?;
        assert_eq!(read(&stream, &data), [1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 13.0]);
        Ok(())
    });
}
