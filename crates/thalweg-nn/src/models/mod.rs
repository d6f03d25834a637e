//! Models whose weights have the names and layouts of Hugging Face's transformers and of torchvision, so that their checkpoints load by
//! name.
//!
//! | module | model | checkpoints |
//! |---|---|---|
//! | [`gpt2`] | [`GPT2LMHeadModel`](gpt2::GPT2LMHeadModel), and its [`Decoder`] | `gpt2`, `gpt2-medium`, … |
//! | [`bert`] | [`BertModel`](bert::BertModel), [`BertForSequenceClassification`](bert::BertForSequenceClassification), [`BertForMaskedLM`](bert::BertForMaskedLM) | `bert-base-uncased`, encoders of sentences such as `all-MiniLM-L6-v2` |
//! | [`llama`] | [`LlamaForCausalLM`](llama::LlamaForCausalLM), and its [`Decoder`] | Llama and models of its structure, heads tied or not, rotations unscaled, `linear` or `llama3` |
//! | [`resnet`] | [`ResNet`](resnet::ResNet) | `resnet50`, `resnet101`, `resnet152` |
//!
//! Files are read by [`serialize::load_file`](crate::serialize::load_file), and loaded by [`PreTrainedModel::load_pretrained`],
//! which knows the names that transformers uses, or, for torchvision, by
//! [`Module::load_state_dict`](crate::module::Module::load_state_dict). None of the models has dropout. Their layers are ordinary
//! modules: other models can be written in the same way.

pub mod bert;
mod decoder;
pub mod gpt2;
pub mod llama;
mod pretrained;
pub mod resnet;

pub use decoder::{DecodeOptions, Decoder};
pub use pretrained::PreTrainedModel;

use thalweg_runtime::{Error, Result, refuse};
use thalweg_tensor::Tensor;

/// Returns (…, length, features) as (…, heads, length, features per head): a view.
fn split_heads(x: &Tensor, heads: usize) -> Result<Tensor> {
    x.unflatten(-1, &[heads as i64, -1])?.transpose(-2, -3)
}

/// Returns (…, heads, length, features per head) as (…, length, features).
fn merge_heads(x: &Tensor) -> Result<Tensor> {
    x.transpose(-2, -3)?.flatten(-2, -1)
}

/// Checks that features divide into heads of equal size.
fn check_heads(features: usize, heads: usize) -> Result<()> {
    if heads == 0 || !features.is_multiple_of(heads) {
        refuse!("the hidden size {features} is not a multiple of the number of attention heads {heads}");
    }
    Ok(())
}
