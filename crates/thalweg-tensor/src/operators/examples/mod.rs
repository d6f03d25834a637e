//! Examples of the operators' methods, by name: their documentation, and tests of it.
//!
//! An example shows an input and the output, as a tensor is printed. The documentation of a new method is not built without one.
//! Only documentation and its tests read the examples, so a program does not wait for them to compile.

/// Defines a macro that returns the example of an operator as documentation, or passes the name on to the next such macro.
macro_rules! examples {
    (($dollar:tt) $family:ident $next:ident $($name:ident $code:literal)*) => {
        macro_rules! $family {
            $(($name) => {
                concat!(
                    "\n```\n# use thalweg_ir::DType;\n# use thalweg_tensor::Tensor;\n",
                    "# let device = thalweg_runtime::Device::sim(0)?;\n",
                    $code,
                    "\n# Ok::<(), thalweg_runtime::Error>(())\n```"
                )
            };)*
            ($dollar other:ident) => {
                $crate::operators::examples::$next!($dollar other)
            };
        }

        pub(crate) use $family;
    };
}

/// Refuses a method without an example.
macro_rules! missing {
    ($name:ident) => {
        compile_error!(concat!("the operator ", stringify!($name), " has no example in operators/examples"))
    };
}

pub(crate) use {examples, missing};

mod collections;
mod elementwise;
mod matrices;
mod networks;
mod shapes;

pub(crate) use self::collections::collections;
pub(crate) use self::elementwise::elementwise;
pub(crate) use self::elementwise::elementwise as example;
pub(crate) use self::matrices::matrices;
pub(crate) use self::networks::networks;
pub(crate) use self::shapes::shapes;
