//! Products of matrices and vectors, over `thalweg::matmul` of two matrices or two batches.

use thalweg_ir::{DType, Scalar, Shape, broadcast_shapes};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Pair};
use super::{call as call_operator, complex, operators, single};
use crate::dispatch::{Argument, Arguments, Call, Operator, built_in};
use crate::kernels::matmul as matmul_kernel;
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the matrix product over the last two dimensions; the others are broadcast. A vector is a row on the left, a column
    /// on the right.
    "matmul(Tensor self, Tensor other) -> Tensor"
        fn matmul(other: tensor) = Composite(|call| matmul(call.tensor(0), call.tensor(1)).map(single)), out: [OfResult], autocast: Lower;
    /// Returns the product of two matrices, or of the corresponding matrices of two batches.
    "thalweg::matmul(Tensor self, Tensor other) -> Tensor"
        = Pair(matmul_kernel::backend, matmul_kernel::autograd),
        autocast: Lower,
        complex: Parts(|call| complex::product(call.tensor(0), call.tensor(1)).map(single));
    /// Returns the product of two matrices.
    "mm(Tensor self, Tensor mat2) -> Tensor"
        fn mm(mat2: tensor) = Composite(|call| mm(call.tensor(0), call.tensor(1)).map(single)), out: [OfResult], autocast: Lower;
    /// Returns the product of two matrices in a dtype: theirs, or float32 for 16-bit matrices.
    "mm.dtype(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor"
        = Composite(|call| in_dtype(call, 2, built_in!("mm")?)), autocast: Lower;
    /// Returns the products of the corresponding matrices of two batches, in a dtype: theirs, or float32 for 16-bit matrices.
    "bmm.dtype(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor"
        = Composite(|call| in_dtype(call, 2, built_in!("bmm")?)), autocast: Lower;
    /// Returns beta · self + alpha · the product of two matrices, in a dtype: theirs, or float32 for 16-bit matrices.
    "addmm.dtype(Tensor self, Tensor mat1, Tensor mat2, ScalarType out_dtype, *, Scalar beta=1, Scalar alpha=1) -> Tensor"
        = Composite(|call| in_dtype(call, 3, built_in!("addmm")?)), autocast: Lower;
    /// Returns beta · self + alpha · the products of the corresponding matrices of two batches, in a dtype: theirs, or float32
    /// for 16-bit matrices.
    "baddbmm.dtype(Tensor self, Tensor batch1, Tensor batch2, ScalarType out_dtype, *, Scalar beta=1, Scalar alpha=1) -> Tensor"
        = Composite(|call| in_dtype(call, 3, built_in!("baddbmm")?)), autocast: Lower;
    /// Returns the products of the corresponding matrices of two batches.
    "bmm(Tensor self, Tensor mat2) -> Tensor"
        fn bmm(mat2: tensor) = Composite(|call| bmm(call.tensor(0), call.tensor(1)).map(single)), out: [OfResult], autocast: Lower;
    /// Returns the product of a matrix and a vector.
    "mv(Tensor self, Tensor vec) -> Tensor"
        fn mv(vec: tensor) = Composite(|call| mv(call.tensor(0), call.tensor(1)).map(single)), out: [OfResult], autocast: Lower;
    /// Returns the sum of the products of two vectors' elements.
    "dot(Tensor self, Tensor tensor) -> Tensor"
        fn dot(tensor: tensor) = Composite(|call| dot(call.tensor(0), call.tensor(1)).map(single)), out: [OfResult], autocast: Widest;
    /// Returns the sum of the products of two vectors' elements, those of the first conjugated.
    "vdot(Tensor self, Tensor other) -> Tensor"
        fn vdot(other: tensor) = Composite(|call| dot(&call.tensor(0).conj()?, call.tensor(1)).map(single)), out: [OfResult], autocast: Widest;
    /// Returns the products of each element of a vector with each of another.
    "outer(Tensor self, Tensor vec2) -> Tensor"
        fn outer(vec2: tensor) = Composite(|call| outer(call.tensor(0), call.tensor(1)).map(single)), autocast: Parts;
    /// Returns the sums of products over the last dimensions of both.
    "inner(Tensor self, Tensor other) -> Tensor"
        fn inner(other: tensor) = Composite(inner), out: [OfResult], autocast: Widest;
    /// Returns beta · self + alpha · mat1 · mat2, where self is broadcast; with a beta of 0 self is ignored.
    "addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"
        fn addmm(mat1: tensor, mat2: tensor) = Composite(|call| {
            check_matrices(call.tensor(1), call.tensor(2))?;
            add_product(call, call.tensor(1), call.tensor(2)).map(single)
        }), out: [OfResult], first: Consumed, autocast: Lower, complex: Sum("mm");
    /// Returns beta · self + alpha · batch1 · batch2 for each matrix of a batch; self is broadcast.
    "baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"
        fn baddbmm(batch1: tensor, batch2: tensor) = Composite(|call| {
            check_batches(call.tensor(1), call.tensor(2))?;
            add_product(call, call.tensor(1), call.tensor(2)).map(single)
        }), out: [OfResult], first: Consumed, autocast: Lower, complex: Sum("bmm");
    /// Returns beta · self + alpha · the sum over the batch of batch1 · batch2; self is broadcast.
    "addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"
        fn addbmm(batch1: tensor, batch2: tensor) = Composite(|call| {
            check_batches(call.tensor(1), call.tensor(2))?;
            let [left, right] = side_by_side(call.tensor(1), call.tensor(2))?;
            add_product(call, &left, &right).map(single)
        }), out: [OfResult], first: Consumed, autocast: Lower;
    /// Returns beta · self + alpha · mat · vec, where self is broadcast.
    "addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor"
        fn addmv(mat: tensor, vec: tensor) = Composite(addmv), out: [OfResult], first: Consumed, autocast: Lower, complex: Sum("mv");
    /// Returns beta · self + alpha · the outer product of two vectors, where self is broadcast.
    "addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"
        fn addr(vec1: tensor, vec2: tensor) = Composite(|call| {
            let (input, a, b) = (call.tensor(0), call.tensor(1), call.tensor(2));
            let is_of_one_dtype = [a, b].iter().all(|vector| vector.dtype() == input.dtype());
            if is_of_one_dtype && input.dtype().is_floating_point() && a.rank() == 1 && b.rank() == 1 {
                return add_to(input, call, &a.unsqueeze(1)?, &b.unsqueeze(0)?).map(single);
            }
            let is_fraction = [3, 4].iter().any(|&place| matches!(call.scalar(place), Scalar::F64(_)));
            if !input.dtype().is_differentiable() && is_fraction {
                refuse!("For integral input tensors, argument alpha must not be a floating point number.");
            }
            blend(call, outer(a, b)?)
        }), first: Consumed, autocast: Lower, complex: Sum("outer");
    /// Returns input · weightᵀ + bias over the last dimension: a weight is (out, in), or (in) for one result.
    "linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"
        fn linear(weight: tensor, bias: optional_tensor) = Composite(linear), autocast: Lower;
}

