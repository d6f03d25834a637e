//! Complex numbers as arguments. The dispatcher replaces a complex number by a tensor without dimensions, which does not take
//! part in the promotion of floats, and calls the overload for tensors. Operators that create tensors create both parts.

use smallvec::SmallVec;
use thalweg_ir::{DType, c128};
use thalweg_ops::schema::{Kind, Parameter};
use thalweg_runtime::{Device, Error, Label, Result, invalid, refuse};

use super::definition::{Body, Complex};
use super::registry::{built_in, find_operator, operators};
use super::{Operator, in_place};
use crate::argument::{Argument, Value};
use crate::dtype_name::overflow;
use crate::tensor::{Tensor, Tensors};

/// Calls an operator with a complex number among its arguments.
pub(super) fn with_complex_number(
    operator: &'static Operator,
    arguments: &[Argument<'_>],
    device: Option<&Device>,
    label: Label,
) -> Result<Tensors> {
    let first = arguments.iter().find_map(|argument| match argument {
        Argument::Tensor(tensor) => Some(*tensor),
        _ => None,
    });
    let device = first.map(Tensor::device).or(device);
    let device = arguments
        .iter()
        .find_map(|argument| if let Argument::Device(device) = argument { Some(*device) } else { None })
        .or(device)
        .ok_or_else(|| invalid!("a call without tensors must name a device"))?;
    if matches!(operator.complex, Complex::EachPart) {
        return made(operator, arguments, device, label);
    }
    if let Some(target) = of_source(operator)? {
        return repeated(target, arguments, label);
    }
    let refused = || invalid!("the operator takes `{}`: no number of it can be complex", operator.schema());
    let target = of_tensors(operator).unwrap_or(operator);
    check_alpha(operator, arguments)?;
    let is_wide = matches!(operator.complex, Complex::Wide)
        || arguments.iter().any(|argument| {
            matches!(argument, Argument::Tensor(tensor) if matches!(tensor.dtype(), DType::F64 | DType::C128))
        });
    let dtype = if is_wide { DType::C128 } else { DType::C64 };
    if let Complex::Sum(product) = operator.complex {
        return added(arguments, find_operator(product)?, dtype, label);
    }
    let parameters = operator.schema().parameters.iter().zip(&target.schema().parameters);
    let mut values: SmallVec<[Value; 8]> = SmallVec::new();
    for (argument, (parameter, of_target)) in arguments.iter().zip(parameters) {
        let is_replaced = parameter.ty.kind == Kind::Scalar && of_target.ty.kind == Kind::Tensor;
        let value = match *argument {
            Argument::Complex(number) if parameter.name == "alpha" => {
                scale(&mut values, number, dtype, device)?;
                Value::Scalar(1.into())
            }
            Argument::Complex(number) if is_replaced => Value::Tensor(tensor(number, dtype, device)?),
            Argument::Complex(_) => return Err(refused()),
            Argument::Scalar(number) if is_replaced => {
                Value::Tensor(Tensor::full(&[], number, dtype, device)?)
            }
            argument => argument.to_value(),
        };
        values.push(value);
    }
    let list: SmallVec<[Argument<'_>; 8]> = values.iter().map(Value::as_argument).collect();
    target.call(&list, Some(device), label)
}

/// Returns the operator that takes a tensor of numbers at indices in place of one number.
fn of_source(operator: &'static Operator) -> Result<Option<&'static Operator>> {
    match (operator.complex, operator.body) {
        (Complex::Repeated(name), _) => find_operator(name).map(Some),
        (_, Body::InPlace(functional)) => match functional.complex {
            Complex::Repeated(name) => find_operator(&in_place::name(find_operator(name)?)).map(Some),
            _ => Ok(None),
        },
        _ => Ok(None),
    }
}

/// Calls an operator with a complex number in place of its fourth argument, repeated at the indices that are the third.
fn repeated(target: &'static Operator, arguments: &[Argument<'_>], label: Label) -> Result<Tensors> {
    let &[Argument::Tensor(x), dim, Argument::Tensor(index), Argument::Complex(number), ref rest @ ..] =
        arguments
    else {
        refuse!("the operator takes `{}`: no other number of it can be complex", target.schema());
    };
    if !x.dtype().is_complex() {
        return Err(overflow(x.dtype()));
    }
    let source = tensor(number, x.dtype(), x.device())?.expand(index.shape())?;
    let list: SmallVec<[Argument<'_>; 8]> =
        [x.into(), dim, index.into(), (&source).into()].into_iter().chain(rest.iter().copied()).collect();
    target.call(&list, None, label)
}

/// Refuses a complex factor `alpha` of numbers of which none is complex.
fn check_alpha(operator: &Operator, arguments: &[Argument<'_>]) -> Result<()> {
    let is_differentiable = |argument: &Argument<'_>| matches!(argument, Argument::Tensor(tensor) if tensor.dtype().is_differentiable());
    let is_complex = |argument: &Argument<'_>| match argument {
        Argument::Tensor(tensor) => tensor.dtype().is_complex(),
        Argument::Complex(_) => true,
        _ => false,
    };
    let Some(place) = operator.schema.parameters.iter().position(|parameter| parameter.name == "alpha")
    else {
        return Ok(());
    };
    let operands = arguments.get(..place).unwrap_or_default();
    if !matches!(arguments.get(place), Some(Argument::Complex(_))) || operands.iter().any(is_complex) {
        return Ok(());
    }
    if operands.iter().any(is_differentiable) {
        refuse!("For non-complex input tensors, argument alpha must not be a complex number.");
    }
    refuse!("For integral input tensors, argument alpha must not be a floating point number.")
}

/// Returns the overload of an operator that takes tensors in place of numbers, for as many of them as there is such an overload.
fn of_tensors(operator: &'static Operator) -> Option<&'static Operator> {
    let replaced = |other: &Operator| {
        let (numbers, tensors) = (&operator.schema.parameters, &other.schema.parameters);
        let is_replaced = |(number, tensor): (&Parameter, &Parameter)| {
            number.ty.kind == Kind::Scalar && tensor.ty.kind == Kind::Tensor
        };
        let fits = numbers.iter().zip(tensors).all(|(number, tensor)| {
            number.name == tensor.name && (number.ty.kind == tensor.ty.kind || is_replaced((number, tensor)))
        });
        let has_all = numbers.len() >= tensors.len() && fits;
        has_all.then(|| numbers.iter().zip(tensors).filter(|&pair| is_replaced(pair)).count())
    };
    let find = || {
        if let Body::InPlace(functional) = operator.body {
            return find_operator(&in_place::name(of_tensors(functional)?)).ok();
        }
        let overloads = operators().into_iter().filter(|other| other.base_name == operator.base_name);
        let counted = overloads.filter_map(|other| Some((replaced(other)?, other)));
        counted.filter(|&(count, _)| count > 0).max_by_key(|&(count, _)| count).map(|(_, other)| other)
    };
    *operator.of_tensors.get_or_init(find)
}

/// Returns a tensor without dimensions.
fn tensor(number: c128, dtype: DType, device: &Device) -> Result<Tensor> {
    let part = |part: f64| Tensor::full(&[], part, dtype.real(), device);
    part(number.re)?.complex(&part(number.im)?)
}

/// Returns beta · self + alpha · product; the arguments are the tensors followed by both factors.
fn added(
    arguments: &[Argument<'_>],
    product: &'static Operator,
    dtype: DType,
    label: Label,
) -> Result<Tensors> {
    let &[Argument::Tensor(input), Argument::Tensor(a), Argument::Tensor(b), ref factors @ ..] = arguments
    else {
        refuse!("three tensors stand in front of the factors");
    };
    let times = |x: &Tensor, place: usize| match factors.get(place) {
        None => Ok(x.clone()),
        Some(Argument::Complex(number)) => x.mul(&tensor(*number, dtype, x.device())?),
        Some(Argument::Scalar(number)) => x.mul_scalar(*number),
        Some(Argument::Int(number)) => x.mul_scalar(*number),
        Some(Argument::Float(number)) => x.mul_scalar(*number),
        Some(other) => Err(invalid!("a factor cannot be {}", other.kind())),
    };
    let product = product.call(&[a.into(), b.into()], None, label)?.swap_remove(0);
    let input = if factors.len() > 1 { times(input, 0)? } else { input.clone() };
    input.add(&times(&product, factors.len() - 1)?).map(|sum| Tensors::from_iter([sum]))
}

/// Multiplies the argument before a factor `alpha` by it.
fn scale(values: &mut [Value], alpha: c128, dtype: DType, device: &Device) -> Result<()> {
    let factor = tensor(alpha, dtype, device)?;
    let scaled = match values.last() {
        Some(Value::Tensor(other)) => other.mul(&factor)?,
        Some(Value::Scalar(number)) => factor.mul_scalar(*number)?,
        _ => return Err(invalid!("a factor `alpha` stands behind what it multiplies")),
    };
    *values.last_mut().expect("it was just read") = Value::Tensor(scaled);
    Ok(())
}

/// Makes a tensor from a number, of the requested dtype.
fn made(
    operator: &'static Operator,
    arguments: &[Argument<'_>],
    device: &Device,
    label: Label,
) -> Result<Tensors> {
    let like = arguments.iter().find_map(|argument| match argument {
        Argument::Tensor(tensor) => Some(tensor.dtype()),
        _ => None,
    });
    let mut parameters = operator.schema.parameters.iter();
    let place = parameters.position(|parameter| parameter.name == "dtype").expect("it makes a tensor");
    let dtype = match arguments.get(place) {
        Some(Argument::DType(dtype)) => *dtype,
        _ => like.unwrap_or(DType::C64),
    };
    if !dtype.is_complex() {
        return Err(overflow(dtype));
    }
    let part = |choose: fn(c128) -> f64| {
        let mut list: SmallVec<[Argument<'_>; 8]> = arguments.into();
        while list.len() <= place {
            list.push(Argument::None);
        }
        for argument in &mut list {
            if let Argument::Complex(number) = *argument {
                *argument = Argument::Float(choose(number));
            }
        }
        list[place] = Argument::DType(dtype.real());
        operator.call(&list, Some(device), label)
    };
    let (re, im) = (part(|number| number.re)?, part(|number| number.im)?);
    let arguments = [(&re[0]).into(), (&im[0]).into()];
    built_in!("complex")?.call(&arguments, None, label)
}
