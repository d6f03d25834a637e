//! Rows chosen by data: the findings after the work has run, compared with every byte of every access.

use thalweg_driver::{Access, AccessMode, Driver, StreamHandle, Touch};
use thalweg_sanitizer::FindingKind::{self, Race, Uninitialised};
use thalweg_sim::schedules::SplitMix;

use crate::support::{BYTES, ROW, World, verdict};

use AccessMode::{Read, ReadWrite, Write};

/// Runs a program to its end, and compares its findings, all of them certain, with the expected ones.
#[track_caller]
fn known(name: &str, expected: &[FindingKind], program: impl FnOnce(&World)) {
    let found = verdict(name, expected, |w| {
        program(w);
        w.driver.device_synchronize(0).unwrap();
    });
    assert!(found.iter().all(|finding| finding.is_certain), "{name}: {found:?}");
}

fn row(w: &World, row: u64, mode: AccessMode) -> Access {
    Access::new(w.x.address() + row * ROW, ROW, mode)
}

#[test]
fn rows_race_only_where_they_are_the_same() {
    known("two writers of different rows", &[], |w| {
        w.touch_rows(w.a, "index_copy_", Write, w.x, &[1, 5]);
        w.touch_rows(w.b, "index_copy_", Write, w.x, &[2, 4, 6]);
    });
    known("two writers of the same row", &[Race], |w| {
        w.touch_rows(w.a, "index_copy_", Write, w.x, &[1, 5]);
        w.touch_rows(w.b, "index_copy_", Write, w.x, &[2, 5, 6]);
    });
    known("two readers of the same row", &[], |w| {
        w.touch_rows(w.a, "embedding", Read, w.x, &[1, 5]);
        w.touch_rows(w.b, "embedding", Read, w.x, &[5]);
    });
    known("a reader of another row", &[], |w| {
        w.touch_rows(w.a, "index_copy_", Write, w.x, &[1, 5]);
        w.work(w.b, "read", &[row(w, 2, Read)]);
    });
    known("a reader of that row, later", &[Race], |w| {
        w.touch_rows(w.a, "index_copy_", Write, w.x, &[1, 5]);
        w.work(w.b, "read", &[row(w, 5, Read)]);
    });
    known("a reader of that row, before", &[Race], |w| {
        w.work(w.b, "read", &[row(w, 5, Read)]);
        w.touch_rows(w.a, "scatter_add", ReadWrite, w.x, &[1, 5]);
    });
    known("a reader of that row behind it", &[], |w| {
        w.touch_rows(w.a, "index_copy_", Write, w.x, &[1, 5]);
        w.order(w.a, w.b);
        w.work(w.b, "read", &[row(w, 5, Read)]);
    });
    known("no row at all", &[], |w| {
        w.touch_rows(w.a, "index_copy_", Write, w.x, &[]);
        w.work(w.b, "read", &[row(w, 5, Read)]);
    });
    let columns = |first: u64, mode| move |w: &World| row(w, 0, mode).start + first;
    for (rows, expected) in [(&[9][..], &[Race][..]), (&[8, 10], &[])] {
        known("columns of some rows", expected, |w| {
            // 16 bytes of each third row.
            let part = Access::new(columns(0, Write)(w), 3 * ROW * 20 + 16, Write);
            w.work(w.a, "fill", &[part.touching(Touch::rows(16, 3 * ROW, 21))]);
            w.touch_rows(w.b, "embedding", Read, w.x, rows);
        });
    }
}

#[test]
fn the_bytes_that_both_touch_are_named() {
    let found = verdict("one row", &[Race], |w| {
        w.touch_rows(w.a, "index_copy_", Write, w.x, &[1, 5, 6]);
        w.work(w.b, "read", &[Access::read(w.x.offset(6 * ROW + 8), 24)]);
        w.driver.device_synchronize(0).unwrap();
    });
    assert_eq!(found[0].range.1, 24, "{}", found[0]);
    assert_eq!(found[0].range.0 % BYTES, found[0].second.start % BYTES, "{}", found[0]);
    assert!(!found[0].to_string().contains("may"), "{}", found[0]);
}

#[test]
fn one_race_among_many_of_the_same_lines_is_found() {
    for race in [0, 1, 77, 299] {
        known("the same two lines again and again", &[Race], |w| {
            for round in 0..300 {
                w.touch_rows(w.a, "index_copy_", Write, w.x, &[round % 32]);
                let other = if round == race { round % 32 } else { 32 + round % 32 };
                w.touch_rows(w.b, "embedding", Read, w.x, &[other]);
                w.order(w.a, w.b);
                w.order(w.b, w.a);
            }
        });
    }
}

