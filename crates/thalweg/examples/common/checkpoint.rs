//! Files of `--save` and `--resume`: a `.pt` file has the full state of training, any other file is a safetensors file of the
//! weights.

use thalweg::module::Module;
use thalweg::optim::OptimizerState;
use thalweg::random::default_generator;
use thalweg::serialize::{self, Object};
use thalweg::{Device, Error, Result};

/// The place where a run of training begins.
#[derive(Default)]
pub struct Start {
    /// The steps that were done before.
    pub step: usize,
    /// The state of the optimizer, if there is one.
    pub optimizer: Option<OptimizerState>,
}

fn is_whole(path: &str) -> bool {
    path.ends_with(".pt")
}

/// Loads the weights of a model from the file of `--resume`, if there is one, and the random state of the device. Returns the
/// place at which training continues.
pub fn resume(path: Option<&String>, model: &impl Module, device: &Device) -> Result<Start> {
    let Some(path) = path else { return Ok(Start::default()) };
    if !is_whole(path) {
        model.load_state_dict(&serialize::load_file(path, device)?)?;
        return Ok(Start::default());
    }
    let file = serialize::load(path, device)?;
    let lacks =
        |what: &str| Error::invalid(format!("{path} has no {what}: it is not a file of --save FILE.pt"));
    let number = |name: &str| {
        file.get(name).and_then(Object::as_i64).map(|number| number as u64).ok_or_else(|| lacks(name))
    };
    let weights = file.get("model").and_then(Object::state_dict).ok_or_else(|| lacks("model"))?;
    let optimizer =
        file.get("optimizer").and_then(Object::optimizer_state).ok_or_else(|| lacks("optimizer"))?;
    model.load_state_dict(&weights)?;
    default_generator(device)?.set_state(number("seed")?, number("offset")?)?;
    Ok(Start { step: number("step")? as usize, optimizer: Some(optimizer) })
}

/// Writes the file of `--save`, if requested, after the given total number of steps.
pub fn save(
    path: Option<&String>,
    model: &impl Module,
    optimizer: OptimizerState,
    step: usize,
    device: &Device,
) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    if !is_whole(path) {
        return serialize::save_file(&model.state_dict(), path, &[("format", "pt")]);
    }
    let (seed, offset) = default_generator(device)?.state()?;
    let checkpoint = Object::dict([
        ("model", model.state_dict().into()),
        ("optimizer", optimizer.into()),
        ("step", (step as i64).into()),
        ("seed", (seed as i64).into()),
        ("offset", (offset as i64).into()),
    ]);
    serialize::save(&checkpoint, path)
}
