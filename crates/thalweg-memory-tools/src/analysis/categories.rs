//! Categories of blocks: the purpose of memory, as far as the stack of its allocation shows it.
//!
//! The allocator cannot distinguish a parameter from an activation. The functions that requested the memory mostly can: an
//! optimizer's `step`, the backward pass, a module's `forward`. Rules of the user come first, for programs with names of their
//! own.

use thalweg_snapshot::{FrameView, Recording, StackId};

use super::places::backward_node;

/// The names of the built-in categories, in the order in which a stack is tried: the first with a matching frame is used.
const BUILT_IN: [&str; 6] =
    ["optimizer state", "gradients", "communication", "parameters", "activations", "other"];

/// The category of blocks without a recorded stack.
const NO_STACK: &str = "no stack recorded";

/// Rules that assign categories to blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Categories {
    names: Vec<String>,
    /// The user's rules: the category, and the text that a frame must contain.
    rules: Vec<(usize, String)>,
}

impl Default for Categories {
    fn default() -> Self {
        Self::new([])
    }
}

impl Categories {
    /// Creates the built-in categories, preceded by the user's own rules. A rule is a pair of a category's name and a text. A
    /// block belongs to the category if its stack has a frame that contains the text, when written as `file:line function`. If
    /// several rules match, the first one counts. Several rules may name the same category.
    pub fn new<'r>(rules: impl IntoIterator<Item = (&'r str, &'r str)>) -> Self {
        let mut names: Vec<String> = std::iter::once(NO_STACK).chain(BUILT_IN).map(str::to_owned).collect();
        let mut list = Vec::new();
        for (name, text) in rules {
            let known = names.iter().position(|known| known == name);
            let category = known.unwrap_or_else(|| {
                names.push(name.to_owned());
                names.len() - 1
            });
            list.push((category, text.to_owned()));
        }
        Self { names, rules: list }
    }

    /// Returns the names of the categories, by number.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns a table that assigns categories to the stacks of a recording.
    pub fn over<'c>(&'c self, recording: &'c Recording) -> Sorting<'c> {
        let ruled = if self.rules.is_empty() { 0 } else { recording.frame_count() };
        Sorting {
            categories: self,
            recording,
            by_function: vec![None; recording.function_count()],
            by_frame: vec![None; ruled],
        }
    }

    /// Returns the index of the first rule that matches a frame, or a greater number than any index.
    fn rule(&self, frame: &FrameView<'_>) -> u16 {
        let text = format!("{}:{} {}", frame.filename, frame.line, frame.name);
        let rule = self.rules.iter().position(|(_, part)| text.contains(part));
        // Lists of rules that are written by hand are shorter than this.
        rule.and_then(|rule| u16::try_from(rule).ok()).unwrap_or(u16::MAX)
    }

    /// Returns the category that results from the votes of a stack's frames.
    fn majority(&self, votes: impl Iterator<Item = Vote>) -> usize {
        let mut best = Vote { rule: u16::MAX, built_in: BUILT_IN.len() as u8 };
        for vote in votes {
            best = Vote { rule: best.rule.min(vote.rule), built_in: best.built_in.min(vote.built_in) };
        }
        match (self.rules.get(usize::from(best.rule)), usize::from(best.built_in)) {
            (Some((category, _)), _) => *category,
            // An empty stack carries no more information than none.
            (None, built_in) if built_in == BUILT_IN.len() => 0,
            (None, built_in) => built_in + 1,
        }
    }
}

/// The votes of one frame: for a rule of the user, by index (a greater number if no rule matches), and for a built-in category.
/// The lowest votes of a stack's frames decide.
#[derive(Clone, Copy, Debug)]
struct Vote {
    rule: u16,
    built_in: u8,
}

/// The [`Categories`] of the stacks of one recording. Each function is classified once, however many stacks contain its lines; if
/// the user has rules, which can name a line, each frame is classified once too.
#[derive(Debug)]
pub struct Sorting<'c> {
    categories: &'c Categories,
    recording: &'c Recording,
    by_function: Vec<Option<u8>>,
    /// The rule of each frame; empty if there are no rules.
    by_frame: Vec<Option<u16>>,
}

