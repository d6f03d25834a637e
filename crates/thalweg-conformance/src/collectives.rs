//! Collectives of the device under test and another.
//!
//! Parts of both ranks are submitted as one group, as every driver allows. Parts that never find their counterparts are not
//! tested here: a GPU waits for them for ever.

use thalweg_driver::{
    Code, Collective, CollectiveOperation, CommunicatorHandle, DevicePointer, ElementFormat, Label,
    Reduction, Registration, StreamHandle,
};

use super::fixture::{Fixture, check_refused, equal, holds, refused_argument};
use super::{CaseResult, Stop, group};

group! {
    "collectives":
    a_communicator_names_each_device_once,
    ranks_join_one_by_one,
    a_communicator_is_split,
    collectives_use_registered_memory,
    collectives_use_symmetric_memory,
    an_aborted_rank_is_refused,
    every_operation_gives_its_values,
    ranks_exchange_in_one_group,
    parts_are_in_the_order_of_their_streams,
    wrong_parts_are_refused,
    a_destroyed_rank_is_refused,
}

/// The number of elements that the cases work on.
const COUNT: u64 = 6;

/// The function that combines two elements.
type Join = fn(f32, f32) -> f32;

/// Two ranks: the device under test, and another.
struct Pair<'f> {
    fixture: &'f Fixture,
    ranks: Vec<Rank>,
}

struct Rank {
    communicator: CommunicatorHandle,
    stream: StreamHandle,
    send: DevicePointer,
    receive: DevicePointer,
}

impl<'f> Pair<'f> {
    fn new(fixture: &'f Fixture) -> CaseResult<Self> {
        let others = 0..fixture.device_count();
        let Some(other) = others.into_iter().find(|&device| device != fixture.device) else {
            return Err(Stop::Skipped("only one device, and a collective needs two".to_owned()));
        };
        let devices = [fixture.device, other];
        let communicators = match fixture.communicators_create(&devices) {
            Err(error) if error.is_library_missing() || error.is_not_supported() => {
                return Err(Stop::Skipped(error.to_string()));
            }
            result => result?,
        };
        let mut pair = Self { fixture, ranks: Vec::new() };
        for (communicator, device) in communicators.into_iter().zip(devices) {
            let stream = fixture.stream_create(device, 0)?;
            let (send, receive) =
                (fixture.memory_allocate(device, 256)?, fixture.memory_allocate(device, 256)?);
            pair.ranks.push(Rank { communicator, stream, send, receive });
        }
        Ok(pair)
    }

    fn part(&self, rank: usize, operation: CollectiveOperation) -> Collective {
        let Rank { communicator, stream, send, receive } = self.ranks[rank];
        let (format, label) = (ElementFormat::R_32F, Label::here("a collective of the conformance suite"));
        Collective { communicator, stream, operation, format, count: COUNT, send, receive, label }
    }

    fn write(&self, rank: usize, target: DevicePointer, values: &[f32]) -> CaseResult {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let stream = self.ranks[rank].stream;
        Ok(self.fixture.driver().copy_from_host(stream, target, &bytes, Label::here("write"))?)
    }

    fn read(&self, rank: usize, count: u64) -> CaseResult<Vec<f32>> {
        let Rank { stream, receive, .. } = self.ranks[rank];
        let words = self.fixture.words_on(stream, receive, count)?;
        Ok(words.into_iter().map(f32::from_bits).collect())
    }
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        let driver = self.fixture.driver();
        for rank in &self.ranks {
            let _ = driver.stream_synchronize(rank.stream);
        }
        for rank in &self.ranks {
            let _ = driver.communicator_destroy(rank.communicator);
            let _ = driver.stream_destroy(rank.stream);
            let _ = driver.memory_free(rank.send);
            let _ = driver.memory_free(rank.receive);
        }
    }
}

