//! State dictionaries: parameters and buffers by name, saved, loaded, converted.

use std::panic::Location;

use indexmap::IndexMap;
use thalweg_runtime::{Error, Result, refuse, refuse_if};
use thalweg_tensor::caller::at_line;
use thalweg_tensor::warning::warn;
use thalweg_tensor::{Tensor, no_grad};

use super::{Entry, EntryMut, Visit, walk_parts};

/// Tensors by name, in the order of the module (`state_dict`).
pub type StateDict = IndexMap<String, Tensor>;

/// The names that only the module or only the saved state has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IncompatibleKeys {
    /// Names of the module that were not saved.
    pub missing_keys: Vec<String>,
    /// Names that were saved and the module does not have.
    pub unexpected_keys: Vec<String>,
}

/// Returns the tensors that `choose` finds among the parts of a module, each once, with their names.
pub(super) fn named<'a>(
    visit: &Visit<'_, 'a>,
    choose: fn(Entry<'a>) -> Option<&'a Tensor>,
) -> Vec<(String, Tensor)> {
    let mut list: Vec<(String, Tensor)> = Vec::new();
    walk_parts(visit, "", &mut |name, entry| {
        if let Some(tensor) = choose(entry)
            && !list.iter().any(|(_, known)| known.is_same(tensor))
        {
            list.push((name.to_owned(), tensor.clone()));
        }
    });
    list
}

/// Returns the tensors alone.
pub(super) fn without_names(list: Vec<(String, Tensor)>) -> Vec<Tensor> {
    list.into_iter().map(|(_, tensor)| tensor).collect()
}

/// Sets whether tensors require gradients.
pub(super) fn set_requires_grad(
    tensors: &[Tensor],
    requires_grad: bool,
    location: &'static Location<'static>,
) -> Result<()> {
    at_line(location, || tensors.iter().try_for_each(|tensor| tensor.set_requires_grad(requires_grad)))
}

/// Returns the parameters and then the buffers of each module, as PyTorch orders them.
pub(super) fn state_dict<'a>(visit: &Visit<'_, 'a>, type_name: &str) -> StateDict {
    let mut dictionary = StateDict::new();
    let mut repeated = Vec::new();
    collect(visit, "", &mut dictionary, &mut repeated);
    if !repeated.is_empty() {
        warn(&repetition(type_name, &repeated));
    }
    dictionary
}

/// Returns the text about names that several tensors of a module have.
fn repetition(type_name: &str, names: &[String]) -> String {
    format!("{type_name} has several tensors of the same name: {}; give their fields a `name`", quoted(names))
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

fn collect<'a>(visit: &Visit<'_, 'a>, prefix: &str, dictionary: &mut StateDict, repeated: &mut Vec<String>) {
    let (mut own, mut buffers, mut children) = (Vec::new(), Vec::new(), Vec::new());
    visit(&mut |name, entry| {
        let name = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
        match entry {
            Entry::Parameter(tensor) => own.push((name, tensor.detach())),
            Entry::Buffer(tensor) => buffers.push((name, tensor.detach())),
            Entry::Child(child) => children.push((name, child)),
            Entry::Training(_) => {}
        }
    });
    for (name, tensor) in own.into_iter().chain(buffers) {
        if dictionary.insert(name.clone(), tensor).is_some() {
            repeated.push(name);
        }
    }
    for (name, child) in children {
        collect(&|visitor| child.visit(visitor), &name, dictionary, repeated);
    }
}

/// Overwrites the tensors of a module of some type with saved ones.
pub(super) fn load<'a>(
    visit: &Visit<'_, 'a>,
    type_name: &str,
    saved: &StateDict,
    strict: bool,
    location: &'static Location<'static>,
) -> Result<IncompatibleKeys> {
    at_line(location, || {
        let (mut own, mut repeated) = (StateDict::new(), Vec::new());
        collect(visit, "", &mut own, &mut repeated);
        refuse_if!(!repeated.is_empty(), "{}", repetition(type_name, &repeated));
        load_into(&own, type_name, saved, strict)
    })
}

fn load_into(own: &StateDict, type_name: &str, saved: &StateDict, strict: bool) -> Result<IncompatibleKeys> {
    let keys = IncompatibleKeys {
        missing_keys: own.keys().filter(|name| !saved.contains_key(*name)).cloned().collect(),
        unexpected_keys: saved.keys().filter(|name| !own.contains_key(*name)).cloned().collect(),
    };
    let mut errors = Vec::new();
    if strict && !keys.missing_keys.is_empty() {
        errors.push(format!("Missing key(s) in state_dict: {}.", quoted(&keys.missing_keys)));
    }
    if strict && !keys.unexpected_keys.is_empty() {
        errors.push(format!("Unexpected key(s) in state_dict: {}.", quoted(&keys.unexpected_keys)));
    }
    let pairs: Vec<_> =
        own.iter().filter_map(|(name, target)| Some((name, target, saved.get(name)?))).collect();
    for (name, target, source) in &pairs {
        if target.shape() != source.shape() {
            errors.push(format!(
                "size mismatch for {name}: copying a param with shape torch.Size({:?}) from checkpoint, the shape in current \
                 model is torch.Size({:?}).",
                source.shape(),
                target.shape()
            ));
        }
    }
    if !errors.is_empty() {
        let errors = errors.join("\n\t");
        refuse!("Error(s) in loading state_dict for {type_name}:\n\t{errors}");
    }
    let sources = pairs
        .iter()
        .map(|(_, target, source)| source.to_device(target.device()))
        .collect::<Result<Vec<_>>>()?;
    no_grad(|| pairs.iter().zip(&sources).try_for_each(|((_, target, _), source)| target.copy_(source)))?;
    Ok(keys)
}

/// Returns the results of a function of every parameter and buffer.
pub(super) fn converted<'a>(
    visit: &Visit<'_, 'a>,
    location: &'static Location<'static>,
    function: &dyn Fn(&Tensor) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    at_line(location, || {
        let mut tensors = Vec::new();
        walk_parts(visit, "", &mut |_, entry| {
            if let Entry::Parameter(tensor) | Entry::Buffer(tensor) = entry {
                tensors.push(tensor.clone());
            }
        });
        let convert = |old: &Tensor| {
            let new = no_grad(|| function(&old.detach()))?.detach();
            new.set_requires_grad(old.requires_grad())?;
            Ok::<_, Error>(new)
        };
        let mut converted: Vec<Tensor> = Vec::with_capacity(tensors.len());
        for (place, tensor) in tensors.iter().enumerate() {
            // A tied tensor is converted once.
            let earlier = tensors[..place].iter().position(|earlier| earlier.is_same(tensor));
            converted.push(match earlier {
                Some(earlier) => converted[earlier].clone(),
                None => convert(tensor)?,
            });
        }
        Ok(converted)
    })
}

/// Returns a function that replaces every parameter and buffer by the next of these.
pub(super) fn replaced_by(tensors: Vec<Tensor>) -> impl FnMut(EntryMut<'_>) {
    let mut tensors = tensors.into_iter();
    move |entry| {
        if let EntryMut::Parameter(tensor) | EntryMut::Buffer(tensor) = entry {
            *tensor = tensors.next().expect("a tensor per tensor");
        }
    }
}
