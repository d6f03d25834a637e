//! The sanitizer against an oracle: random programs of streams, events and host waits, with memory that is allocated and freed in
//! between. The oracle stores, for each command, the set of all commands that come before it.

use std::cell::{OnceCell, RefCell};

use thalweg_driver::FillPattern;
use thalweg_runtime::sim::{Check, Gpu, Problem};
use thalweg_runtime::{Buffer, Event, Label, Result, Stream};
use thalweg_sanitizer::FindingKind;
use thalweg_sim::schedules::SplitMix;

const BYTES: u64 = 1024;
const STREAMS: usize = 4;
const SHARED: usize = 3;
const STEPS: usize = 16;

/// Commands, as a set of their numbers.
type Set = u128;

/// The order of commands, by definition.
#[derive(Default)]
struct Oracle {
    streams: [Set; STREAMS],
    host: Set,
    commands: usize,
    /// The accesses to each shared buffer: number, whether it writes, what comes before it.
    accesses: [Vec<(usize, bool, Set)>; SHARED],
}

impl Oracle {
    /// Adds a command to a stream, and returns the commands before it.
    fn submit(&mut self, stream: usize) -> (usize, Set) {
        let number = self.commands;
        self.commands += 1;
        let before = self.streams[stream] | self.host;
        self.streams[stream] = before | 1 << number;
        (number, before)
    }

    fn access(&mut self, stream: usize, buffer: usize, writes: bool) {
        let (number, before) = self.submit(stream);
        self.accesses[buffer].push((number, writes, before));
    }

    /// Records an event of a stream, and returns the commands before it.
    fn event(&mut self, stream: usize) -> Set {
        self.streams[stream] |= self.host;
        self.streams[stream]
    }

    fn is_racy(&self) -> bool {
        self.accesses.iter().any(|list| {
            list.iter().enumerate().any(|(index, &(_, writes, before))| {
                let earlier = &list[..index];
                earlier.iter().any(|&(other, wrote, _)| (writes || wrote) && before & 1 << other == 0)
            })
        })
    }
}

fn fill(stream: &Stream, buffer: &Buffer) -> Result<()> {
    stream.fill(buffer.pointer(), FillPattern::U8(1), BYTES, Label::here("fill"))
}

/// Runs a random program; returns whether it has a race in this run.
fn program(gpu: &Gpu, number: u64) -> Result<bool> {
    let mut random = SplitMix::new(number);
    let mut below = |end: usize| random.below(end);
    let mut oracle = Oracle::default();
    let streams: Vec<Stream> = (0..STREAMS).map(|_| Stream::new(gpu.device())).collect::<Result<_>>()?;
    let shared: Vec<Buffer> = (0..SHARED).map(|_| Buffer::new(&streams[0], BYTES)).collect::<Result<_>>()?;
    let scratch = Buffer::new(&streams[0], BYTES)?;
    for buffer in shared.iter().chain([&scratch]) {
        fill(&streams[0], buffer)?;
    }
    streams[0].synchronize()?;
    let mut events: Vec<(Event, Set)> = Vec::new();
    for _ in 0..2 + below(STEPS) {
        let stream = below(STREAMS);
        let other = (stream + 1 + below(STREAMS - 1)) % STREAMS;
        match below(10) {
            0..3 => {
                let buffer = below(SHARED);
                let writes = below(3) == 0;
                oracle.access(stream, buffer, writes);
                if writes {
                    fill(&streams[stream], &shared[buffer])?;
                } else {
                    // The copy's target is used only in this step.
                    let target = Buffer::new(&streams[stream], BYTES)?;
                    let label = Label::here("read");
                    streams[stream].copy_on_device(
                        target.pointer(),
                        shared[buffer].pointer(),
                        BYTES,
                        label,
                    )?;
                }
            }
            4 => {
                events.push((streams[stream].record_event()?, oracle.event(stream)));
            }
            5 if !events.is_empty() => {
                let (event, set) = &events[below(events.len())];
                event.wait(&streams[stream])?;
                oracle.streams[stream] |= set;
            }
            6 if !events.is_empty() => {
                let (event, set) = &events[below(events.len())];
                if event.query()? {
                    oracle.host |= set;
                }
            }
            3 | 7 => {
                streams[stream].synchronize()?;
                oracle.host |= oracle.event(stream);
            }
            // Memory of one stream is used by another, correctly: the allocators query by themselves whether it is over.
            _ => {
                let buffer = Buffer::new(&streams[stream], BYTES)?;
                fill(&streams[stream], &buffer)?;
                oracle.submit(stream);
                streams[other].wait_stream(&streams[stream])?;
                oracle.streams[other] |= oracle.event(stream);
                fill(&streams[other], &buffer)?;
                oracle.submit(other);
                buffer.record_use(&streams[other]);
            }
        }
    }
    // The shared buffers are dropped when all work is complete: this test is not about their lifetime.
    gpu.device().synchronize()?;
    Ok(oracle.is_racy())
}

#[test]
fn random_programs_are_judged_as_the_sets_of_their_commands_say() {
    let (mut racy, mut right) = (0, 0);
    for number in 0..3000_u64 {
        let (is_racy, wrong) = (OnceCell::new(), RefCell::new(None));
        let check = Check::new().seeds(number % 50..number % 50 + 1).without_shrinking();
        let found = check.find(|gpu| match program(gpu, number) {
            // The first run counts. In a run that holds freed memory back the allocators make another number of queries, so that
            // the program's own queries may have other results, and only uses of freed memory are reported.
            Ok(answer) => drop(is_racy.set(answer)),
            Err(error) => *wrong.borrow_mut() = Some(error.to_string()),
        });
        assert_eq!(wrong.take(), None, "program {number}");
        match (is_racy.get() == Some(&true), &found) {
            (true, Err(failure)) => {
                let Problem::Finding(finding) = failure.problem() else {
                    panic!("program {number}: {failure}")
                };
                assert_eq!(finding.kind, FindingKind::Race, "program {number}: {failure}");
                racy += 1;
            }
            (false, Ok(_)) => right += 1,
            (true, Ok(_)) => panic!("program {number} has a race that was not found"),
            (false, Err(failure)) => panic!("program {number} is right: {failure}"),
        }
    }
    assert!(racy > 500 && right > 200, "{racy} racy, {right} right: the programs say nothing");
}
