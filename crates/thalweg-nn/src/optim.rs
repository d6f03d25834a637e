//! Optimizers (`torch.optim`), learning-rate schedules, gradient clipping, and the scaling of gradients.
//!
//! Every optimizer is an [`Optimizer`] of its options: [`Adam`] is `Optimizer<AdamOptions>`. Options, states and kernels come
//! from the entry of its rule ([`thalweg_ops::optimizer`]). A step counts in one launch and updates in others, each for some 70
//! parameters of a group and dtype. It also writes the casts of parameters that regions of [autocast](thalweg_tensor::autocast)
//! read, so that the next region casts nothing. Each cast takes two bytes per element, from the first region that reads it until
//! a step before which no region has read it. All state that changes from step to step is in device memory: a captured step
//! continues when it is replayed, and follows [`Optimizer::set_learning_rate`].
//!
//! [`Muon`] and [`Adafactor`], whose steps need products and reductions, are written with operators: each is a [`CompositeOptimizer`] of
//! its options. [`Lbfgs`] takes a closure.
//! [`Ema`] averages the weights that any of them makes.

mod adafactor;
mod average;
mod clip;
mod composite;
mod gradients;
mod group;
mod lbfgs;
mod line_search;
mod muon;
mod optimizer;
mod scaler;
mod schedule;
mod state;

pub use adafactor::{Adafactor, AdafactorOptions};
pub use average::Ema;
pub use clip::{clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm};
pub use composite::{CompositeOptimizer, CompositeRule};
pub use group::GradientScale;
pub use lbfgs::{Lbfgs, LbfgsOptions};
pub use muon::{AdjustLr, Muon, MuonOptions};
pub use optimizer::{Optimizer, ParamGroup};
pub use scaler::{GradientScaler, GradientScalerOptions};
pub use schedule::{
    Anneal, ChainedLr, ConstantLr, CosineAnnealingLr, CosineAnnealingWarmRestarts, CyclicLr, CyclicMode,
    ExponentialLr, LambdaLr, LinearLr, LrScheduler, MultiStepLr, MultiplicativeLr, OneCycleLr, PlateauMode,
    PlateauOptions, PolynomialLr, ReduceLrOnPlateau, Schedule, SequentialLr, StepLr, ThresholdMode,
};
pub use state::{GroupState, OptimizerState, ParameterState};

/// Defines the optimizers of the table.
macro_rules! optimizers {
    ($($name:ident $options:ident $title:literal;)*) => {
        pub use thalweg_ops::optimizer::{OptimizerOptions, $($options),*};

        $(
            #[doc = concat!($title, ", with the options that [`", stringify!($options), "`] describes.")]
            pub type $name = Optimizer<$options>;
        )*
    };
}

thalweg_ops::for_each_optimizer! { optimizers }
