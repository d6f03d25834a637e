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

mod adafactor;
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
pub use thalweg_ops::optimizer::{
    AdadeltaOptions, AdagradOptions, AdamOptions, AdamWOptions, AdamaxOptions, AsgdOptions, LionOptions,
    NAdamOptions, OptimizerOptions, RAdamOptions, RMSpropOptions, RpropOptions, SgdOptions,
    SparseAdamOptions,
};

/// Adadelta.
pub type Adadelta = Optimizer<AdadeltaOptions>;
/// Adagrad.
pub type Adagrad = Optimizer<AdagradOptions>;
/// Adam.
pub type Adam = Optimizer<AdamOptions>;
/// Adam with decoupled weight decay.
pub type AdamW = Optimizer<AdamWOptions>;
/// Adamax.
pub type Adamax = Optimizer<AdamaxOptions>;
/// Averaged stochastic gradient descent.
pub type Asgd = Optimizer<AsgdOptions>;
/// Lion.
pub type Lion = Optimizer<LionOptions>;
/// NAdam.
pub type NAdam = Optimizer<NAdamOptions>;
/// RAdam.
pub type RAdam = Optimizer<RAdamOptions>;
/// RMSprop.
pub type RMSprop = Optimizer<RMSpropOptions>;
/// Rprop.
pub type Rprop = Optimizer<RpropOptions>;
/// Stochastic gradient descent.
pub type Sgd = Optimizer<SgdOptions>;
/// Adam that does not change elements whose gradient is 0: for tables of embeddings.
pub type SparseAdam = Optimizer<SparseAdamOptions>;
