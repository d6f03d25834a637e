//! Calls of several public operators that one operator computes in fewer launches, as data.
//!
//! A [`Pattern`] has the calls that it matches, with the shapes of their tensors, and the call that replaces them. Functions of
//! several operators (`gelu_mlp`, `norm_linear`) try their rows first and make the calls otherwise; a compiler finds the same
//! calls in a graph. A row says nothing about hardware: the library or the kernel decides whether it takes the extents.
//!
//! A decoder's layers (`functional::decoder_layers`) are no row: they write caches, in a number that is known only at the call.

use thalweg_ir::DType;

use self::Argument::{Extents as Of, Flag, Input as In, Number, Result as Out, Text};

/// A tensor that enters a pattern.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// The name, as in the documentation of the function.
    pub name: &'static str,
    /// A letter for each dimension. Dimensions with the same letter have the same extent.
    pub shape: &'static str,
    /// Whether the tensor may be absent.
    pub is_optional: bool,
}

/// An argument of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Argument {
    /// The pattern's input of this place.
    Input(usize),
    /// The first result of the call of this place.
    Result(usize),
    /// The pattern's number of this place.
    Number(usize),
    /// The extents of these dimensions.
    Extents(&'static str),
    /// A truth value.
    Flag(bool),
    /// A text.
    Text(&'static str),
    /// No value, for an optional parameter.
    None,
}

/// A call of an operator.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The operator's name, with its overload.
    pub operator: &'static str,
    /// The arguments, in the order of its parameters. Those that follow have their defaults.
    pub arguments: &'static [Argument],
}

/// The tensors that a pattern takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// Tensors that all have one of these dtypes in an operator that autocast casts to the region's dtype. Gradients may be
    /// required.
    Lower(&'static [DType]),
    /// Tensors of one dtype that autocast leaves as they are and that require no gradient.
    AsItIs,
}

/// Calls of several operators, and the call that replaces them. See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// The name that errors and profiles show.
    pub name: &'static str,
    /// The tensors.
    pub inputs: &'static [Input],
    /// The names of the numbers.
    pub numbers: &'static [&'static str],
    /// The dtypes.
    pub precision: Precision,
    /// The calls that are replaced, in order. The first result of the last one is the pattern's result; nothing else uses a
    /// result of the others.
    pub calls: &'static [Call],
    /// The call that replaces them. Its first result is the pattern's.
    pub fused: Call,
}

/// The extents of a pattern's dimensions in a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extents([Option<usize>; 26]);

impl Extents {
    /// Returns the extent of a dimension that the pattern has.
    #[must_use]
    pub fn get(&self, letter: char) -> usize {
        self.0[place(letter)].expect("a letter of the pattern")
    }
}

fn place(letter: char) -> usize {
    (letter as usize).wrapping_sub('a' as usize)
}

impl Pattern {
    /// Returns the extents of inputs with these shapes; `None` if the pattern does not match them.
    pub fn extents<'s>(&self, shapes: impl IntoIterator<Item = Option<&'s [usize]>>) -> Option<Extents> {
        let mut extents = Extents([None; 26]);
        for (input, shape) in self.inputs.iter().zip(shapes) {
            let Some(shape) = shape else {
                if input.is_optional {
                    continue;
                }
                return None;
            };
            if shape.len() != input.shape.len() {
                return None;
            }
            for (letter, &extent) in input.shape.chars().zip(shape) {
                if *extents.0[place(letter)].get_or_insert(extent) != extent {
                    return None;
                }
            }
        }
        Some(extents)
    }
}

const fn input(name: &'static str, shape: &'static str) -> Input {
    Input { name, shape, is_optional: false }
}

const fn optional(name: &'static str, shape: &'static str) -> Input {
    Input { name, shape, is_optional: true }
}

const fn call(operator: &'static str, arguments: &'static [Argument]) -> Call {
    Call { operator, arguments }
}

const MLP_INPUTS: &[Input] = &[
    input("input", "mk"),
    input("weight1", "hk"),
    input("weight2", "nh"),
    optional("bias1", "h"),
    optional("bias2", "n"),
];
const EXPAND: Call = call("linear", &[In(0), In(1), In(3)]);
const CONTRACT: Call = call("linear", &[Out(1), In(2), In(4)]);

/// A linear layer, GELU by its tanh formula, and a linear layer: the feed-forward part of a transformer's block.
pub static MLP_GELU: Pattern = Pattern {
    name: "mlp",
    inputs: MLP_INPUTS,
    numbers: &[],
    precision: Precision::Lower(&[DType::Bf16, DType::F16]),
    calls: &[EXPAND, call("gelu", &[Out(0), Text("tanh")]), CONTRACT],
    fused: call("thalweg::mlp", &[In(0), In(1), In(2), In(3), In(4), Flag(false)]),
};

