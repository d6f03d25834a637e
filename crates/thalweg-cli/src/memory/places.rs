//! Places in programs and other names from files, for people.

use std::collections::HashMap;

use thalweg::memory_tools::analysis::{FrameChoice, StackGroup, backward_node, informative_frame};
use thalweg::snapshot::{FrameId, FrameView, Recording, StackId};

/// The text for blocks whose stack is not known.
const UNKNOWN: &str = "(no stack recorded)";

/// Returns the most informative place of a stack: `model.py:17 forward`.
pub fn place(recording: &Recording, stack: Option<StackId>) -> String {
    stack.map_or_else(|| UNKNOWN.into(), |stack| place_of(recording.stack(stack)))
}

/// Returns the place for a block's frames, innermost first.
pub fn place_of<'r>(frames: impl Iterator<Item = FrameView<'r>>) -> String {
    informative_frame(frames).map_or_else(|| UNKNOWN.into(), frame_text)
}

fn frame_text(frame: FrameView<'_>) -> String {
    let FrameView { filename, line, name } = frame;
    if let Some(node) = backward_node(name) {
        return printable(node);
    }
    // The last two parts of a path distinguish files, and fit.
    let short = filename.rmatch_indices(['/', '\\']).nth(1).map_or(filename, |(at, _)| &filename[at + 1..]);
    let short = short.replace('\\', "/");
    match (short.as_str(), line) {
        ("" | "??", _) => printable(name),
        (short, 0) => printable(&format!("{short} {name}")),
        (short, line) => printable(&format!("{short}:{line} {name}")),
    }
}

/// Live blocks that were allocated at one place.
pub struct AllocationSite {
    pub name: String,
    pub blocks: usize,
    pub bytes: u64,
}

/// Returns live blocks by place, the most bytes first. Several stacks can lead through one place.
pub fn by_place(recording: &Recording, by_stack: &[StackGroup]) -> Vec<AllocationSite> {
    let mut choice = FrameChoice::of(recording);
    // Many stacks lead through one frame, and several frames can have one name.
    let mut of_frame: HashMap<Option<FrameId>, usize> = HashMap::new();
    let mut of_name: HashMap<String, usize> = HashMap::new();
    let mut places: Vec<AllocationSite> = Vec::new();
    for group in by_stack {
        let frame = group.stack.and_then(|stack| choice.frame(stack)).map(|(_, frame)| frame);
        let number = *of_frame.entry(frame).or_insert_with(|| {
            let name = frame.map_or_else(|| UNKNOWN.into(), |frame| frame_text(recording.frame(frame)));
            *of_name.entry(name).or_insert_with_key(|name| {
                places.push(AllocationSite { name: name.clone(), blocks: 0, bytes: 0 });
                places.len() - 1
            })
        });
        let place = &mut places[number];
        place.blocks += group.blocks;
        place.bytes = place.bytes.saturating_add(group.bytes);
    }
    places.sort_by_key(|place| std::cmp::Reverse(place.bytes));
    places
}

/// Returns a text from a file without control of the terminal: control characters are written as `\u{1b}`.
pub fn printable(text: &str) -> String {
    let obeys = |character: char| {
        // Characters that change the direction of writing, or are invisible, are escaped too.
        character.is_control()
            || matches!(character, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match obeys(character) {
            true => out.extend(character.escape_default()),
            false => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(filename: &str, line: u32, name: &str) -> String {
        frame_text(FrameView { filename, line, name })
    }

    #[test]
    fn frames_are_short_and_harmless() {
        assert_eq!(text("/home/me/train/model.py", 17, "forward"), "train/model.py:17 forward");
        assert_eq!(text("D:\\me\\train\\model.py", 17, "forward"), "train/model.py:17 forward");
        let node = "torch::autograd::generated::BmmBackward0::apply(std::vector<at::Tensor>&&)";
        assert_eq!(text("??", 0, node), "BmmBackward0");
        assert_eq!(text("", 0, "at::_ops::bmm::call(x)"), "at::_ops::bmm::call(x)");
        assert_eq!(
            text("a\u{1b}]0;owned\u{7}.py", 1, "f\u{9b}2J\n"),
            "a\\u{1b}]0;owned\\u{7}.py:1 f\\u{9b}2J\\n"
        );
        assert_eq!(text("\u{202e}a.py", 1, "é"), "\\u{202e}a.py:1 é");
    }
}
