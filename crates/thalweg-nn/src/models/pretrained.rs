//! Checkpoints of Hugging Face's transformers, whose names depend on whether the model was saved with or without its head.

use thalweg_derive::at_line;
use thalweg_runtime::{Error, Result, refuse};

use super::bert::{BertForMaskedLM, BertForSequenceClassification, BertModel};
use super::gpt2::GPT2LMHeadModel;
use super::llama::LlamaForCausalLM;
use crate::module::{IncompatibleKeys, Module, StateDict};

/// A model that loads checkpoints of transformers (`PreTrainedModel`).
pub trait PreTrainedModel: Module {
    /// The prefix of the weights below the head in a model with a head, as in `transformer.wte.weight`.
    const BASE_MODEL_PREFIX: &'static str;

    /// Overwrites the weights with those of a checkpoint, and returns the names that only one side has. A checkpoint without a
    /// head fits a model with one, and vice versa: the prefix is added or removed. Norms whose weights are called `gamma` and
    /// `beta`, as in the oldest files, fit too. A missing weight that is tied to one that is present, such as GPT-2's head, is
    /// not reported. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if shapes differ, or two names refer to one weight. Then nothing has changed.
    #[at_line]
    fn load_pretrained(&self, checkpoint: &StateDict) -> Result<IncompatibleKeys> {
        load(self, Self::BASE_MODEL_PREFIX, checkpoint)
    }
}

impl PreTrainedModel for GPT2LMHeadModel {
    const BASE_MODEL_PREFIX: &'static str = "transformer";
}

impl PreTrainedModel for LlamaForCausalLM {
    const BASE_MODEL_PREFIX: &'static str = "model";
}

impl PreTrainedModel for BertModel {
    const BASE_MODEL_PREFIX: &'static str = "bert";
}

impl PreTrainedModel for BertForSequenceClassification {
    const BASE_MODEL_PREFIX: &'static str = "bert";
}

impl PreTrainedModel for BertForMaskedLM {
    const BASE_MODEL_PREFIX: &'static str = "bert";
}

fn load<M: Module + ?Sized>(model: &M, prefix: &str, checkpoint: &StateDict) -> Result<IncompatibleKeys> {
    let own = model.state_dict();
    let mut renamed = StateDict::new();
    for (name, tensor) in checkpoint {
        let name = own_name(name, prefix, &own).unwrap_or_else(|| name.clone());
        if renamed.insert(name.clone(), tensor.clone()).is_some() {
            refuse!("two names of the checkpoint mean the weight \"{name}\"");
        }
    }
    let mut keys = model.load_state_dict_partially(&renamed)?;
    let is_tied = |missing: &String| {
        own.iter()
            .any(|(name, tensor)| renamed.contains_key(name) && tensor.shares_storage_with(&own[missing]))
    };
    keys.missing_keys.retain(|missing| !is_tied(missing));
    Ok(keys)
}

/// Returns the name that a model has for a weight of a checkpoint, if it has the weight.
fn own_name(name: &str, prefix: &str, own: &StateDict) -> Option<String> {
    let (stem, last) = name.rsplit_once('.').unwrap_or(("", name));
    let modern = match last {
        "gamma" => format!("{stem}.weight"),
        "beta" => format!("{stem}.bias"),
        _ => name.to_owned(),
    };
    let below = modern.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.')).map(str::to_owned);
    let above = format!("{prefix}.{modern}");
    [Some(modern), Some(above), below].into_iter().flatten().find(|name| own.contains_key(name))
}