impl Sorting<'_> {
    /// Returns the number of the category of memory that was allocated at a stack.
    pub fn category(&mut self, stack: Option<StackId>) -> usize {
        let Self { categories, recording, by_function, by_frame } = self;
        let Some(stack) = stack else { return 0 };
        let votes = recording.stack_frames(stack).map(|frame| {
            let built_in = &mut by_function[recording.function(frame) as usize];
            let built_in = *built_in.get_or_insert_with(|| built_in_of(&recording.frame(frame)) as u8);
            let rule = by_frame.get_mut(frame.number() as usize).map_or(u16::MAX, |rule| {
                *rule.get_or_insert_with(|| categories.rule(&recording.frame(frame)))
            });
            Vote { rule, built_in }
        });
        categories.majority(votes)
    }
}

/// Returns the index of the built-in category that matches one frame.
fn built_in_of(frame: &FrameView<'_>) -> usize {
    let FrameView { filename: file, name, .. } = *frame;
    let is_in = |part: &str| file.contains(part) || file.replace('\\', "/").contains(part);
    let category = if is_in("/optim/") || is_in("optimizer") {
        "optimizer state"
    } else if name == "backward" || is_in("torch/autograd/") || backward_node(name).is_some() {
        "gradients"
    } else if is_in("/distributed/") || name.contains("all_gather") || name.contains("all_reduce") {
        "communication"
    } else if matches!(name, "_apply" | "reset_parameters" | "load_state_dict" | "from_pretrained")
        || is_in("nn/parameter.py")
        || (name == "__init__" && is_in("/nn/"))
    {
        "parameters"
    } else if name == "forward" {
        "activations"
    } else {
        "other"
    };
    BUILT_IN.iter().position(|known| *known == category).expect("it is one of them")
}

#[cfg(test)]
mod tests {
    use thalweg_snapshot::{Action, Frame, Snapshot, StreamId, TraceEntry};

    use super::*;

    /// Returns the category of a stack in a recording that also contains the same functions at another line.
    fn named(categories: &Categories, frames: &[(&'static str, &'static str)]) -> String {
        let stack = |line| {
            frames.iter().map(move |&(filename, name)| Frame {
                filename: filename.into(),
                line,
                name: name.into(),
            })
        };
        let entry = |number: u64, line| TraceEntry {
            frames: Some(stack(line).collect()),
            ..TraceEntry::new(Action::Alloc, number << 20, 512, StreamId::from_raw(0))
        };
        let snapshot =
            Snapshot { device_traces: vec![vec![entry(1, 6), entry(2, 7)]], ..Snapshot::default() };
        let recording = Recording::read(&snapshot.to_pickle()[..]).expect("it was just written");
        let mut sorting = categories.over(&recording);
        let found = recording.trace(0).map(|event| sorting.category(event.stack)).last();
        categories.names()[found.expect("it has entries")].clone()
    }

    #[test]
    fn stacks_tell_what_memory_is_for() {
        let built_in = Categories::default();
        let adam = ("/lib/torch/optim/adam.py", "_init_group");
        let forward = ("model.py", "forward");
        let engine = ("", "torch::autograd::generated::BmmBackward0::apply(x)");
        assert_eq!(named(&built_in, &[adam, ("train.py", "main")]), "optimizer state");
        assert_eq!(named(&built_in, &[("x.py", "gelu"), forward, ("train.py", "main")]), "activations");
        assert_eq!(named(&built_in, &[engine]), "gradients");
        assert_eq!(named(&built_in, &[forward, ("torch/autograd/__init__.py", "backward")]), "gradients");
        assert_eq!(named(&built_in, &[("/lib/torch/nn/modules/module.py", "_apply")]), "parameters");
        assert_eq!(named(&built_in, &[("D:\\lib\\torch\\nn\\modules\\linear.py", "__init__")]), "parameters");
        let layers = "/lib/thalweg/nn/layers.py";
        assert_eq!(named(&built_in, &[(layers, "_empty"), (layers, "__init__"), forward]), "parameters");
        assert_eq!(named(&built_in, &[("train.py", "main")]), "other");
        assert_eq!(named(&built_in, &[]), "no stack recorded");
    }

    #[test]
    fn rules_of_the_user_come_first_and_in_their_order() {
        let rules = [("cache", "kv.py:7"), ("all of the model", "model.py"), ("gradients", "my_backward")];
        let categories = Categories::new(rules);
        assert_eq!(named(&categories, &[("model.py", "forward"), ("kv.py", "append")]), "cache");
        assert_eq!(named(&categories, &[("model.py", "forward")]), "all of the model");
        assert_eq!(named(&categories, &[("x.py", "my_backward")]), "gradients");
        assert_eq!(categories.names().len(), 9, "a built-in category is not made twice");
        assert_eq!(named(&categories, &[]), "no stack recorded");
    }
}
