//! The schedules compared with PyTorch's, which `tests/goldens/make_schedules.py` writes to a file.

use thalweg_dist::pipeline::Schedule;
use thalweg_runtime::Result;

const GOLDENS: &str = include_str!("../../goldens/schedules.csv");

/// A schedule of PyTorch's: its name, ranks, stages per rank and microbatches, the computations, and those with messages.
struct Golden {
    name: &'static str,
    sizes: [usize; 3],
    computations: &'static str,
    with_messages: &'static str,
}

fn goldens() -> Vec<Golden> {
    let golden = |text: &'static str| {
        let (head, tables) = text.split_once('\n').unwrap();
        let mut words = head.split(' ');
        let name = words.next().unwrap();
        let sizes: Vec<usize> = words.map(|word| word.parse().unwrap()).collect();
        let (computations, with_messages) = tables.split_once("\n\n").unwrap();
        Golden { name, sizes: sizes.try_into().unwrap(), computations, with_messages }
    };
    GOLDENS.split("# ").skip(1).map(golden).collect()
}

fn made(golden: &Golden) -> Result<Schedule> {
    let [ranks, per_rank, microbatches] = golden.sizes;
    match golden.name {
        "GPipe" => Schedule::gpipe(ranks, microbatches),
        "1F1B" => Schedule::one_f_one_b(ranks, microbatches),
        "LoopedBFS" => Schedule::looped_bfs(ranks, per_rank, microbatches),
        "Interleaved1F1B" => Schedule::interleaved(ranks, per_rank, microbatches),
        "InterleavedZeroBubble" => Schedule::zero_bubble(ranks, per_rank, microbatches),
        "ZBVZeroBubble" => Schedule::zbv(ranks, microbatches),
        other => panic!("no schedule {other}"),
    }
}

#[test]
fn every_rank_does_what_pytorchs_does() {
    let goldens = goldens();
    assert!(goldens.len() >= 20, "{}", goldens.len());
    for golden in &goldens {
        let schedule = made(golden).unwrap();
        let case = format!("{} {:?}", golden.name, golden.sizes);
        assert_eq!(schedule.to_csv().trim_end(), golden.computations, "{case}");
        assert_eq!(Schedule::from_csv(golden.computations).unwrap(), schedule, "{case}");
        assert_eq!(schedule.microbatches(), golden.sizes[2], "{case}");
        assert_eq!(schedule.stages(), golden.sizes[0] * golden.sizes[1], "{case}");
    }
}

#[test]
fn messages_stand_where_pytorch_puts_them() {
    for golden in goldens() {
        let schedule = made(&golden).unwrap().with_messages().unwrap();
        assert_eq!(
            schedule.to_csv().trim_end(),
            golden.with_messages.trim_end(),
            "{} {:?}",
            golden.name,
            golden.sizes
        );
    }
}

#[test]
fn sizes_that_do_not_fit_are_errors() {
    let text = Schedule::interleaved(4, 2, 9).unwrap_err().to_string();
    let wanted = "Interleaved 1F1B requires the number of microbatches to be a multiple of the number of rounds (2), but got 9.";
    assert!(text.contains(wanted), "{text}");
    assert!(Schedule::gpipe(0, 4).unwrap_err().is_invalid_argument());
    assert!(Schedule::one_f_one_b(4, 0).unwrap_err().is_invalid_argument());
    assert!(Schedule::zero_bubble(2, 0, 4).unwrap_err().is_invalid_argument());
    assert!(Schedule::looped_bfs(2, 0, 4).unwrap_err().is_invalid_argument());
}

#[test]
fn tables_that_cannot_run_are_errors() {
    let refused = |table: &str| {
        let error = Schedule::from_csv(table).and_then(|schedule| schedule.with_messages()).unwrap_err();
        assert!(error.is_invalid_argument(), "{error}");
        error.to_string()
    };
    assert!(refused("0F0,0X0").contains("Invalid action string: 0X0"));
    assert!(refused("F0").contains("Invalid action string: F0"));
    assert!(refused("0B0,0F0").contains("0B0 comes without 0F0 before it"));
    assert!(refused("0F0,0B0,0F0").contains("0F0 is there twice"));
    assert!(refused("0F0,0B0,1F0,1B0\n1F0").contains("assigned to both rank 0 and rank 1"));
    assert!(refused("0F0,0F1,0B0").contains("microbatch 1"));
    assert!(refused("0F0,0I0").contains("I true, W false"));
    assert!(refused("1F0,1B0").contains("stage 0"), "a stage is missing");
    // Rank 1 wants the second microbatch before it lets the first one's gradient go; rank 0 the other way around.
    let crossed = refused("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1");
    assert!(crossed.contains("wait for each other"), "{crossed}");
}