#[test]
fn work_on_some_rows_hides_no_work_on_others() {
    known("a read before a read of other rows", &[Race], |w| {
        w.work(w.a, "read", &[row(w, 3, Read)]);
        w.touch_rows(w.a, "embedding", Read, w.x, &[5]);
        w.work(w.b, "write", &[row(w, 3, Write)]);
    });
    known("a read of some before a write of others", &[Race], |w| {
        w.touch_rows(w.a, "embedding", Read, w.x, &[3]);
        w.touch_rows(w.a, "index_copy_", Write, w.x, &[5]);
        w.work(w.b, "write", &[row(w, 3, Write)]);
    });
    known("a write of some before a write of others", &[Race], |w| {
        w.touch_rows(w.a, "index_copy_", Write, w.x, &[3]);
        w.touch_rows(w.a, "index_copy_", Write, w.x, &[5]);
        w.work(w.b, "read", &[row(w, 3, Read)]);
    });
}

#[test]
fn a_row_that_was_left_out_was_never_written() {
    let fresh = |w: &World| w.driver.memory_allocate(0, BYTES).unwrap();
    let read_row = |w: &World, fresh: thalweg_driver::DevicePointer, row: u64, count: u64| {
        w.work(w.a, "read", &[Access::read(fresh.offset(row * ROW), count * ROW)]);
    };
    known("the row left out", &[Uninitialised], |w| {
        let fresh = fresh(w);
        w.touch_rows(w.a, "index_copy_", Write, fresh, &[0, 1, 2, 3, 5]);
        read_row(w, fresh, 4, 1);
    });
    known("a row that is there", &[], |w| {
        let fresh = fresh(w);
        w.touch_rows(w.a, "index_copy_", Write, fresh, &[0, 1, 2, 3, 5]);
        read_row(w, fresh, 5, 1);
    });
    known("all that two have written", &[], |w| {
        let fresh = fresh(w);
        w.touch_rows(w.a, "index_copy_", Write, fresh, &[0, 2, 4]);
        w.touch_rows(w.a, "index_copy_", Write, fresh, &[1, 3]);
        read_row(w, fresh, 0, 5);
    });
    known("one more than two have written", &[Uninitialised], |w| {
        let fresh = fresh(w);
        w.touch_rows(w.a, "index_copy_", Write, fresh, &[0, 2, 4]);
        w.touch_rows(w.a, "index_copy_", Write, fresh, &[1, 3, 7, 8]);
        read_row(w, fresh, 0, 6);
    });
    for (read, expected) in [(&[1, 9][..], &[][..]), (&[1, 3], &[Uninitialised])] {
        known("rows of a table of which some were written", expected, |w| {
            let fresh = fresh(w);
            w.touch_rows(w.a, "index_copy_", Write, fresh, &[0, 1]);
            w.work(w.a, "write", &[Access::write(fresh.offset(9 * ROW), ROW)]);
            w.touch_rows(w.a, "embedding", Read, fresh, read);
        });
    }
}

#[test]
fn what_is_never_known_may_be_a_race() {
    let silent = Touch::chosen(ROW);
    let found = verdict("a kernel that says nothing", &[Race], |w| {
        w.work(w.a, "silent", &[Access::write(w.x, BYTES).touching(silent)]);
        w.work(w.b, "read", &[row(w, 5, Read)]);
        w.driver.device_synchronize(0).unwrap();
    });
    assert!(found[0].is_possible() && found[0].to_string().contains("may both touch"), "{}", found[0]);
    let found = verdict("a graph", &[Race], |w| {
        let graph = w.capture(w.a, || w.touch_rows(w.a, "index_copy_", Write, w.x, &[1]));
        w.launch(graph, w.a);
        w.touch_rows(w.b, "embedding", Read, w.x, &[5]);
        w.driver.device_synchronize(0).unwrap();
    });
    assert!(found[0].is_possible(), "{}", found[0]);
    // It is a race nevertheless if the other access touches all bytes that it may touch.
    known("a graph, and work on everything", &[Race], |w| {
        let graph = w.capture(w.a, || w.touch_rows(w.a, "index_copy_", Write, w.x, &[1]));
        w.launch(graph, w.a);
        w.read(w.b, w.x);
    });
}

