//! Functions of a tree, and the sizes that they are captured for.

use std::fmt;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use thalweg_ir::{DType, Shape};
use thalweg_runtime::{Error, Result};

use crate::tensor::Tensor;

/// A function of a [`GraphTree`](super::GraphTree).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FunctionId(pub(super) usize);

/// What is known of a function.
#[derive(Clone, Debug, Default)]
pub struct FunctionOptions {
    /// The inputs that lie at the same address at nearly every call: parameters, caches. Graphs read and write them where they
    /// are. When one has moved, another graph is recorded.
    pub static_inputs: Vec<usize>,
    /// The sizes to capture, of a function whose inputs have a dimension that varies.
    pub sizes: Option<CaptureSizes>,
}

/// Sizes of a dimension that varies: a call is padded to the nearest one that fits, and its outputs are cut back.
#[derive(Clone, Debug)]
pub struct CaptureSizes {
    /// The sizes. A call that is larger than all runs eagerly, as it is.
    pub sizes: Vec<usize>,
    /// Inputs and their dimension that varies. All have the same size there.
    pub inputs: Vec<(usize, usize)>,
    /// Outputs and their dimension that is cut back.
    pub outputs: Vec<(usize, usize)>,
    /// What padding holds.
    pub padding: Padding,
}

/// Makes an input longer: from the input, a dimension and the wanted size to a tensor of that size there.
pub type PaddingFunction = Arc<dyn Fn(&Tensor, usize, usize) -> Result<Tensor> + Send + Sync>;

/// How an input is made longer.
#[derive(Clone)]
pub enum Padding {
    /// By this value, behind what is there. The function must give the same results for what is there whatever follows: rows of a
    /// batch, or tokens behind a causal mask.
    Value(f64),
    /// By a function of the caller's.
    By(PaddingFunction),
}

impl fmt::Debug for Padding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => write!(f, "Value({value})"),
            Self::By(_) => f.write_str("By(function)"),
        }
    }
}

/// What a function does.
pub(super) type Body = Arc<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// A registered function, with what was learned of it.
pub(super) struct Function {
    pub(super) name: String,
    pub(super) options: FunctionOptions,
    pub(super) body: Body,
    /// Eager runs by shapes.
    pub(super) warm: FxHashMap<Key, usize>,
    /// Why it is not captured any more.
    pub(super) eager: Option<String>,
    /// How often an assumption about it was broken.
    pub(super) broken: usize,
    /// How often each input in the pool had moved.
    pub(super) moves: FxHashMap<usize, usize>,
    /// Inputs that are copied wherever they are.
    pub(super) demoted: FxHashSet<usize>,
    /// The inputs that it was seen to write.
    pub(super) written: FxHashSet<usize>,
    /// Whether it was looked at.
    pub(super) was_seen: bool,
}

/// Which graph can serve a call, as far as shapes say: the function, and shape and dtype of each input.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    pub(super) function: usize,
    inputs: SmallVec<[(Shape, DType); 4]>,
}

impl Key {
    pub(super) fn new(function: usize, inputs: &[Tensor]) -> Self {
        let inputs = inputs.iter().map(|input| (input.shape().into(), input.dtype())).collect();
        Self { function, inputs }
    }
}

/// The inputs of a call, padded where they had to be.
pub(super) struct Fitted {
    pub(super) inputs: Vec<Tensor>,
    /// What was padded, with its dimension.
    originals: Vec<Option<(Tensor, usize)>>,
    /// The size before, of a padded call.
    pub(super) cut: Option<usize>,
}

impl Fitted {
    /// Inputs that need no padding.
    pub(super) fn exact(inputs: Vec<Tensor>) -> Self {
        Self { originals: inputs.iter().map(|_| None).collect(), inputs, cut: None }
    }

    /// Where a change of an input belongs, and the part of `changed` that it is.
    pub(super) fn write_back(&self, index: usize, changed: &Tensor) -> Result<()> {
        match (&self.originals[index], self.cut) {
            (Some((original, dimension)), Some(size)) => {
                original.copy_(&changed.narrow(*dimension as i64, 0, size)?)
            }
            _ => self.inputs[index].copy_(changed),
        }
    }

    /// Whether an input is a padded copy already, of which nobody else knows.
    pub(super) fn is_padded(&self, index: usize) -> bool {
        self.originals[index].is_some()
    }

    /// Every tensor of the caller's that the call holds.
    pub(super) fn of_caller(&self) -> impl Iterator<Item = &Tensor> {
        self.inputs
            .iter()
            .zip(&self.originals)
            .map(|(input, original)| original.as_ref().map_or(input, |(original, _)| original))
    }

    /// Lets go of an input of the caller's.
    pub(super) fn replace(&mut self, index: usize, by: Tensor) {
        self.inputs[index] = by;
        self.originals[index] = None;
    }
}

impl Function {
    pub(super) fn new(name: &str, options: FunctionOptions, body: Body) -> Result<Self> {
        if let Some(sizes) = &options.sizes {
            let is_static = sizes.inputs.iter().find(|(input, _)| options.static_inputs.contains(input));
            if let Some((input, _)) = is_static {
                return Err(Error::invalid(format!(
                    "{name}: input {input} cannot both vary in size and lie at one address: take it from one of the lists"
                )));
            }
            if sizes.inputs.is_empty() || sizes.sizes.is_empty() {
                return Err(Error::invalid(format!(
                    "{name}: sizes to capture need a size and an input that varies"
                )));
            }
        }
        let mut options = options;
        if let Some(sizes) = &mut options.sizes {
            sizes.sizes.sort_unstable();
        }
        Ok(Self {
            name: name.to_owned(),
            options,
            body,
            warm: FxHashMap::default(),
            eager: None,
            broken: 0,
            moves: FxHashMap::default(),
            demoted: FxHashSet::default(),
            written: FxHashSet::default(),
            was_seen: false,
        })
    }