/// Returns the product of two matrices, or of two batches of them.
fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let location = std::panic::Location::caller();
    call_operator(built_in!("thalweg::matmul")?, &[a.into(), b.into()], None, location)
}

/// Returns an extent list as PyTorch writes it: `2x3`.
fn by(shape: &[usize]) -> String {
    shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("x")
}

fn check_dtypes(a: &Tensor, b: &Tensor) -> Result<()> {
    if a.dtype() == b.dtype() {
        return Ok(());
    }
    Err(invalid!("expected m1 and m2 to have the same dtype, but got: {} != {}", a.dtype(), b.dtype()))
}

fn mm(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check_matrices(a, b)?;
    product(a, b)
}

/// Calls an operator of `count` tensors with these converted to the dtype of the argument after them; the following arguments are
/// the operator's numbers.
fn in_dtype(call: &Call<'_>, count: usize, operator: &'static Operator) -> Result<Tensors> {
    let (own, wanted) = (call.tensor(count - 1).dtype(), call.dtype(count));
    let is_wider = wanted == DType::F32 && matches!(own, DType::F16 | DType::Bf16);
    refuse_if!(
        wanted != own && !is_wider,
        "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs, not {wanted} of {own}"
    );
    let tensors: Vec<Tensor> =
        (0..count).map(|place| call.tensor(place).to_dtype(wanted)).collect::<Result<_>>()?;
    let mut arguments: Vec<Argument<'_>> = tensors.iter().map(Into::into).collect();
    if count == 3 {
        arguments.extend([4, 5].map(|place| Argument::Scalar(call.scalar(place))));
    }
    call_operator(operator, &arguments, None, call.label.location).map(single)
}

