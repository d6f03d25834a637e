//! The addresses in a library call, which a repeated call may change.

use super::GpuCall;
use super::attention::AttentionCall;
use super::convolution::ConvolutionCall;
use super::{MatmulCall, Matrix};
use crate::DevicePointer;

impl GpuCall {
    /// Changes each address of the call, always in the same order. Returns `false` for a call whose addresses cannot be changed.
    pub fn change_addresses(&mut self, change: &mut dyn FnMut(&mut DevicePointer)) -> bool {
        match self {
            Self::Matmul(call) => of_matmul(call, change),
            Self::Attention(call) => of_attention(call, change),
            Self::Convolution(call) => of_convolution(call, change),
            Self::Recurrent(_) | Self::Fourier(_) | Self::Dense(_) => return false,
        }
        true
    }
}

fn of_workspace(workspace: &mut Option<(DevicePointer, u64)>, change: &mut dyn FnMut(&mut DevicePointer)) {
    if let Some((address, _)) = workspace {
        change(address);
    }
}

fn of_matmul(call: &mut MatmulCall, change: &mut dyn FnMut(&mut DevicePointer)) {
    [&mut call.a, &mut call.b, &mut call.d].into_iter().for_each(|Matrix { address, .. }| change(address));
    if let Some(bias) = &mut call.epilogue.bias {
        change(bias);
    }
    if let Some(activation) = &mut call.epilogue.activation {
        change(&mut activation.kept);
    }
    of_workspace(&mut call.workspace, change);
}

fn of_attention(call: &mut AttentionCall, change: &mut dyn FnMut(&mut DevicePointer)) {
    let operands = [&mut call.query, &mut call.key, &mut call.value, &mut call.output];
    operands.into_iter().for_each(|operand| change(&mut operand.address));
    change(&mut call.log_sum_exp);
    if let Some(mask) = &mut call.mask {
        change(&mut mask.address);
    }
    if let Some(gradients) = &mut call.gradients {
        let operands =
            [&mut gradients.output, &mut gradients.query, &mut gradients.key, &mut gradients.value];
        operands.into_iter().for_each(|operand| change(&mut operand.address));
    }
    of_workspace(&mut call.workspace, change);
}

fn of_convolution(call: &mut ConvolutionCall, change: &mut dyn FnMut(&mut DevicePointer)) {
    [&mut call.input, &mut call.weight, &mut call.output].into_iter().for_each(&mut *change);
    if let Some(epilogue) = &mut call.epilogue {
        change(&mut epilogue.bias);
    }
    of_workspace(&mut call.workspace, change);
}