/// A linear layer, the rectified linear unit, and a linear layer.
pub static MLP_RELU: Pattern = Pattern {
    calls: &[EXPAND, call("relu", &[Out(0)]), CONTRACT],
    fused: call("thalweg::mlp", &[In(0), In(1), In(2), In(3), In(4), Flag(true)]),
    ..MLP_GELU
};

const NORM: Call = call("layer_norm", &[In(0), Of("k"), In(1), In(2), Number(0)]);
const NORMALIZED: Call = call("linear", &[Out(0), In(3), In(4)]);
const GELU: Call = call("gelu", &[Out(1), Text("tanh")]);

/// A layer norm and a linear layer, for few rows.
pub static NORM_LINEAR: Pattern = Pattern {
    name: "norm_linear",
    inputs: &[
        input("input", "mk"),
        input("norm_weight", "k"),
        input("norm_bias", "k"),
        input("weight", "nk"),
        optional("bias", "n"),
    ],
    numbers: &["eps"],
    precision: Precision::AsItIs,
    calls: &[NORM, NORMALIZED],
    fused: call(
        "thalweg::norm_linear",
        &[In(0), In(3), In(4), Argument::None, In(1), In(2), Number(0), Flag(false)],
    ),
};

/// The same with GELU after it.
pub static NORM_LINEAR_GELU: Pattern = Pattern {
    calls: &[NORM, NORMALIZED, GELU],
    fused: call(
        "thalweg::norm_linear",
        &[In(0), In(3), In(4), Argument::None, In(1), In(2), Number(0), Flag(true)],
    ),
    ..NORM_LINEAR
};

const WITH_ADDEND: &[Input] = &[
    input("input", "mk"),
    input("norm_weight", "k"),
    input("norm_bias", "k"),
    input("weight", "nk"),
    optional("bias", "n"),
    input("addend", "mn"),
];

/// A layer norm and a linear layer whose result is added to a tensor, for few rows.
pub static NORM_LINEAR_ADD: Pattern = Pattern {
    inputs: WITH_ADDEND,
    calls: &[NORM, NORMALIZED, call("add.Tensor", &[Out(1), In(5)])],
    fused: call("thalweg::norm_linear", &[In(0), In(3), In(4), In(5), In(1), In(2), Number(0), Flag(false)]),
    ..NORM_LINEAR
};

/// The same with GELU before the addition.
pub static NORM_LINEAR_GELU_ADD: Pattern = Pattern {
    inputs: WITH_ADDEND,
    calls: &[NORM, NORMALIZED, GELU, call("add.Tensor", &[Out(2), In(5)])],
    fused: call("thalweg::norm_linear", &[In(0), In(3), In(4), In(5), In(1), In(2), Number(0), Flag(true)]),
    ..NORM_LINEAR
};

/// All patterns.
pub static PATTERNS: [&Pattern; 6] =
    [&MLP_GELU, &MLP_RELU, &NORM_LINEAR, &NORM_LINEAR_GELU, &NORM_LINEAR_ADD, &NORM_LINEAR_GELU_ADD];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_match_if_equal_letters_are_equal() {
        let shapes: [&[usize]; 5] = [&[4, 8], &[8], &[8], &[3, 8], &[3]];
        let of = |shapes: [Option<&[usize]>; 5]| NORM_LINEAR.extents(shapes);
        let found = of(shapes.map(Some)).expect("they match");
        assert_eq!(['m', 'k', 'n'].map(|letter| found.get(letter)), [4, 8, 3]);
        let [a, b, c, d, e] = shapes.map(Some);
        assert!(of([a, b, c, d, None]).is_some(), "the bias may be absent");
        assert!(of([a, b, c, None, e]).is_none(), "the weight may not");
        assert!(of([a, b, c, Some(&[3, 9]), e]).is_none(), "the weight has other columns");
        assert!(of([Some(&[4, 4, 8]), b, c, d, e]).is_none(), "the input is no matrix");
    }

    #[test]
    fn arguments_refer_to_what_there_is() {
        for pattern in PATTERNS {
            let letters: String = pattern.inputs.iter().map(|input| input.shape).collect();
            for (place, call) in pattern.calls.iter().chain([&pattern.fused]).enumerate() {
                assert!(call.arguments.iter().all(|argument| match *argument {
                    In(input) => input < pattern.inputs.len(),
                    Out(earlier) => earlier < place && place < pattern.calls.len(),
                    Number(number) => number < pattern.numbers.len(),
                    Of(extents) => extents.chars().all(|letter| letters.contains(letter)),
                    Flag(_) | Text(_) | Argument::None => true,
                }));
            }
        }
    }
}