fn check_matrices(a: &Tensor, b: &Tensor) -> Result<()> {
    for (name, matrix) in [("self", a), ("mat2", b)] {
        refuse_if!(matrix.rank() != 2, "{name} must be a matrix");
    }
    check_dtypes(a, b)?;
    if a.shape()[1] != b.shape()[0] {
        refuse!("mat1 and mat2 shapes cannot be multiplied ({} and {})", by(a.shape()), by(b.shape()));
    }
    Ok(())
}

fn bmm(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check_batches(a, b)?;
    product(a, b)
}

fn check_batches(a: &Tensor, b: &Tensor) -> Result<()> {
    for (name, batch) in [("batch1", a), ("batch2", b)] {
        refuse_if!(batch.rank() != 3, "{name} must be a 3D tensor");
    }
    check_dtypes(a, b)?;
    refuse_if!(
        a.shape()[0] != b.shape()[0] || a.shape()[2] != b.shape()[1],
        "Expected size for first two dimensions of batch2 tensor to be: [{}, {}] but got: [{}, {}].",
        a.shape()[0],
        a.shape()[2],
        b.shape()[0],
        b.shape()[1]
    );
    Ok(())
}

fn mv(matrix: &Tensor, vector: &Tensor) -> Result<Tensor> {
    check_vector(matrix, vector)?;
    product(matrix, &vector.unsqueeze(1)?)?.squeeze(1)
}

fn check_vector(matrix: &Tensor, vector: &Tensor) -> Result<()> {
    if matrix.rank() != 2 || vector.rank() != 1 {
        refuse!("vector + matrix @ vector expected, got 1, {}, {}", matrix.rank(), vector.rank());
    }
    check_dtypes(matrix, vector)?;
    refuse_if!(
        matrix.shape()[1] != vector.shape()[0],
        "size mismatch, got input ({0}), mat ({0}x{1}), vec ({2})",
        matrix.shape()[0],
        matrix.shape()[1],
        vector.shape()[0]
    );
    Ok(())
}

fn addmv(call: &Call<'_>) -> Result<Tensors> {
    let (input, matrix, vector) = (call.tensor(0), call.tensor(1), call.tensor(2));
    check_vector(matrix, vector)?;
    refuse_if!(input.rank() > 1, "vector + matrix @ vector expected, got {}, 2, 1", input.rank());
    if !input.dtype().is_floating_point() {
        return blend(call, mv(matrix, vector)?);
    }
    let column = input.expand(&[matrix.shape()[0]])?.unsqueeze(1)?;
    add_to(&column, call, matrix, &vector.unsqueeze(1)?)?.squeeze(1).map(single)
}

fn dot(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.rank() != 1 || b.rank() != 1 {
        refuse!("1D tensors expected, but got {}D and {}D tensors", a.rank(), b.rank());
    }
    if a.dtype() != b.dtype() {
        refuse!("dot : expected both vectors to have same dtype, but found {} and {}", a.dtype(), b.dtype());
    }
    refuse_if!(
        a.elements() != b.elements(),
        "inconsistent tensor size, expected tensor [{0}] and src [{1}] to have the same number of elements, but got {0} and \
         {1} elements respectively",
        a.elements(),
        b.elements()
    );
    product(&a.unsqueeze(0)?, &b.unsqueeze(1)?)?.reshape(())
}

