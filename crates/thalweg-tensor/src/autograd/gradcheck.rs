//! Checks of gradients against finite differences (`torch.autograd.gradcheck`, `gradgradcheck`).

use thalweg_derive::at_line;
use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, invalid, options, refuse, refuse_if};

use super::{BackwardOptions, enable_grad, gradients_with};
use crate::random::Generator;
use crate::tensor::Tensor;

options! {
    /// The options of [`gradcheck`], with PyTorch's defaults.
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct GradcheckOptions {
        /// The distance by which inputs are moved for finite differences.
        pub eps: f64 = 1e-6,
        /// The absolute tolerance.
        pub atol: f64 = 1e-5,
        /// The relative tolerance.
        pub rtol: f64 = 1e-3,
        /// The tolerance between the gradients of two runs of backward.
        pub nondet_tol: f64 = 0.0,
    }
}

/// A function whose gradients are checked.
type Function<'a> = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'a;

/// A Jacobian: a row per element of the input, a column per element of the output.
type Jacobian = Vec<Vec<f64>>;

/// Checks the gradients of a function's outputs, with respect to all inputs that require one, against central differences
/// (`torch.autograd.gradcheck`): |analytical − numerical| ≤ atol + rtol · |numerical| for each element of each Jacobian. The
/// function computes its outputs from the inputs that it is passed, which are copies, and is called twice per element. With the
/// default options inputs must be f64. *Blocks*.
///
/// # Errors
/// [`Error::is_invalid_argument`], with PyTorch's message, if a gradient is wrong or differs in a second run, if no input
/// requires a gradient, or if elements of one share memory; and those of the function.
#[at_line]
pub fn gradcheck(
    function: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[Tensor],
    options: GradcheckOptions,
) -> Result<()> {
    check_gradients(&function, inputs, options)
}

fn check_gradients(function: &Function<'_>, inputs: &[Tensor], options: GradcheckOptions) -> Result<()> {
    check_inputs(inputs)?;
    let wanted: Vec<usize> = (0..inputs.len()).filter(|&index| inputs[index].requires_grad()).collect();
    let outputs = function(inputs)?;
    let mut numerical = Vec::new();
    for &input in &wanted {
        numerical.push(differences(function, inputs, input, outputs.len(), options.eps)?);
    }
    for (place, output) in outputs.iter().enumerate() {
        let numerical = numerical.iter().map(|by_output| &by_output[place]);
        if !output.requires_grad() {
            if numerical.flatten().flatten().any(|&slope| slope != 0.0) {
                refuse!("Numerical gradient for function expected to be zero");
            }
            continue;
        }
        let targets: Vec<Tensor> = wanted.iter().map(|&input| inputs[input].clone()).collect();
        let [analytical, again] = [jacobians(output, &targets)?, jacobians(output, &targets)?];
        for ((&input, numerical), analytical) in wanted.iter().zip(numerical).zip(&analytical) {
            compare(place, input, numerical, analytical, options)?;
        }
        let mut pairs = analytical.iter().flatten().flatten().zip(again.iter().flatten().flatten());
        let is_same = |first: f64, second: f64| {
            (first - second).abs() <= options.nondet_tol || first.to_bits() == second.to_bits()
        };
        refuse_if!(
            !pairs.all(|(&first, &second)| is_same(first, second)),
            "Backward is not reentrant, i.e., running backward with same input and grad_output multiple times gives different \
             values, although analytical gradient matches numerical gradient. The tolerance for nondeterminism was {}.",
            options.nondet_tol
        );
    }
    Ok(())
}

/// Checks the gradients of gradients of a function's outputs, with respect to all inputs that require one and to the gradients of
/// the outputs, as [`gradcheck`] does for gradients (`torch.autograd.gradgradcheck`). `output_gradients` has one per output that
/// requires a gradient; by default they are drawn from [−1, 1), with the same values every time. *Blocks*.
#[at_line]
pub fn gradgradcheck(
    function: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[Tensor],
    output_gradients: Option<&[Tensor]>,
    options: GradcheckOptions,
) -> Result<()> {
    check_second_gradients(&function, inputs, output_gradients, options)
}

