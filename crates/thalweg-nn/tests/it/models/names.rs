//! Files with the names and shapes that Hugging Face's transformers and torchvision give their weights.

use thalweg_ir::DType;
use thalweg_nn::models::bert::BertForSequenceClassification;
use thalweg_nn::models::gpt2::GPT2LMHeadModel;
use thalweg_nn::models::llama::LlamaForCausalLM;
use thalweg_nn::models::resnet::ResNet;
use thalweg_nn::module::{Module, StateDict};
use thalweg_nn::serialize::{Object, load, load_file, save, save_file};
use thalweg_runtime::Result;
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use super::Network;
use crate::support::{device, values};

/// The shape of a weight by its name: `*` represents the number of a layer.
type Names = &'static [(&'static str, &'static [usize])];

const GPT2_NAMES: Names = &[
    ("transformer.wte.weight", &[61, 32]),
    ("transformer.wpe.weight", &[16, 32]),
    ("transformer.h.*.ln_1.weight", &[32]),
    ("transformer.h.*.ln_1.bias", &[32]),
    ("transformer.h.*.attn.c_attn.weight", &[32, 96]),
    ("transformer.h.*.attn.c_attn.bias", &[96]),
    ("transformer.h.*.attn.c_proj.weight", &[32, 32]),
    ("transformer.h.*.attn.c_proj.bias", &[32]),
    ("transformer.h.*.ln_2.weight", &[32]),
    ("transformer.h.*.ln_2.bias", &[32]),
    ("transformer.h.*.mlp.c_fc.weight", &[32, 128]),
    ("transformer.h.*.mlp.c_fc.bias", &[128]),
    ("transformer.h.*.mlp.c_proj.weight", &[128, 32]),
    ("transformer.h.*.mlp.c_proj.bias", &[32]),
    ("transformer.ln_f.weight", &[32]),
    ("transformer.ln_f.bias", &[32]),
];

const BERT_NAMES: Names = &[
    ("bert.embeddings.word_embeddings.weight", &[50, 32]),
    ("bert.embeddings.position_embeddings.weight", &[12, 32]),
    ("bert.embeddings.token_type_embeddings.weight", &[2, 32]),
    ("bert.embeddings.LayerNorm.weight", &[32]),
    ("bert.embeddings.LayerNorm.bias", &[32]),
    ("bert.encoder.layer.*.attention.self.query.weight", &[32, 32]),
    ("bert.encoder.layer.*.attention.self.query.bias", &[32]),
    ("bert.encoder.layer.*.attention.self.key.weight", &[32, 32]),
    ("bert.encoder.layer.*.attention.self.key.bias", &[32]),
    ("bert.encoder.layer.*.attention.self.value.weight", &[32, 32]),
    ("bert.encoder.layer.*.attention.self.value.bias", &[32]),
    ("bert.encoder.layer.*.attention.output.dense.weight", &[32, 32]),
    ("bert.encoder.layer.*.attention.output.dense.bias", &[32]),
    ("bert.encoder.layer.*.attention.output.LayerNorm.weight", &[32]),
    ("bert.encoder.layer.*.attention.output.LayerNorm.bias", &[32]),
    ("bert.encoder.layer.*.intermediate.dense.weight", &[64, 32]),
    ("bert.encoder.layer.*.intermediate.dense.bias", &[64]),
    ("bert.encoder.layer.*.output.dense.weight", &[32, 64]),
    ("bert.encoder.layer.*.output.dense.bias", &[32]),
    ("bert.encoder.layer.*.output.LayerNorm.weight", &[32]),
    ("bert.encoder.layer.*.output.LayerNorm.bias", &[32]),
    ("bert.pooler.dense.weight", &[32, 32]),
    ("bert.pooler.dense.bias", &[32]),
    ("classifier.weight", &[3, 32]),
    ("classifier.bias", &[3]),
];

const LLAMA_NAMES: Names = &[
    ("model.embed_tokens.weight", &[53, 32]),
    ("model.layers.*.self_attn.q_proj.weight", &[32, 32]),
    ("model.layers.*.self_attn.k_proj.weight", &[16, 32]),
    ("model.layers.*.self_attn.v_proj.weight", &[16, 32]),
    ("model.layers.*.self_attn.o_proj.weight", &[32, 32]),
    ("model.layers.*.mlp.gate_proj.weight", &[48, 32]),
    ("model.layers.*.mlp.up_proj.weight", &[48, 32]),
    ("model.layers.*.mlp.down_proj.weight", &[32, 48]),
    ("model.layers.*.input_layernorm.weight", &[32]),
    ("model.layers.*.post_attention_layernorm.weight", &[32]),
    ("model.norm.weight", &[32]),
    ("lm_head.weight", &[53, 32]),
];

/// The second block of each layer has no `downsample`.
const RESNET_NAMES: Names = &[
    ("conv1.weight", &[8, 3, 7, 7]),
    ("bn1.weight", &[8]),
    ("bn1.bias", &[8]),
    ("bn1.running_mean", &[8]),
    ("bn1.running_var", &[8]),
    ("bn1.num_batches_tracked", &[]),
    ("layer1.0.conv1.weight", &[4, 8, 1, 1]),
    ("layer1.0.downsample.0.weight", &[16, 8, 1, 1]),
    ("layer1.0.downsample.1.running_var", &[16]),
    ("layer1.1.conv2.weight", &[4, 4, 3, 3]),
    ("layer1.1.bn3.running_mean", &[16]),
    ("layer2.0.conv3.weight", &[32, 8, 1, 1]),
    ("layer2.0.downsample.0.weight", &[32, 16, 1, 1]),
    ("layer2.1.conv1.weight", &[8, 32, 1, 1]),
    ("layer2.1.bn2.bias", &[8]),
    ("fc.weight", &[5, 32]),
    ("fc.bias", &[5]),
];

