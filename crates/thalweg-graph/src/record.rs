//! The record of a program as JSON, for `thalweg explain` to draw.

use std::fmt::Write;

use crate::program::{Program, Step};
use crate::segment::{Lifetime, Segment};

impl Program {
    /// Returns one JSON object: the nodes by name, the steps with the memory that they read and write, the pairs that are not
    /// fused, and the memory with its places. `end` says what the segment ended before.
    pub fn record(&self, segment: &Segment, names: &[String], end: &str) -> String {
        let lists = |each: &mut dyn Iterator<Item = String>| each.collect::<Vec<_>>().join(",");
        let nodes = lists(&mut names.iter().map(|name| text(name)));
        let steps = lists(&mut self.steps.iter().map(step));
        let apart =
            lists(&mut self.apart.iter().map(|apart| {
                format!("[{},{},{}]", apart.first, apart.second, text(&apart.reason.to_string()))
            }));
        let twins = lists(&mut self.twins.iter().map(|(first, second)| format!("[{first},{second}]")));
        let memories = lists(&mut segment.memories.iter().zip(0..).map(|(memory, number)| {
            let place = self.placed.iter().find(|(placed, _)| *placed == number);
            let place = place.map_or_else(|| "null".to_owned(), |(_, offset)| offset.to_string());
            let lifetime = match memory.lifetime {
                Lifetime::Existing => "existing",
                Lifetime::Kept => "kept",
                Lifetime::Temporary => "temporary",
            };
            format!("{{\"bytes\":{},\"lifetime\":\"{lifetime}\",\"offset\":{place}}}", memory.bytes)
        }));
        let [before, after] = self.traffic_bytes;
        format!(
            "{{\"end\":{},\"nodes\":[{nodes}],\"steps\":[{steps}],\"apart\":[{apart}],\"twins\":[{twins}],\
             \"memories\":[{memories}],\"arena\":{},\"allocated\":{},\"traffic\":[{before},{after}]}}",
            text(end),
            self.arena_bytes,
            self.allocated_bytes(segment)
        )
    }
}

fn step(step: &Step) -> String {
    let numbers = |numbers: &mut dyn Iterator<Item = u32>| {
        numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(",")
    };
    format!(
        "{{\"members\":[{}],\"reads\":[{}],\"writes\":[{}],\"rows\":{:?},\"inner\":{:?}}}",
        numbers(&mut step.members.iter().copied()),
        numbers(&mut step.inputs.iter().map(|operand| operand.memory)),
        numbers(&mut step.outputs.iter().map(|operand| operand.memory)),
        step.launch.rows.as_slice(),
        step.launch.inner.as_slice(),
    )
}

/// Returns a text as a JSON string.
fn text(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if u32::from(control) < 32 => {
                write!(quoted, "\\u{:04x}", u32::from(control)).expect("a string grows");
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}
