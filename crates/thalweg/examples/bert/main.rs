//! Compares sentences by their embeddings: the mean over a BERT's tokens, and the cosines between them.
//!
//! ```text
//! cargo run --release --example bert                      # random weights: similar are sentences of the same words
//! cargo run --release --example bert -- --weights model.safetensors --vocab vocab.txt "How are you?" "What is the time?"
//! ```

#[path = "../common/arguments.rs"]
mod arguments;
#[path = "../common/dtype.rs"]
mod dtype;
mod options;
mod tokens;

use std::process::ExitCode;

use thalweg::models::PreTrainedModel;
use thalweg::models::bert::{BertConfig, BertModel};
use thalweg::module::Module;
use thalweg::random::Generator;
use thalweg::tensor::autocast::autocast;
use thalweg::{CaptureOptions, DType, Device, Error, Graph, Result, Stream, Tensor, no_grad, serialize};

use options::Options;
use tokens::Vocabulary;

fn main() -> ExitCode {
    arguments::run("bert", options::USAGE, Options::parse, run)
}

fn run(options: &Options) -> Result<()> {
    let device = arguments::device(options.device.as_deref())?;
    // The default stream cannot be captured.
    let stream = Stream::new(&device)?;
    let _current = stream.make_current();
    let (model, vocabulary) = match (&options.weights, &options.vocab) {
        (Some(weights), Some(vocab)) => (load(weights, options.heads, &device)?, read(vocab)?),
        _ => {
            let vocabulary = Vocabulary::of(&options.sentences);
            let config = BertConfig {
                vocab_size: vocabulary.len(),
                hidden_size: 96,
                num_hidden_layers: 2,
                intermediate_size: 192,
                max_position_embeddings: 128,
                ..BertConfig::default()
            };
            (BertModel::new(&config, &mut Generator::new(0), &device)?, vocabulary)
        }
    };
    let count: usize = model.parameters().iter().map(Tensor::elements).sum();
    println!("device: {device} ({}); {count} parameters, {}", device.properties().name, options.dtype);
    let sentences: Vec<Vec<i64>> =
        options.sentences.iter().map(|sentence| vocabulary.encode(sentence)).collect();
    let tokens = filled(&sentences, &device)?;
    let compare = || similarities(&model, &tokens);
    let compare =
        || no_grad(|| if options.dtype == DType::F32 { compare() } else { autocast(options.dtype, compare) });
    // The first run is always eager: it compiles the kernels, which a capture could not do.
    let mut cosines = compare()?;
    if options.graph {
        let (graph, captured) = Graph::capture(&device, CaptureOptions::default(), compare)?;
        graph.replay()?;
        cosines = captured;
    }
    let cosines = cosines.to_vec::<f32>()?;
    for (row, sentence) in cosines.chunks(sentences.len()).zip(&options.sentences) {
        let row: Vec<String> = row.iter().map(|cosine| format!("{cosine:6.3}")).collect();
        println!("{}  {sentence}", row.join(" "));
    }
    Ok(())
}

/// Returns the tokens of sentences (count, longest), filled with 0.
fn filled(sentences: &[Vec<i64>], device: &Device) -> Result<Tensor> {
    let longest = sentences.iter().map(Vec::len).max().unwrap_or(0);
    let filled: Vec<i64> = sentences
        .iter()
        .flat_map(|tokens| tokens.iter().copied().chain(std::iter::repeat(0)).take(longest))
        .collect();
    Tensor::from_slice(&filled, &[sentences.len(), longest], device)
}

/// Returns the cosines between the embeddings of sentences (count, count).
fn similarities(model: &BertModel, tokens: &Tensor) -> Result<Tensor> {
    let mask = tokens.ne_scalar(0)?;
    let features = model.encode(tokens, &tokens.zeros_like()?, &mask)?.to_dtype(DType::F32)?;
    let mask = mask.unsqueeze(-1)?.to_dtype(DType::F32)?;
    let means = ((features * &mask)?.sum(&[1], false)? / mask.sum(&[1], false)?)?;
    let units = (&means / means.square()?.sum(&[1], true)?.sqrt()?)?;
    units.mm(&units.transpose(0, 1)?)
}

/// Reads the weights of a model, and its sizes, from a file.
fn load(path: &str, heads: usize, device: &Device) -> Result<BertModel> {
    let weights = serialize::load_file(path, device)?;
    let size = |name: &str, dim: usize| match weights.iter().find(|(full, _)| full.ends_with(name)) {
        Some((_, tensor)) if tensor.rank() == 2 => Ok(tensor.shape()[dim]),
        _ => Err(Error::invalid(format!("{path} has no matrix {name}, as a BERT has"))),
    };
    let is_layer = |index: &usize| {
        let part = format!("encoder.layer.{index}.");
        weights.keys().any(|name| name.contains(&part))
    };
    let config = BertConfig {
        vocab_size: size("embeddings.word_embeddings.weight", 0)?,
        hidden_size: size("embeddings.word_embeddings.weight", 1)?,
        num_hidden_layers: (0..).take_while(is_layer).count(),
        num_attention_heads: heads,
        intermediate_size: size("encoder.layer.0.intermediate.dense.weight", 0)?,
        max_position_embeddings: size("embeddings.position_embeddings.weight", 0)?,
        type_vocab_size: size("embeddings.token_type_embeddings.weight", 0)?,
        ..BertConfig::default()
    };
    let model = BertModel::new(&config, &mut Generator::new(0), device)?;
    let keys = model.load_pretrained(&weights)?;
    // The features of the full sequence are not used here, and some files do not have that layer.
    match keys.missing_keys.iter().find(|name| !name.starts_with("pooler.")) {
        None => Ok(model),
        Some(name) => Err(Error::invalid(format!("{path} has no {name}"))),
    }
}

fn read(path: &str) -> Result<Vocabulary> {
    std::fs::read_to_string(path)
        .map_err(|error| error.to_string())
        .and_then(|text| Vocabulary::read(&text))
        .map_err(|reason| Error::invalid(format!("{path} cannot be read: {reason}")))
}