fn outer(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    for (name, vector) in [("self", a), ("vec2", b)] {
        if vector.rank() != 1 {
            refuse!("outer: Expected 1-D argument {name}, but got {}-D", vector.rank());
        }
    }
    a.unsqueeze(1)?.mul(b)
}

fn inner(call: &Call<'_>) -> Result<Tensors> {
    let (a, b) = (call.tensor(0), call.tensor(1));
    if a.rank() == 0 || b.rank() == 0 {
        return a.mul(b).map(single);
    }
    let [left, right] = [a, b].map(|tensor| tensor.shape()[tensor.rank() - 1]);
    refuse_if!(
        left != right,
        "inner() the last dimension must match on both input tensors but got shapes {:?} and {:?}",
        a.shape(),
        b.shape()
    );
    let rest = |tensor: &Tensor| -> Shape { tensor.shape()[..tensor.rank() - 1].into() };
    let rows = |tensor: &Tensor| tensor.reshape(&[rest(tensor).iter().product(), left]);
    let shape: Shape = rest(a).into_iter().chain(rest(b)).collect();
    mm(&rows(a)?, &rows(b)?.transpose(0, 1)?)?.reshape(&shape).map(single)
}

/// Returns beta · self + alpha · a · b, for the first tensor of a call and its last two numbers; floats are rounded once.
fn add_product(call: &Call<'_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match call.tensor(0).dtype().is_floating_point() {
        true => add_to(call.tensor(0), call, a, b),
        false => blend(call, product(a, b)?).map(|mut results| results.swap_remove(0)),
    }
}

/// Returns two batches of matrices whose product is the sum of the products of two pairs: the first factors are placed side by side,
/// and the second factors one below the other.
fn side_by_side(a: &Tensor, b: &Tensor) -> Result<[Tensor; 2]> {
    let [batch, rows, inner] = [0, 1, 2].map(|dim| a.shape()[dim]);
    let columns = b.shape()[2];
    let left = a.permute(&[1, 0, 2])?.reshape(&[rows, batch * inner])?;
    Ok([left, b.reshape(&[batch * inner, columns])?])
}

fn add_to(input: &Tensor, call: &Call<'_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check_added(input, a.dtype())?;
    let arguments = [
        input.into(),
        a.into(),
        b.into(),
        Argument::Scalar(call.scalar(3)),
        Argument::Scalar(call.scalar(4)),
    ];
    call_operator(built_in!("thalweg::addmm")?, &arguments, None, call.label.location)
}

fn check_added(input: &Tensor, dtype: DType) -> Result<()> {
    if input.dtype() == dtype {
        return Ok(());
    }
    Err(invalid!("self and mat2 must have the same dtype, but got {} and {dtype}", input.dtype()))
}

/// Returns beta · self + alpha · `product`, for the first tensor of a call and its last two numbers.
fn blend(call: &Call<'_>, product: Tensor) -> Result<Tensors> {
    let (input, beta, alpha) = (call.tensor(0), call.scalar(3), call.scalar(4));
    check_added(input, product.dtype())?;
    // As in PyTorch, a factor of integer matrices is converted to an integer.
    let whole = |number: Scalar| match input.dtype() {
        dtype if dtype.is_differentiable() => number,
        DType::Bool => Scalar::Bool(number.to_f64() != 0.0),
        _ => Scalar::I64(number.to_i64()),
    };
    let [beta, alpha] = [beta, alpha].map(whole);
    let input = input.expand(product.shape())?;
    let times = |tensor: Tensor, number: Scalar| match number.to_f64() {
        1.0 => Ok(tensor),
        _ => tensor.mul_scalar(number),
    };
    let product = times(product, alpha)?;
    if beta.to_f64() == 0.0 {
        return Ok(single(product));
    }
    times(input, beta)?.add(&product).map(single)
}

