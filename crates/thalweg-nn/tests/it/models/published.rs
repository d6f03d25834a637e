//! Checkpoints that Hugging Face's transformers saved, and the weights of published models by name and shape.
//! `tests/models/hugging_face.py` wrote the expected values.

use std::io::Read;
use std::path::PathBuf;

use flate2::read::GzDecoder;
use thalweg_ir::DType;
use thalweg_nn::models::PreTrainedModel;
use thalweg_nn::models::bert::{BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel};
use thalweg_nn::models::gpt2::{GPT2Config, GPT2LMHeadModel};
use thalweg_nn::models::llama::{LlamaConfig, LlamaForCausalLM};
use thalweg_nn::models::resnet::{ResNet, ResNetConfig};
use thalweg_nn::module::{Forward, Module, StateDict};
use thalweg_nn::serialize::load_file;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use crate::support::{device, values};

const GPT2: GPT2Config = GPT2Config { vocab_size: 50, n_positions: 16, n_embd: 16, n_layer: 2, n_head: 2 };

fn llama() -> LlamaConfig {
    LlamaConfig {
        vocab_size: 50,
        hidden_size: 16,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        intermediate_size: 24,
        rms_norm_eps: 1e-6,
        ..LlamaConfig::default()
    }
}

fn bert() -> BertConfig {
    BertConfig {
        vocab_size: 50,
        hidden_size: 16,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 24,
        max_position_embeddings: 12,
        ..BertConfig::default()
    }
}

fn read(name: &str, device: &Device) -> StateDict {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/models/published");
    load_file(folder.join(format!("{name}.safetensors")), device).unwrap()
}

fn generator() -> Generator {
    Generator::new(3)
}

/// Loads a checkpoint that must have exactly the weights of the model.
#[track_caller]
fn load_whole(model: &impl PreTrainedModel, name: &str) {
    let keys = model.load_pretrained(&read(name, &device())).unwrap();
    assert!(keys.missing_keys.is_empty() && keys.unexpected_keys.is_empty(), "{keys:?}");
}

#[track_caller]
fn assert_close(found: &Tensor, expected: &Tensor) {
    assert_eq!(found.shape(), expected.shape());
    let (found, expected) = (values(found), values(expected));
    let largest = expected.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
    for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!((found - expected).abs() <= 1e-5 * largest, "{found} for {expected} at {place}");
    }
}

#[test]
fn a_gpt2_of_transformers_gives_its_scores() -> Result<()> {
    let (device, given) = (device(), read("gpt2.results", &device()));
    let model = GPT2LMHeadModel::new(GPT2, &mut generator(), &device)?;
    load_whole(&model, "gpt2");
    assert_close(&model.forward(&given["input_ids"])?, &given["logits"]);
    Ok(())
}

#[test]
fn a_checkpoint_without_a_head_fits_a_model_with_one() -> Result<()> {
    let (device, given) = (device(), read("gpt2_base.results", &device()));
    let model = GPT2LMHeadModel::new(GPT2, &mut generator(), &device)?;
    load_whole(&model, "gpt2_base");
    let features = &given["last_hidden_state"];
    let scores = features.matmul(&model.state_dict()["transformer.wte.weight"].transpose(0, 1)?)?;
    assert_close(&model.forward(&given["input_ids"])?, &scores);
    Ok(())
}

#[test]
fn a_llama_of_transformers_gives_its_scores() -> Result<()> {
    let (device, given) = (device(), read("llama.results", &device()));
    let model = LlamaForCausalLM::new(llama(), &mut generator(), &device)?;
    load_whole(&model, "llama");
    assert_close(&model.forward(&given["input_ids"])?, &given["logits"]);
    Ok(())
}

