//! The pages of the book whose Rust programs are tests: `cargo test --doc -p thalweg` compiles and runs them.

/// Names the pages, each as the documentation of an item.
macro_rules! pages {
    ($($name:ident $path:literal)*) => {
        $(#[doc = include_str!(concat!("../../../docs/", $path))]
        struct $name;)*
    };
}

pages! {
    FirstProgram "start/first-program.md"
    FromPyTorch "coming-from/pytorch.md"
    FromBurn "coming-from/burn.md"
    FromCandle "coming-from/candle.md"
    FromTch "coming-from/tch.md"
    TrainOnYourData "tutorials/train-on-your-data.md"
    PortAPyTorchModel "tutorials/port-a-pytorch-model.md"
    FindAnOutOfMemory "tutorials/find-an-out-of-memory.md"
    FindAStreamRace "tutorials/find-a-stream-race.md"
    CaptureATrainingStep "tutorials/capture-a-training-step.md"
    ServeAModel "tutorials/serve-a-model.md"
    WriteAnOperator "tutorials/write-an-operator.md"
    TrainOnTwoGpus "tutorials/train-on-two-gpus.md"
    Recipes "how-to/recipes.md"
    CallsInRust "rust.md"
    Audit "graph-audit.md"
    Simulator "simulator.md"
    Distributed "distributed.md"
    Profiler "profiler.md"
    Memory "memory.md"
}