fn a_communicator_names_each_device_once(fixture: &Fixture) -> CaseResult {
    let pair = Pair::new(fixture)?;
    for (rank, other) in (0..).zip(&pair.ranks) {
        let info = fixture.communicator_info(other.communicator)?;
        equal((info.rank, info.ranks), (rank, 2), "the rank and how many there are")?;
        equal(info.device, fixture.stream_device(other.stream)?, "the rank's device")?;
    }
    check_refused(fixture.communicators_create(&[]), &[Code::InvalidValue], "a communicator of nothing")?;
    let here = fixture.device;
    check_refused(
        fixture.communicators_create(&[here, here]),
        &[Code::InvalidValue],
        "a device named twice",
    )?;
    let unknown = fixture.communicators_create(&[here, fixture.device_count()]);
    check_refused(unknown, &[Code::InvalidDevice], "an unknown device")
}

/// Makes the devices of a pair join as ranks, each on a thread of its own: a GPU blocks until both have joined.
fn joined(pair: &Pair<'_>) -> CaseResult<Vec<CommunicatorHandle>> {
    let driver = pair.fixture.driver();
    let id = driver.communicator_id()?;
    let devices: Vec<u32> =
        pair.ranks.iter().map(|rank| driver.stream_device(rank.stream)).collect::<Result<_, _>>()?;
    let join = |rank: usize| driver.communicator_join(&id, devices[rank], rank as u32, 2);
    let handles = std::thread::scope(|scope| {
        let threads = [1, 0].map(|rank| scope.spawn(move || join(rank)));
        let mut handles = threads.map(|thread| thread.join().expect("the thread does not panic"));
        handles.reverse();
        handles
    });
    Ok(handles.into_iter().collect::<Result<_, _>>()?)
}

fn ranks_join_one_by_one(fixture: &Fixture) -> CaseResult {
    let pair = Pair::new(fixture)?;
    let handles = joined(&pair)?;
    let operation = CollectiveOperation::AllReduce(Reduction::Sum);
    let mut group = Vec::new();
    for (rank, &communicator) in handles.iter().enumerate() {
        let info = fixture.communicator_info(communicator)?;
        equal((info.rank, info.ranks), (rank as u32, 2), "the rank and how many there are")?;
        pair.write(rank, pair.ranks[rank].send, &[1.0 + rank as f32; COUNT as usize])?;
        group.push(Collective { communicator, ..pair.part(rank, operation) });
    }
    fixture.collectives_async(&group)?;
    for rank in 0..2 {
        equal(pair.read(rank, COUNT)?, vec![3.0; COUNT as usize], "the sum of ranks that joined")?;
    }
    let id = fixture.communicator_id()?;
    refused_argument(fixture.communicator_join(&id, fixture.device, 2, 2), "a rank that there is not")?;
    for handle in handles {
        fixture.communicator_destroy(handle)?;
    }
    Ok(())
}

/// Splits both ranks into parts, each on a thread of its own: a GPU blocks until both have called.
fn split(pair: &Pair<'_>, parts: [&[u32]; 2]) -> CaseResult<[Option<CommunicatorHandle>; 2]> {
    let driver = pair.fixture.driver();
    let [first, second] = std::thread::scope(|scope| {
        let split = |rank: usize| driver.communicator_split(pair.ranks[rank].communicator, parts[rank]);
        let threads = [0, 1].map(|rank| scope.spawn(move || split(rank)));
        threads.map(|thread| thread.join().expect("the thread does not panic"))
    });
    if let Err(error) = &first
        && error.is_not_supported()
    {
        return Err(Stop::Skipped(error.to_string()));
    }
    Ok([first?, second?])
}

