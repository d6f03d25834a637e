//! The number of commands of a training step of the small transformer, and of a step of a recurrent network: the nodes of
//! captured graphs.

use std::collections::BTreeMap;

use thalweg_nn::module::{GRU, LSTM, Module, RecurrentOptions, Transformer, TransformerOptions};
use thalweg_nn::optim::{AdamW, AdamWOptions};
use thalweg_runtime::{CaptureMode, CaptureOptions, Device, Graph, Result, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use crate::support::device;

/// The commands of a step. A captured command costs about as much as a small kernel runs, so the number is the speed of
/// a small network; it does not depend on sizes.
const COMMANDS: usize = 117;

#[test]
fn a_training_step_of_a_transformer_takes_few_commands() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let _current = stream.make_current();
    let mut generator = Generator::new(1);
    let options = TransformerOptions { vocabulary: 16, context: 8, layers: 4, features: 16, heads: 4 };
    let model = Transformer::new(options, &mut generator, &device).unwrap();
    let optimizer = AdamW::new(model.parameters(), AdamWOptions::default()).unwrap();
    let mut tokens = || {
        let values: Vec<i64> = (0..16).map(|_| generator.below(16).unwrap().into()).collect();
        Tensor::from_slice(&values, &[2, 8], &device).unwrap()
    };
    let (input, next) = (tokens(), tokens());
    let step = || {
        optimizer.zero_grad();
        model.loss(&input, &next)?.backward()?;
        optimizer.step()
    };
    step().unwrap();
    // Other tests wait on the device meanwhile, from threads of theirs.
    let options = CaptureOptions { mode: CaptureMode::ThreadLocal, ..CaptureOptions::default() };
    let (graph, ()) = Graph::capture(&device, options, step).unwrap();
    let nodes = &graph.description().unwrap().nodes;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for node in nodes {
        let label = node.label.map_or("no label".to_owned(), |label| label.to_string());
        *counts.entry(label).or_default() += 1;
    }
    // On a GPU the library may launch more than one kernel per product.
    if device.is_simulated() {
        assert_eq!(nodes.len(), COMMANDS, "commands by operator: {counts:#?}");
    }
}

/// Returns the commands of a function, by operator and line.
fn commands(device: &Device, function: impl Fn() -> Result<()>) -> BTreeMap<String, usize> {
    function().unwrap();
    let options = CaptureOptions { mode: CaptureMode::ThreadLocal, ..CaptureOptions::default() };
    let (graph, ()) = Graph::capture(device, options, function).unwrap();
    let mut counts = BTreeMap::new();
    for node in &graph.description().unwrap().nodes {
        let label = node.label.map_or("no label".to_owned(), |label| label.to_string());
        *counts.entry(label).or_default() += 1;
    }
    counts
}

#[test]
fn a_step_of_a_recurrent_network_takes_few_commands() {
    let device = device();
    if !device.is_simulated() {
        return;
    }
    let stream = Stream::new(&device).unwrap();
    let _current = stream.make_current();
    let mut generator = Generator::new(1);
    let options = RecurrentOptions::default;
    let lstm = LSTM::new(4, 8, options(), &mut generator, &device).unwrap();
    let gru = GRU::new(4, 8, options(), &mut generator, &device).unwrap();
    // The commands that one more step adds.
    let more = |run: &dyn Fn(&Tensor) -> Result<Tensor>, backward: bool| {
        let [short, long] = [5, 6].map(|steps| {
            let input = Tensor::ones(&[steps, 2, 4], thalweg_ir::DType::F32, &device).unwrap();
            let counts = commands(&device, || match backward {
                true => run(&input)?.sum(&[], false)?.backward(),
                false => thalweg_tensor::no_grad(|| run(&input)).map(drop),
            });
            println!("{steps} steps: {counts:#?}");
            counts.values().sum::<usize>()
        });
        long - short
    };
    let of_lstm = |input: &Tensor| Ok(lstm.forward(input, None)?.0);
    let of_gru = |input: &Tensor| Ok(gru.forward(input, None)?.0);
    let counts = [more(&of_lstm, false), more(&of_gru, false), more(&of_lstm, true), more(&of_gru, true)];
    // The whole sequence is one call of the library.
    assert_eq!(counts, [0, 0, 0, 0]);
}