/// Multiplies as `torch.matmul` does, by the ranks of both tensors.
fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    refuse_if!(
        a.rank() == 0 || b.rank() == 0,
        "both arguments to matmul need to be at least 1D, but they are {}D and {}D",
        a.rank(),
        b.rank()
    );
    match (a.rank(), b.rank()) {
        (1, 1) => return dot(a, b),
        (2, 1) => return mv(a, b),
        (1, 2) => return mm(&a.unsqueeze(0)?, b)?.squeeze(0),
        (2, 2) => return mm(a, b),
        _ => {}
    }
    check_dtypes(a, b)?;
    // The dimension of extent 1 added to a vector is removed afterwards.
    let left = if a.rank() == 1 { a.unsqueeze(0)? } else { a.clone() };
    let right = if b.rank() == 1 { b.unsqueeze(1)? } else { b.clone() };
    let [m, k] = [2, 1].map(|back| left.shape()[left.rank() - back]);
    let [rows, n] = [2, 1].map(|back| right.shape()[right.rank() - back]);
    refuse_if!(
        k != rows,
        "mat1 and mat2 shapes cannot be multiplied ({} and {}): {k} columns on the left, {rows} rows on the right",
        by(left.shape()),
        by(right.shape())
    );
    let (left_batch, right_batch) = (&left.shape()[..left.rank() - 2], &right.shape()[..right.rank() - 2]);
    let batch = broadcast_shapes(left_batch, right_batch)?;
    let result = if right.rank() == 2 {
        // The rows of all matrices on the left form one matrix.
        mm(&left.reshape(&[left_batch.iter().product::<usize>() * m, k])?, &right)?
    } else {
        product(&batched(&left, &batch)?, &batched(&right, &batch)?)?
    };
    let mut shape = batch;
    shape.extend((a.rank() > 1).then_some(m));
    shape.extend((b.rank() > 1).then_some(n));
    result.reshape(&shape)
}

/// Returns matrices with a batch dimension, of extent 1 if all matrices of the batch are the same.
fn batched(matrices: &Tensor, batch: &[usize]) -> Result<Tensor> {
    let [rows, columns] = [2, 1].map(|back| matrices.shape()[matrices.rank() - back]);
    let own = &matrices.shape()[..matrices.rank() - 2];
    if own.iter().all(|&extent| extent == 1) {
        return matrices.reshape(&[1, rows, columns]);
    }
    let mut shape: Shape = batch.into();
    shape.extend([rows, columns]);
    matrices.expand(&shape)?.reshape(&[batch.iter().product(), rows, columns])
}

fn linear(call: &Call<'_>) -> Result<Tensors> {
    let (input, weight, bias) = (call.tensor(0), call.tensor(1), call.optional_tensor(2));
    let &[outputs, inputs] = weight.shape() else {
        let transposed = if weight.rank() < 2 { weight.clone() } else { weight.transpose(0, 1)? };
        let result = matmul(input, &transposed)?;
        return bias.map_or(Ok(result.clone()), |bias| result.add(bias)).map(single);
    };
    refuse_if!(input.rank() == 0, "both arguments to linear need to be at least 1D, but they are 0D and 2D");
    let (rows, &width) = (&input.shape()[..input.rank() - 1], &input.shape()[input.rank() - 1]);
    let count: usize = rows.iter().product();
    if width != inputs {
        refuse!("mat1 and mat2 shapes cannot be multiplied ({count}x{width} and {inputs}x{outputs})");
    }
    let bias = match bias {
        Some(bias) if bias.shape() != [outputs] => Some(bias.expand(&[outputs])?),
        other => other.cloned(),
    };
    if !input.dtype().is_floating_point() {
        let result = matmul(input, &weight.transpose(0, 1)?)?;
        return bias.map_or(Ok(result.clone()), |bias| result.add(&bias)).map(single);
    }
    let matrix = if input.rank() == 2 { input.clone() } else { input.reshape(&[count, width])? };
    let arguments = [(&matrix).into(), weight.into(), Argument::from(bias.as_ref())];
    let result = call_operator(built_in!("thalweg::linear")?, &arguments, None, call.label.location)?;
    if input.rank() == 2 {
        return Ok(single(result));
    }
    let shape: Shape = rows.iter().copied().chain([outputs]).collect();
    result.reshape(&shape).map(single)
}
