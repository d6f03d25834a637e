//! Decodes a sequence token by token with a cache of keys and values: first with eager steps, then with a step that is captured
//! once and replayed.
//!
//! ```text
//! cargo run --release --example decode
//! cargo run --release --example decode -- --layers 12 --features 768 --heads 12 --context 1024 --vocabulary 50257 --tokens 256
//! cargo run --release --example decode -- --integers int8
//! cargo run --release --example decode -- --weights model.safetensors --first 50256 --temperature 0.8
//! ```
//!
//! Without a file the weights are random, and the tokens are meaningless, but both ways must produce the same ones.

#[path = "../common/arguments.rs"]
mod arguments;
#[path = "../common/dtype.rs"]
mod dtype;
mod options;

use std::process::ExitCode;
use std::time::Instant;

use options::Options;
use thalweg::models::gpt2::{GPT2Config, GPT2LMHeadModel};
use thalweg::models::{DecodeOptions, Decoder, PreTrainedModel};
use thalweg::module::Module;
use thalweg::random::{Generator, default_generator};
use thalweg::{CaptureOptions, Device, Error, Graph, Result, no_grad, serialize};

fn main() -> ExitCode {
    arguments::run("decode", options::USAGE, Options::parse, run)
}

/// Decodes a sequence with steps of one kind, and reports them.
fn decode(
    name: &str,
    model: &Decoder,
    device: &Device,
    options: &Options,
    mut step: impl FnMut() -> Result<()>,
) -> Result<Vec<i64>> {
    default_generator(device)?.manual_seed(0)?;
    model.restart(&[options.first as i64])?;
    let allocations = || device.allocator().statistics().allocation.all.allocated;
    let before = allocations();
    device.synchronize()?;
    let start = Instant::now();
    (0..options.tokens).try_for_each(|_| step())?;
    device.synchronize()?;
    let microseconds = start.elapsed().as_secs_f64() * 1e6 / options.tokens as f64;
    let requests = allocations() - before;
    if options.json {
        println!(
            "{{\"name\": \"decode_{name}\", \"value\": {microseconds:.1}, \"unit\": \"us/token\", \"device\": \"{device}\", \
             \"tokens\": {}, \"allocations\": {requests}}}",
            options.tokens
        );
    } else {
        println!("{name:<9} {microseconds:>10.1} us per token   {requests:>6} allocations");
    }
    model.sequence(options.tokens + 1)
}

/// Scales the layers' weights up so that tokens differ: with the initial weights, a token is always followed by itself.
fn make_talkative(model: &GPT2LMHeadModel) -> Result<()> {
    let weights = model.state_dict().into_iter();
    let of_layers = weights.filter(|(name, weight)| name.starts_with("transformer.h.") && weight.rank() == 2);
    no_grad(|| of_layers.into_iter().try_for_each(|(_, weight)| weight.mul_scalar_(8.0).map(drop)))
}

fn run(options: &Options) -> Result<()> {
    let device = arguments::device(options.device.as_deref())?;
    let weights = options.weights.as_ref().map(|path| serialize::load_file(path, &device)).transpose()?;
    let config = match &weights {
        Some(weights) => GPT2Config::of(weights)?,
        None => GPT2Config {
            vocab_size: options.vocabulary,
            n_positions: options.context,
            n_embd: options.features,
            n_layer: options.layers,
            n_head: options.heads,
        },
    };
    options.check(config.n_positions, config.vocab_size).map_err(Error::invalid)?;
    let model = GPT2LMHeadModel::new(config, &mut Generator::new(0), &device)?;
    match &weights {
        Some(weights) => {
            let keys = model.load_pretrained(weights)?;
            if !keys.missing_keys.is_empty() {
                return Err(Error::invalid(format!("the weights lack {}", keys.missing_keys.join(", "))));
            }
        }
        None => make_talkative(&model)?,
    }
    let Options { dtype, temperature, integers, .. } = *options;
    let model = model.decoder(DecodeOptions { dtype, temperature, integers })?;
    // Loads the kernels, so that neither way includes that time.
    model.restart(&[options.first as i64])?;
    model.step()?;
    let eager = decode("eager", &model, &device, options, || model.step())?;
    let (graph, ()) = Graph::capture(&device, CaptureOptions::default(), || model.step())?;
    let captured = decode("captured", &model, &device, options, || graph.replay())?;
    if eager != captured {
        return Err(Error::invalid(format!(
            "the captured step decoded {captured:?}, the eager one {eager:?}"
        )));
    }
    println!("tokens:   {}", eager.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    Ok(())
}
