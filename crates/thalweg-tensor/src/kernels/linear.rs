//! A linear layer as one operator: `input · weightᵀ + bias + addend`, and its gradients.
//!
//! A small layer of f32 is one kernel, and so are the gradients of weight and bias together
//! ([`fused`](thalweg_kernels::matmul::fused)). Any other layer is a product that is added to the bias or the addend.

use smallvec::SmallVec;
use thalweg_execute::execute;
use thalweg_execute::products::{Product, ProductWith, takes_bias, takes_few_rows};
use thalweg_kernels::matmul::few_rows::FewRows;
use thalweg_kernels::matmul::fused::{FusedMatmul, PerOperand, fits};
use thalweg_kernels::matmul::{Factor, Matmul, Operand};
use thalweg_ops::{structured, table};
use thalweg_runtime::{Error, Label, MatmulEpilogue, Result, invalid, refuse};

use super::matmul::{matrix, product, summed_product, summed_rows};
use crate::autograd::{Backward, Gradients, Request, Saved, is_grad_enabled, record};
use crate::dispatch::{Arguments, Call};
use crate::loops::{LoopArguments, run_into};
use crate::native::launch;
use crate::tensor::{Tensor, Tensors};

/// The tensors of a call.
struct Operands<'a> {
    input: &'a Tensor,
    weight: &'a Tensor,
    bias: Option<&'a Tensor>,
    addend: Option<&'a Tensor>,
}

impl<'a> Operands<'a> {
    fn new(call: &'a Call<'_>) -> Result<Self> {
        let result = Self {
            input: call.tensor(0),
            weight: call.tensor(1),
            bias: call.optional_tensor(2),
            addend: call.optional_tensor(3),
        };
        result.check()?;
        Ok(result)
    }

    fn check(&self) -> Result<()> {
        let &[rows, inputs] = self.input.shape() else {
            refuse!("the input has 2 dimensions, not {:?}", self.input.shape());
        };
        let outputs = match self.weight.shape() {
            &[outputs, width] if width == inputs => outputs,
            other => {
                refuse!("the weight is (out, {inputs}) for an input of {inputs} features, not {other:?}");
            }
        };
        for (name, tensor, shape) in
            [("bias", self.bias, &[outputs][..]), ("addend", self.addend, &[rows, outputs][..])]
        {
            if let Some(tensor) = tensor
                && tensor.shape() != shape
            {
                refuse!("the {name} is {shape:?}, not {:?}", tensor.shape());
            }
        }
        let dtype = self.input.dtype();
        let others = [Some(self.weight), self.bias, self.addend];
        match others.into_iter().flatten().find(|tensor| tensor.dtype() != dtype) {
            Some(other) => Err(invalid!(
                "the dtypes differ ({dtype} and {}); convert one with `to_dtype`",
                other.dtype()
            )),
            None => Ok(()),
        }
    }
}

/// Returns the transpose of a matrix, outside the graph.
pub(super) fn transposed(matrix: &Tensor) -> Result<Tensor> {
    Ok(matrix.with_layout(matrix.layout().transpose(0, 1)?))
}

/// Returns a tensor of rank 2 whose rows are contiguous, and its description as an operand.
fn rows_of(tensor: &Tensor) -> Result<(Tensor, Operand)> {
    match matrix(tensor)? {
        (tensor, operand) if !operand.transposed => Ok((tensor, operand)),
        _ => {
            let copy = tensor.contiguous()?;
            let leading_dimension = copy.shape()[1] as u64;
            Ok((copy, Operand { leading_dimension, batch_stride: 0, transposed: false }))
        }
    }
}

/// The bias and the addend in the form that our own kernel reads, kept until it is queued.
struct Added {
    bias: Option<Tensor>,
    addend: Option<(Tensor, Operand)>,
}

impl Added {
    fn new(bias: Option<&Tensor>, addend: Option<&Tensor>) -> Result<Self> {
        Ok(Self {
            bias: bias.map(|bias| bias.detach().contiguous()).transpose()?,
            addend: addend.map(|addend| rows_of(&addend.detach())).transpose()?,
        })
    }

    /// Returns the addresses of a launch with these factors and this result.
    fn at(&self, product: [&Tensor; 3]) -> PerOperand {
        let address = |tensor: &Tensor| tensor.pointer().address();
        let [a, b, d] = product.map(address);
        PerOperand {
            a,
            b,
            d,
            bias: self.bias.as_ref().map_or(0, address),
            addend: self.addend.as_ref().map_or(0, |(tensor, _)| address(tensor)),
            ..PerOperand::default()
        }
    }

