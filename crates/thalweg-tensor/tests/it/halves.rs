//! A backward pass in two halves compared with a single pass.

use thalweg_ir::DType;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::{backward_input, detect_anomaly, gradients};

use crate::support::device;

fn leaf(values: usize, shape: &[usize], device: &Device) -> Tensor {
    let numbers: Vec<f32> =
        (0..shape.iter().product()).map(|at: usize| ((at * 7 + values) % 13) as f32 / 6.0 - 1.0).collect();
    Tensor::from_slice(&numbers, shape, device).unwrap().requires_grad_().unwrap()
}

/// Two layers with one weight in both, a norm of its own parameters and a residual connection.
struct Network {
    weight: Tensor,
    bias: Tensor,
    scale: Tensor,
}

impl Network {
    fn new(device: &Device) -> Self {
        Self { weight: leaf(1, &[4, 4], device), bias: leaf(2, &[4], device), scale: leaf(3, &[4], device) }
    }

    fn run(&self, x: &Tensor) -> Result<Tensor> {
        let layer = |x: &Tensor| x.linear(&self.weight, Some(&self.bias));
        let hidden = layer(&x.mul(&self.scale)?)?.tanh()?;
        // The last part does not depend on the input.
        x.add(&layer(&hidden)?)?.add(&self.scale.exp()?)
    }

    fn leaves(&self) -> [&Tensor; 3] {
        [&self.weight, &self.bias, &self.scale]
    }

    fn gradients(&self) -> Vec<Vec<f32>> {
        self.leaves().map(|leaf| leaf.grad().expect("a gradient").to_vec().unwrap()).to_vec()
    }
}

#[test]
fn both_halves_have_the_bits_of_the_whole() -> Result<()> {
    let device = device();
    let [whole, halves] = [Network::new(&device), Network::new(&device)];
    let gradient = leaf(5, &[3, 4], &device).detach();
    for pass in 0..3 {
        let [one, two] = [leaf(7 + pass, &[3, 4], &device), leaf(7 + pass, &[3, 4], &device)];
        whole.run(&one)?.backward_with(&gradient)?;
        let before: Vec<Option<Vec<f32>>> = halves
            .leaves()
            .iter()
            .map(|leaf| leaf.grad().map(|gradient| gradient.to_vec().unwrap()))
            .collect();
        let (of_input, rest) = backward_input(&halves.run(&two)?, Some(&gradient), &two)?;
        assert_eq!(of_input.unwrap().to_vec::<f32>()?, one.grad().unwrap().to_vec::<f32>()?);
        assert!(two.grad().is_none());
        let after: Vec<Option<Vec<f32>>> = halves
            .leaves()
            .iter()
            .map(|leaf| leaf.grad().map(|gradient| gradient.to_vec().unwrap()))
            .collect();
        assert_eq!(before, after, "no leaf changes in the first half");
        rest.run()?;
        assert!(two.grad().is_none());
        assert_eq!(whole.gradients(), halves.gradients(), "pass {pass}");
    }
    Ok(())
}

#[test]
fn second_halves_may_run_in_any_order_and_later() -> Result<()> {
    let device = device();
    let [whole, halves] = [Network::new(&device), Network::new(&device)];
    let inputs: Vec<Tensor> = (0..3).map(|pass| leaf(pass, &[3, 4], &device)).collect();
    let mut rests = Vec::new();
    for input in &inputs {
        whole.run(&input.detach())?.sum(&[], false)?.backward()?;
        rests.push(backward_input(&halves.run(input)?.sum(&[], false)?, None, input)?.1);
    }
    for rest in rests {
        rest.run()?;
    }
    assert_eq!(whole.gradients(), halves.gradients());
    Ok(())
}

#[test]
fn an_output_that_does_not_depend_on_the_input_is_all_second_half() -> Result<()> {
    let device = device();
    let (x, weight) = (leaf(1, &[3], &device), leaf(2, &[3], &device));
    let (of_input, rest) = backward_input(&weight.square()?.sum(&[], false)?, None, &x)?;
    assert!(of_input.is_none() && weight.grad().is_none());
    rest.run()?;
    let doubled: Vec<f32> = weight.detach().to_vec::<f32>()?.iter().map(|value| 2.0 * value).collect();
    assert_eq!(weight.grad().unwrap().to_vec::<f32>()?, doubled);
    // An output that depends on nothing else leaves nothing for the second half.
    let (of_input, rest) = backward_input(&x.sum(&[], false)?, None, &x)?;
    assert_eq!(of_input.unwrap().to_vec::<f32>()?, [1.0; 3]);
    rest.run()?;
    assert!(x.grad().is_none());
    Ok(())
}

#[test]
fn what_the_graph_saved_is_freed_once() -> Result<()> {
    let device = device();
    let network = Network::new(&device);
    let x = leaf(1, &[3, 4], &device);
    let output = network.run(&x)?.sum(&[], false)?;
    let (_, rest) = backward_input(&output, None, &x)?;
    rest.run()?;
    let again = gradients(&[output], &[None], &[x]).unwrap_err();
    assert!(again.is_invalid_argument(), "{again}");
    let constant = Tensor::ones(&[1], DType::F32, &device)?;
    let error = backward_input(&constant, None, &constant).map(drop).unwrap_err();
    assert!(error.to_string().contains("depends on no leaf that requires a gradient"), "{error}");
    Ok(())
}

#[test]
fn the_first_half_computes_no_gradient_of_a_weight() -> Result<()> {
    let device = device();
    // A NaN in the input makes the weight's gradient NaN, but not that of the input.
    let input =
        |shape: &[usize]| Tensor::full(shape, f64::NAN, DType::F32, &device).and_then(|x| x.requires_grad_());
    let matrix = input(&[3, 4])?;
    let (weight, bias) = (leaf(1, &[4, 4], &device), leaf(2, &[4], &device));
    detect_anomaly(|| {
        for (name, y) in
            [("linear", matrix.linear(&weight, Some(&bias))?), ("matmul", matrix.matmul(&weight)?)]
        {
            let gradient = Tensor::ones(y.shape(), DType::F32, &device)?;
            let (of_input, rest) = backward_input(&y, Some(&gradient), &matrix)?;
            assert!(of_input.unwrap().to_vec::<f32>()?.iter().all(|value| value.is_finite()), "{name}");
            let error = rest.run().unwrap_err().to_string();
            assert!(error.contains("nan values"), "{name}: {error}");
        }
        Ok(())
    })
}
