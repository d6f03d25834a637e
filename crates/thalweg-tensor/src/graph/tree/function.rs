//! The functions of a [`GraphTreeManager`](super::GraphTreeManager), and the sizes that they are captured for.

use std::fmt;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use thalweg_ir::{DType, Shape};
use thalweg_runtime::{Error, Result, refuse};

use crate::tensor::Tensor;

/// The identifier of a function of a [`GraphTreeManager`](super::GraphTreeManager) (PyTorch: `FunctionID`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FunctionId(pub(super) usize);

/// The options of a function: its static inputs, and the sizes to capture.
#[derive(Clone, Debug, Default)]
pub struct FunctionOptions {
    /// The indices of the inputs that have the same address at nearly every call: parameters, caches. Graphs read and write them in
    /// place. When one has moved, another graph is recorded.
    pub static_inputs: Vec<usize>,
    /// The sizes to capture, for a function whose inputs have a dimension that varies.
    pub sizes: Option<CaptureSizes>,
}

/// The sizes at which a varying dimension is captured: the inputs of a call are padded to the next larger size, and its outputs
/// narrowed.
#[derive(Clone, Debug)]
pub struct CaptureSizes {
    /// The sizes, in any order. A call that is larger than all of them runs eagerly, without padding.
    pub sizes: Vec<usize>,
    /// The inputs that vary, each with its dimension. All inputs have the same size in these dimensions.
    pub inputs: Vec<(usize, usize)>,
    /// The outputs to narrow to the size of the call, each with its dimension.
    pub outputs: Vec<(usize, usize)>,
    /// The elements of the padding.
    pub padding: Padding,
}

/// A function that pads a tensor: takes the input, the dimension and the requested size, and returns a tensor of that size.
pub type PaddingFunction = Arc<dyn Fn(&Tensor, usize, usize) -> Result<Tensor> + Send + Sync>;

/// The elements that an input is padded with.
#[derive(Clone)]
pub enum Padding {
    /// One value, after the input's elements. The results for the input's elements must not depend on elements after them: rows
    /// of a batch, or tokens with a causal mask.
    Value(f64),
    /// The result of a function.
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

/// The computation of a function.
pub(super) type FunctionBody = Arc<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// A registered function, and the facts known from its calls.
pub(super) struct Function {
    pub(super) name: String,
    pub(super) options: FunctionOptions,
    pub(super) body: FunctionBody,
    /// The number of eager runs by shapes.
    pub(super) warm: FxHashMap<CallKey, usize>,
    /// The reason why the function always runs eagerly, if it does.
    pub(super) eager: Option<String>,
    /// The number of times that an invariant of its graphs failed.
    pub(super) failed_invariants: usize,
    /// The number of times that each managed input had moved.
    pub(super) moves: FxHashMap<usize, usize>,
    /// The inputs that are copied even if they are in the pool.
    pub(super) demoted: FxHashSet<usize>,
    /// The inputs that a run has written.
    pub(super) written: FxHashSet<usize>,
    /// A flag that is set once a run has shown which inputs it writes.
    pub(super) writes_are_known: bool,
}

/// The key of a call, by which nodes are found: the function, and the shape and dtype of each input.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct CallKey {
    pub(super) function: usize,
    inputs: SmallVec<[(Shape, DType); 4]>,
}

impl CallKey {
    pub(super) fn new(function: usize, inputs: &[Tensor]) -> Self {
        let inputs = inputs.iter().map(|input| (input.shape().into(), input.dtype())).collect();
        Self { function, inputs }
    }
}

/// The inputs of a call, padded to a captured size.
pub(super) struct CallInputs {
    pub(super) tensors: Vec<Tensor>,
    /// The padded inputs before padding, with their dimension.
    originals: Vec<Option<(Tensor, usize)>>,
    /// The size before padding, if the call is padded.
    pub(super) unpadded_size: Option<usize>,
}

impl CallInputs {
    /// Returns inputs that need no padding.
    pub(super) fn exact(tensors: Vec<Tensor>) -> Self {
        Self { originals: tensors.iter().map(|_| None).collect(), tensors, unpadded_size: None }
    }

    /// Copies an input that the function has changed back to the caller's tensor, without the padding.
    pub(super) fn write_back(&self, index: usize, changed: &Tensor) -> Result<()> {
        match (&self.originals[index], self.unpadded_size) {
            (Some((original, dimension)), Some(size)) => {
                original.copy_(&changed.narrow(*dimension as i64, 0, size)?)
            }
            _ => self.tensors[index].copy_(changed),
        }
    }

    /// Returns whether an input is a padded copy, which only this call holds.
    pub(super) fn is_padded(&self, index: usize) -> bool {
        self.originals[index].is_some()
    }

