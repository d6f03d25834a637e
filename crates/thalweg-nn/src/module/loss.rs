//! Losses. Each is a structure of options with PyTorch's defaults, and its `forward` takes a prediction and a target.

use std::panic::Location;

use thalweg_ir::Scalar;
use thalweg_runtime::{Error, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::{enter, in_call};
use thalweg_tensor::dispatch::Argument;

use super::Module;
use crate::functional::{self, Reduction, call, operator};

/// Losses of two tensors that hold no tensors themselves.
macro_rules! losses {
    ($(
        $(#[$doc:meta])*
        $name:ident { $( $(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr, )* }
        |$this:ident, $x:ident, $target:ident| $body:expr;
    )*) => {$(
        $(#[$doc])*
        #[derive(Module, Clone, Copy, PartialEq, Debug)]
        pub struct $name {
            $( $(#[$field_doc])* #[module(skip)] pub $field: $type, )*
            /// The reduction of the losses of all elements.
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
            /// Returns the loss of a prediction against a target. Asynchronous.
            ///
            /// # Errors
            /// [`Error::is_invalid_argument`] if shapes or dtypes do not fit.
            #[track_caller]
            pub fn forward(&self, $x: &Tensor, $target: &Tensor) -> Result<Tensor> {
                let $this = self;
                in_call(stringify!($name), &[$x, $target], Location::caller(), || $body)
            }
        }
    )*};
}

losses! {
    /// |x − target|.
    L1Loss {} |this, x, target| call(operator!("l1_loss"), &[x.into(), target.into(), this.reduction.into()], Location::caller());
    /// (x − target)².
    MSELoss {} |this, x, target| call(operator!("mse_loss"), &[x.into(), target.into(), this.reduction.into()], Location::caller());
    /// |x − target| − beta / 2 where the distance is above beta, else its square divided by 2 · beta.
    SmoothL1Loss {
        /// The distance up to which the loss is quadratic.
        beta: f64 = 1.0,
    } |this, x, target| {
        let arguments = [x.into(), target.into(), this.reduction.into(), this.beta.into()];
        call(operator!("smooth_l1_loss"), &arguments, Location::caller())
    };
    /// delta · (|x − target| − delta / 2) where the distance is above delta, else half of its square.
    HuberLoss {
        /// The distance up to which the loss is quadratic.
        delta: f64 = 1.0,
    } |this, x, target| {
        let arguments = [x.into(), target.into(), this.reduction.into(), this.delta.into()];
        call(operator!("huber_loss"), &arguments, Location::caller())
    };
    /// ln(1 + e^(−target · x)).
    SoftMarginLoss {} |this, x, target| {
        call(operator!("soft_margin_loss"), &[x.into(), target.into(), this.reduction.into()], Location::caller())
    };
    /// The mean over a row's targets and its other classes of max(0, 1 − x at the target + x); targets end at the first −1.
    MultiLabelMarginLoss {} |this, x, target| {
        call(operator!("multilabel_margin_loss"), &[x.into(), target.into(), this.reduction.into()], Location::caller())
    };
    /// x where the target is 1, max(0, margin − x) where it is −1.
    HingeEmbeddingLoss {
        /// The least x with loss 0 for a target of −1.
        margin: f64 = 1.0,
    } |this, x, target| {
        let far = x.neg()?.add_scalar(this.margin)?.clamp_min(0.0)?;
        let zero = Tensor::zeros(&[], x.dtype(), x.device())?;
        let of_negative = target.ne_scalar(1.0)?.select_where(&far, &zero)?;
        let of_positive = target.ne_scalar(-1.0)?.select_where(x, &zero)?;
        this.reduction.of(&of_negative.add(&of_positive)?)
    };
    /// e^x − target · x, the likelihood of counts up to a constant.
    PoissonNLLLoss {
        /// Whether x is the logarithm of the rate.
        log_input: bool = true,
        /// Whether Stirling's approximation of the constant is added.
        full: bool = false,
        /// The number that is added to a rate of 0 before its logarithm.
        eps: f64 = 1e-8,
    } |this, x, target| {
        let mut loss = match this.log_input {
            true => x.exp()?.sub(&target.mul(x)?)?,
            false => x.sub(&target.mul(&x.add_scalar(this.eps)?.log()?)?)?,
        };
        if this.full {
            let logarithm = target.clamp_min(1.0)?.log()?;
            let circle = logarithm.add_scalar(std::f64::consts::TAU.ln())?.mul_scalar(0.5)?;
            let stirling = target.mul(&logarithm)?.sub(target)?.add(&circle)?;
            let zero = Tensor::zeros(&[], stirling.dtype(), x.device())?;
            loss = loss.add(&target.gt_scalar(1.0)?.select_where(&stirling, &zero)?)?;
        }
        this.reduction.of(&loss)
    };
}

/// target · (ln target − x), where x holds logarithms.
#[derive(Module, Clone, Copy, PartialEq, Debug, Default)]
pub struct KLDivLoss {
    /// The reduction of the losses of all elements.
    #[module(skip)]
    pub reduction: Reduction,
    /// Whether the sum is divided by the first extent, regardless of `reduction` (`reduction='batchmean'`).
    #[module(skip)]
    pub batch_mean: bool,
    /// Whether the target holds logarithms, too.
    #[module(skip)]
    pub log_target: bool,
}

impl KLDivLoss {
    /// Returns the loss of a prediction against a target. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if shapes or dtypes do not fit.
    #[track_caller]
    pub fn forward(&self, x: &Tensor, target: &Tensor) -> Result<Tensor> {
        in_call("KLDivLoss", &[x, target], Location::caller(), || {
            let reduction = if self.batch_mean { Reduction::Sum } else { self.reduction };
            let arguments = [x.into(), target.into(), reduction.into(), self.log_target.into()];
            let loss = call(operator!("kl_div"), &arguments, Location::caller())?;
            match (self.batch_mean, x.shape().first()) {
                (true, Some(&rows)) => loss.div_scalar(rows as f64),
                _ => Ok(loss),
            }
        })
    }
}

/// Losses with weights.
macro_rules! weighted_losses {
    ($(
        $(#[$doc:meta])*
        $name:ident { $( $(#[$field_doc:meta])* $attribute:ident $field:ident: $type:ty = $default:expr, )* }
        |$this:ident| $operator:literal, $($argument:expr),*;
    )*) => {$(
        $(#[$doc])*
        #[derive(Module, Clone, Debug)]
        pub struct $name {
            $( $(#[$field_doc])* #[module($attribute)] pub $field: $type, )*
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
            /// Returns the loss of a prediction against a target. Asynchronous.
            ///
            /// # Errors
            /// [`Error::is_invalid_argument`] if shapes or dtypes do not fit.
            #[track_caller]
            pub fn forward(&self, x: &Tensor, target: &Tensor) -> Result<Tensor> {
                let $this = self;
                call(operator!($operator), &[x.into(), target.into(), $($argument),*], Location::caller())
            }
        }
    )*};
}

weighted_losses! {
    /// −ln softmax(x) at the class of each row, or weighted by probabilities: x (classes), (rows, classes) or (rows, classes, …).
    CrossEntropyLoss {
        /// A weight per class.
        buffer weight: Option<Tensor> = None,
        /// The class whose rows are ignored.
        skip ignore_index: i64 = -100,
        /// The fraction of a target that is spread evenly over all classes.
        skip label_smoothing: f64 = 0.0,
    } |this| "cross_entropy_loss", this.weight.as_ref().into(), this.reduction.into(), this.ignore_index.into(), this.label_smoothing.into();
    /// −x at the class of each row, where x holds logarithms of probabilities.
    NLLLoss {
        /// A weight per class.
        buffer weight: Option<Tensor> = None,
        /// The class whose rows are ignored.
        skip ignore_index: i64 = -100,
    } |this| "nll_loss_nd", this.weight.as_ref().into(), this.reduction.into(), this.ignore_index.into();
    /// The mean over a row's classes of max(0, margin − x at the target + x)ᵖ.
    MultiMarginLoss {
        /// The power, 1 or 2.
        skip p: i64 = 1,
        /// The margin by which the target must exceed the others.
        skip margin: f64 = 1.0,
        /// A weight per class.
        buffer weight: Option<Tensor> = None,
    } |this| "multi_margin_loss", Scalar::I64(this.p).into(), Scalar::F64(this.margin).into(), this.weight.as_ref().into(), this.reduction.into();
    /// −target · ln x − (1 − target) · ln(1 − x).
    BCELoss {
        /// A weight per element, broadcast.
        buffer weight: Option<Tensor> = None,
    } |this| "binary_cross_entropy", this.weight.as_ref().into(), this.reduction.into();
    /// [`BCELoss`] of σ(x).
    BCEWithLogitsLoss {
        /// A weight per element, broadcast.
        buffer weight: Option<Tensor> = None,
        /// The factor of targets that are 1, broadcast.
        buffer pos_weight: Option<Tensor> = None,
    } |this| "binary_cross_entropy_with_logits", this.weight.as_ref().into(), this.pos_weight.as_ref().into(), this.reduction.into();
}

/// max(0, −target · (x1 − x2) + margin).
#[derive(Module, Clone, Copy, PartialEq, Debug, Default)]
pub struct MarginRankingLoss {
    /// The margin by which the better one must exceed the other.
    #[module(skip)]
    pub margin: f64,
    /// The reduction of the losses.
    #[module(skip)]
    pub reduction: Reduction,
}

impl MarginRankingLoss {
    /// Returns the loss of pairs whose order is the target, 1 or −1. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if shapes or dtypes do not fit.
    #[track_caller]
    pub fn forward(&self, x1: &Tensor, x2: &Tensor, target: &Tensor) -> Result<Tensor> {
        let arguments = [x1, x2, target].map(Argument::Tensor);
        let [x1, x2, target] = arguments;
        let arguments = [x1, x2, target, self.margin.into(), self.reduction.into()];
        call(operator!("margin_ranking_loss"), &arguments, Location::caller())
    }
}

/// 1 − cos(x1, x2) where the target is 1, max(0, cos(x1, x2) − margin) where it is −1.
#[derive(Module, Clone, Copy, PartialEq, Debug, Default)]
pub struct CosineEmbeddingLoss {
    /// The greatest cosine with loss 0 for a target of −1.
    #[module(skip)]
    pub margin: f64,
    /// The reduction of the losses.
    #[module(skip)]
    pub reduction: Reduction,
}

impl CosineEmbeddingLoss {
    /// Returns the loss of rows (rows, features), or of one row (features). Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if shapes or dtypes do not fit.
    #[track_caller]
    pub fn forward(&self, x1: &Tensor, x2: &Tensor, target: &Tensor) -> Result<Tensor> {
        in_call("CosineEmbeddingLoss", &[x1, x2, target], Location::caller(), || {
            if x1.rank() != target.rank() + 1 || x1.shape() != x2.shape() {
                return Err(Error::invalid(format!(
                    "{}D target tensor expects {}D input tensors, but found inputs with sizes {:?} and {:?}.",
                    target.rank(),
                    target.rank() + 1,
                    x1.shape(),
                    x2.shape()
                )));
            }
            // PyTorch's constant that prevents a division by 0.
            let length = |x: &Tensor| x.square()?.sum(&[-1], false)?.add_scalar(1e-12);
            let product = x1.mul(x2)?.sum(&[-1], false)?;
            let cosine = product.div(&length(x1)?.mul(&length(x2)?)?.sqrt()?)?;
            let zero = Tensor::zeros(&[], cosine.dtype(), x1.device())?;
            let near = cosine.neg()?.add_scalar(1.0)?;
            let far = cosine.sub_scalar(self.margin)?.clamp_min(0.0)?;
            let of_positive = target.eq_scalar(1.0)?.select_where(&near, &zero)?;
            let of_negative = target.eq_scalar(-1.0)?.select_where(&far, &zero)?;
            self.reduction.of(&of_positive.add(&of_negative)?)
        })
    }
}

/// Half of ln variance + (x − target)² / variance.
#[derive(Module, Clone, Copy, PartialEq, Debug)]
pub struct GaussianNLLLoss {
    /// Whether half of ln 2π is added.
    #[module(skip)]
    pub full: bool,
    /// The least variance.
    #[module(skip)]
    pub eps: f64,
    /// The reduction of the losses.
    #[module(skip)]
    pub reduction: Reduction,
}

impl Default for GaussianNLLLoss {
    /// Returns PyTorch's options.
    fn default() -> Self {
        Self { full: false, eps: 1e-6, reduction: Reduction::Mean }
    }
}

impl GaussianNLLLoss {
    /// Returns the loss of predictions with variances of the same shape, of that shape with a last extent of 1, or without the
    /// last dimension. Variances have no gradient where they are below the least. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if shapes or dtypes do not fit.
    #[track_caller]
    pub fn forward(&self, x: &Tensor, target: &Tensor, variance: &Tensor) -> Result<Tensor> {
        let _entered = enter(Location::caller());
        functional::gaussian_nll_loss(x, target, variance, self.full, self.eps, self.reduction)
    }
}

/// The mean over a row's classes of −target · ln σ(x) − (1 − target) · ln σ(−x).
#[derive(Module, Clone, Debug)]
pub struct MultiLabelSoftMarginLoss {
    /// A weight per class.
    #[module(buffer)]
    pub weight: Option<Tensor>,
    /// The reduction of the losses of rows.
    #[module(skip)]
    pub reduction: Reduction,
}

impl Default for MultiLabelSoftMarginLoss {
    /// Returns PyTorch's options.
    fn default() -> Self {
        Self { weight: None, reduction: Reduction::Mean }
    }
}

impl MultiLabelSoftMarginLoss {
    /// Returns the loss of a prediction (…, classes) against a target of that shape. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if shapes or dtypes do not fit.
    #[track_caller]
    pub fn forward(&self, x: &Tensor, target: &Tensor) -> Result<Tensor> {
        let _entered = enter(Location::caller());
        functional::multilabel_soft_margin_loss(x, target, self.weight.as_ref(), self.reduction)
    }
}

/// Connectionist temporal classification: −ln of the probability of each sequence of labels, over all its alignments with time.
#[derive(Module, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CTCLoss {
    /// The label that represents a blank.
    #[module(skip)]
    pub blank: i64,
    /// The reduction of the losses of sequences; the mean is taken over the losses divided by their numbers of labels.
    #[module(skip)]
    pub reduction: Reduction,
    /// Whether the loss of a sequence that does not fit into its time is 0, instead of infinity.
    #[module(skip)]
    pub zero_infinity: bool,
}

impl CTCLoss {
    /// Returns the loss of logarithms of probabilities (time, batch, labels) against labels (batch, length) or concatenated
    /// sequences of different lengths. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if shapes, dtypes or lengths do not fit.
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
