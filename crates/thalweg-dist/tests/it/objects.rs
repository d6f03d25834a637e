//! Collectives of bytes, and mistakes in their use.

use thalweg_dist::{ProcessGroup, run_ranks, simulated_devices};
use thalweg_runtime::{Error, Result};

use crate::support::{Random, checked};

/// Returns the object of a rank in a round; some are empty.
fn object(rank: u32, round: u64) -> Vec<u8> {
    let mut random = Random::new(round * 64 + u64::from(rank) + 1);
    let length = random.below(4) * random.below(500);
    (0..length).map(|_| random.below(256) as u8).collect()
}

fn all(ranks: u32, round: u64) -> Vec<Vec<u8>> {
    (0..ranks).map(|rank| object(rank, round)).collect()
}

fn slices(objects: &[Vec<u8>]) -> Vec<&[u8]> {
    objects.iter().map(Vec::as_slice).collect()
}

fn gathered_and_scattered(group: &ProcessGroup, round: u64) -> Result<()> {
    let (own, ranks) = (group.rank(), group.size());
    let root = (round % u64::from(ranks)) as u32;
    let found = group.gather_object(&object(own, round), root)?;
    assert_eq!(found, (own == root).then(|| all(ranks, round)));
    let given = all(ranks, round + 1);
    let given = slices(&given);
    // The others may give something, which is not looked at.
    let list = if own == root { Some(&given[..]) } else { (round % 2 == 1).then_some(&given[..1]) };
    assert_eq!(group.scatter_object_list(list, root)?, object(own, round + 1));
    Ok(())
}

fn sent_around(group: &ProcessGroup, round: u64) -> Result<()> {
    let (own, ranks) = (group.rank(), group.size());
    let (next, former) = ((own + 1) % ranks, (own + ranks - 1) % ranks);
    let list = |rank: u32| -> Vec<Vec<u8>> { (0..3).map(|place| object(rank, round * 7 + place)).collect() };
    let send = || group.send_object_list(&slices(&list(own)), next);
    let recv = || -> Result<()> {
        assert_eq!(group.recv_object_list(3, former)?, list(former));
        Ok(())
    };
    // A send waits for its receive on the group's stream, so one rank begins with the other.
    if own == 0 { recv().and_then(|()| send()) } else { send().and_then(|()| recv()) }
}

#[test]
fn objects_of_any_length_come_to_their_ranks() {
    for ranks in [1, 2, 3, 5] {
        run_ranks(&simulated_devices(ranks).unwrap(), |group| {
            (0..8).try_for_each(|round| gathered_and_scattered(&group, round))?;
            if ranks > 1 {
                (0..4).try_for_each(|round| sent_around(&group, round))?;
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn objects_have_no_race() {
    checked(10, 3, |group, seed| gathered_and_scattered(group, seed).and_then(|()| sent_around(group, seed)));
}

#[test]
fn mistakes_with_objects_are_named() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let (own, other) = (group.rank(), 1 - group.rank());
        let refused = |error: Option<Error>, texts: &[&str]| {
            let text = error.expect("an error").to_string();
            assert!(texts.iter().all(|wanted| text.contains(wanted)), "no {texts:?} in {text}");
        };
        refused(group.gather_object(b"a", 2).err(), &["gather_object", "rank 2", "2 ranks"]);
        refused(group.scatter_object_list(None, 7).err(), &["scatter_object_list", "rank 7", "2 ranks"]);
        refused(
            group.scatter_object_list(None, own).err(),
            &["Argument `scatter_object_input_list` must be specified on src rank."],
        );
        refused(
            group.scatter_object_list(Some(&[b"a"]), own).err(),
            &["1 objects to 2 ranks", "one per rank"],
        );
        refused(
            group.send_object_list(&[b"a"], own).err(),
            &["Invalid destination rank", "same as the rank"],
        );
        refused(group.recv_object_list(1, own).err(), &["Invalid source rank", "same as the rank"]);
        refused(group.send_object_list(&[], other).err(), &["`object_list`", "size at least 1"]);
        refused(group.recv_object_list(0, other).err(), &["`object_list`", "size at least 1"]);
        // Nothing was submitted: the group goes on.
        gathered_and_scattered(&group, 3)
    })
    .unwrap();
}