fn a_communicator_is_split(fixture: &Fixture) -> CaseResult {
    let pair = Pair::new(fixture)?;
    let turned = split(&pair, [&[1, 0], &[1, 0]])?;
    let alone = split(&pair, [&[], &[1]])?;
    holds(alone[0].is_none(), "a rank that names no part gets none")?;
    let mut group = Vec::new();
    for (rank, communicator) in turned.into_iter().flatten().enumerate() {
        let (info, device) =
            (fixture.communicator_info(communicator)?, fixture.stream_device(pair.ranks[rank].stream)?);
        equal((info.rank, info.ranks, info.device), (1 - rank as u32, 2, device), "the rank in its part")?;
        pair.write(rank, pair.ranks[rank].send, &[1.0 + rank as f32; COUNT as usize])?;
        // Rank 0 of the part is rank 1 of the pair.
        group
            .push(Collective { communicator, ..pair.part(rank, CollectiveOperation::Broadcast { root: 0 }) });
    }
    equal(group.len(), 2, "ranks of the part")?;
    fixture.collectives_async(&group)?;
    for rank in 0..2 {
        equal(pair.read(rank, COUNT)?, vec![2.0; COUNT as usize], "what rank 0 of the part gave")?;
    }
    let own = pair.ranks[0].communicator;
    refused_argument(fixture.communicator_split(own, &[0, 2]), "a part with a rank that there is not")?;
    refused_argument(fixture.communicator_split(own, &[0, 0]), "a part with a rank twice")?;
    refused_argument(fixture.communicator_split(own, &[1]), "a part of others")?;
    for handle in turned.into_iter().chain(alone).flatten() {
        fixture.communicator_destroy(handle)?;
    }
    Ok(())
}

fn collectives_use_registered_memory(fixture: &Fixture) -> CaseResult {
    let pair = Pair::new(fixture)?;
    let bytes = 1 << 20;
    let memory: Result<Vec<DevicePointer>, _> = pair
        .ranks
        .iter()
        .map(|rank| fixture.memory_allocate_collective(fixture.stream_device(rank.stream)?, bytes))
        .collect();
    let memory = match memory {
        Err(error) if error.is_not_supported() => return Err(Stop::Skipped(error.to_string())),
        memory => memory?,
    };
    let label = Label::here("a registration of the conformance suite");
    for (rank, &pointer) in memory.iter().enumerate() {
        let communicator = pair.ranks[rank].communicator;
        let registration = Registration { communicator, pointer, bytes, symmetric: false, label };
        fixture.memory_register(&registration)?;
        let overlapping = Registration { pointer: pointer.offset(256), bytes: 256, ..registration };
        refused_argument(fixture.memory_register(&overlapping), "memory that is registered already")?;
        refused_argument(fixture.memory_register(&Registration { bytes: 0, ..registration }), "no memory")?;
    }
    adds_up_in(&pair, &memory, "a sum in registered memory")?;
    for (rank, &pointer) in memory.iter().enumerate() {
        let communicator = pair.ranks[rank].communicator;
        fixture.memory_deregister(communicator, pointer)?;
        refused_argument(fixture.memory_deregister(communicator, pointer), "what is not registered")?;
        fixture.memory_free(pointer)?;
    }
    Ok(())
}

/// Sums the contents of each rank's memory, in place.
fn adds_up_in(pair: &Pair<'_>, memory: &[DevicePointer], what: &str) -> CaseResult {
    let mut group = Vec::new();
    for (rank, &pointer) in memory.iter().enumerate() {
        pair.write(rank, pointer, &[1.0 + rank as f32; COUNT as usize])?;
        let sum = pair.part(rank, CollectiveOperation::AllReduce(Reduction::Sum));
        group.push(Collective { send: pointer, receive: pointer, ..sum });
    }
    pair.fixture.driver().collectives_async(&group)?;
    for (rank, &pointer) in memory.iter().enumerate() {
        let words = pair.fixture.words_on(pair.ranks[rank].stream, pointer, COUNT)?;
        equal(words, vec![3.0_f32.to_bits(); COUNT as usize], what)?;
    }
    Ok(())
}