    /// Returns the caller's tensors that the call still holds, for padded inputs those before padding.
    pub(super) fn given(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors
            .iter()
            .zip(&self.originals)
            .map(|(input, original)| original.as_ref().map_or(input, |(original, _)| original))
    }

    /// Drops the caller's tensor of an input, and replaces it by another one.
    pub(super) fn replace(&mut self, index: usize, by: Tensor) {
        self.tensors[index] = by;
        self.originals[index] = None;
    }
}

impl Function {
    pub(super) fn new(name: &str, options: FunctionOptions, body: FunctionBody) -> Result<Self> {
        if let Some(sizes) = &options.sizes {
            let is_static = sizes.inputs.iter().find(|(input, _)| options.static_inputs.contains(input));
            if let Some((input, _)) = is_static {
                refuse!(
                    "{name}: input {input} cannot both vary in size and lie at one address: take it from one of the lists"
                );
            }
            if sizes.inputs.is_empty() || sizes.sizes.is_empty() {
                refuse!("{name}: sizes to capture need a size and an input that varies");
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
            failed_invariants: 0,
            moves: FxHashMap::default(),
            demoted: FxHashSet::default(),
            written: FxHashSet::default(),
            writes_are_known: false,
        })
    }

    /// Pads the inputs to the smallest captured size that they fit in; `Err` with the inputs and the reason if there is none.
    pub(super) fn pad_inputs(
        &self,
        inputs: Vec<Tensor>,
    ) -> Result<Result<CallInputs, (Vec<Tensor>, String)>> {
        let Some(sizes) = &self.options.sizes else { return Ok(Ok(CallInputs::exact(inputs))) };
        let size = self.size(sizes, &inputs)?;
        let Some(&wanted) = sizes.sizes.iter().find(|&&wanted| wanted >= size) else {
            let reason = format!("size {size} is larger than all captured ones: {:?}", sizes.sizes);
            return Ok(Err((inputs, reason)));
        };
        let mut inputs = CallInputs::exact(inputs);
        if wanted == size {
            return Ok(Ok(inputs));
        }
        for &(input, dimension) in &sizes.inputs {
            let padded = pad(&inputs.tensors[input], dimension, wanted, &sizes.padding)?;
            let original = std::mem::replace(&mut inputs.tensors[input], padded);
            inputs.originals[input] = Some((original, dimension));
        }
        inputs.unpadded_size = Some(size);
        Ok(Ok(inputs))
    }

    /// Returns the reason why the inputs must not be copied one by one, if they share memory that the function writes.
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
                    refuse!(
                        "input {input} has {found:?} in dimension {dimension}, which varies: it must be there, and the same in \
                         all inputs that vary ({size:?})"
                    );
                }
            }
        }
        Ok(size.expect("checked at registration: there is an input that varies"))
    }

    /// Narrows the outputs of a padded call to its size before padding.
    pub(super) fn narrow_outputs(&self, outputs: Vec<Tensor>, size: Option<usize>) -> Result<Vec<Tensor>> {
        let (Some(sizes), Some(size)) = (&self.options.sizes, size) else { return Ok(outputs) };
        let mut outputs = outputs;
        for &(output, dimension) in &sizes.outputs {
            let Some(whole) = outputs.get(output) else {
                refuse!("output {output} is to be narrowed, but the function returns {}", outputs.len());
            };
            outputs[output] = whole.narrow(dimension as i64, 0, size)?;
        }
        Ok(outputs)
    }

    /// Runs the function without a graph, and records which inputs it writes.
    pub(super) fn run_eagerly(&mut self, inputs: &CallInputs) -> Result<Vec<Tensor>> {
        let versions: Vec<u32> = inputs.tensors.iter().map(Tensor::writes).collect();
        let outputs = (self.body)(&inputs.tensors)?;
        self.note_writes(&inputs.tensors, &versions);
        for (index, version) in versions.into_iter().enumerate() {
            if inputs.is_padded(index) && inputs.tensors[index].writes() != version {
                inputs.write_back(index, &inputs.tensors[index])?;
            }
        }
        self.narrow_outputs(outputs, inputs.unpadded_size)
    }

    /// Records which inputs have a different version than before a run.
    pub(super) fn note_writes(&mut self, inputs: &[Tensor], before: &[u32]) {
        let changed =
            inputs.iter().zip(before).enumerate().filter(|(_, (input, before))| input.writes() != **before);
        self.written.extend(changed.map(|(index, _)| index));
        self.writes_are_known = true;
    }
}

/// Returns an input padded to a size, and checks a caller's padding function.
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
        refuse!("the padding of {input:?} must give {shape:?}, not {padded:?}");
    }
    Ok(padded)
}