fn check_second_gradients(
    function: &Function<'_>,
    inputs: &[Tensor],
    output_gradients: Option<&[Tensor]>,
    options: GradcheckOptions,
) -> Result<()> {
    check_inputs(inputs)?;
    let differentiable = |inputs: &[Tensor]| -> Result<Vec<Tensor>> {
        Ok(function(inputs)?.into_iter().filter(Tensor::requires_grad).collect())
    };
    let starts = match output_gradients {
        Some(given) => given.iter().map(|tensor| tensor.detach().requires_grad_()).collect(),
        None => drawn(&differentiable(inputs)?),
    }?;
    let first = |all: &[Tensor]| {
        let (inputs, starts) = all.split_at(inputs.len());
        let starts: Vec<Option<Tensor>> = starts.iter().cloned().map(Some).collect();
        let targets: Vec<Tensor> = inputs.iter().filter(|input| input.requires_grad()).cloned().collect();
        let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
        let found = enable_grad(|| gradients_with(&differentiable(inputs)?, &starts, &targets, options))?;
        Ok(found.into_iter().flatten().collect())
    };
    check_gradients(&first, &[inputs, &starts].concat(), options)
}

/// Returns a drawn gradient for each output.
fn drawn(outputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut generator = Generator::new(0);
    (outputs.iter())
        .map(|output| {
            let drawn = Tensor::uniform(output.shape(), -1.0, 1.0, &mut generator, output.device())?;
            drawn.to_dtype(output.dtype())?.requires_grad_()
        })
        .collect()
}

fn check_inputs(inputs: &[Tensor]) -> Result<()> {
    refuse_if!(
        !inputs.iter().any(Tensor::requires_grad),
        "gradcheck expects at least one input tensor to require gradient, but none of the them have requires_grad=True."
    );
    for (place, input) in inputs.iter().enumerate().filter(|(_, input)| input.requires_grad()) {
        refuse_if!(
            input.layout().may_overlap(),
            "The {place}th input has a dimension with stride 0. gradcheck only supports inputs that are non-overlapping to be able \
             to compute the numerical gradients correctly. You should call .contiguous on the input before passing it to gradcheck."
        );
    }
    Ok(())
}

/// Returns the elements as f64.
fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.detach().to_dtype(DType::F64)?.to_vec()
}

/// Returns the Jacobian of each output with respect to an input, by central differences.
fn differences(
    function: &Function<'_>,
    inputs: &[Tensor],
    input: usize,
    outputs: usize,
    eps: f64,
) -> Result<Vec<Jacobian>> {
    let tensor = &inputs[input];
    let origin = numbers(tensor)?;
    let at = |element: usize, offset: f64| -> Result<Vec<Vec<f64>>> {
        let mut moved = origin.clone();
        moved[element] += offset;
        let moved = Tensor::from_slice(&moved, tensor.shape(), tensor.device())?.to_dtype(tensor.dtype())?;
        let mut copies = inputs.to_vec();
        copies[input] = moved.requires_grad_()?;
        function(&copies)?.iter().map(numbers).collect()
    };
    let mut found = vec![Jacobian::new(); outputs];
    for element in 0..origin.len() {
        let (above, below) = (at(element, eps)?, at(element, -eps)?);
        for (jacobian, (above, below)) in found.iter_mut().zip(above.iter().zip(&below)) {
            jacobian
                .push(above.iter().zip(below).map(|(above, below)| (above - below) / (2.0 * eps)).collect());
        }
    }
    Ok(found)
}

/// Returns the Jacobian of an output with respect to each target, by a backward pass per element of the output.
fn jacobians(output: &Tensor, targets: &[Tensor]) -> Result<Vec<Jacobian>> {
    let count = output.elements();
    let mut found: Vec<Jacobian> =
        targets.iter().map(|target| vec![vec![0.0; count]; target.elements()]).collect();
    for column in 0..count {
        let mut start = vec![0.0; count];
        start[column] = 1.0;
        let start = Tensor::from_slice(&start, output.shape(), output.device())?.to_dtype(output.dtype())?;
        let options = BackwardOptions { retain_graph: true, ..BackwardOptions::default() };
        let gradients = gradients_with(std::slice::from_ref(output), &[Some(start)], targets, options)?;
        for (jacobian, gradient) in found.iter_mut().zip(gradients) {
            let Some(gradient) = gradient else { continue };
            for (row, slope) in jacobian.iter_mut().zip(numbers(&gradient)?) {
                row[column] = slope;
            }
        }
    }
    Ok(found)
}

fn compare(
    output: usize,
    input: usize,
    numerical: &Jacobian,
    analytical: &Jacobian,
    options: GradcheckOptions,
) -> Result<()> {
    let is_close = |(numerical, analytical): (&f64, &f64)| {
        analytical == numerical
            || (analytical - numerical).abs() <= options.atol + options.rtol * numerical.abs()
    };
    if numerical.iter().flatten().zip(analytical.iter().flatten()).all(is_close) {
        return Ok(());
    }
    Err(invalid!(
        "Jacobian mismatch for output {output} with respect to input {input},\nnumerical:{numerical:?}\nanalytical:{analytical:?}\n"
    ))
}