/// Writes a file in bf16, as published files often are, in which every tensor has a different number.
fn file(names: Names) -> StateDict {
    let mut tensors = StateDict::new();
    for (name, shape) in names {
        let layers = if name.contains('*') { 2 } else { 1 };
        for layer in 0..layers {
            let number = tensors.len() as f64;
            let tensor = Tensor::full(shape, number, DType::Bf16, &device()).unwrap();
            tensors.insert(name.replace('*', &layer.to_string()), tensor);
        }
    }
    let path =
        std::env::temp_dir().join(format!("thalweg-{}-{}.safetensors", std::process::id(), names.len()));
    save_file(&tensors, &path, &[("format", "pt")]).unwrap();
    let read = load_file(&path, &device());
    std::fs::remove_file(&path).unwrap();
    read.unwrap()
}

fn new<N: Network>() -> N {
    N::new(&mut Generator::new(1), &device()).unwrap()
}

#[track_caller]
fn check_loaded<M: Module>(model: &M, file: &StateDict) {
    let own = model.state_dict();
    for (name, tensor) in file {
        assert_eq!(
            (own[name].shape(), own[name].dtype().is_floating_point()),
            (tensor.shape(), name != "bn1.num_batches_tracked")
        );
        assert!(
            values(&own[name]).iter().zip(values(tensor)).all(|(found, expected)| *found == expected),
            "{name}"
        );
    }
}

#[test]
fn llama_and_bert_take_their_files_whole() {
    let (llama, bert) = (new::<LlamaForCausalLM>(), new::<BertForSequenceClassification>());
    for (model, names) in [(&llama as &dyn Module, LLAMA_NAMES), (&bert, BERT_NAMES)] {
        let file = file(names);
        model.load_state_dict(&file).unwrap();
        assert_eq!(model.state_dict().len(), file.len());
    }
    check_loaded(&llama, &file(LLAMA_NAMES));
    check_loaded(&bert, &file(BERT_NAMES));
}

#[test]
fn gpt2_takes_a_file_without_its_tied_head_and_with_the_masks_of_old_files() -> Result<()> {
    let (model, mut file) = (new::<GPT2LMHeadModel>(), file(GPT2_NAMES));
    for layer in 0..2 {
        let mask = Tensor::ones(&[1, 1, 16, 16], DType::U8, &device())?;
        file.insert(format!("transformer.h.{layer}.attn.bias"), mask);
    }
    let keys = model.load_state_dict_partially(&file)?;
    assert_eq!(keys.missing_keys, ["lm_head.weight"]);
    assert_eq!(keys.unexpected_keys, ["transformer.h.0.attn.bias", "transformer.h.1.attn.bias"]);
    file.retain(|name, _| !name.ends_with("attn.bias"));
    check_loaded(&model, &file);
    assert_eq!(values(&model.state_dict()["lm_head.weight"]), values(&file["transformer.wte.weight"]));
    Ok(())
}

#[test]
fn a_resnet_takes_torchvisions_names() -> Result<()> {
    let (model, file) = (new::<ResNet>(), file(RESNET_NAMES));
    let keys = model.load_state_dict_partially(&file)?;
    assert!(keys.unexpected_keys.is_empty(), "{keys:?}");
    // A stem, two layers of two blocks, a head: 6 and 2 · (2 · 18 + 6) and 2 tensors.
    assert_eq!(model.state_dict().len(), 6 + 2 * (2 * 18 + 6) + 2);
    check_loaded(&model, &file);
    Ok(())
}

/// `THALWEG_KEEP=FOLDER` keeps the file for `tests/models/check_saved.py`, which reads it in PyTorch.
#[test]
fn a_saved_model_keeps_its_tied_weights_one_storage() -> Result<()> {
    let model = new::<GPT2LMHeadModel>();
    let tied = &model.state_dict()["lm_head.weight"];
    let folder = std::env::var("THALWEG_KEEP").map_or_else(|_| std::env::temp_dir(), Into::into);
    let path = folder.join(format!("thalweg-{}-gpt2.pt", std::process::id()));
    let checksum: f64 = values(tied).iter().sum();
    let file = vec![
        (Object::Str("model".into()), model.state_dict().into()),
        (Object::Str("epoch".into()), Object::Int(3)),
        (Object::Str("checksum".into()), Object::Float(checksum)),
    ];
    save(&Object::Dict(file), &path)?;
    let read = load(&path, &device())?;
    if std::env::var("THALWEG_KEEP").is_err() {
        std::fs::remove_file(&path).unwrap();
    }
    let read = read.get("model").unwrap().state_dict().unwrap();
    assert!(read["lm_head.weight"].shares_storage_with(&read["transformer.wte.weight"]));
    assert!(!read["transformer.wpe.weight"].shares_storage_with(&read["transformer.wte.weight"]));
    assert_eq!(values(&read["lm_head.weight"]), values(tied));
    assert_eq!(read.len(), model.state_dict().len());
    Ok(())
}
