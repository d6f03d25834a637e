//! [`Program`]: the launches that compute a segment.

use std::fmt;

use smallvec::SmallVec;
use thalweg_memory::plan::{Interval, offsets};
use thalweg_ops::lower::{LoopLaunch, Steps};

use crate::grouping::{Apart, grouped, live};
use crate::loops::Loop;
use crate::machine::Machine;
use crate::parts::divided;
use crate::segment::{Lifetime, Operand, Segment, Touched};
use crate::spread::{Reach, Variant, spread};
use crate::twins::join_twins;

/// A launch of a program.
#[derive(Clone, Debug)]
pub struct Step {
    /// The launch, except for its scalar arguments, which `numbers` locates.
    pub launch: LoopLaunch,
    /// The launches as which it is executed, if its rows are few and long.
    pub steps: Option<Steps>,
    /// The node and the slot from which each number comes.
    pub numbers: SmallVec<[(u32, u32); 8]>,
    /// The operands that are read.
    pub inputs: SmallVec<[Operand; 8]>,
    /// The operands that are written.
    pub outputs: SmallVec<[Operand; 4]>,
    /// The numbers of the nodes that it computes.
    pub members: SmallVec<[u32; 4]>,
}

/// The launches of a segment, in their order, and the places of its temporary memory.
#[derive(Clone, Debug)]
pub struct Program {
    /// The launches.
    pub steps: Vec<Step>,
    /// The memory of which the program allocates each by itself: the memory that is kept, and is written.
    pub kept: Vec<u32>,
    /// The temporary memory that is used, with its offset in the arena.
    pub placed: Vec<(u32, u64)>,
    /// The size of the arena in bytes.
    pub arena_bytes: u64,
    /// The pairs of nodes that are not fused although the second one reads a result of the first one.
    pub apart: Vec<Apart>,
    /// The pairs of nodes of which the second one is left out, since the first one computes the same.
    pub twins: Vec<(u32, u32)>,
    /// The bytes that the nodes read and write one by one, and those that the steps do.
    pub traffic_bytes: [u64; 2],
}

/// Compiles a segment.
///
/// # Panics
/// If a launch does not fit its operands.
pub fn plan(segment: &Segment, machine: &Machine) -> Program {
    let joined;
    let (mut live, mut segment) = (live(segment), segment);
    let mut twins = Vec::new();
    if may_repeat(segment) {
        let mut changed = segment.clone();
        twins = join_twins(&mut changed, &mut live);
        joined = changed;
        segment = &joined;
    }
    let variants = [
        divided(segment, &live).map(|mut found| {
            let (loops, apart) = grouped(&found.segment, std::mem::take(&mut found.live), |_| false, machine);
            Variant { changed: found, loops, apart }
        }),
        spread(segment, &live, Reach::Widened, machine),
        spread(segment, &live, Reach::Cheap, machine),
    ];
    let (mut loops, mut apart) = grouped(segment, live, |_| false, machine);
    let parts;
    // The cheapest: the segment as it is, with loops that are divided, or with copies of loops.
    let cheapest = variants.into_iter().flatten().min_by_key(|found| cost(&found.loops));
    if let Some(mut found) = cheapest.filter(|found| cost(&found.loops) < cost(&loops)) {
        let whole = |number: &mut u32| *number = found.changed.origins[*number as usize];
        found.loops.iter_mut().for_each(|of| of.rename(whole));
        found
            .apart
            .iter_mut()
            .for_each(|apart| [&mut apart.first, &mut apart.second].into_iter().for_each(whole));
        (loops, apart) = (found.loops, found.apart);
        apart.dedup();
        parts = found.changed.segment;
        segment = &parts;
    }
    let lives = |lifetime: Lifetime| {
        let is_touched =
            |memory: &u32| loops.iter().any(|of| of.touched.iter().any(|touched| touched.memory == *memory));
        let numbers = 0..segment.memories.len() as u32;
        numbers
            .filter(move |&memory| segment.memories[memory as usize].lifetime == lifetime)
            .filter(is_touched)
    };
    let kept = lives(Lifetime::Kept).collect();
    let intervals: Vec<Interval> = lives(Lifetime::Temporary)
        .map(|memory| {
            let uses = |of: &Loop| of.touched.iter().any(|touched| touched.memory == memory);
            let first = loops.iter().position(uses).expect("it is used");
            let last = loops.iter().rposition(uses).expect("it is used");
            Interval { memory, bytes: segment.memories[memory as usize].bytes, first, last }
        })
        .collect();
    let (placed, arena_bytes) =
        offsets(&intervals, |former, next| writes_over(&loops[next.first], former, next));
    let bytes = |touched: &[Touched]| touched.iter().map(|touched| touched.bytes).sum::<u64>();
    let traffic_bytes = [
        segment.nodes.iter().map(|node| bytes(&node.touched())).sum(),
        loops.iter().map(|of| bytes(&of.touched)).sum(),
    ];
    Program {
        steps: loops.into_iter().map(step).collect(),
        kept,
        placed,
        arena_bytes,
        apart,
        twins,
        traffic_bytes,
    }
}

