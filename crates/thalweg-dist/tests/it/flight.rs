//! The calls of all ranks side by side, after a rank was killed, stalls, or does another call.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use thalweg_dist::ReduceOp::Sum;
use thalweg_dist::store::HashStore;
use thalweg_dist::{
    FlightState, FlightSummary, FlightTensor, GroupOptions, LockstepGraph, ProcessGroup, run_ranks,
    simulated_devices,
};
use thalweg_ir::DType;
use thalweg_runtime::{CaptureOptions, Result};
use thalweg_tensor::Tensor;

use crate::support::empty;

/// A time in which every live rank can publish its calls.
const LONG: Duration = Duration::from_secs(20);

/// Runs ranks as threads that no launcher looks after, the last one without a watchdog where it is to be killed, and returns the summary
/// of each rank that lives. A rank makes the calls of `program`, and then waits until the group has failed.
fn summaries(
    ranks: u32,
    is_killed: bool,
    program: impl Fn(&ProcessGroup) -> Result<()> + Sync,
) -> Vec<FlightSummary> {
    let (devices, store) = (simulated_devices(ranks).unwrap(), Arc::new(HashStore::new()));
    let (program, store, end) = (&program, &store, &Barrier::new(ranks as usize));
    let run = |rank: u32| {
        let device = devices[rank as usize].clone();
        move || {
            let _current = device.make_current();
            let dies = is_killed && rank + 1 == ranks;
            let options = GroupOptions {
                timeout: Duration::from_millis(300),
                watchdog: Some(!dies),
                ..GroupOptions::default()
            };
            let group = ProcessGroup::new(store.clone(), rank, ranks, &device, options).unwrap();
            // The machine may notice before the watchdogs do, in a call or after it.
            let _ = program(&group);
            let summary = (!dies).then(|| {
                while group.check().is_ok() {
                    std::thread::sleep(Duration::from_millis(10));
                }
                // A rank that was killed says nothing, however long one waits.
                group.flight_summary(if is_killed { Duration::from_millis(500) } else { LONG }).unwrap()
            });
            end.wait();
            // A process that is killed frees nothing.
            if dies {
                std::mem::forget(group);
            }
            summary
        }
    };
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(run(rank))).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns the number of the line of this file with a text.
fn line(text: &str) -> String {
    let found = include_str!("flight.rs").lines().position(|line| line.trim_start().starts_with(text));
    format!("crates/thalweg-dist/tests/it/flight.rs:{}", found.unwrap() + 1)
}

fn two_and_a_third(group: &ProcessGroup, stops: bool) -> Result<()> {
    let x = empty(group, 4)?;
    group.all_reduce(&x, Sum)?.synchronize()?;
    group.broadcast(&x, 1)?.synchronize()?;
    if !stops {
        let _hangs = group.reduce(&x, 0, Sum)?;
    }
    Ok(())
}

#[test]
fn a_rank_that_was_killed_is_missing_and_silent() {
    for summary in summaries(4, true, |group| two_and_a_third(group, group.rank() == 3)) {
        assert_eq!(summary.missing(), [(3, 3)]);
        assert_eq!((summary.front(), summary.difference()), (3, None));
        assert_eq!(
            summary.ranks.iter().map(|rank| rank.has_spoken).collect::<Vec<_>>(),
            [true, true, true, false]
        );
        let (reduce, broadcast) = (line("let _hangs = group.reduce"), line("group.broadcast(&x, 1)"));
        let text = summary.to_string();
        let wanted = format!(
            "  rank 3: is missing in call 3, which is reduce at {reduce} (float32 [4] -> float32 [4], started) on rank 0; its last \
             call is broadcast at {broadcast}; silent since the group failed\n"
        );
        assert!(text.ends_with(&wanted), "no\n{wanted}in\n{text}");
        let first = format!(
            "  rank 0: has made all calls; the last is reduce at {reduce} (float32 [4] -> float32 [4], started)\n"
        );
        assert!(text.contains(&first), "no\n{first}in\n{text}");
    }
}

#[test]
fn a_rank_that_stalls_is_missing_and_speaks() {
    let all = summaries(3, false, |group| two_and_a_third(group, group.rank() == 1));
    assert_eq!(all.len(), 3);
    for summary in all {
        assert_eq!(summary.missing(), [(1, 3)]);
        assert!(summary.ranks.iter().all(|rank| rank.has_spoken), "{summary}");
        assert!(!summary.to_string().contains("silent"), "{summary}");
    }
}

