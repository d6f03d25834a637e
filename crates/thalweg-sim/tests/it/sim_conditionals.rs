//! Conditional nodes on the simulator: random programs compared with a plain interpreter, under schedules, and with errors.

use std::sync::Arc;

use thalweg_driver::{
    Access, CaptureMode, Code, ConditionFormat, Conditional, DevicePointer, Driver, GraphHandle, HostFault,
    HostKernel, HostLaunch, HostModule, Image, Label, Launch, LaunchMode, StreamHandle,
};
use thalweg_sim::schedules::{Eager, Late, Random, RoundRobin};
use thalweg_sim::{Schedule, SimConfig, SimDriver};

use super::sim_support::{Gate, append, code, launch, number, read, sim};

/// The words of a program: the first is its result, the others are its conditions.
const WORDS: usize = 6;

/// A step of a program.
#[derive(Clone, Debug)]
enum Step {
    /// Mixes a number into the result.
    Mix(u32),
    /// Sets a word to a number.
    Set(usize, u32),
    /// Decreases a word by one.
    Decrease(usize),
    /// Runs the body that a word selects. The word of a loop is used by this loop only, and its body decreases it at the
    /// end.
    Decide(usize, Conditional, Vec<Vec<Step>>),
}

fn mixed(result: u32, number: u32) -> u32 {
    result.wrapping_mul(31).wrapping_add(number)
}

/// Applies a program to its words.
fn interpret(program: &[Step], words: &mut [u32; WORDS]) {
    for step in program {
        match step {
            Step::Mix(number) => words[0] = mixed(words[0], *number),
            Step::Set(word, value) => words[*word] = *value,
            Step::Decrease(word) => words[*word] -= 1,
            Step::Decide(word, Conditional::While, bodies) => {
                while words[*word] != 0 {
                    interpret(&bodies[0], words);
                }
            }
            Step::Decide(word, Conditional::If, bodies) => {
                if words[*word] != 0 {
                    interpret(&bodies[0], words);
                }
            }
            Step::Decide(word, Conditional::IfElse, bodies) => {
                interpret(&bodies[usize::from(words[*word] == 0)], words);
            }
            Step::Decide(word, Conditional::Switch { .. }, bodies) => {
                if let Some(body) = bodies.get(words[*word] as usize) {
                    interpret(body, words);
                }
            }
        }
    }
}

/// Pseudorandom numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % sides
    }

    /// Returns a program whose loops use the words from `loops` on.
    fn program(&mut self, loops: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        for _ in 0..=self.roll(4) {
            match self.roll(if loops < WORDS { 6 } else { 2 }) {
                0 | 1 => steps.push(Step::Mix(self.roll(1000))),
                2 => {
                    let mut body = self.program(loops + 1);
                    body.push(Step::Decrease(loops));
                    steps.push(Step::Set(loops, self.roll(4)));
                    steps.push(Step::Decide(loops, Conditional::While, vec![body]));
                }
                kind => {
                    let conditional = match kind {
                        3 => Conditional::If,
                        4 => Conditional::IfElse,
                        _ => Conditional::Switch { cases: 1 + self.roll(3) },
                    };
                    let bodies = (0..conditional.bodies()).map(|_| self.program(loops + 1)).collect();
                    steps.push(Step::Set(loops, self.roll(4)));
                    steps.push(Step::Decide(loops, conditional, bodies));
                }
            }
        }
        steps
    }
}

/// Changes the words in stream order.
fn change(
    driver: &SimDriver,
    stream: StreamHandle,
    words: DevicePointer,
    act: impl Fn(&mut [u32]) + Send + Sync + 'static,
) {
    launch(driver, stream, &[Access::read_write(words, 4 * WORDS as u64)], move |launch| {
        act(launch.write::<u32>(words, WORDS)?);
        Ok(())
    })
    .unwrap();
}

/// Captures a program.
fn submit(driver: &SimDriver, stream: StreamHandle, words: DevicePointer, program: &[Step]) {
    for step in program.iter().cloned() {
        match step {
            Step::Mix(number) => {
                change(driver, stream, words, move |words| words[0] = mixed(words[0], number));
            }
            Step::Set(word, value) => change(driver, stream, words, move |words| words[word] = value),
            Step::Decrease(word) => change(driver, stream, words, move |words| words[word] -= 1),
            Step::Decide(word, conditional, bodies) => {
                let (source, label) = (words.offset(4 * word as u64), Label::here("decide"));
                let format = ConditionFormat::U32;
                let condition = driver.condition_create(stream, 0).unwrap();
                driver.condition_set_async(stream, condition, source, format, label).unwrap();
                let graphs = driver.conditional_node_add(stream, condition, conditional, label).unwrap();
                let inner = driver.stream_create(0, 0).unwrap();
                for (graph, body) in graphs.into_iter().zip(bodies) {
                    driver.stream_begin_capture_to_graph(inner, graph, CaptureMode::Relaxed).unwrap();
                    submit(driver, inner, words, &body);
                    if conditional == Conditional::While {
                        driver.condition_set_async(inner, condition, source, format, label).unwrap();
                    }
                    assert_eq!(driver.stream_end_capture(inner), Ok(graph));
                }
                driver.stream_destroy(inner).unwrap();
            }
        }
    }
}