    /// Returns whether there is a bias, and the operand of the addend.
    fn described(&self) -> (bool, Option<Operand>) {
        (self.bias.is_some(), self.addend.as_ref().map(|(_, operand)| *operand))
    }
}

/// Returns the layer.
pub(crate) fn backend(call: &Call<'_>) -> Result<Tensors> {
    let Operands { input, weight, bias, addend } = Operands::new(call)?;
    let (product, [a, b]) = product(input, &transposed(weight)?)?;
    layer(&product, [&a, &b], (bias, addend), call)
}

/// Returns the product of two matrices plus a bias, which is added to each row, and an addend of the result's shape.
pub(super) fn layer(
    product: &Matmul,
    [a, b]: [&Tensor; 2],
    (bias, addend): (Option<&Tensor>, Option<&Tensor>),
    call: &Call<'_>,
) -> Result<Tensors> {
    let stream = call.device.current_stream();
    let shape = [product.m as usize, product.n as usize];
    let result = call.new_result(&shape, a.dtype())?;
    let pointers = [a.pointer(), b.pointer(), result.pointer()];
    let fits = fits(product);
    if fits || takes_few_rows(&stream, product, pointers) {
        let added = Added::new(bias, addend)?;
        let (at, (bias, addend)) = (added.at([a, b, &result]), added.described());
        if fits {
            call.launch(FusedMatmul { bias, addend, ..FusedMatmul::unfused(*product) }, (call.device, at))?;
        } else {
            call.launch(FewRows { bias, addend, ..FewRows::unfused(*product) }, (call.device, at))?;
        }
        return Ok(SmallVec::from_elem(result, 1));
    }
    let into_result = |operator, inputs: &[&Tensor]| {
        let target = std::slice::from_ref(&result);
        let arguments = LoopArguments { dtype: Some(result.dtype()), ..LoopArguments::default() };
        run_into(operator, inputs, &arguments, target, call.label)
    };
    // The library adds the bias itself; otherwise the result starts as one of them and the product is added to it, rounded
    // once.
    let stored = bias.filter(|_| takes_bias(&stream, product));
    let stored = stored.map(|bias| bias.detach().contiguous()).transpose()?;
    let mut added = [addend, bias.filter(|_| stored.is_none())].into_iter().flatten();
    match &stored {
        Some(bias) => {
            let epilogue = MatmulEpilogue { bias: Some(bias.pointer()), activation: None };
            execute(ProductWith(product), (pointers, epilogue), &stream, call.label)?;
        }
        None => {
            let first = added.next();
            if let Some(first) = first {
                into_result(&structured::COPY, &[&first.detach().expand(&shape)?])?;
            }
            let beta = if first.is_some() { Factor::ONE } else { Factor::ZERO };
            execute(Product(&Matmul { beta, ..*product }), pointers, &stream, call.label)?;
        }
    }
    for added in added {
        into_result(&table::add, &[&result, added])?;
    }
    Ok(SmallVec::from_elem(result, 1))
}

/// Returns `act(norm(input) · weightᵀ + bias) + addend` of a matrix with few rows, where the norm is a layer norm with a weight
/// and a bias, and act is GELU by its tanh formula if requested.
pub(crate) fn few_rows(call: &Call<'_>) -> Result<Tensors> {
    let Operands { input, weight, bias, addend } = Operands::new(call)?;
    let norm = [call.tensor(4), call.tensor(5)].map(|part| part.detach().contiguous());
    let [norm_weight, norm_bias] = norm;
    let norm = [norm_weight?, norm_bias?];
    if let Some(part) =
        norm.iter().find(|part| part.shape() != &input.shape()[1..] || part.dtype() != input.dtype())
    {
        refuse!(
            "the norm's weight and bias are {:?} {}, not {:?} {}",
            &input.shape()[1..],
            input.dtype(),
            part.shape(),
            part.dtype()
        );
    }
    let (product, [a, b]) = product(input, &transposed(weight)?)?;
    let result = call.new_result(&[product.m as usize, product.n as usize], input.dtype())?;
    let added = Added::new(bias, addend)?;
    let norm = norm.each_ref().map(|part| part.pointer().address());
    let (at, (bias, addend)) = (PerOperand { norm, ..added.at([&a, &b, &result]) }, added.described());
    let kernel = FewRows {
        product,
        bias,
        gelu: call.bool(7),
        addend,
        norm_eps_bits: Some((call.float(6) as f32).to_bits()),
    };
    call.launch(kernel, (call.device, at))?;
    Ok(SmallVec::from_elem(result, 1))
}