fn collectives_use_symmetric_memory(fixture: &Fixture) -> CaseResult {
    let pair = Pair::new(fixture)?;
    let (bytes, label) = (2 << 20, Label::here("a registration of the conformance suite"));
    let register = |rank: usize| {
        let Rank { communicator, stream, .. } = pair.ranks[rank];
        let pointer = fixture.memory_allocate_collective(fixture.stream_device(stream)?, bytes)?;
        let registration = Registration { communicator, pointer, bytes, symmetric: true, label };
        let registered = fixture.memory_register(&registration);
        registered.map(|()| pointer).inspect_err(|_| drop(fixture.memory_free(pointer)))
    };
    // Each on a thread of its own: a GPU blocks until both have called.
    let answers = std::thread::scope(|scope| {
        let threads = [0, 1].map(|rank| scope.spawn(move || register(rank)));
        threads.map(|thread| thread.join().expect("the thread does not panic"))
    });
    let mut memory = Vec::new();
    for answer in answers {
        match answer {
            Err(error) if error.is_not_supported() => return Err(Stop::Skipped(error.to_string())),
            pointer => memory.push(pointer?),
        }
    }
    adds_up_in(&pair, &memory, "a sum in symmetric memory")?;
    for (rank, &pointer) in memory.iter().enumerate() {
        fixture.memory_deregister(pair.ranks[rank].communicator, pointer)?;
        fixture.memory_free(pointer)?;
    }
    Ok(())
}

fn an_aborted_rank_is_refused(fixture: &Fixture) -> CaseResult {
    let pair = Pair::new(fixture)?;
    for handle in joined(&pair)? {
        fixture.communicator_abort(handle)?;
        check_refused(fixture.communicator_info(handle), &[Code::InvalidHandle], "an aborted rank")?;
    }
    // The devices are still usable.
    pair.write(0, pair.ranks[0].receive, &[4.0])?;
    equal(pair.read(0, 1)?, vec![4.0], "memory of a device whose rank aborted")
}

fn every_operation_gives_its_values(fixture: &Fixture) -> CaseResult {
    use CollectiveOperation::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
    let pair = Pair::new(fixture)?;
    let given: [Vec<f32>; 2] = [
        (0..2 * COUNT).map(|index| index as f32 + 1.0).collect(),
        (0..2 * COUNT).map(|index| 9.0 - index as f32).collect(),
    ];
    let count = COUNT as usize;
    let both = |join: Join, range: std::ops::Range<usize>| -> Vec<f32> {
        given[0][range.clone()]
            .iter()
            .zip(&given[1][range])
            .map(|(&left, &right)| join(left, right))
            .collect()
    };
    let reductions: [(Reduction, Join); 5] = [
        (Reduction::Sum, |left, right| left + right),
        (Reduction::Product, |left, right| left * right),
        (Reduction::Maximum, f32::max),
        (Reduction::Minimum, f32::min),
        (Reduction::Average, |left, right| (left + right) / 2.0),
    ];
    let untouched = || vec![-1.0; count];
    let mut cases = vec![
        (Broadcast { root: 1 }, [given[1][..count].to_vec(), given[1][..count].to_vec()]),
        (AllGather, [0, 1].map(|_| [&given[0][..count], &given[1][..count]].concat())),
    ];
    for (reduction, join) in reductions {
        cases.push((AllReduce(reduction), [both(join, 0..count), both(join, 0..count)]));
        cases.push((Reduce { root: 1, reduction }, [untouched(), both(join, 0..count)]));
        cases.push((ReduceScatter(reduction), [both(join, 0..count), both(join, count..2 * count)]));
    }
    for (operation, expected) in cases {
        for (rank, given) in given.iter().enumerate() {
            pair.write(rank, pair.ranks[rank].send, given)?;
            pair.write(rank, pair.ranks[rank].receive, &[-1.0; 2 * COUNT as usize])?;
        }
        let group = [pair.part(0, operation), pair.part(1, operation)];
        fixture.driver().collectives_async(&group)?;
        for (rank, mut expected) in expected.into_iter().enumerate() {
            expected.resize(2 * count, -1.0);
            equal(pair.read(rank, 2 * COUNT)?, expected, &format!("what rank {rank} got by {operation}"))?;
        }
    }
    Ok(())
}

