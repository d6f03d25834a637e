//! Mistakes in programs of several ranks: the simulated machine finds each of them within a few seeds, and reports the ranks whose
//! calls conflict.

use thalweg_dist::ProcessGroup;
use thalweg_dist::ReduceOp::{Max, Sum};
use thalweg_ir::DType;
use thalweg_runtime::sim::Check;
use thalweg_runtime::{CaptureMode, CaptureOptions, Error, Graph, Result, Stream};
use thalweg_tensor::Tensor;

use crate::support::{RankProgram, empty, find, tensor};

/// The number of seeds within which a mistake must be found.
const SEEDS: u64 = 100;

/// A mistake: its name, the number of ranks, the program, texts that the report must contain, and the least number of lines of this
/// file that it must name.
struct Mistake(&'static str, u32, RankProgram, &'static [&'static str], usize);

/// Returns the lines of this file that a text names.
fn lines(text: &str) -> std::collections::BTreeSet<&str> {
    let name = "tests/it/failures.rs:";
    text.match_indices(name)
        .map(|(start, _)| {
            let rest = &text[start + name.len()..];
            &rest[..rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len())]
        })
        .collect()
}

#[track_caller]
fn found(mistakes: &[Mistake]) {
    for Mistake(name, ranks, program, wanted, lines_wanted) in mistakes {
        let check = Check::new().seeds(0..SEEDS).without_shrinking().quarantine(false);
        let report = match find(check, *ranks, *program) {
            Ok(_) => panic!("{name}: nothing was found in {SEEDS} seeds"),
            Err(failure) => failure.to_string(),
        };
        for text in *wanted {
            assert!(report.contains(text), "{name}: no \"{text}\" in\n{report}");
        }
        let named = lines(&report).len();
        assert!(named >= *lines_wanted, "{name}: {named} lines of the program are named in\n{report}");
    }
}

fn is_first(group: &ProcessGroup) -> bool {
    group.rank() == 0
}

fn read(x: &Tensor) -> Result<()> {
    x.to_vec::<f32>().map(drop)
}

// ---- Calls that differ ------------------------------------------------------------------------------------------------

fn other_operation(group: &ProcessGroup, _: u64) -> Result<()> {
    let x = empty(group, 4)?;
    if is_first(group) {
        group.all_reduce(&x, Sum)?.wait()?;
    } else {
        group.broadcast(&x, 0)?.wait()?;
    }
    read(&x)
}

fn other_size(group: &ProcessGroup, _: u64) -> Result<()> {
    let x = empty(group, 4 + group.rank() as usize)?;
    group.all_reduce(&x, Sum)?.wait()?;
    read(&x)
}

fn other_dtype(group: &ProcessGroup, _: u64) -> Result<()> {
    if is_first(group) {
        let x = Tensor::zeros(&[4], DType::F32, group.device())?;
        group.all_reduce(&x, Sum)?.synchronize()
    } else {
        let x = Tensor::zeros(&[4], DType::I32, group.device())?;
        group.all_reduce(&x, Sum)?.synchronize()
    }
}

fn other_reduction(group: &ProcessGroup, _: u64) -> Result<()> {
    let x = empty(group, 4)?;
    if is_first(group) {
        group.all_reduce(&x, Sum)?.wait()?;
    } else {
        group.all_reduce(&x, Max)?.wait()?;
    }
    read(&x)
}

fn other_root(group: &ProcessGroup, _: u64) -> Result<()> {
    let x = empty(group, 4)?;
    // Each takes itself for the root.
    if is_first(group) {
        group.broadcast(&x, 0)?.wait()?;
    } else {
        group.broadcast(&x, 1)?.wait()?;
    }
    read(&x)
}

fn other_root_of_a_reduction(group: &ProcessGroup, _: u64) -> Result<()> {
    let x = empty(group, 4)?;
    if is_first(group) {
        group.reduce(&x, 0, Sum)?.wait()?;
    } else {
        group.reduce(&x, group.rank(), Sum)?.wait()?;
    }
    read(&x)
}

fn other_order(group: &ProcessGroup, _: u64) -> Result<()> {
    let (weight, bias) = (empty(group, 4)?, empty(group, 2)?);
    if is_first(group) {
        group.all_reduce(&weight, Sum)?.wait()?;
        group.all_reduce(&bias, Sum)?.wait()?;
    } else {
        group.all_reduce(&bias, Sum)?.wait()?;
        group.all_reduce(&weight, Sum)?.wait()?;
    }
    read(&weight)
}

fn other_order_in_a_coalesced_group(group: &ProcessGroup, _: u64) -> Result<()> {
    let (weight, bias) = (empty(group, 4)?, empty(group, 2)?);
    let mut all = group.coalescing();
    if is_first(group) {
        all.all_reduce(&weight, Sum)?;
        all.all_reduce(&bias, Sum)?;
    } else {
        all.all_reduce(&bias, Sum)?;
        all.all_reduce(&weight, Sum)?;
    }
    all.submit()?.synchronize()
}

fn other_sizes_of_a_message(group: &ProcessGroup, _: u64) -> Result<()> {
    if is_first(group) {
        group.send(&empty(group, 4)?, 1)?.synchronize()
    } else {
        group.recv(&empty(group, 3)?, 0)?.synchronize()
    }
}

fn splits_that_do_not_match(group: &ProcessGroup, _: u64) -> Result<()> {
    let (x, y) = (empty(group, 4)?, empty(group, 4)?);
    // Rank 0 sends 3 to rank 1, which expects 2.
    let input = if is_first(group) { [1, 3] } else { [2, 2] };
    let output = if is_first(group) { [1, 3] } else { [2, 2] };
    group.all_to_all_single(&y, &x, Some(&output), Some(&input))?.wait()?;
    read(&y)
}

#[test]
fn calls_that_differ_are_found() {
    let differ: &[&str] = &["calls of a collective differ: rank"];
    found(&[
        Mistake("another operation", 2, other_operation, differ, 2),
        Mistake("another size", 2, other_size, &["4 elements of", "5 elements of"], 1),
        Mistake("another dtype", 2, other_dtype, &["CUDA_R_32F", "CUDA_R_32I"], 2),
        Mistake("another reduction", 2, other_reduction, &["of the sum", "of the maximum"], 2),
        Mistake("another root", 3, other_root, &["broadcast from rank 0", "broadcast from rank 1"], 2),
        Mistake("another root of a reduction", 2, other_root_of_a_reduction, differ, 2),
        Mistake("another order", 2, other_order, differ, 2),
        Mistake("another order in a group", 2, other_order_in_a_coalesced_group, differ, 2),
        Mistake("another size of a message", 2, other_sizes_of_a_message, &["send to", "receive from"], 2),
        Mistake("splits that do not match", 2, splits_that_do_not_match, differ, 1),
    ]);
}

// ---- Ranks that do not come -------------------------------------------------------------------------------------------

fn left_out(group: &ProcessGroup, _: u64) -> Result<()> {
    let x = empty(group, 4)?;
    group.broadcast(&x, 0)?.wait()?;
    if is_first(group) {
        group.all_reduce(&x, Sum)?.wait()?;
    }
    read(&x)
}

fn a_barrier_of_one(group: &ProcessGroup, _: u64) -> Result<()> {
    if is_first(group) { group.barrier() } else { Ok(()) }
}

fn uneven_steps(group: &ProcessGroup, _: u64) -> Result<()> {
    let x = empty(group, 4)?;
    for _ in 0..2 + group.rank() {
        group.all_reduce(&x, Sum)?.wait()?;
    }
    read(&x)
}

fn an_early_error(group: &ProcessGroup, _: u64) -> Result<()> {
    let x = empty(group, 4)?;
    group.broadcast(&x, 0)?.wait()?;
    if group.rank() == 1 {
        return Err(Error::invalid("a batch could not be read"));
    }
    group.all_reduce(&x, Sum)?.wait()?;
    read(&x)
}

fn a_message_without_a_receiver(group: &ProcessGroup, _: u64) -> Result<()> {
    if is_first(group) { group.send(&empty(group, 4)?, 1)?.synchronize() } else { Ok(()) }
}

fn a_message_from_the_wrong_rank(group: &ProcessGroup, _: u64) -> Result<()> {
    let x = empty(group, 4)?;
    match group.rank() {
        0 => group.send(&x, 1)?.synchronize(),
        1 => group.recv(&x, 2)?.synchronize(),
        _ => Ok(()),
    }
}

fn a_collective_of_a_part_by_all(group: &ProcessGroup, _: u64) -> Result<()> {
    let part = group.new_group(&[0, 1])?.unwrap_or_else(|| group.clone());
    let x = empty(group, 4)?;
    part.all_reduce(&x, Sum)?.wait()?;
    read(&x)
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let gone: &[&str] = &["rank 0 waits in", "for rank 1, which has been given up after"];
    let never: &[&str] = &["for rank 1, which has been given up before its first call"];
    found(&[
        Mistake("a collective that one leaves out", 2, left_out, gone, 2),
        Mistake("a barrier of one", 2, a_barrier_of_one, never, 1),
        Mistake(
            "uneven numbers of steps",
            2,
            uneven_steps,
            &["for rank 0, which has been given up after"],
            1,
        ),
        Mistake("an error of one", 2, an_early_error, gone, 2),
        Mistake("a message without a receiver", 2, a_message_without_a_receiver, never, 1),
        Mistake("a message from the wrong rank", 3, a_message_from_the_wrong_rank, &["rank", "given up"], 1),
        Mistake("a group's collective by others", 3, a_collective_of_a_part_by_all, &["rank 2"], 1),
    ]);
}

// ---- Deadlocks --------------------------------------------------------------------------------------------------------

fn two_groups_in_two_orders(group: &ProcessGroup, _: u64) -> Result<()> {
    let one = group.new_group(&[0, 1])?.expect("both are in it");
    let other = group.new_group(&[0, 1])?.expect("both are in it");
    let (x, y) = (empty(group, 4)?, empty(group, 4)?);
    if is_first(group) {
        one.all_reduce(&x, Sum)?.wait()?;
        other.all_reduce(&y, Sum)?.wait()?;
    } else {
        other.all_reduce(&y, Sum)?.wait()?;
        one.all_reduce(&x, Sum)?.wait()?;
    }
    read(&x)
}

fn both_send_first(group: &ProcessGroup, _: u64) -> Result<()> {
    let (x, y, peer) = (empty(group, 4)?, empty(group, 4)?, 1 - group.rank());
    group.send(&x, peer)?.wait()?;
    group.recv(&y, peer)?.wait()?;
    read(&y)
}

fn a_message_against_a_collective(group: &ProcessGroup, _: u64) -> Result<()> {
    let x = empty(group, 4)?;
    if is_first(group) {
        group.send(&x, 1)?.wait()?;
        group.all_reduce(&x, Sum)?.wait()?;
    } else {
        group.all_reduce(&x, Sum)?.wait()?;
        group.recv(&x, 0)?.wait()?;
    }
    read(&x)
}

fn a_ring_of_three(group: &ProcessGroup, _: u64) -> Result<()> {
    let (x, y, ranks) = (empty(group, 4)?, empty(group, 4)?, group.size());
    group.recv(&y, (group.rank() + ranks - 1) % ranks)?.wait()?;
    group.send(&x, (group.rank() + 1) % ranks)?.wait()?;
    read(&y)
}

#[test]
fn ranks_that_wait_in_a_circle_are_found() {
    let circle: &[&str] = &["deadlock of collectives: rank"];
    found(&[
        Mistake("two groups in two orders", 2, two_groups_in_two_orders, circle, 2),
        Mistake("both send first", 2, both_send_first, circle, 1),
        Mistake("a message against a collective", 2, a_message_against_a_collective, circle, 2),
        Mistake("a ring without a group", 3, a_ring_of_three, circle, 1),
    ]);
}

// ---- Buffers in use ---------------------------------------------------------------------------------------------------

fn read_without_a_wait(group: &ProcessGroup, _: u64) -> Result<()> {
    let x = empty(group, 4)?;
    let _work = group.all_reduce(&x, Sum)?;
    drop(x.add_scalar(1.0)?);
    Ok(())
}

fn written_before_it_was_sent(group: &ProcessGroup, _: u64) -> Result<()> {
    let (x, y) = (empty(group, 4)?, empty(group, 8)?);
    let work = group.all_gather_into_tensor(&y, &x)?;
    x.fill_(0.0)?;
    work.wait()
}

fn written_where_a_result_comes(group: &ProcessGroup, _: u64) -> Result<()> {
    let (x, y) = (empty(group, 4)?, empty(group, 8)?);
    let work = group.all_gather_into_tensor(&y, &x)?;
    y.fill_(0.0)?;
    work.wait()
}

fn two_groups_on_one_buffer(group: &ProcessGroup, _: u64) -> Result<()> {
    let other = group.new_group(&[0, 1])?.expect("both are in it");
    let x = empty(group, 4)?;
    let first = group.all_reduce(&x, Sum)?;
    let second = other.all_reduce(&x, Sum)?;
    first.wait()?;
    second.wait()
}

fn computed_on_a_side_stream(group: &ProcessGroup, _: u64) -> Result<()> {
    let (x, side) = (empty(group, 4)?, Stream::new(group.device())?);
    side.wait_stream(&group.device().current_stream())?;
    {
        let _current = side.make_current();
        x.fill_(2.0)?;
    }
    // Nothing says that this comes after it.
    let work = group.all_reduce(&x, Sum)?;
    x.record_use(&side);
    work.wait()
}

fn awaited_on_another_stream(group: &ProcessGroup, _: u64) -> Result<()> {
    let (x, side) = (empty(group, 4)?, Stream::new(group.device())?);
    let work = group.all_reduce(&x, Sum)?;
    {
        let _current = side.make_current();
        work.wait()?;
    }
    x.fill_(0.0)?;
    x.record_use(&side);
    Ok(())
}

fn the_wrong_work(group: &ProcessGroup, _: u64) -> Result<()> {
    let (x, y) = (empty(group, 4)?, empty(group, 4)?);
    let first = group.all_reduce(&x, Sum)?;
    let _second = group.all_reduce(&y, Sum)?;
    first.wait()?;
    y.fill_(0.0)
}

#[test]
fn buffers_in_use_are_found() {
    let race: &[&str] = &["data race", "all_reduce"];
    found(&[
        Mistake("a result read without a wait", 2, read_without_a_wait, race, 2),
        Mistake(
            "an input written too early",
            2,
            written_before_it_was_sent,
            &["all_gather_into_tensor", "data race"],
            2,
        ),
        Mistake(
            "a result's place written",
            2,
            written_where_a_result_comes,
            &["all_gather_into_tensor", "data race"],
            2,
        ),
        Mistake("two groups on one buffer", 2, two_groups_on_one_buffer, race, 2),
        Mistake("an input of a side stream", 2, computed_on_a_side_stream, race, 2),
        Mistake("a wait on another stream", 2, awaited_on_another_stream, race, 2),
        Mistake("the wrong work awaited", 2, the_wrong_work, race, 2),
    ]);
}

// ---- Captures ---------------------------------------------------------------------------------------------------------

fn capture(group: &ProcessGroup, region: impl FnOnce() -> Result<()>) -> Result<Graph> {
    let options = CaptureOptions { mode: CaptureMode::ThreadLocal, ..CaptureOptions::default() };
    Ok(Graph::capture(group.device(), options, region)?.0)
}

fn captured_by_one(group: &ProcessGroup, _: u64) -> Result<()> {
    let x = empty(group, 4)?;
    if is_first(group) {
        // Captured, and never replayed.
        let _graph = capture(group, || group.all_reduce(&x, Sum)?.wait())?;
    } else {
        group.all_reduce(&x, Sum)?.wait()?;
    }
    read(&x)
}

fn replayed_more_often(group: &ProcessGroup, _: u64) -> Result<()> {
    let x = tensor(group, &[1.0; 4])?;
    let graph = capture(group, || group.all_reduce(&x, Sum)?.wait())?;
    for _ in 0..1 + group.rank() {
        graph.replay()?;
    }
    read(&x)
}

fn captured_in_another_order(group: &ProcessGroup, _: u64) -> Result<()> {
    let (x, y) = (tensor(group, &[1.0; 4])?, tensor(group, &[1.0; 2])?);
    let graph = capture(group, || {
        let (first, second) = if is_first(group) { (&x, &y) } else { (&y, &x) };
        group.all_reduce(first, Sum)?.wait()?;
        group.all_reduce(second, Sum)?.wait()
    })?;
    graph.replay()?;
    read(&x)
}

#[test]
fn captures_out_of_step_are_found() {
    found(&[
        Mistake(
            "captured by one, done by the other",
            2,
            captured_by_one,
            &["rank 1 waits in", "for rank 0"],
            1,
        ),
        Mistake("replayed more often", 2, replayed_more_often, &["rank 1 waits in", "for rank 0"], 1),
        Mistake(
            "captured in another order",
            2,
            captured_in_another_order,
            &["calls of a collective differ"],
            1,
        ),
    ]);
}
