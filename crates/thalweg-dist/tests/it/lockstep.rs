//! Graphs that ranks capture together, and mistakes in such captures, each of which must be found on every rank before a graph runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use thalweg_dist::ReduceOp::{Max, Sum};
use thalweg_dist::{
    DataParallelOptions, DistributedDataParallel, FullyShardOptions, GroupOptions, LockstepGraph,
    ProcessGroup, run_ranks, run_ranks_with, simulated_devices,
};
use thalweg_ir::DType;
use thalweg_nn::module::{Forward, Linear, Module};
use thalweg_runtime::{CaptureOptions, Error, Result, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use crate::fully_shard::sharded;
use crate::support::{batch, checked, descend, empty, loss, parameter_values, tensor, values};

fn capture<T>(group: &ProcessGroup, region: impl FnOnce() -> Result<T>) -> Result<(LockstepGraph, T)> {
    LockstepGraph::capture(group, CaptureOptions::default(), region)
}

/// Runs a region that cannot become a graph, and returns each rank's error. The ranks then capture another one.
fn refused(ranks: u32, region: fn(&ProcessGroup) -> Result<()>) -> Vec<String> {
    run_ranks(&simulated_devices(ranks).unwrap(), |group| {
        let kept = tensor(&group, &values(group.rank(), 0, 4))?;
        let error = capture(&group, || region(&group)).expect_err("no graph");
        // What was there before is there, and so is the group.
        assert_eq!(kept.to_vec::<f32>()?, values(group.rank(), 0, 4));
        group.all_reduce(&kept, Max)?.wait()?;
        let (graph, ()) = capture(&group, || group.all_reduce(&kept, Sum)?.wait())?;
        graph.replay()?;
        let most = (0..4).map(|place| (0..ranks).map(|rank| values(rank, 0, 4)[place]).fold(-99.0, f32::max));
        let wanted: Vec<f32> = most.map(|value| value * ranks as f32).collect();
        assert_eq!(kept.to_vec::<f32>()?, wanted);
        graph.verify()?;
        Ok(error.to_string())
    })
    .unwrap()
}

#[track_caller]
fn all_say(messages: &[String], texts: &[&str]) {
    for (rank, messages) in messages.iter().enumerate() {
        for text in texts {
            assert!(messages.contains(text), "rank {rank}: no \"{text}\" in {messages}");
        }
    }
}

/// Returns the number of lines of this file a text names.
fn lines(text: &str) -> usize {
    let name = "tests/it/lockstep.rs:";
    let numbers = text.split(name).skip(1).map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    numbers.collect::<std::collections::BTreeSet<_>>().len()
}

// ---- What is right ----------------------------------------------------------------------------------------------------

/// Trains with gradients from all ranks, the last steps captured or not, and returns the parameters.
fn trained(group: &ProcessGroup, is_captured: bool) -> Result<Vec<f32>> {
    let linear = Linear::new(6, 3, &mut Generator::new(7), group.device())?;
    let network = DistributedDataParallel::new(linear, group, DataParallelOptions::default())?;
    let (input, target) = batch(group.rank(), group.size(), 0, group.device())?;
    let step = || {
        loss(&network.forward(&input)?, &target)?.backward()?;
        descend(&network.parameters())
    };
    (0..2).try_for_each(|_| step())?;
    let steps = 4;
    if is_captured {
        let (graph, ()) = capture(group, step)?;
        (0..steps).try_for_each(|_| graph.replay())?;
        assert_eq!(graph.replays(), steps);
        graph.verify()?;
    } else {
        (0..steps).try_for_each(|_| step())?;
    }
    parameter_values(&network.parameters())
}

#[test]
fn a_captured_step_has_the_bits_of_an_eager_one() {
    for ranks in [1, 2, 4] {
        let devices = simulated_devices(ranks).unwrap();
        let eager = run_ranks(&devices, |group| trained(&group, false)).unwrap();
        let captured = run_ranks(&devices, |group| trained(&group, true)).unwrap();
        assert_eq!(eager, captured);
    }
}

/// Trains a sharded model, the last steps captured or not, and returns the losses of those and this rank's shards.
fn trained_in_shards(group: &ProcessGroup, is_captured: bool) -> Result<(Vec<f32>, Vec<f32>)> {
    let stream = Stream::new(group.device())?;
    let _current = stream.make_current();
    let network = sharded(group, FullyShardOptions::default())?;
    let (input, target) = batch(group.rank(), group.size(), 0, group.device())?;
    let step = || {
        let loss = loss(&network.forward(&input)?, &target)?;
        loss.backward()?;
        descend(&network.parameters())?;
        Ok(loss.detach())
    };
    (0..2).try_for_each(|_| step().map(drop))?;
    let mut losses = Vec::new();
    if is_captured {
        let (graph, loss) = capture(group, step)?;
        for _ in 0..3 {
            graph.replay()?;
            losses.push(loss.item::<f32>()?);
        }
        graph.verify()?;
    } else {
        for _ in 0..3 {
            losses.push(step()?.item::<f32>()?);
        }
    }
    Ok((losses, parameter_values(&network.parameters())?))
}

/// Every unit gathers and reduces several parameters in one group, which is a group of calls on one stream of a capture.
#[test]
fn a_captured_step_in_shards_has_the_bits_of_an_eager_one() {
    for ranks in [1, 2, 3] {
        let devices = simulated_devices(ranks).unwrap();
        let eager = run_ranks(&devices, |group| trained_in_shards(&group, false)).unwrap();
        let captured = run_ranks(&devices, |group| trained_in_shards(&group, true)).unwrap();
        assert_eq!(eager, captured);
    }
}

fn captured_and_replayed(group: &ProcessGroup, _: u64) -> Result<()> {
    let x = tensor(group, &values(group.rank(), 1, 4))?;
    let (graph, ()) = capture(group, || group.all_reduce(&x, Sum)?.wait())?;
    graph.replay()?;
    graph.replay()?;
    let wanted: Vec<f32> =
        (0..4).map(|place| (values(0, 1, 4)[place] + values(1, 1, 4)[place]) * 2.0).collect();
    assert_eq!(x.to_vec::<f32>()?, wanted);
    graph.verify()
}

#[test]
fn replays_are_right_under_every_schedule() {
    checked(20, 2, captured_and_replayed);
}

#[test]
fn a_capture_does_not_keep_what_eager_steps_have_left() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let device = group.device();
        let x = tensor(&group, &[1.0])?;
        drop(Tensor::zeros(&[16 << 20], DType::F32, device)?);
        device.synchronize()?;
        assert!(device.memory_reserved() >= 64 << 20);
        let (graph, ()) = capture(&group, || group.all_reduce(&x, Sum)?.wait())?;
        assert!(device.memory_reserved() < 64 << 20, "{} bytes are reserved", device.memory_reserved());
        graph.replay()?;
        assert_eq!(x.item::<f32>()?, 2.0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn several_graphs_have_numbers_and_counts() {
    run_ranks(&simulated_devices(3).unwrap(), |group| {
        let (x, y) = (tensor(&group, &[1.0; 4])?, tensor(&group, &[2.0; 2])?);
        let (first, ()) = capture(&group, || group.all_reduce(&x, Sum)?.wait())?;
        let (second, ()) = capture(&group, || group.all_reduce(&y, Sum)?.wait())?;
        let (third, result) = capture(&group, || x.add_scalar(1.0))?;
        for graph in [&first, &second, &second, &third] {
            graph.replay()?;
        }
        assert_eq!([&first, &second, &third].map(LockstepGraph::number), [0, 1, 2]);
        assert_eq!([&first, &second, &third].map(LockstepGraph::replays), [1, 2, 1]);
        assert_eq!((x.to_vec::<f32>()?, y.to_vec::<f32>()?), (vec![3.0; 4], vec![18.0; 2]));
        assert_eq!(result.to_vec::<f32>()?, [4.0; 4]);
        [first, second, third].iter().try_for_each(LockstepGraph::verify)
    })
    .unwrap();
}

/// Ranks may compute different things as long as the messages between them match.
#[test]
fn computation_may_differ_and_messages_have_two_ends() {
    run_ranks(&simulated_devices(3).unwrap(), |group| {
        let (rank, x) = (group.rank(), tensor(&group, &[group.rank() as f32 + 1.0; 4])?);
        let (graph, ()) = capture(&group, || {
            if rank == 1 {
                x.copy_(&x.mul_scalar(5.0)?)?;
            }
            let mut messages = group.coalescing();
            match rank {
                0 => messages.recv(&x, 2)?,
                1 => messages.send(&x, 2)?,
                _ => {
                    let kept = x.add_scalar(0.0)?;
                    messages.recv(&x, 1)?;
                    messages.send(&kept, 0)?;
                }
            }
            messages.submit()?.wait()
        })?;
        graph.replay()?;
        assert_eq!(x.to_vec::<f32>()?, [[3.0f32, 10.0, 10.0][rank as usize]; 4]);
        Ok(())
    })
    .unwrap();
}

// ---- What is wrong ----------------------------------------------------------------------------------------------------

fn in_another_order(group: &ProcessGroup) -> Result<()> {
    let (x, y) = (empty(group, 4)?, empty(group, 2)?);
    let (first, second) = if group.rank() == 2 { (&y, &x) } else { (&x, &y) };
    group.all_reduce(first, Sum)?.wait()?;
    group.all_reduce(second, Sum)?.wait()
}

fn another_operation(group: &ProcessGroup) -> Result<()> {
    let x = empty(group, 4)?;
    if group.rank() == 1 {
        return group.all_reduce(&x, Max)?.wait();
    }
    group.all_reduce(&x, Sum)?.wait()
}

fn another_dtype(group: &ProcessGroup) -> Result<()> {
    let dtype = if group.rank() == 2 { DType::F64 } else { DType::F32 };
    group.broadcast(&Tensor::zeros(&[4], dtype, group.device())?, 0)?.wait()
}

fn another_root(group: &ProcessGroup) -> Result<()> {
    group.broadcast(&empty(group, 4)?, u32::from(group.rank() == 1))?.wait()
}

fn one_more(group: &ProcessGroup) -> Result<()> {
    let x = empty(group, 4)?;
    group.all_reduce(&x, Sum)?.wait()?;
    if group.rank() == 1 {
        group.all_reduce(&x, Sum)?.wait()?;
    }
    Ok(())
}

fn none_at_all(group: &ProcessGroup) -> Result<()> {
    let x = empty(group, 4)?;
    if group.rank() != 2 {
        group.all_reduce(&x, Sum)?.wait()?;
    }
    Ok(())
}

fn a_shorter_message(group: &ProcessGroup) -> Result<()> {
    match group.rank() {
        0 => group.send(&empty(group, 4)?, 2)?.wait(),
        2 => group.recv(&empty(group, 3)?, 0)?.wait(),
        _ => Ok(()),
    }
}

fn a_message_without_a_receiver(group: &ProcessGroup) -> Result<()> {
    match group.rank() {
        1 => group.send(&empty(group, 4)?, 0)?.wait(),
        _ => Ok(()),
    }
}

#[test]
fn captures_that_differ_are_refused_on_all_ranks() {
    type Region = fn(&ProcessGroup) -> Result<()>;
    let mistakes: [(Region, &[&str], usize); 8] = [
        (
            in_another_order,
            &["ranks 0 and 2", "call 1 is all_reduce of the sum, 4 elements", "2 elements"],
            1,
        ),
        (another_operation, &["ranks 0 and 1", "all_reduce of the sum", "all_reduce of the maximum"], 2),
        (another_dtype, &["ranks 0 and 2", "broadcast from rank 0"], 1),
        (another_root, &["ranks 0 and 1", "broadcast from rank 0", "broadcast from rank 1"], 1),
        (one_more, &["ranks 0 and 1", "call 2 is nothing on rank 0, and all_reduce"], 1),
        (none_at_all, &["ranks 0 and 2", "call 1 is all_reduce", "and nothing on rank 2"], 1),
        (
            a_shorter_message,
            &["messages from rank 0 to rank 2", "send to rank 2, 4", "receive from rank 0, 3"],
            2,
        ),
        (a_message_without_a_receiver, &["messages from rank 1 to rank 0", "and nothing on rank 0"], 1),
    ];
    for (region, texts, lines_wanted) in mistakes {
        let messages = refused(3, region);
        all_say(&messages, texts);
        all_say(&messages, &["lockstep graph 0", "in the group \"world\"", "No rank has a graph"]);
        for messages in messages {
            // The line of the capture is one more.
            assert!(lines(&messages) > lines_wanted, "{messages}");
        }
    }
}

#[test]
fn groups_of_a_mesh_are_compared_one_by_one() {
    let messages = run_ranks(&simulated_devices(4).unwrap(), |group| {
        let row = group.split(Some(group.rank() / 2), 0)?.expect("a group");
        let column = group.split(Some(group.rank() % 2), 0)?.expect("a group");
        let x = tensor(&group, &[1.0; 4])?;
        // Rows do different things; within each both ranks do the same.
        let (graph, ()) = capture(&group, || {
            let count = 1 + group.rank() / 2;
            (0..count).try_for_each(|_| row.all_reduce(&x, Sum)?.wait())?;
            column.all_reduce(&x, Max)?.wait()
        })?;
        graph.replay()?;
        assert_eq!(x.to_vec::<f32>()?, [4.0; 4]);
        let region = || column.all_reduce(&x, if group.rank() == 3 { Sum } else { Max })?.wait();
        Ok((column.name().to_owned(), capture(&group, region).expect_err("no graph").to_string()))
    });
    let (names, messages): (Vec<String>, Vec<String>) = messages.unwrap().into_iter().unzip();
    all_say(&messages, &["ranks 1 and 3", &format!("in the group \"{}\"", names[1])]);
}

fn failing_on_one(group: &ProcessGroup) -> Result<()> {
    let x = empty(group, 4)?;
    group.all_reduce(&x, Sum)?.wait()?;
    if group.rank() == 1 {
        // A value cannot be read in a capture.
        x.to_vec::<f32>()?;
    }
    group.all_reduce(&x, Sum)?.wait()
}

fn failing_by_itself(group: &ProcessGroup) -> Result<()> {
    group.all_reduce(&empty(group, 4)?, Sum)?.wait()?;
    if group.rank() == 2 { Err(Error::invalid("the program says no")) } else { Ok(()) }
}

#[test]
fn a_rank_that_fails_ends_the_capture_of_all() {
    let messages = refused(3, failing_on_one);
    let line = 1 + include_str!("lockstep.rs")
        .lines()
        .position(|line| line.contains("x.to_vec::<f32>()?;"))
        .unwrap();
    all_say(&messages, &["to_vec", &format!("tests/it/lockstep.rs:{line}")]);
    all_say(&[messages[0].clone(), messages[2].clone()], &["rank 1 failed, and no rank has a graph"]);
    assert!(!messages[1].contains("rank 1 failed"), "its own error is as it is: {}", messages[1]);
    let messages = refused(3, failing_by_itself);
    all_say(&messages, &["the program says no"]);
    all_say(&messages[..2], &["rank 2 failed"]);
}

#[test]
fn a_rank_that_panics_ends_the_capture_of_all() {
    let messages = run_ranks(&simulated_devices(2).unwrap(), |group| {
        let region = || match group.rank() {
            0 => panic!("on purpose"),
            _ => Ok(()),
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| capture(&group, region)));
        // The thread is as it was: eager calls are none of a capture.
        let x = tensor(&group, &[1.0; 4])?;
        group.all_reduce(&x, Sum)?.wait()?;
        assert_eq!(x.to_vec::<f32>()?, [2.0; 4]);
        Ok(outcome
            .map_or_else(|_| "panicked".to_owned(), |outcome| outcome.expect_err("no graph").to_string()))
    });
    let messages = messages.unwrap();
    assert_eq!(messages[0], "panicked");
    assert!(messages[1].contains("rank 0 failed, and no rank has a graph: it panicked"), "{}", messages[1]);
}

fn short() -> GroupOptions {
    GroupOptions { timeout: Duration::from_millis(400), watchdog: Some(true), ..GroupOptions::default() }
}

#[test]
fn a_rank_that_does_not_come_to_a_capture_is_named() {
    let messages = run_ranks_with(&simulated_devices(3).unwrap(), &short(), |group| {
        let x = tensor(&group, &[1.0; 4])?;
        group.all_reduce(&x, Sum)?.synchronize()?;
        if group.rank() == 1 {
            return Ok(String::new());
        }
        let error = capture(&group, || group.all_reduce(&x, Sum)?.wait()).expect_err("no graph");
        Ok(error.to_string())
    });
    let messages = messages.unwrap();
    all_say(
        &[messages[0].clone(), messages[2].clone()],
        &["rank 1 has not come within 400 ms", "tests/it/lockstep.rs"],
    );
}

#[test]
fn a_rank_out_of_step_is_named() {
    let messages = run_ranks(&simulated_devices(4).unwrap(), |group| {
        let x = tensor(&group, &[1.0; 4])?;
        // Nothing in it waits for another rank, so nothing hangs.
        let (graph, ()) = capture(&group, || x.copy_(&x.add_scalar(1.0)?))?;
        let count = if group.rank() == 2 { 3 } else { 4 };
        (0..count).try_for_each(|_| graph.replay())?;
        let error = graph.verify().expect_err("out of step").to_string();
        if group.rank() == 2 {
            graph.replay()?;
        }
        graph.verify()?;
        Ok(error)
    });
    let text = "lockstep graph 0: rank 2 has replayed it 3 times, last lockstep replay at ";
    let messages = messages.unwrap();
    all_say(&messages, &[text, "tests/it/lockstep.rs", "the other ranks 4 times"]);
}

#[test]
fn a_rank_that_does_not_come_to_a_replay_is_named() {
    let messages = run_ranks_with(&simulated_devices(3).unwrap(), &short(), |group| {
        let x = tensor(&group, &[1.0; 4])?;
        let (graph, ()) = capture(&group, || group.all_reduce(&x, Sum)?.wait())?;
        graph.replay()?;
        if group.rank() == 1 {
            // Its watchdog reports the reason why the group failed.
            while group.check().is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        } else {
            graph.replay()?;
            x.to_vec::<f32>().expect_err("rank 1 has not come");
        }
        Ok(group.check().err().map(|error| error.to_string()))
    });
    let messages = messages.unwrap()[1].clone().expect("it is over");
    for text in ["collective operation timeout", "lockstep replay at ", "Rank 1 has made 2 of 3 calls"] {
        assert!(messages.contains(text), "no \"{text}\" in {messages}");
    }
    assert!(lines(&messages) >= 2, "{messages}");
}