fn ranks_exchange_in_one_group(fixture: &Fixture) -> CaseResult {
    let pair = Pair::new(fixture)?;
    for round in 0..3_u8 {
        let mut group = Vec::new();
        for rank in 0..2 {
            let value = f32::from(round) + 10.0 * rank as f32;
            pair.write(rank, pair.ranks[rank].send, &[value; COUNT as usize])?;
            let peer = 1 - rank as u32;
            group.push(pair.part(rank, CollectiveOperation::Send { peer }));
            group.push(pair.part(rank, CollectiveOperation::Receive { peer }));
        }
        fixture.driver().collectives_async(&group)?;
        for rank in 0..2 {
            let expected = vec![f32::from(round) + 10.0 * (1 - rank) as f32; COUNT as usize];
            equal(pair.read(rank, COUNT)?, expected, "what came from the other rank")?;
        }
    }
    Ok(())
}

fn parts_are_in_the_order_of_their_streams(fixture: &Fixture) -> CaseResult {
    let pair = Pair::new(fixture)?;
    let sum = CollectiveOperation::AllReduce(Reduction::Sum);
    let mut group = [pair.part(0, sum), pair.part(1, sum)];
    group.iter_mut().for_each(|part| part.receive = part.send);
    for rank in 0..2 {
        pair.write(rank, pair.ranks[rank].send, &[1.0; COUNT as usize])?;
    }
    // In place, and each on the result of the previous one.
    for _ in 0..5 {
        fixture.driver().collectives_async(&group)?;
    }
    for rank in 0..2 {
        let Rank { stream, send, .. } = pair.ranks[rank];
        let words = fixture.words_on(stream, send, COUNT)?;
        equal(words, vec![32.0_f32.to_bits(); COUNT as usize], "five sums of two, one on the other")?;
    }
    Ok(())
}

fn wrong_parts_are_refused(fixture: &Fixture) -> CaseResult {
    let (driver, pair) = (fixture.driver(), Pair::new(fixture)?);
    let good = pair.part(0, CollectiveOperation::AllGather);
    let wrong = [
        (
            "a root that is not a rank",
            Collective { operation: CollectiveOperation::Broadcast { root: 2 }, ..good },
        ),
        (
            "a peer that is not a rank",
            Collective { operation: CollectiveOperation::Send { peer: 2 }, ..good },
        ),
        ("an unknown format", Collective { format: ElementFormat(9999), ..good }),
        ("more elements than there are addresses", Collective { count: u64::MAX, ..good }),
        ("a stream of another device", Collective { stream: pair.ranks[1].stream, ..good }),
        ("an unknown stream", Collective { stream: StreamHandle::from_raw(u64::MAX), ..good }),
        ("an unknown rank", Collective { communicator: CommunicatorHandle::from_raw(u64::MAX), ..good }),
        ("memory that is not there", Collective { send: DevicePointer::new(4096), ..good }),
    ];
    for (what, part) in wrong {
        refused_argument(driver.collectives_async(&[part]), what)?;
    }
    driver.collectives_async(&[])?;
    Ok(())
}

fn a_destroyed_rank_is_refused(fixture: &Fixture) -> CaseResult {
    let (driver, pair) = (fixture.driver(), Pair::new(fixture)?);
    for rank in &pair.ranks {
        driver.communicator_destroy(rank.communicator)?;
    }
    for (number, rank) in pair.ranks.iter().enumerate() {
        let gone = &[Code::InvalidHandle];
        check_refused(driver.communicator_destroy(rank.communicator), gone, "destroying a rank twice")?;
        check_refused(driver.communicator_info(rank.communicator), gone, "asking a destroyed rank")?;
        let part = pair.part(number, CollectiveOperation::AllGather);
        check_refused(driver.collectives_async(&[part]), gone, "a part of a destroyed rank")?;
    }
    holds(driver.stream_query(pair.ranks[0].stream)?, "nothing was queued")
}