/// The bytes that a GPU moves in the time of a launch.
const BYTES_OF_A_LAUNCH: u64 = 4 << 20;

/// Returns the cost of loops, in bytes that are moved.
fn cost(loops: &[Loop]) -> u64 {
    loops.iter().flat_map(|of| &of.touched).map(|touched| touched.bytes).sum::<u64>()
        + BYTES_OF_A_LAUNCH * loops.len() as u64
}

/// Returns whether two nodes have one body and read the same.
fn may_repeat(segment: &Segment) -> bool {
    let nodes = &segment.nodes;
    let repeats = |place: usize| {
        let node = &nodes[place];
        nodes[..place].iter().any(|other| other.launch.id == node.launch.id)
    };
    (1..nodes.len()).any(repeats)
}

/// Returns whether a loop may write memory where it reads other memory: point by point, the same elements.
fn writes_over(of: &Loop, read: &Interval, written: &Interval) -> bool {
    let count = of.inputs.len();
    let uses = |operands: &[Operand], memory: u32| {
        operands.iter().filter(|operand| operand.memory == memory).count()
    };
    if read.bytes != written.bytes || uses(&of.inputs, written.memory) > 0 {
        return false;
    }
    if uses(&of.inputs, read.memory) != 1
        || uses(&of.outputs, read.memory) > 0
        || uses(&of.outputs, written.memory) != 1
    {
        return false;
    }
    let input = of.inputs.iter().position(|operand| operand.memory == read.memory).expect("it is read");
    let output =
        of.outputs.iter().position(|operand| operand.memory == written.memory).expect("it is written");
    let body = &of.launch.body;
    body.may_overwrite(input, output)
        && body.inputs[input].dtype.size_bytes() == body.outputs[output].dtype.size_bytes()
        && of.inputs[input].offset == of.outputs[output].offset
        && of.launch.placements[input] == of.launch.placements[count + output]
}

fn step(of: Loop) -> Step {
    let steps = of.launch.steps().expect("its sizes were those of nodes that run");
    let Loop { members, launch, inputs, outputs, numbers, .. } = of;
    Step { launch, steps, numbers, inputs, outputs, members }
}

impl Program {
    /// Returns the bytes that the program allocates: the arena, and what is kept. Without rows that are combined by several launches,
    /// which take memory of their own, it needs no more at any time.
    pub fn allocated_bytes(&self, segment: &Segment) -> u64 {
        self.arena_bytes
            + self.kept.iter().map(|&memory| segment.memories[memory as usize].bytes).sum::<u64>()
    }

    /// Describes the program. `names` has a name for each node.
    pub fn describe<'p>(&'p self, names: &'p [String]) -> impl fmt::Display + 'p {
        Described { program: self, names }
    }
}

struct Described<'p> {
    program: &'p Program,
    names: &'p [String],
}

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, names } = self;
        let [before, after] = program.traffic_bytes;
        // A loop that is divided may be a member of several steps.
        let is_computed = |node: &u32| program.steps.iter().any(|step| step.members.contains(node));
        let computed = (0..names.len() as u32).filter(is_computed).count();
        writeln!(
            f,
            "{} loops as {} kernels, {before} bytes moved as {after}, arena {} bytes",
            names.len(),
            program.steps.len(),
            program.arena_bytes
        )?;
        let unread = names.len() - computed - program.twins.len();
        if unread > 0 {
            writeln!(f, "  left out, since nothing reads their results: {unread}")?;
        }
        for (first, second) in &program.twins {
            let [first, second] = [first, second].map(|node| names[*node as usize].as_str());
            writeln!(f, "  computed once: {first} and {second}")?;
        }
        for step in program.steps.iter().filter(|step| step.members.len() > 1) {
            let members: Vec<&str> =
                step.members.iter().map(|&member| names[member as usize].as_str()).collect();
            writeln!(f, "  fused: {}", members.join(" + "))?;
        }
        for Apart { first, second, reason } in &program.apart {
            writeln!(
                f,
                "  not fused: {} and {}, since {reason}",
                names[*first as usize], names[*second as usize]
            )?;
        }
        Ok(())
    }
}
