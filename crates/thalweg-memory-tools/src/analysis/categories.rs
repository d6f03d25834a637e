//! Categories of blocks: what memory is for, as far as the stack tells that allocated it.
//!
//! The allocator does not know a parameter from an activation. The functions that asked for the memory mostly do: an optimizer's `step`,
//! the backward pass, a module's `forward`. Rules of the user come first, so that a program with names of its own can say better.

use thalweg_snapshot::{FrameView, Recording, StackId};

use super::places::backward_node;

/// The names of the categories that need no rule, in the order in which a stack is tried: the first with a frame that fits is it.
const BUILT_IN: [&str; 6] =
    ["optimizer state", "gradients", "communication", "parameters", "activations", "other"];

/// For blocks of which no stack was recorded.
const NO_STACK: &str = "no stack recorded";

/// A way to tell blocks apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Categories {
    names: Vec<String>,
    /// For each rule of the user its category and the text that a frame must contain.
    rules: Vec<(usize, String)>,
}

impl Default for Categories {
    fn default() -> Self {
        Self::new([])
    }
}

impl Categories {
    /// The built-in categories, behind rules of the user's own: a block belongs to the category if its stack has a frame in which,
    /// written as `file:line function`, the text occurs. Of several rules that fit the first counts; several may have one category.
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

    /// The names, by number.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Sorts what a recording has.
    pub fn over<'c>(&'c self, recording: &'c Recording) -> Sorting<'c> {
        Sorting { categories: self, recording, votes: vec![None; recording.frame_count()] }
    }

    fn of_frame(&self, frame: &FrameView<'_>) -> Vote {
        let rule = if self.rules.is_empty() {
            None
        } else {
            let text = format!("{}:{} {}", frame.filename, frame.line, frame.name);
            self.rules.iter().position(|(_, part)| text.contains(part))
        };
        // More rules than that are no rules that anybody wrote.
        let rule = rule.and_then(|rule| u16::try_from(rule).ok()).unwrap_or(u16::MAX);
        Vote { rule, built_in: built_in(frame) as u8 }
    }

    /// The category that the frames of a stack vote for.
    fn elected(&self, votes: impl Iterator<Item = Vote>) -> usize {
        let mut best = Vote { rule: u16::MAX, built_in: BUILT_IN.len() as u8 };
        for vote in votes {
            best = Vote { rule: best.rule.min(vote.rule), built_in: best.built_in.min(vote.built_in) };
        }
        match (self.rules.get(usize::from(best.rule)), usize::from(best.built_in)) {
            (Some((category, _)), _) => *category,
            // An empty stack says no more than none.
            (None, built_in) if built_in == BUILT_IN.len() => 0,
            (None, built_in) => built_in + 1,
        }
    }
}

/// What one frame speaks for: the lowest of each counts. The rule is by its place in the list, or above it for none.
#[derive(Clone, Copy, Debug)]
struct Vote {
    rule: u16,
    built_in: u8,
}

/// [`Categories`] of the stacks of one recording. Each frame is looked at once, however many stacks it is in.
#[derive(Debug)]
pub struct Sorting<'c> {
    categories: &'c Categories,
    recording: &'c Recording,
    votes: Vec<Option<Vote>>,
}

impl Sorting<'_> {
    /// The number of the category of what was allocated at a stack.
    pub fn category(&mut self, stack: Option<StackId>) -> usize {
        let Self { categories, recording, votes } = self;
        let Some(stack) = stack else { return 0 };
        let votes = recording.stack_frames(stack).map(|frame| {
            let vote = &mut votes[frame.number() as usize];
            *vote.get_or_insert_with(|| categories.of_frame(&recording.frame(frame)))
        });
        categories.elected(votes)
    }
}

/// The built-in category that one frame speaks for, by its place among them.
fn built_in(frame: &FrameView<'_>) -> usize {
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
        || (name == "__init__" && is_in("nn/modules/"))
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
    use super::*;

    fn named(categories: &Categories, frames: &[(&'static str, &'static str)]) -> String {
        let frames = frames.iter().map(|&(filename, name)| FrameView { filename, line: 7, name });
        categories.names()[categories.elected(frames.map(|frame| categories.of_frame(&frame)))].clone()
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
