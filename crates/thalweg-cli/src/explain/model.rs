//! Segments as a program recorded them.

use serde_json::Value;

/// A piece of memory.
pub struct Memory {
    pub bytes: u64,
    /// `existing`, `kept` or `temporary`.
    pub lifetime: String,
    /// The offset in the arena, if it has one.
    pub offset: Option<u64>,
}

/// A kernel.
pub struct Step {
    /// The loops that it computes.
    pub members: Vec<usize>,
    pub reads: Vec<usize>,
    pub writes: Vec<usize>,
    /// The extents: those of rows, then those that are combined.
    pub extents: [Vec<usize>; 2],
}

/// A segment.
pub struct Segment {
    /// The command or call before which the segment ended.
    pub end: String,
    /// The loops: operator and line.
    pub nodes: Vec<String>,
    pub steps: Vec<Step>,
    /// Pairs of loops that are not fused, with the reason.
    pub apart: Vec<(usize, usize, String)>,
    /// Pairs of loops of which the second one computes the same as the first one.
    pub twins: Vec<(usize, usize)>,
    pub memories: Vec<Memory>,
    pub arena: u64,
    pub allocated: u64,
    /// The bytes that the loops would move one by one, and those that the kernels do.
    pub traffic: [u64; 2],
}

type Read<T> = Result<T, String>;

fn number(value: &Value) -> Read<u64> {
    value.as_u64().ok_or_else(|| format!("{value} is not a number"))
}

fn index(value: &Value, limit: usize) -> Read<usize> {
    let found = number(value)? as usize;
    if found < limit { Ok(found) } else { Err(format!("{found} is not below {limit}")) }
}

fn text(value: &Value) -> Read<String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("{value} is not a text"))
}

fn list<'v>(value: &'v Value, name: &str) -> Read<&'v Vec<Value>> {
    value[name].as_array().ok_or_else(|| format!("there is no list `{name}`"))
}

fn numbers(value: &Value, name: &str, limit: usize) -> Read<Vec<usize>> {
    list(value, name)?.iter().map(|value| index(value, limit)).collect()
}

impl Segment {
    /// Reads a line of the file.
    pub fn read(line: &str) -> Read<Self> {
        let value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let nodes: Vec<String> = list(&value, "nodes")?.iter().map(text).collect::<Read<_>>()?;
        let memory = |value: &Value| {
            let offset = if value["offset"].is_null() { None } else { Some(number(&value["offset"])?) };
            Ok(Memory { bytes: number(&value["bytes"])?, lifetime: text(&value["lifetime"])?, offset })
        };
        let memories: Vec<Memory> = list(&value, "memories")?.iter().map(memory).collect::<Read<_>>()?;
        let step = |value: &Value| {
            Ok(Step {
                members: numbers(value, "members", nodes.len())?,
                reads: numbers(value, "reads", memories.len())?,
                writes: numbers(value, "writes", memories.len())?,
                extents: [numbers(value, "rows", usize::MAX)?, numbers(value, "inner", usize::MAX)?],
            })
        };
        let steps = list(&value, "steps")?.iter().map(step).collect::<Read<_>>()?;
        let apart = |value: &Value| {
            Ok((index(&value[0], nodes.len())?, index(&value[1], nodes.len())?, text(&value[2])?))
        };
        let twin = |value: &Value| Ok((index(&value[0], nodes.len())?, index(&value[1], nodes.len())?));
        Ok(Self {
            end: text(&value["end"])?,
            steps,
            apart: list(&value, "apart")?.iter().map(apart).collect::<Read<_>>()?,
            twins: list(&value, "twins")?.iter().map(twin).collect::<Read<_>>()?,
            arena: number(&value["arena"])?,
            allocated: number(&value["allocated"])?,
            traffic: [number(&value["traffic"][0])?, number(&value["traffic"][1])?],
            nodes,
            memories,
        })
    }

    /// Returns the kernel that computes a loop.
    pub fn step_of(&self, node: usize) -> Option<usize> {
        self.steps.iter().position(|step| step.members.contains(&node))
    }

    /// Returns the first and the last kernel that uses a memory.
    pub fn uses(&self, memory: usize) -> Option<(usize, usize)> {
        let uses = |step: &Step| step.reads.contains(&memory) || step.writes.contains(&memory);
        Some((self.steps.iter().position(uses)?, self.steps.iter().rposition(uses)?))
    }
}

/// Returns the numbers of loops and of kernels.
pub fn totals(segments: &[Segment]) -> (usize, usize) {
    let sum = |count: fn(&Segment) -> usize| segments.iter().map(count).sum();
    (sum(|segment| segment.nodes.len()), sum(|segment| segment.steps.len()))
}
