//! The choice of the line of a stack that is shown to a reader.
//!
//! A stack goes from the allocator outwards: functions of the library, the user's, the interpreter's. The innermost line of the
//! user's own code is the most informative. If there is none, as on the threads of the autograd engine, the node of the backward
//! pass identifies the operator.

use thalweg_snapshot::{FrameId, FrameView, Recording, StackId};

/// The most informative frames of a recording's stacks: see [`informative_frame`]. Each function is classified once, however many stacks
/// contain its lines, since a recording can have a million stacks.
#[derive(Debug)]
pub struct FrameChoice<'r> {
    recording: &'r Recording,
    /// The kind of each function plus one; 0 if it is not known yet.
    kinds: Vec<u8>,
}

impl<'r> FrameChoice<'r> {
    /// Creates the table of a recording.
    pub fn of(recording: &'r Recording) -> Self {
        Self { recording, kinds: vec![0; recording.function_count()] }
    }

    /// Returns the most informative frame of a stack, and its index in the stack, counted from the innermost; `None` if it has no
    /// frames.
    pub fn frame(&mut self, stack: StackId) -> Option<(usize, FrameId)> {
        let mut best: Option<(u8, usize, FrameId)> = None;
        for (at, frame) in self.recording.stack_frames(stack).enumerate() {
            let kind = &mut self.kinds[self.recording.function(frame) as usize];
            if *kind == 0 {
                *kind = kind_of(&self.recording.frame(frame)) + 1;
            }
            if best.is_none_or(|(least, ..)| *kind < least) {
                best = Some((*kind, at, frame));
            }
            if *kind == 1 {
                break;
            }
        }
        best.map(|(_, at, frame)| (at, frame))
    }
}

/// Returns the most informative of the frames, which are given innermost first. The first kind that is present counts, and of
/// that kind the innermost frame: the user's own Python code, Python code that a compiler wrote, other Python code, a node of the
/// backward pass, a C++ function that is not PyTorch's, an operator, anything with a file.
pub fn informative_frame<'r>(frames: impl Iterator<Item = FrameView<'r>>) -> Option<FrameView<'r>> {
    frames.min_by_key(|frame| kind_of(frame))
}

fn kind_of(frame: &FrameView<'_>) -> u8 {
    let FrameView { filename, name, .. } = *frame;
    if filename.ends_with(".py") || filename.starts_with('<') {
        return match filename {
            _ if is_compiled(filename) => 1,
            _ if is_library(filename) => 2,
            _ => 0,
        };
    }
    match name {
        _ if backward_node(name).is_some() => 3,
        _ if operator(name).is_some() => 5,
        "" | "??" if matches!(filename, "" | "??") => 7,
        _ if is_internal(name) => 6,
        _ => 4,
    }
}

/// Returns whether a Python file is not the user's: Python's own, an installed one, or one of PyTorch itself.
fn is_library(file: &str) -> bool {
    let is_part = |part: &str| {
        matches!(part, "site-packages" | "dist-packages" | "torch") || part.starts_with("python3")
    };
    let mut parts = file.split(['/', '\\']);
    // The last part is the file name.
    parts.next_back();
    let is_windows = file.as_bytes().get(1) == Some(&b':');
    file.starts_with('<') || parts.any(|part| is_part(part) || is_windows && part == "Lib")
}

/// Returns whether a compiler wrote a Python file: `torch.compile` stores them in a cache, in folders of two letters that are the
/// second and third of the file's name.
fn is_compiled(file: &str) -> bool {
    let mut parts = file.rsplit(['/', '\\']);
    let (name, folder) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let is_hashed = name.len() >= 40 && folder.len() == 2 && name.get(1..3) == Some(folder);
    is_hashed || file.contains("torchinductor_")
}