#[test]
fn berts_of_transformers_give_their_features_and_scores() -> Result<()> {
    let device = device();
    let model = BertForSequenceClassification::new(&bert(), 3, &mut generator(), &device)?;
    load_whole(&model, "bert");
    let given = read("bert.results", &device);
    let mask = given["attention_mask"].to_dtype(DType::Bool)?;
    assert_close(&model.forward(&given["input_ids"], &given["token_type_ids"], &mask)?, &given["logits"]);

    let encoder = BertModel::new(&bert(), &mut generator(), &device)?;
    load_whole(&encoder, "bert_base");
    let given = read("bert_base.results", &device);
    let features = encoder.encode(&given["input_ids"], &given["token_type_ids"], &mask)?;
    assert_close(&features, &given["last_hidden_state"]);
    assert_close(&encoder.pool(&features)?, &given["pooler_output"]);
    Ok(())
}

#[test]
fn a_checkpoint_with_a_head_fits_an_encoder_which_leaves_the_head() -> Result<()> {
    let encoder = BertModel::new(&bert(), &mut generator(), &device())?;
    let keys = encoder.load_pretrained(&read("bert", &device()))?;
    assert_eq!(keys.unexpected_keys, ["classifier.bias", "classifier.weight"]);
    assert!(keys.missing_keys.is_empty(), "{keys:?}");
    Ok(())
}

#[test]
fn old_names_of_norms_fit_and_two_names_of_a_weight_are_refused() -> Result<()> {
    let (model, file) = (BertModel::new(&bert(), &mut generator(), &device())?, read("bert_base", &device()));
    let old_name = |name: &String| {
        let name = name.replace("LayerNorm.weight", "LayerNorm.gamma");
        name.replace("LayerNorm.bias", "LayerNorm.beta")
    };
    let mut old: StateDict = file.iter().map(|(name, tensor)| (old_name(name), tensor.clone())).collect();
    assert!(old.contains_key("encoder.layer.1.output.LayerNorm.beta"));
    let keys = model.load_pretrained(&old)?;
    assert!(keys.missing_keys.is_empty() && keys.unexpected_keys.is_empty(), "{keys:?}");
    let name = "encoder.layer.1.output.LayerNorm.bias";
    assert_eq!(values(&model.state_dict()[name]), values(&file[name]));

    old.insert(format!("bert.{name}"), file[name].clone());
    let error = model.load_pretrained(&old).unwrap_err();
    assert!(
        error.to_string().contains(&format!("two names of the checkpoint mean the weight \"{name}\"")),
        "{error}"
    );
    Ok(())
}

/// Checks a model on the meta device against the names and shapes that a published one has.
fn check_names(published: &str, name: &str, model: &dyn Module) {
    let of_model = |line: &str| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned);
    let mut expected: Vec<String> = published.lines().filter_map(of_model).collect();
    let extents = |tensor: &Tensor| tensor.shape().iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let own = model.state_dict();
    let mut found: Vec<String> =
        own.iter().map(|(name, tensor)| format!("{name} {}", extents(tensor))).collect();
    expected.sort();
    found.sort();
    assert!(!expected.is_empty());
    assert_eq!(found, expected, "{name}");
}

#[test]
fn models_of_published_sizes_have_the_published_names_and_shapes() -> Result<()> {
    let mut published = String::new();
    let packed: &[u8] = include_bytes!("../../models/published/names.txt.gz");
    GzDecoder::new(packed).read_to_string(&mut published).unwrap();
    let (meta, mut generator) = (Device::meta()?, generator());
    let gpt2 = GPT2LMHeadModel::new(GPT2Config::default(), &mut generator, &meta)?;
    let bert = BertModel::new(&BertConfig::default(), &mut generator, &meta)?;
    let llama = LlamaForCausalLM::new(LlamaConfig::default(), &mut generator, &meta)?;
    let resnet = ResNet::new(&ResNetConfig::default(), &mut generator, &meta)?;
    check_names(&published, "gpt2", &gpt2);
    check_names(&published, "bert-base-uncased", &bert);
    check_names(&published, "llama-2-7b", &llama);
    check_names(&published, "resnet50", &resnet);
    Ok(())
}