    /// Pads the inputs to the nearest size that fits; `Err` with the inputs and the reason where there is none.
    pub(super) fn fit(&self, inputs: Vec<Tensor>) -> Result<Result<Fitted, (Vec<Tensor>, String)>> {
        let Some(sizes) = &self.options.sizes else { return Ok(Ok(Fitted::exact(inputs))) };
        let size = self.size(sizes, &inputs)?;
        let Some(&wanted) = sizes.sizes.iter().find(|&&wanted| wanted >= size) else {
            let reason = format!("size {size} is larger than all captured ones: {:?}", sizes.sizes);
            return Ok(Err((inputs, reason)));
        };
        let mut fitted = Fitted::exact(inputs);
        if wanted == size {
            return Ok(Ok(fitted));
        }
        for &(input, dimension) in &sizes.inputs {
            let padded = pad(&fitted.inputs[input], dimension, wanted, &sizes.padding)?;
            let original = std::mem::replace(&mut fitted.inputs[input], padded);
            fitted.originals[input] = Some((original, dimension));
        }
        fitted.cut = Some(size);
        Ok(Ok(fitted))
    }

    /// Why inputs that share memory had better not be copied one by one.
    pub(super) fn reason_against_aliases(&self, inputs: &[Tensor]) -> Option<String> {
        if self.written.is_empty() {
            return None;
        }
        let is_static = |index: &usize| self.options.static_inputs.contains(index);
        let pairs = (0..inputs.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
        let (first, second) = pairs
            .filter(|(first, second)| !(is_static(first) && is_static(second)))
            .find(|&(first, second)| inputs[first].shares_storage_with(&inputs[second]))?;
        Some(format!("it changes inputs, and inputs {first} and {second} share memory: make both static"))
    }

    fn size(&self, sizes: &CaptureSizes, inputs: &[Tensor]) -> Result<usize> {
        let mut size = None;
        for &(input, dimension) in &sizes.inputs {
            let found = inputs.get(input).and_then(|input| input.shape().get(dimension)).copied();
            match (found, size) {
                (Some(found), None) => size = Some(found),
                (Some(found), Some(size)) if found == size => {}
                _ => {
                    return Err(Error::invalid(format!(
                        "input {input} has {found:?} in dimension {dimension}, which varies: it must be there, and the same in \
                         all inputs that vary ({size:?})"
                    )));
                }
            }
        }
        Ok(size.expect("checked at registration: there is an input that varies"))
    }

    /// Cuts outputs of a padded call back.
    pub(super) fn cut(&self, outputs: Vec<Tensor>, size: Option<usize>) -> Result<Vec<Tensor>> {
        let (Some(sizes), Some(size)) = (&self.options.sizes, size) else { return Ok(outputs) };
        let mut outputs = outputs;
        for &(output, dimension) in &sizes.outputs {
            let Some(whole) = outputs.get(output) else {
                return Err(Error::invalid(format!(
                    "output {output} is to be cut back, but there are {}",
                    outputs.len()
                )));
            };
            outputs[output] = whole.narrow(dimension as i64, 0, size)?;
        }
        Ok(outputs)
    }

    /// Runs it without a graph, and sees which inputs it writes.
    pub(super) fn run_eagerly(&mut self, fitted: &Fitted) -> Result<Vec<Tensor>> {
        let versions: Vec<u32> = fitted.inputs.iter().map(Tensor::version).collect();
        let outputs = (self.body)(&fitted.inputs)?;
        self.see_writes(&fitted.inputs, &versions);
        for (index, version) in versions.into_iter().enumerate() {
            if fitted.is_padded(index) && fitted.inputs[index].version() != version {
                fitted.write_back(index, &fitted.inputs[index])?;
            }
        }
        self.cut(outputs, fitted.cut)
    }

    /// Notes which inputs have another version than before a run.
    pub(super) fn see_writes(&mut self, inputs: &[Tensor], before: &[u32]) {
        let changed =
            inputs.iter().zip(before).enumerate().filter(|(_, (input, before))| input.version() != **before);
        self.written.extend(changed.map(|(index, _)| index));
        self.was_seen = true;
    }
}

fn pad(input: &Tensor, dimension: usize, size: usize, padding: &Padding) -> Result<Tensor> {
    let mut shape: Shape = input.shape().into();
    shape[dimension] = size;
    let padded = match padding {
        Padding::By(function) => function(input, dimension, size)?,
        Padding::Value(value) => {
            let padded = Tensor::full(&shape, *value, input.dtype(), input.device())?;
            padded.narrow(dimension as i64, 0, input.shape()[dimension])?.copy_(input)?;
            padded
        }
    };
    if padded.shape() != shape.as_slice() || padded.dtype() != input.dtype() {
        return Err(Error::invalid(format!("the padding of {input:?} must give {shape:?}, not {padded:?}")));
    }
    Ok(padded)
}
