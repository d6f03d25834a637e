//! Rust's operators on tensors: `&a + &b`, `2.0 - &a`, `-&a`, `a += &b`.
//!
//! Numbers are `f64` or `i64`, so that a literal needs no suffix. An expression returns a [`Result`], like the method of the same
//! name, so that a chain is `((&a * &b)? + &c)?`. An assignment cannot return one: it panics with the error. To avoid the panic,
//! call the operator in place by its name ([`find_operator`](crate::dispatch::find_operator) of `add_.Tensor`).

use std::ops::{
    Add, AddAssign, BitAnd, BitOr, BitXor, Div, DivAssign, Mul, MulAssign, Neg, Not, Rem, Sub, SubAssign,
};
use std::panic::Location;

use thalweg_ir::Scalar;
use thalweg_runtime::Result;

use crate::dispatch::{Argument, Operator, built_in, call};
use crate::tensor::Tensor;

/// An operator between tensors, owned or borrowed, and with numbers on the right.
macro_rules! binary {
    ($($trait:ident $name:ident: $method:ident, $scalar:ident;)*) => {$(
        binary!(@tensors $trait $name $method; &Tensor, &Tensor; &Tensor, Tensor; Tensor, &Tensor; Tensor, Tensor);
        binary!(@numbers $trait $name $scalar; f64 i64);
    )*};
    (@tensors $trait:ident $name:ident $method:ident; $($left:ty, $right:ty);*) => {$(
        impl $trait<$right> for $left {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $name(self, other: $right) -> Result<Tensor> {
                #[allow(clippy::needless_borrow)]
                Tensor::$method(&self, &other)
            }
        }
    )*};
    (@numbers $trait:ident $name:ident $scalar:ident; $($number:ty)*) => {$(
        impl $trait<$number> for &Tensor {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $name(self, number: $number) -> Result<Tensor> {
                self.$scalar(number)
            }
        }

        impl $trait<$number> for Tensor {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $name(self, number: $number) -> Result<Tensor> {
                Tensor::$scalar(&self, number)
            }
        }
    )*};
}

binary! {
    Add add: add, add_scalar;
    Sub sub: sub, sub_scalar;
    Mul mul: mul, mul_scalar;
    Div div: div, div_scalar;
    Rem rem: remainder, remainder_scalar;
}

macro_rules! bits {
    ($($trait:ident $name:ident: $method:ident;)*) => {$(
        binary!(@tensors $trait $name $method; &Tensor, &Tensor; &Tensor, Tensor; Tensor, &Tensor; Tensor, Tensor);
    )*};
}

bits! {
    BitAnd bitand: bitwise_and;
    BitOr bitor: bitwise_or;
    BitXor bitxor: bitwise_xor;
}

/// An operator with a number on the left.
macro_rules! number_first {
    ($($trait:ident $name:ident |$tensor:ident, $number:ident| $body:expr;)*) => {$(
        number_first!(@each $trait $name |$tensor, $number| $body; f64 i64);
    )*};
    (@each $trait:ident $name:ident |$tensor:ident, $number:ident| $body:expr; $($type:ty)*) => {$(
        impl $trait<&Tensor> for $type {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $name(self, $tensor: &Tensor) -> Result<Tensor> {
                let $number = self;
                $body
            }
        }

        impl $trait<Tensor> for $type {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $name(self, tensor: Tensor) -> Result<Tensor> {
                $trait::$name(self, &tensor)
            }
        }
    )*};
}

number_first! {
    Add add |tensor, number| tensor.add_scalar(number);
    Sub sub |tensor, number| tensor.rsub_scalar(number);
    Mul mul |tensor, number| tensor.mul_scalar(number);
    Div div |tensor, number| tensor.reciprocal()?.mul_scalar(number);
}

macro_rules! unary {
    ($($trait:ident $name:ident: $method:ident;)*) => {$(
        impl $trait for &Tensor {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $name(self) -> Result<Tensor> {
                self.$method()
            }
        }

        impl $trait for Tensor {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $name(self) -> Result<Tensor> {
                Tensor::$method(&self)
            }
        }
    )*};
}

unary! {
    Neg neg: neg;
    Not not: bitwise_not;
}

/// Writes into a tensor, or panics with the error.
#[track_caller]
fn assign(operator: Result<&'static Operator>, target: &Tensor, value: Argument<'_>) {
    let location = Location::caller();
    let written = operator.and_then(|operator| call(operator, &[target.into(), value], None, location));
    if let Err(error) = written {
        panic!("{error}");
    }
}

macro_rules! assignments {
    ($($trait:ident $name:ident: $tensor:literal, $scalar:literal;)*) => {$(
        impl $trait<&Tensor> for Tensor {
            /// Computes in place with another tensor.
            ///
            /// # Panics
            /// Panics with the operator's error if the tensors do not fit or the write is refused.
            #[track_caller]
            fn $name(&mut self, other: &Tensor) {
                assign(built_in!($tensor), self, other.into());
            }
        }

        assignments!(@numbers $trait $name $scalar; f64 i64);
    )*};
    (@numbers $trait:ident $name:ident $scalar:literal; $($number:ty)*) => {$(
        impl $trait<$number> for Tensor {
            /// Computes in place with a number.
            ///
            /// # Panics
            /// Panics with the operator's error if the write is refused.
            #[track_caller]
            fn $name(&mut self, number: $number) {
                assign(built_in!($scalar), self, Argument::Scalar(Scalar::from(number)));
            }
        }
    )*};
}

assignments! {
    AddAssign add_assign: "add_.Tensor", "add_.Scalar";
    SubAssign sub_assign: "sub_.Tensor", "sub_.Scalar";
    MulAssign mul_assign: "mul_.Tensor", "mul_.Scalar";
    DivAssign div_assign: "div_.Tensor", "div_.Scalar";
}
