//! Losses. Each is a structure of options with PyTorch's defaults, and its `forward` takes a prediction and a target.

use std::panic::Location;

use thalweg_derive::{enter, in_call};
use thalweg_runtime::{Result, options};
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::Argument;

use super::Module;
use crate::functional::{self, Reduction, call, operator};

/// A field of a loss, as its operator takes it.
trait Field {
    fn argument(&self) -> Argument<'_>;
}

macro_rules! fields {
    ($($type:ty)*) => {$(
        impl Field for $type {
            fn argument(&self) -> Argument<'_> {
                (*self).into()
            }
        }
    )*};
}

fields! { Reduction i64 f64 bool }

impl Field for Option<Tensor> {
    fn argument(&self) -> Argument<'_> {
        self.as_ref().into()
    }
}

/// Defines losses, each of which is one operator. An entry names the operator, the tensors that it takes, and its other arguments
/// in the operator's order. These arguments are fields. The braces declare the fields, except `reduction`, with PyTorch's
/// defaults.
macro_rules! losses {
    ($(
        $(#[$attribute:meta])*
        $name:ident = $operator:literal($($tensor:ident)*; $($argument:ident)*) {
            $( $(#[$field_doc:meta])* $role:ident $field:ident: $type:ty = $default:expr, )*
        }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Module, Clone, Debug)]
        pub struct $name {
            $( $(#[$field_doc])* #[module($role)] pub $field: $type, )*
            /// The reduction of the losses.
            #[module(skip)]
            pub reduction: Reduction,
        }

        impl Default for $name {
            /// Returns PyTorch's options.
            fn default() -> Self {
                Self { $($field: $default,)* reduction: Reduction::Mean }
            }
        }

        impl $name {
            /// Returns the loss. Asynchronous.
            #[track_caller]
            pub fn forward(&self, $($tensor: &Tensor),*) -> Result<Tensor> {
                let arguments = [$($tensor.into(),)* $(self.$argument.argument()),*];
                call(operator!($operator), &arguments, Location::caller())
            }
        }
    )*};
}

losses! {
    /// |x − target|.
    #[derive(Copy, PartialEq)]
    L1Loss = "l1_loss"(x target; reduction) {}
    /// (x − target)².
    #[derive(Copy, PartialEq)]
    MSELoss = "mse_loss"(x target; reduction) {}
    /// |x − target| − beta / 2 where |x − target| is above beta, else its square divided by 2 · beta.
    #[derive(Copy, PartialEq)]
    SmoothL1Loss = "smooth_l1_loss"(x target; reduction beta) {
        /// The place where the square ends.
        skip beta: f64 = 1.0,
    }
    /// delta · (|x − target| − delta / 2) where the distance is above delta, else half of its square.
    #[derive(Copy, PartialEq)]
    HuberLoss = "huber_loss"(x target; reduction delta) {
        /// The place where the square ends.
        skip delta: f64 = 1.0,
    }
    /// ln(1 + e^(−target · x)).
    #[derive(Copy, PartialEq)]
    SoftMarginLoss = "soft_margin_loss"(x target; reduction) {}
    /// The mean over a row's targets and its other classes of max(0, 1 − x at the target + x); targets end at the first that is −1.
    #[derive(Copy, PartialEq)]
    MultiLabelMarginLoss = "multilabel_margin_loss"(x target; reduction) {}
    /// x where the target is 1, max(0, margin − x) where it is −1.
    #[derive(Copy, PartialEq)]
    HingeEmbeddingLoss = "hinge_embedding_loss"(x target; margin reduction) {
        /// The least x at which an element with target −1 has no loss.
        skip margin: f64 = 1.0,
    }
    /// e^x − target · x, the likelihood of counts up to a constant.
    #[derive(Copy, PartialEq)]
    PoissonNLLLoss = "poisson_nll_loss"(x target; log_input full eps reduction) {
        /// Whether x is the logarithm of the rate.
        skip log_input: bool = true,
        /// Whether Stirling's approximation of the constant is added.
        skip full: bool = false,
        /// The number that is added to a rate of 0 before its logarithm.
        skip eps: f64 = 1e-8,
    }
    /// −ln softmax(x) at the class of each row, or against probabilities: x (classes), (rows, classes) or (rows, classes, …).
    CrossEntropyLoss = "cross_entropy_loss"(x target; weight reduction ignore_index label_smoothing) {
        /// A weight per class.
        buffer weight: Option<Tensor> = None,
        /// A class whose rows do not contribute to the loss.
        skip ignore_index: i64 = -100,
        /// The part of a target that is spread evenly over all classes.
        skip label_smoothing: f64 = 0.0,
    }
    /// −x at the class of each row, where x holds logarithms of probabilities.
    NLLLoss = "nll_loss_nd"(x target; weight reduction ignore_index) {
        /// A weight per class.
        buffer weight: Option<Tensor> = None,
        /// A class whose rows do not contribute to the loss.
        skip ignore_index: i64 = -100,
    }
    /// The mean over a row's classes of max(0, margin − x at the target + x)ᵖ.
    MultiMarginLoss = "multi_margin_loss"(x target; p margin weight reduction) {
        /// The power, 1 or 2.
        skip p: i64 = 1,
        /// The amount by which the target's score must exceed another class's score for that class to add no loss.
        skip margin: f64 = 1.0,
        /// A weight per class.
        buffer weight: Option<Tensor> = None,
    }
    /// −target · ln x − (1 − target) · ln(1 − x).
    BCELoss = "binary_cross_entropy"(x target; weight reduction) {
        /// A weight per element, broadcast.
        buffer weight: Option<Tensor> = None,
    }
    /// [`BCELoss`] of σ(x).
    BCEWithLogitsLoss = "binary_cross_entropy_with_logits"(x target; weight pos_weight reduction) {
        /// A weight per element, broadcast.
        buffer weight: Option<Tensor> = None,
        /// The factor of targets that are 1, broadcast.
        buffer pos_weight: Option<Tensor> = None,
    }
    /// max(0, −target · (x1 − x2) + margin), for pairs whose order is the target, 1 or −1.
    #[derive(Copy, PartialEq)]
    MarginRankingLoss = "margin_ranking_loss"(x1 x2 target; margin reduction) {
        /// The amount by which the value that should be greater must exceed the other one for the pair to have no loss.
        skip margin: f64 = 0.0,
    }
    /// 1 − cos(x1, x2) for targets 1, and max(0, cos(x1, x2) − margin) for targets −1. The inputs have the shape (rows,
    /// features), or (features) for a single row.
    #[derive(Copy, PartialEq)]
    CosineEmbeddingLoss = "cosine_embedding_loss"(x1 x2 target; margin reduction) {
        /// The greatest cosine at which a pair with target −1 has no loss.
        skip margin: f64 = 0.0,
    }
}

/// target · (ln target − x), where x holds logarithms.
#[derive(Module, Clone, Copy, PartialEq, Debug, Default)]
#[module(skip)]
pub struct KLDivLoss {
    /// The reduction of the losses of all elements.
    pub reduction: Reduction,
    /// Whether the sum is divided by the first extent, regardless of `reduction` (`reduction='batchmean'`).
    pub batch_mean: bool,
    /// Whether the target contains logarithms, too.
    pub log_target: bool,
}

impl KLDivLoss {
    /// Returns the loss of a prediction against a target. Asynchronous.
    #[in_call("KLDivLoss", &[x, target])]
    pub fn forward(&self, x: &Tensor, target: &Tensor) -> Result<Tensor> {
        let reduction = if self.batch_mean { Reduction::Sum } else { self.reduction };
        let arguments = [x.into(), target.into(), reduction.into(), self.log_target.into()];
        let loss = call(operator!("kl_div"), &arguments, Location::caller())?;
        match (self.batch_mean, x.shape().first()) {
            (true, Some(&rows)) => loss.div_scalar(rows as f64),
            _ => Ok(loss),
        }
    }
}

options! {
    /// Half of ln variance + (x − target)² / variance.
    #[derive(Module, Clone, Copy, PartialEq, Debug)]
    #[module(skip)]
    pub struct GaussianNLLLoss {
        /// Whether half of ln 2π is added.
        pub full: bool = false,
        /// The least variance.
        pub eps: f64 = 1e-6,
        /// The reduction of the losses.
        pub reduction: Reduction = Reduction::Mean,
    }
}

impl GaussianNLLLoss {
    /// Returns the loss of predictions. The variances have the predictions' shape, or that shape with a last extent of 1, or
    /// without the last dimension. Variances below `eps` have no gradient. Asynchronous.
    #[enter]
    pub fn forward(&self, x: &Tensor, target: &Tensor, variance: &Tensor) -> Result<Tensor> {
        functional::gaussian_nll_loss(x, target, variance, self.full, self.eps, self.reduction)
    }
}

options! {
    /// The mean over a row's classes of −target · ln σ(x) − (1 − target) · ln σ(−x).
    #[derive(Module, Clone, Debug)]
    pub struct MultiLabelSoftMarginLoss {
        /// A weight per class.
        #[module(buffer)]
        pub weight: Option<Tensor> = None,
        /// The reduction of the losses of rows.
        #[module(skip)]
        pub reduction: Reduction = Reduction::Mean,
    }
}

impl MultiLabelSoftMarginLoss {
    /// Returns the loss of a prediction (…, classes) against a target of that shape. Asynchronous.
    #[enter]
    pub fn forward(&self, x: &Tensor, target: &Tensor) -> Result<Tensor> {
        functional::multilabel_soft_margin_loss(x, target, self.weight.as_ref(), self.reduction)
    }
}

/// Connectionist temporal classification: −ln of the probability of each sequence of labels, over all its alignments with time.
#[derive(Module, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[module(skip)]
pub struct CTCLoss {
    /// The label that represents a blank.
    pub blank: i64,
    /// The reduction of the losses of sequences; the mean is taken over the losses divided by their numbers of labels.
    pub reduction: Reduction,
    /// Whether the loss of a sequence that does not fit into its time is 0, instead of infinity.
    pub zero_infinity: bool,
}

impl CTCLoss {
    /// Returns the loss of logarithms of probabilities (time, batch, labels) against labels (batch, length) or concatenated
    /// sequences of different lengths. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if shapes, dtypes or lengths do not fit.
    #[track_caller]
    pub fn forward(
        &self,
        log_probs: &Tensor,
        targets: &Tensor,
        input_lengths: &[i64],
        target_lengths: &[i64],
    ) -> Result<Tensor> {
        let lengths = [input_lengths, target_lengths].map(Argument::Ints);
        let [input_lengths, target_lengths] = lengths;
        let options = [self.blank.into(), self.reduction.into(), self.zero_infinity.into()];
        let [blank, reduction, zero_infinity] = options;
        let arguments = [
            log_probs.into(),
            targets.into(),
            input_lengths,
            target_lengths,
            blank,
            reduction,
            zero_infinity,
        ];
        call(operator!("ctc_loss.IntList"), &arguments, Location::caller())
    }
}
