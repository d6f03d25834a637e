//! The lines that errors of modules name: those at which the user's code calls a layer.

use thalweg_ir::DType;
use thalweg_nn::module::{Forward, Linear, Module, ReLU, Sequential, Tanh};
use thalweg_runtime::{Error, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use crate::support::device;

/// Two layers that do not fit.
#[derive(Module)]
struct Net {
    first: Linear,
    second: Linear,
}

const SECOND: u32 = line!() + 6;

impl Forward for Net {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.first.forward(x)?.relu()?;
        // The next line is what errors name.
        self.second.forward(&x)
    }
}

#[derive(Module)]
struct Deep {
    blocks: Vec<Net>,
}

impl Forward for Deep {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.blocks.iter().try_fold(x.clone(), |x, block| block.forward(&x))
    }
}

fn linear(inputs: usize, outputs: usize) -> Linear {
    Linear::new(inputs, outputs, &mut Generator::new(0), &device()).unwrap()
}

fn net() -> Net {
    Net { first: linear(2, 3), second: linear(4, 5) }
}

#[track_caller]
fn assert_at(result: Result<Tensor>, line: u32) -> Error {
    let error = result.unwrap_err();
    let location = error.location().expect("the error has a line");
    assert_eq!((location.file(), location.line()), (file!(), line), "{error}");
    error
}

#[test]
fn an_error_names_the_line_of_the_layer_in_the_users_module() {
    let x = Tensor::ones(&[1, 2], DType::F32, &device()).unwrap();
    assert_at(net().forward(&x), SECOND);
    assert_at(Deep { blocks: vec![net()] }.forward(&x), SECOND);
    let boxed: Box<dyn Forward> = Box::new(net());
    assert_at(boxed.forward(&x), SECOND);
    let error = assert_at(Sequential::new().then(Tanh).then(net()).forward(&x), SECOND);
    assert!(error.to_string().starts_with("in layer 1 (Net): "), "{error}");
}

#[test]
fn an_error_of_a_layer_in_a_box_or_a_sequence_names_the_call() {
    let x = Tensor::ones(&[1, 2], DType::F32, &device()).unwrap();
    let boxed: Box<dyn Forward> = Box::new(linear(4, 5));
    assert_at(boxed.forward(&x), line!());
    let layers = Sequential::new().then(linear(2, 3)).then(ReLU).then(linear(4, 5));
    let error = assert_at(layers.forward(&x), line!());
    assert!(error.to_string().starts_with("in layer 2 (Linear): "), "{error}");
    let nested = Sequential::new().then(Tanh).then(layers);
    let error = assert_at(nested.forward(&x), line!());
    assert!(error.to_string().starts_with("in layer 1 (Sequential): in layer 2 (Linear): "), "{error}");
    // Later calls have lines of their own.
    assert_at(linear(4, 5).forward(&x), line!());
}