/// Returns the words after two launches of a program. They are 0 before.
fn run(driver: &SimDriver, program: &[Step]) -> Vec<u32> {
    let words = driver.memory_allocate(0, 4 * WORDS as u64).unwrap();
    let stream = driver.stream_create(0, 0).unwrap();
    driver.copy_from_host(stream, words, &[0; 4 * WORDS], Label::here("zero")).unwrap();
    driver.stream_begin_capture(stream, CaptureMode::Relaxed).unwrap();
    submit(driver, stream, words, program);
    let graph = driver.stream_end_capture(stream).unwrap();
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_destroy(graph).unwrap();
    driver.graph_launch(exec, stream).unwrap();
    driver.graph_launch(exec, stream).unwrap();
    let mut bytes = [0; 4 * WORDS];
    driver.copy_to_host(stream, &mut bytes, words, Label::here("read")).unwrap();
    driver.graph_exec_destroy(exec).unwrap();
    driver.stream_destroy(stream).unwrap();
    driver.memory_free(words).unwrap();
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn expected(program: &[Step]) -> Vec<u32> {
    let mut words = [0; WORDS];
    interpret(program, &mut words);
    interpret(program, &mut words);
    words.to_vec()
}

#[test]
fn random_programs_do_what_an_interpreter_does() {
    let driver = sim(1);
    for seed in 0..200 {
        let program = Dice(seed).program(1);
        assert_eq!(run(&driver, &program), expected(&program), "seed {seed}: {program:?}");
    }
}

#[test]
fn random_programs_do_the_same_under_every_schedule() {
    for seed in 0..40 {
        let program = Dice(seed).program(1);
        let schedules: [Box<dyn Schedule>; 4] = [
            Box::new(Eager::new(seed)),
            Box::new(Late::new(seed)),
            Box::new(RoundRobin::new(seed)),
            Box::new(Random::new(seed)),
        ];
        for schedule in schedules {
            let config = SimConfig { memory_bytes: 16 << 20, ..SimConfig::default() };
            let driver = SimDriver::controlled(config, schedule).unwrap();
            assert_eq!(run(&driver, &program), expected(&program), "seed {seed}: {program:?}");
        }
    }
}

/// Returns a graph with a loop whose condition starts as true, and its body, which is not captured.
fn endless(driver: &SimDriver, stream: StreamHandle) -> (GraphHandle, GraphHandle) {
    let label = Label::here("endless");
    driver.stream_begin_capture(stream, CaptureMode::Relaxed).unwrap();
    let condition = driver.condition_create(stream, 1).unwrap();
    let bodies = driver.conditional_node_add(stream, condition, Conditional::While, label).unwrap();
    (driver.stream_end_capture(stream).unwrap(), bodies[0])
}

#[test]
fn a_loop_without_end_is_an_error_that_names_it() {
    let driver = sim(2);
    let stream = driver.stream_create(0, 0).unwrap();
    let (graph, _) = endless(&driver, stream);
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_launch(exec, stream).unwrap();
    let error = driver.stream_synchronize(stream).unwrap_err();
    assert_eq!(error.code(), Code::LaunchTimeout);
    assert!(error.is_asynchronous() && error.detail().contains("`endless at"), "{error}");
    driver.device_synchronize(1).expect("the other device goes on");
}

#[test]
fn a_fault_in_a_body_ends_the_loop() {
    let driver = sim(1);
    let stream = driver.stream_create(0, 0).unwrap();
    let (graph, body) = endless(&driver, stream);
    driver.stream_begin_capture_to_graph(stream, body, CaptureMode::Relaxed).unwrap();
    launch(&driver, stream, &[], |_| Err(HostFault("on purpose".into()))).unwrap();
    driver.stream_end_capture(stream).unwrap();
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_launch(exec, stream).unwrap();
    let error = driver.stream_synchronize(stream).unwrap_err();
    assert_eq!(error.code(), Code::LaunchFailed);
    assert!(error.detail().contains("on purpose"), "{error}");
}

#[test]
fn each_launch_begins_with_the_conditions_of_the_graph() {
    let driver = sim(1);
    let stream = driver.stream_create(0, 0).unwrap();
    let (count, zero) = (number(&driver, 0), number(&driver, 0));
    let label = Label::here("decide");
    driver.stream_begin_capture(stream, CaptureMode::Relaxed).unwrap();
    let condition = driver.condition_create(stream, 1).unwrap();
    let bodies = driver.conditional_node_add(stream, condition, Conditional::If, label).unwrap();
    driver.condition_set_async(stream, condition, zero, ConditionFormat::U32, label).unwrap();
    let graph = driver.stream_end_capture(stream).unwrap();
    driver.stream_begin_capture_to_graph(stream, bodies[0], CaptureMode::Relaxed).unwrap();
    append(&driver, stream, count, 1);
    driver.stream_end_capture(stream).unwrap();
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    for launches in [1, 11, 111] {
        driver.graph_launch(exec, stream).unwrap();
        assert_eq!(read(&driver, stream, count), launches, "the body runs, and then the condition becomes 0");
    }
}

#[test]
fn a_condition_that_is_not_read_is_refused() {
    let driver = sim(1);
    let stream = driver.stream_create(0, 0).unwrap();
    driver.stream_begin_capture(stream, CaptureMode::Relaxed).unwrap();
    driver.condition_create(stream, 1).unwrap();
    let graph = driver.stream_end_capture(stream).unwrap();
    assert_eq!(code(driver.graph_instantiate(graph, 0)), Code::InvalidValue);
    driver.graph_destroy(graph).unwrap();
}

/// Calls the driver when it is dropped.
struct Calls(Arc<SimDriver>);

impl Drop for Calls {
    fn drop(&mut self) {
        self.0.context_is_active(0).unwrap();
    }
}

#[test]
fn what_a_body_owns_is_dropped_outside_of_the_machine() {
    let driver = sim(1);
    let stream = driver.stream_create(0, 0).unwrap();
    let value = number(&driver, 0);
    let (graph, body) = endless(&driver, stream);
    driver.stream_begin_capture_to_graph(stream, body, CaptureMode::Relaxed).unwrap();
    let owned = Calls(Arc::clone(&driver));
    let kernel: Arc<dyn HostKernel> = Arc::new(move |launch: &HostLaunch<'_>| {
        let _ = &owned;
        launch.write::<u64>(value, 1)?[0] = 7;
        Err(HostFault("once is enough".into()))
    });
    let module = driver.module_load(0, Image::Host(&HostModule::single("owner", kernel))).unwrap();
    let accesses = [Access::write(value, 8)];
    let launched = Launch {
        function: driver.function_get(module, "owner").unwrap(),
        grid: [1; 3],
        block: [1; 3],
        shared_memory_bytes: 0,
        mode: LaunchMode::InOrder,
        arguments: &[],
        accesses: &accesses,
        label: Label::here("owner"),
    };
    driver.launch(stream, &launched).unwrap();
    driver.module_unload(module).unwrap();
    driver.stream_end_capture(stream).unwrap();
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    // The launch has the last reference to the kernel.
    let gate = Gate::close(&driver, stream);
    driver.graph_launch(exec, stream).unwrap();
    driver.graph_exec_destroy(exec).unwrap();
    driver.graph_destroy(graph).unwrap();
    gate.open();
    assert_eq!(code(driver.stream_synchronize(stream)), Code::LaunchFailed);
}

#[test]
fn a_capture_into_a_body_ends_without_its_graph() {
    let driver = sim(1);
    let [outer, inner] = [0; 2].map(|_| driver.stream_create(0, 0).unwrap());
    driver.stream_begin_capture(outer, CaptureMode::Relaxed).unwrap();
    let condition = driver.condition_create(outer, 1).unwrap();
    let label = Label::here("if");
    let bodies = driver.conditional_node_add(outer, condition, Conditional::If, label).unwrap();
    driver.stream_begin_capture_to_graph(inner, bodies[0], CaptureMode::Relaxed).unwrap();
    // The outer capture is broken with its stream.
    driver.stream_destroy(outer).unwrap();
    assert_eq!(code(driver.condition_create(inner, 0)), Code::StreamCaptureInvalidated);
    assert_eq!(code(driver.stream_end_capture(inner)), Code::StreamCaptureInvalidated);
    assert_eq!(code(driver.graph_describe(bodies[0])), Code::InvalidHandle);
    driver.stream_synchronize(inner).expect("the stream is usable again");
}
