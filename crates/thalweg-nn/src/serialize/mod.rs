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
///
/// A checkpoint is a dictionary:
///
/// ```
/// # use thalweg_nn::{module::{Linear, Module}, optim::{Adam, AdamOptions}, serialize::{self, Object}};
/// # let device = thalweg_runtime::Device::sim(0)?;
/// # let generator = &mut thalweg_tensor::random::Generator::new(0);
/// # let path = std::env::temp_dir().join(format!("checkpoint-{}.pt", std::process::id()));
/// let model = Linear::new(2, 1, generator, &device)?;
/// let mut optimizer = Adam::new(model.parameters(), AdamOptions::default())?;
/// let checkpoint = Object::dict([
///     ("model", model.state_dict().into()),
///     ("optimizer", optimizer.state_dict().into()),
///     ("step", 20.into()),
/// ]);
/// serialize::save(&checkpoint, &path)?;
///
/// let saved = serialize::load(&path, &device)?;
/// let part = |name| saved.get(name).expect("the checkpoint has this part");
/// model.load_state_dict(&part("model").state_dict().expect("tensors by name"))?;
/// optimizer.load_state_dict(&part("optimizer").optimizer_state().expect("the state of an optimizer"))?;
/// assert_eq!(part("step").as_i64(), Some(20));
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
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
    /// Makes a dictionary with string keys, in the order of the pairs.
    pub fn dict<K: Into<String>>(pairs: impl IntoIterator<Item = (K, Self)>) -> Self {
        Self::Dict(pairs.into_iter().map(|(key, value)| (Self::Str(key.into()), value)).collect())
    }

    /// Returns the number, if this is an integer.
    pub const fn as_i64(&self) -> Option<i64> {
        if let Self::Int(number) = self { Some(*number) } else { None }
    }

    /// Returns the number, if this is an integer or a floating-point number.
    pub const fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Int(number) => Some(*number as f64),
            Self::Float(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the text, if this is a string.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::Str(text) = self { Some(text) } else { None }
    }

    /// Returns the tensor, if this is one.
    pub const fn as_tensor(&self) -> Option<&Tensor> {
        if let Self::Tensor(tensor) = self { Some(tensor) } else { None }
    }

    /// Returns the value of a string key, if this is a dictionary that has it.
    pub fn get(&self, key: &str) -> Option<&Object> {
        let Self::Dict(pairs) = self else { return None };
        pairs.iter().find(|(name, _)| matches!(name, Self::Str(name) if name == key)).map(|(_, value)| value)
    }

    /// Returns the tensors by name, if this is a dictionary of tensors.
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

/// Implements `From` for the plain values of an object.
macro_rules! from_values {
    ($($type:ty => $variant:ident)*) => {$(
        impl From<$type> for Object {
            fn from(value: $type) -> Self {
                Self::$variant(value.into())
            }
        }
    )*};
}

from_values! { bool => Bool i32 => Int i64 => Int f64 => Float &str => Str String => Str Tensor => Tensor Vec<Object> => List }