/// An access of a random program: its stream, its rows, its mode, and the accesses before it.
struct Done {
    stream: usize,
    rows: Vec<u64>,
    writes: bool,
    before: Vec<usize>,
}

const NAMES: [&str; 24] = [
    "op0", "op1", "op2", "op3", "op4", "op5", "op6", "op7", "op8", "op9", "op10", "op11", "op12", "op13",
    "op14", "op15", "op16", "op17", "op18", "op19", "op20", "op21", "op22", "op23",
];

/// Runs a random program of streams, waits, and work on rows, of which some are known and some are chosen by data. Returns its
/// accesses.
fn random_program(w: &World, random: &mut SplitMix) -> Vec<Done> {
    let streams: [StreamHandle; 3] = [w.a, w.b, w.c];
    // The work that each stream comes after, by brute force.
    let mut known: [Vec<usize>; 3] = Default::default();
    let mut done: Vec<Done> = Vec::new();
    let (length, rows) = (2 + random.below(NAMES.len() - 1), 10 + random.below(40));
    while done.len() < length {
        let mut below = |end: usize| random.below(end);
        let stream = below(3);
        if below(3) == 0 {
            let earlier = below(3);
            w.order(streams[earlier], streams[stream]);
            let learned = known[earlier].clone();
            known[stream].extend(learned);
            continue;
        }
        let mode = [Read, Write, ReadWrite][below(3)];
        let (first, number) = (below(rows) as u64, done.len());
        let rows: Vec<u64> = match below(3) {
            0 => {
                let count = 1 + below(3) as u64;
                let access = Access::new(w.x.address() + first * ROW, count * ROW, mode);
                w.work(streams[stream], NAMES[number], &[access]);
                (first..first + count).collect()
            }
            1 => {
                let access = Access::new(w.x.address() + first * ROW, 4 * ROW, mode);
                let access = access.touching(Touch::rows(ROW, 3 * ROW, 2));
                w.work(streams[stream], NAMES[number], &[access]);
                vec![first, first + 3]
            }
            _ => {
                let rows: Vec<u64> = (0..below(4)).map(|_| below(rows + 3) as u64).collect();
                w.touch_rows(streams[stream], NAMES[number], mode, w.x, &rows);
                rows
            }
        };
        done.push(Done { stream, rows, writes: mode.writes(), before: known[stream].clone() });
        known[stream].push(number);
    }
    done
}

/// Returns the pairs that race on a row.
fn races(done: &[Done], row: u64) -> Vec<(usize, usize)> {
    let mut races = Vec::new();
    for (later, b) in done.iter().enumerate() {
        for (earlier, a) in done[..later].iter().enumerate() {
            let is_ordered = a.stream == b.stream || b.before.contains(&earlier);
            let meet = a.rows.contains(&row) && b.rows.contains(&row);
            if meet && !is_ordered && (a.writes || b.writes) {
                races.push((earlier, later));
            }
        }
    }
    races
}

#[test]
fn random_programs_are_judged_as_by_every_pair_of_their_accesses() {
    let mut random = SplitMix::new(7);
    let (mut with, mut without) = (0, 0);
    for round in 0..400 {
        let w = World::new();
        let done = random_program(&w, &mut random);
        w.driver.device_synchronize(0).unwrap();
        let number = |name: &str| NAMES.iter().position(|other| *other == name).unwrap();
        let mut found = Vec::new();
        for finding in w.findings() {
            assert!(finding.is_certain && finding.kind == Race, "round {round}: {finding}");
            let first = finding.first.as_ref().unwrap().site.operator;
            found.push((number(first), number(finding.second.site.operator)));
        }
        let mut all = Vec::new();
        for row in 0..BYTES / ROW {
            let races = races(&done, row);
            // The first race of each row is found, whatever other rows the accesses touch.
            let first = races.iter().map(|pair| pair.1).min();
            let is_found = |later| found.iter().any(|pair| pair.1 == later && races.contains(pair));
            assert!(first.is_none_or(is_found), "round {round}, row {row}: {found:?} of {races:?}");
            all.extend(races);
        }
        assert!(found.iter().all(|pair| all.contains(pair)), "round {round}: {found:?} of {all:?}");
        if all.is_empty() { without += 1 } else { with += 1 }
    }
    assert!(with > 100 && without > 20, "{with} programs with races and {without} without");
}
