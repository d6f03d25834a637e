//! Tensors in files: `safetensors`, and PyTorch's own zip files (`torch.load`, `torch.save`).
//!
//! Bytes move between file and device through two alternating pinned buffers, so that reading one piece overlaps with copying the
//! previous one, for tensors of any size.

mod kind;
mod optimizer;
mod pickle;
mod pytorch;
mod safetensors;
mod stream;

use thalweg_tensor::Tensor;

use crate::module::StateDict;

pub use pytorch::{load, save};
pub use safetensors::{SafeTensorsFile, load_file, save_file};

/// A value that PyTorch saves: tensors, and the plain values and containers around them.
#[derive(Clone, Debug)]
pub enum Object {
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A string.
    Str(String),
    /// A tensor.
    Tensor(Tensor),
    /// A list.
    List(Vec<Object>),
    /// A tuple.
    Tuple(Vec<Object>),
    /// A dictionary, in insertion order.
    Dict(Vec<(Object, Object)>),
}

impl Object {
    /// Returns the value of a string key, if this is a dictionary that has it.
    pub fn get(&self, key: &str) -> Option<&Object> {
        let Self::Dict(pairs) = self else { return None };
        pairs.iter().find(|(name, _)| matches!(name, Self::Str(name) if name == key)).map(|(_, value)| value)
    }

    /// Returns the tensors by their names, if this is a dictionary of tensors.
    pub fn state_dict(&self) -> Option<StateDict> {
        let Self::Dict(pairs) = self else { return None };
        pairs
            .iter()
            .map(|pair| match pair {
                (Self::Str(name), Self::Tensor(tensor)) => Some((name.clone(), tensor.clone())),
                _ => None,
            })
            .collect()
    }
}

impl From<StateDict> for Object {
    fn from(dictionary: StateDict) -> Self {
        Self::Dict(
            dictionary.into_iter().map(|(name, tensor)| (Self::Str(name), Self::Tensor(tensor))).collect(),
        )
    }
}