/// Runs the layer, and records a node that keeps input and weight, each if the gradient of the other is required.
pub(crate) fn autograd(call: &Call<'_>) -> Result<Tensors> {
    let mut results = call.redispatch()?;
    let kept = |tensor: usize, other: usize| {
        call.tensors[other].requires_grad().then(|| Saved::new(call.tensors[tensor])).transpose()
    };
    let node = LinearBackward {
        input: kept(0, 1)?,
        weight: kept(1, 0)?,
        has: [2, 3].map(|place| call.optional_tensor(place).is_some()),
        wanted: call.tensors.iter().map(|tensor| tensor.requires_grad()).collect(),
        label: call.label,
    };
    record(Box::new(node), call.tensors, &mut results, call.device.current_stream());
    Ok(results)
}

struct LinearBackward {
    input: Option<Saved>,
    weight: Option<Saved>,
    /// Whether there is a bias, and an addend.
    has: [bool; 2],
    /// Whether the gradient of each tensor of the call is required.
    wanted: SmallVec<[bool; 4]>,
    label: Label,
}

impl LinearBackward {
    /// Returns the gradients of weight and bias, if they are required.
    fn parameters(
        &self,
        gradient: &Tensor,
        wants_bias: bool,
        request: &Request,
    ) -> Result<[Option<Tensor>; 2]> {
        let Some(input) = self.input.as_ref().filter(|_| request.is_asked(1)) else {
            let bias = wants_bias.then(|| summed_rows((request, 2), gradient, self.label)).transpose()?;
            return Ok([None, bias]);
        };
        let input = input.get()?;
        let (product, [a, b]) = product(&transposed(gradient)?, &input)?;
        // The kernel that computes both does not record.
        if !wants_bias || !fits(&product) || is_grad_enabled() {
            let bias = wants_bias.then(|| summed_rows((request, 2), gradient, self.label)).transpose()?;
            // This comes last, since a gradient that was added to a sum remains there if something fails.
            return Ok([summed_product((request, 1), &gradient.transpose(0, 1)?, &input, self.label)?, bias]);
        }
        let stream = gradient.device().current_stream();
        let empty = |shape: &[usize]| Tensor::empty_on(shape, gradient.dtype(), &stream, self.label);
        let [outputs, inputs] = [product.m as usize, product.n as usize];
        let (weight, bias) = (empty(&[outputs, inputs])?, empty(&[outputs])?);
        let address = |tensor: &Tensor| tensor.pointer().address();
        let at = PerOperand {
            a: address(&a),
            b: address(&b),
            d: address(&weight),
            row_sums: address(&bias),
            ..PerOperand::default()
        };
        let fused = FusedMatmul { row_sums: true, ..FusedMatmul::unfused(product) };
        launch(fused, (gradient.device(), at), self.label)?;
        Ok([Some(weight), Some(bias)])
    }
}

impl Backward for LinearBackward {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn is_of_products(&self) -> bool {
        true
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        self.backward_for(gradients, &Request::default())
    }

    fn backward_for(&self, gradients: &[Option<Tensor>], request: &Request) -> Result<Gradients> {
        let mut results = Gradients::from_elem(None, self.wanted.len());
        let Some(gradient) = &gradients[0] else { return Ok(results) };
        if let Some(weight) = self.weight.as_ref().filter(|_| request.is_asked(0)) {
            results[0] = Some(gradient.matmul(&weight.get()?)?);
        }
        let wants_bias = self.has[0] && self.wanted[2] && request.is_asked(2);
        let [weight, bias] = self.parameters(gradient, wants_bias, request)?;
        results[1] = weight;
        if wants_bias {
            results[2] = bias;
        }
        if self.has[1] {
            let addend = results.len() - 1;
            results[addend] = self.wanted[addend].then(|| gradient.clone());
        }
        Ok(results)
    }

    fn release(&self) {
        self.input.iter().chain(&self.weight).for_each(Saved::release);
    }
}