#[test]
fn a_rank_that_never_came_has_no_calls() {
    let all = summaries(2, false, |group| if group.rank() == 1 { Ok(()) } else { one_alone(group) });
    for summary in all {
        assert_eq!(summary.missing(), [(1, 1)]);
        let text = format!("rank 1: is missing in call 1, which is all_reduce at {}", line("let _alone"));
        assert!(summary.to_string().contains(&text), "no {text} in {summary}");
        assert!(summary.to_string().contains("its last call is none"), "{summary}");
    }
}

fn one_alone(group: &ProcessGroup) -> Result<()> {
    let _alone = group.all_reduce(&empty(group, 4)?, Sum)?;
    Ok(())
}

#[test]
fn calls_that_differ_are_shown_side_by_side() {
    let have_met = Barrier::new(3);
    let all = summaries(3, false, |group| {
        let x = empty(group, 4)?;
        group.all_reduce(&x, Sum)?.synchronize()?;
        have_met.wait();
        if group.rank() == 2 {
            let _other = group.broadcast(&x, 0)?;
        } else {
            let _usual = group.all_reduce(&x, Sum)?;
        }
        Ok(())
    });
    for summary in all {
        // Rank 0 or rank 1 may be kept from its call by what the others did.
        let (call, [usual, other]) = summary.difference().expect("a difference");
        assert!((call, other) == (2, 2) && usual < 2, "{summary}");
        // A call that the machine refuses was never on the stream.
        let text = summary.to_string();
        let (usual_line, other_line) = (line("let _usual"), line("let _other"));
        let differs = format!("call 2 differs: all_reduce at {usual_line} (float32 [4] -> float32 [4], ");
        let from = text.find(&differs).unwrap_or_else(|| panic!("no {differs} in {text}"));
        assert!(text[from..].contains(&format!(") on rank {usual}, broadcast at {other_line} (")), "{text}");
    }
}

#[test]
fn sizes_that_differ_are_shown_side_by_side() {
    let have_met = Barrier::new(2);
    let all = summaries(2, false, |group| {
        let (x, wide) = (empty(group, 4)?, empty(group, 5)?);
        group.all_gather_into_tensor(&empty(group, 8)?, &x)?.synchronize()?;
        have_met.wait();
        let _sizes = group.all_reduce(if group.rank() == 1 { &wide } else { &x }, Sum)?;
        Ok(())
    });
    for summary in all {
        let both_came = summary.ranks.iter().all(|rank| rank.made == 2);
        assert_eq!(summary.difference().map(|(call, _)| call), both_came.then_some(2), "{summary}");
        let gathered = &summary.ranks[0].calls[&1];
        assert_eq!(
            (gathered.operation(), gathered.state),
            ("all_gather_into_tensor", Some(FlightState::Completed))
        );
        let tensor =
            |count: usize| vec![FlightTensor { dtype: DType::F32, shape: [count].as_slice().into() }];
        assert_eq!((&gathered.inputs, &gathered.outputs), (&tensor(4), &tensor(8)));
    }
}

#[test]
fn a_record_says_how_far_calls_have_come() {
    let both_know = Barrier::new(2);
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let x = Tensor::zeros(&[2, 3], DType::Bf16, group.device())?;
        group.all_reduce(&x, Sum)?.synchronize()?;
        let word = |call: usize| {
            let record = group.flight_record();
            let line = record.lines().nth(call - 1).expect("a call").to_owned();
            line.rsplit("; ").next().expect("a state").to_owned()
        };
        assert_eq!(word(1), "completed");
        if group.rank() == 0 {
            // Rank 1 makes none of these before rank 0 has looked.
            let (one, two) = (group.all_reduce(&x, Sum)?, group.send(&x, 1)?);
            while word(2) != "started" {
                std::thread::yield_now();
            }
            assert_eq!(word(3), "scheduled");
            both_know.wait();
            one.synchronize()?;
            two.synchronize()?;
            let record = group.flight_record();
            assert!(record.contains("; rank 0 to rank 1: bfloat16 [2, 3] -> nothing; completed"), "{record}");
        } else {
            both_know.wait();
            group.all_reduce(&x, Sum)?.wait()?;
            group.recv(&x, 0)?.synchronize()?;
            let record = group.flight_record();
            assert!(record.contains("; rank 0 to rank 1: nothing -> bfloat16 [2, 3]; completed"), "{record}");
        }
        assert_eq!((word(2), word(3)), ("completed".to_owned(), "completed".to_owned()));
        let captured =
            LockstepGraph::capture(&group, CaptureOptions::default(), || group.all_reduce(&x, Sum)?.wait());
        assert_eq!(word(4), "captured");
        captured?.0.replay()?;
        x.to_dtype(DType::F32)?.to_vec::<f32>()?;
        let record = group.flight_record();
        assert!(record.contains("call 5 is lockstep replay at"), "{record}");
        assert_eq!(word(5), "completed");
        Ok(())
    })
    .unwrap();
}