/// Returns the node of the backward pass that a C++ function belongs to: `BmmBackward0`.
pub fn backward_node(function: &str) -> Option<&str> {
    let path = function.split('(').next().unwrap_or(function);
    let path = path.strip_suffix("::apply").or_else(|| path.strip_suffix("::operator"))?;
    let node = path.rsplit("::").next()?;
    let is_name = node.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
    (is_name && (node.contains("Backward") || node == "AccumulateGrad")).then_some(node)
}

/// Returns the operator that a C++ function calls, if it does more than allocate a result: `at::_ops::bmm::call` is `bmm`.
fn operator(function: &str) -> Option<&str> {
    let operator = function.strip_prefix("at::_ops::")?.split("::").next()?;
    let makes_room = operator.starts_with("empty") || operator.starts_with("resize");
    (!makes_room).then_some(operator)
}

/// Returns whether a C++ function is PyTorch's, Python's, CUDA's or the system's.
fn is_internal(function: &str) -> bool {
    const INSIDE: [&str; 14] = [
        "torch::",
        "at::",
        "c10::",
        "caffe2::",
        "std::",
        "pybind11::",
        "void ",
        "Py",
        "_Py",
        "THP",
        "cuda",
        "__libc",
        "__gnu",
        "call_function",
    ];
    const THREADS: [&str; 8] = [
        "start_thread",
        "clone",
        "__clone",
        "__clone3",
        "execute_native_thread_routine",
        "_start",
        "main",
        "thread_start",
    ];
    let function = function.split('(').next().unwrap_or(function);
    INSIDE.iter().any(|part| function.starts_with(part)) || THREADS.contains(&function)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(frames: &[(&'static str, &'static str)]) -> &'static str {
        let frames = frames.iter().map(|&(filename, name)| FrameView { filename, line: 1, name });
        informative_frame(frames).expect("there are frames").name
    }

    #[test]
    fn the_users_own_line_comes_first() {
        let library = ("/venv/lib/python3.12/site-packages/torch/nn/functional.py", "linear");
        let windows = ("D:\\x\\.venv\\Lib\\site-packages\\torch\\functional.py", "einsum");
        let compiled = ("/var/cache/p6/cp6jhjznabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqr.py", "call");
        let user = ("train.py", "step");
        assert_eq!(chosen(&[("", "malloc"), library, user, ("main.py", "main")]), "step");
        assert_eq!(chosen(&[windows, ("D:\\x\\train.py", "mine")]), "mine");
        assert_eq!(chosen(&[("C:\\Python311\\Lib\\threading.py", "run"), user]), "step");
        assert_eq!(chosen(&[compiled, library, user]), "step");
        assert_eq!(chosen(&[library, compiled]), "call");
        assert_eq!(chosen(&[("c10/x.cpp", "c10::malloc"), library]), "linear");
    }

    #[test]
    fn without_python_the_backward_node_or_the_operator_is_told() {
        let inner = [
            ("memory_snapshot.cpp", "torch::cuda::(anonymous namespace)::gather_with_cpp()"),
            ("", "at::_ops::empty_memory_format::call(c10::ArrayRef<long>)"),
        ];
        let node = ("", "torch::autograd::generated::BmmBackward0::apply(std::vector<at::Tensor>&&)");
        let outer = [
            ("", "torch::autograd::Engine::thread_main(x)"),
            ("", "execute_native_thread_routine"),
            ("", "clone"),
        ];
        let operator = ("", "at::_ops::bmm::call(at::Tensor const&, at::Tensor const&)");
        let all = [&inner[..], &[operator, node], &outer].concat();
        assert_eq!(chosen(&all), node.1);
        assert_eq!(backward_node(node.1), Some("BmmBackward0"));
        assert_eq!(chosen(&[&inner[..], &[operator], &outer].concat()), operator.1);
        assert_eq!(
            chosen(&[&inner[..], &[operator, ("app.cpp", "app::Net::forward()")], &outer].concat()),
            "app::Net::forward()"
        );
        assert_eq!(backward_node("torch::autograd::Node::operator()(x)"), None);
    }
}