#[test]
fn a_tied_head_has_the_weight_of_the_embedding() -> Result<()> {
    let (device, given) = (device(), read("llama.results", &device()));
    let apart = LlamaForCausalLM::new(llama(), &mut generator(), &device)?;
    let tied = LlamaForCausalLM::new(
        LlamaConfig { tie_word_embeddings: true, ..llama() },
        &mut generator(),
        &device,
    )?;
    // Files of such models have no head.
    let mut saved = read("llama", &device);
    saved.shift_remove("lm_head.weight").unwrap();
    let keys = tied.load_pretrained(&saved)?;
    assert!(keys.missing_keys.is_empty() && keys.unexpected_keys.is_empty(), "{keys:?}");
    assert_eq!(apart.load_pretrained(&saved)?.missing_keys, ["lm_head.weight"]);
    saved.insert("lm_head.weight".to_owned(), saved["model.embed_tokens.weight"].clone());
    apart.load_state_dict(&saved)?;
    assert_close(&tied.forward(&given["input_ids"])?, &apart.forward(&given["input_ids"])?);
    assert_eq!(tied.parameters().len() + 1, apart.parameters().len());
    let wrong = LlamaConfig {
        rope_scaling: Some(thalweg_nn::models::llama::RopeScaling::Linear { factor: 0.0 }),
        ..llama()
    };
    assert!(LlamaForCausalLM::new(wrong, &mut generator(), &device).unwrap_err().is_invalid_argument());
    Ok(())
}

#[test]
fn a_bert_of_masked_tokens_has_the_names_of_transformers_and_no_pooler() -> Result<()> {
    let device = device();
    let model = BertForMaskedLM::new(&bert(), &mut generator(), &device)?;
    let names: Vec<String> =
        model.state_dict().into_keys().filter(|name| !name.starts_with("bert.encoder")).collect();
    let expected = [
        "bert.embeddings.word_embeddings.weight",
        "bert.embeddings.position_embeddings.weight",
        "bert.embeddings.token_type_embeddings.weight",
        "bert.embeddings.LayerNorm.weight",
        "bert.embeddings.LayerNorm.bias",
        "cls.predictions.bias",
        "cls.predictions.transform.dense.weight",
        "cls.predictions.transform.dense.bias",
        "cls.predictions.transform.LayerNorm.weight",
        "cls.predictions.transform.LayerNorm.bias",
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
    ];
    assert_eq!(names, expected);
    // A file has a tied weight under one of its names.
    let mut saved = model.state_dict();
    for tied in ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"] {
        saved.shift_remove(tied).unwrap();
    }
    let keys = model.load_pretrained(&saved)?;
    assert!(keys.missing_keys.is_empty() && keys.unexpected_keys.is_empty(), "{keys:?}");
    // Its encoder is the one that was compared with transformers.
    let given = read("bert_base.results", &device);
    let base = read("bert_base", &device);
    let keys = model.load_pretrained(&base)?;
    assert!(keys.missing_keys.iter().all(|name| name.starts_with("cls.")), "{keys:?}");
    let mask = read("bert.results", &device)["attention_mask"].to_dtype(DType::Bool)?;
    let scores = model.forward(&given["input_ids"], &given["token_type_ids"], &mask)?;
    let own = model.state_dict();
    let own = |name: &str| own[&format!("cls.predictions.{name}")].clone();
    let features = &given["last_hidden_state"];
    let dense = features
        .matmul(&own("transform.dense.weight").transpose(0, 1)?)?
        .add(&own("transform.dense.bias"))?
        .gelu()?;
    let mean = dense.mean(&[-1], true)?;
    let centred = dense.sub(&mean)?;
    let variance = centred.mul(&centred)?.mean(&[-1], true)?;
    let normal = centred.div(&variance.add_scalar(1e-12)?.sqrt()?)?;
    let words = model.state_dict()["bert.embeddings.word_embeddings.weight"].transpose(0, 1)?;
    assert_close(&scores, &normal.matmul(&words)?);
    let encoder = BertModel::without_pooler(&bert(), &mut generator(), &device)?;
    assert!(encoder.pool(features).unwrap_err().is_invalid_argument());
    Ok(())
}
