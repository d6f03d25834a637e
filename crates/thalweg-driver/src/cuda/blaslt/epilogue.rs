//! Epilogues of products by cuBLASLt: the library's numbers, and the values that an activation stores for its backward
//! pass.

use super::alignment_of;
use crate::cuda::table::numbers;
use crate::library::{
    Activation, ActivationPass, ElementFormat, MatmulActivation, MatmulCall, MatmulEpilogue,
};

numbers! { numbers_of_epilogues from cudarc::cublaslt::sys::cublasLtEpilogue_t, pub(in crate::cuda) u32 {
    EPILOGUE_BIAS = 4, CUBLASLT_EPILOGUE_BIAS;
    EPILOGUE_GELU_KEPT = 32 | 128, CUBLASLT_EPILOGUE_GELU_AUX;
    EPILOGUE_GELU_GRADIENT = 64 | 128, CUBLASLT_EPILOGUE_DGELU;
    EPILOGUE_RELU_KEPT = 2 | 128, CUBLASLT_EPILOGUE_RELU_AUX;
    EPILOGUE_RELU_GRADIENT = 8 | 128, CUBLASLT_EPILOGUE_DRELU;
} }

/// A [`MatmulActivation`] without its address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::cuda) struct ActivationKey {
    pub(in crate::cuda) function: Activation,
    pass: ActivationPass,
    pub(in crate::cuda) alignment: u32,
    pub(in crate::cuda) leading_dimension: i64,
}

impl ActivationKey {
    /// Creates the key of a call's activation, if it has one; the error is the reason why it is invalid.
    pub(in crate::cuda) fn new(call: &MatmulCall) -> Result<Option<Self>, String> {
        let Some(MatmulActivation { function, pass, kept, leading_dimension: rows }) =
            call.epilogue.activation
        else {
            return Ok(None);
        };
        let is_short = [ElementFormat::R_16F, ElementFormat::R_16BF].contains(&call.format);
        let alignment = alignment_of(kept);
        if !is_short || call.output_format != call.format || call.batch != 1 || call.beta != 0.0 {
            return Err(
                "an activation is of one product of 16-bit floats that is added to nothing".to_owned()
            );
        }
        if pass == ActivationPass::Backward && call.epilogue.bias.is_some() {
            return Err("the gradient of an activation takes no bias".to_owned());
        }
        let leading_dimension = i64::try_from(rows).unwrap_or(-1);
        let multiple = function.row_multiple();
        if alignment < 16 || leading_dimension < 0 || !rows.is_multiple_of(multiple) || rows < call.n {
            return Err(format!(
                "rows of what {function:?} keeps begin at {kept:?}, {rows} elements apart: 16 bytes and {multiple} elements must divide \
                 them, and a row has {}",
                call.n
            ));
        }
        Ok(Some(Self { function, pass, alignment, leading_dimension }))
    }

    /// Returns the library's number of the epilogue, without a bias.
    pub(in crate::cuda) const fn epilogue(self) -> u32 {
        match (self.function, self.pass) {
            (Activation::Gelu, ActivationPass::Forward) => EPILOGUE_GELU_KEPT,
            (Activation::Gelu, ActivationPass::Backward) => EPILOGUE_GELU_GRADIENT,
            (Activation::Relu, ActivationPass::Forward) => EPILOGUE_RELU_KEPT,
            (Activation::Relu, ActivationPass::Backward) => EPILOGUE_RELU_GRADIENT,
        }
    }
}

/// Returns the description of an epilogue, for messages.
pub(in crate::cuda) fn epilogue_text(epilogue: &MatmulEpilogue) -> String {
    let bias = if epilogue.bias.is_some() { " + bias" } else { "" };
    match epilogue.activation {
        None => bias.to_owned(),
        Some(MatmulActivation { function, pass: ActivationPass::Forward, .. }) => {
            format!("{bias}, {function:?}")
        }
        Some(MatmulActivation { function, .. }) => format!("{bias}, gradient of {function:?}"),
    }
}
