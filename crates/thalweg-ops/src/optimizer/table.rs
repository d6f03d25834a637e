//! The table of optimizers.
//!
//! An entry is the pseudocode of the optimizer's page in PyTorch's documentation. `step` is passed names for the parameter, its
//! gradient (unscaled, and negated by `maximize`), the number of steps including this one, and the learning rate; numbers, flags
//! and states have the names of the entry. Options that PyTorch has in a pair are `pairs`, whose two numbers have names of their
//! own in `step`. `step` assigns new values to the parameter and the states. Numbers are f64; values of the parameter's shape have
//! the dtype of its arithmetic.
//!
//! `scalar_states` gives for each of them its value after a step, computed from those before it, and `step` reads the values after
//! it. A state marked `(temporary)` hands a value to `step` and is not saved.

use smallvec::{SmallVec, smallvec};

use super::{Bound, NumberRule, OptimizerOptions, OptimizerRule, OptimizerValues, ScalarStateRule, StepBody};

/// Generates options and rules from the entries; `$d` is a dollar sign.
macro_rules! optimizers {
    ($d:tt $(
        $(#[$doc:meta])*
        $alias:ident $name:ident $rule:ident $options:ident $title:literal (lr: $lr:literal) {
            $(pairs { $($(#[$pair_doc:meta])* $pair:ident($first:ident, $second:ident): $pair_default:expr, $pair_bound:ident;)* })?
            numbers { $($(#[$number_doc:meta])* $number:ident: $default:literal, $bound:ident;)* }
            flags { $($(#[$flag_doc:meta])* $flag:ident;)* }
            $(derived($derived_of:ident) { $($derived:ident: $is_derived:expr;)* })?
            $(conflict($conflict_of:ident) $conflict:block)?
            states($start_of:ident) { $($state:ident $(if $condition:ident)?: $start:expr;)* }
            scalar_states($count:ident, $count_rate:ident) {
                $($scalar:ident $(($temporary:ident))?: $scalar_start:literal => $next:expr;)*
            }
            step($parameter:ident, $gradient:ident, $step:ident, $rate:ident) $body:block
        }
    )*) => {
        /// Calls a macro with the table's optimizers, of each its name in Rust, its options, and PyTorch's name:
        /// `Adam AdamOptions "Adam";`.
        #[macro_export]
        macro_rules! for_each_optimizer {
            ($d then:ident) => { $d then! { $($alias $options $title;)* } };
        }

        /// Every optimizer.
        pub static OPTIMIZERS: &[&OptimizerRule] = &[$(&$rule,)*];

        $(
            $(#[$doc])*
            pub static $rule: OptimizerRule = OptimizerRule {
                name: stringify!($name),
                step_label: concat!(stringify!($name), "_step"),
                count_label: concat!(stringify!($name), "_count"),
                title: $title,
                numbers: &[
                    $($(
                        NumberRule { name: concat!(stringify!($pair), ".0"), bound: Bound::$pair_bound },
                        NumberRule { name: concat!(stringify!($pair), ".1"), bound: Bound::$pair_bound },
                    )*)?
                    $(NumberRule { name: stringify!($number), bound: Bound::$bound },)*
                ],
                flags: &[$(stringify!($flag),)* "maximize" $($(, stringify!($derived))*)?],
                states: &[$(stringify!($state),)*],
                scalar_states: &[$(ScalarStateRule {
                    name: stringify!($scalar),
                    start: $scalar_start,
                    is_saved: {
                        let temporary: &[&str] = &[$(stringify!($temporary))?];
                        temporary.is_empty()
                    },
                },)*],
                defaults: || $options::default().values(),
                step: {
                    #[allow(unused_variables, unused_mut, unused_assignments)]
                    fn step(body: &mut StepBody<'_>) {
                        let mut numbers = body.numbers.iter().copied();
                        $($(let [$first, $second] = [0, 1].map(|_| numbers.next().expect("two values per pair"));)*)?
                        $(let $number = numbers.next().expect("a value per number");)*
                        $(let $flag = body.flag(stringify!($flag));)*
                        $($(let $derived = body.flag(stringify!($derived));)*)?
                        let mut states = body.states.iter().copied();
                        $(let mut $state = states.next().expect("a value per state");)*
                        let mut scalar_states = body.scalar_states.iter().copied();
                        let $step = scalar_states.next().expect("the number of steps");
                        $(let $scalar = scalar_states.next().expect("a value per state");)*
                        let ($rate, mut $parameter, mut $gradient) =
                            (body.learning_rate, body.parameter, body.gradient);
                        $body
                        body.parameter = $parameter;
                        body.states = smallvec![$($state),*];
                    }
                    step
                },
                count: {
                    #[allow(unused_variables)]
                    fn count(body: &mut StepBody<'_>) {
                        let mut numbers = body.numbers.iter().copied();
                        $($(let [$first, $second] = [0, 1].map(|_| numbers.next().expect("two values per pair"));)*)?
                        $(let $number = numbers.next().expect("a value per number");)*
                        let mut old = body.scalar_states.iter().copied();
                        let ($count, $count_rate) = (old.next().expect("the number of steps"), body.learning_rate);
                        $(let $scalar = old.next().expect("a value per state");)*
                        body.scalar_states = smallvec![$count $(, $next)*];
                    }
                    count
                },
            };

            #[doc = concat!("The options of ", $title, ".")]
            ///
            $(#[$doc])*
            #[derive(Clone, Copy, PartialEq, Debug)]
            pub struct $options {
                /// The step size.
                pub lr: f64,
                $($($(#[$pair_doc])* pub $pair: (f64, f64),)*)?
                $($(#[$number_doc])* pub $number: f64,)*
                $($(#[$flag_doc])* pub $flag: bool,)*
                /// Whether to ascend along the gradient instead of descending.
                pub maximize: bool,
            }

            impl Default for $options {
                fn default() -> Self {
                    Self {
                        lr: $lr,
                        $($($pair: $pair_default,)*)?
                        $($number: $default,)*
                        $($flag: false,)*
                        maximize: false,
                    }
                }
            }

            impl OptimizerOptions for $options {
                const RULE: &'static OptimizerRule = &$rule;

                fn values(&self) -> OptimizerValues {
                    let mut flags = 0;
                    let set = [$(self.$flag,)* self.maximize];
                    $(
                        let $derived_of = self;
                        let derived = [$($is_derived,)*];
                        let set: SmallVec<[bool; 8]> = set.into_iter().chain(derived).collect();
                    )?
                    for (bit, set) in set.into_iter().enumerate() {
                        flags |= u32::from(set) << bit;
                    }
                    let $start_of = self;
                    OptimizerValues {
                        learning_rate: self.lr,
                        numbers: smallvec![$($(self.$pair.0, self.$pair.1,)*)? $(self.$number,)*],
                        flags,
                        states: smallvec![$((true $(&& Self::RULE.is_set(flags, stringify!($condition)))?).then_some($start),)*],
                    }
                }

                fn set(&mut self, option: &str, value: f64) -> bool {
                    match option {
                        "lr" => self.lr = value,
                        $($(
                            concat!(stringify!($pair), ".0") => self.$pair.0 = value,
                            concat!(stringify!($pair), ".1") => self.$pair.1 = value,
                        )*)?
                        $(stringify!($number) => self.$number = value,)*
                        $(stringify!($flag) => self.$flag = value != 0.0,)*
                        "maximize" => self.maximize = value != 0.0,
                        _ => return false,
                    }
                    true
                }

                fn named(&self) -> Vec<(&'static str, f64)> {
                    vec![
                        ("lr", self.lr),
                        $($(
                            (concat!(stringify!($pair), ".0"), self.$pair.0),
                            (concat!(stringify!($pair), ".1"), self.$pair.1),
                        )*)?
                        $((stringify!($number), self.$number),)*
                        $((stringify!($flag), f64::from(u8::from(self.$flag))),)*
                        ("maximize", f64::from(u8::from(self.maximize))),
                    ]
                }

                fn conflict(&self) -> Option<&'static str> {
                    $(
                        let $conflict_of = self;
                        if let Some(conflict) = $conflict {
                            return Some(conflict);
                        }
                    )?
                    None
                }
            }
        )*
    };
}

optimizers! { $
    /// Adam (Kingma and Ba, <https://arxiv.org/abs/1412.6980>):
    /// <https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html>
    Adam adam ADAM AdamOptions "Adam" (lr: 1e-3) {
        pairs {
            /// The factors by which a step decays the first and the second moment.
            betas(beta1, beta2): (0.9, 0.999), BelowOne;
        }
        numbers {
            /// The term that keeps the division finite.
            eps: 1e-8, AtLeastZero;
            /// L2 regularisation, added to the gradient.
            weight_decay: 0.0, AtLeastZero;
        }
        flags {
            /// Whether to divide by the greatest second moment so far (<https://openreview.net/forum?id=ryQu7f-RZ>).
            amsgrad;
            /// Whether the weight decay is subtracted from the parameter instead of added to the gradient, as in AdamW.
            decoupled_weight_decay;
        }
        states(_options) {
            exp_avg: 0.0;
            exp_avg_sq: 0.0;
            max_exp_avg_sq if amsgrad: 0.0;
        }
        scalar_states(_step, _learning_rate) {}
        step(parameter, gradient, step, learning_rate) {
            if decoupled_weight_decay {
                parameter = parameter - learning_rate * weight_decay * parameter;
            } else {
                gradient = gradient + parameter * weight_decay;
            }
            exp_avg = exp_avg + (gradient - exp_avg) * (1.0 - beta1);
            exp_avg_sq = exp_avg_sq * beta2 + gradient * gradient * (1.0 - beta2);
            max_exp_avg_sq = if amsgrad { max_exp_avg_sq.maximum(exp_avg_sq) } else { exp_avg_sq };
            let denominator = max_exp_avg_sq.sqrt() / (1.0 - beta2.pow(step)).sqrt() + eps;
            parameter = parameter - learning_rate / (1.0 - beta1.pow(step)) * exp_avg / denominator;
        }
    }

    /// AdamW (Loshchilov and Hutter, <https://arxiv.org/abs/1711.05101>):
    /// <https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html>
    AdamW adamw ADAMW AdamWOptions "AdamW" (lr: 1e-3) {
        pairs {
            /// The factors by which a step decays the first and the second moment.
            betas(beta1, beta2): (0.9, 0.999), BelowOne;
        }
        numbers {
            /// The term that keeps the division finite.
            eps: 1e-8, AtLeastZero;
            /// The fraction of a parameter that a step of size 1 subtracts.
            weight_decay: 1e-2, AtLeastZero;
        }
        flags {
            /// Whether to divide by the greatest second moment so far (<https://openreview.net/forum?id=ryQu7f-RZ>).
            amsgrad;
        }
        states(_options) {
            exp_avg: 0.0;
            exp_avg_sq: 0.0;
            max_exp_avg_sq if amsgrad: 0.0;
        }
        scalar_states(_step, _learning_rate) {}
        step(parameter, gradient, step, learning_rate) {
            parameter = parameter - learning_rate * weight_decay * parameter;
            exp_avg = exp_avg + (gradient - exp_avg) * (1.0 - beta1);
            exp_avg_sq = exp_avg_sq * beta2 + gradient * gradient * (1.0 - beta2);
            max_exp_avg_sq = if amsgrad { max_exp_avg_sq.maximum(exp_avg_sq) } else { exp_avg_sq };
            let denominator = max_exp_avg_sq.sqrt() / (1.0 - beta2.pow(step)).sqrt() + eps;
            parameter = parameter - learning_rate / (1.0 - beta1.pow(step)) * exp_avg / denominator;
        }
    }

    /// Stochastic gradient descent, with momentum as in PyTorch (the buffer of the first step is the gradient):
    /// <https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html>
    Sgd sgd SGD SgdOptions "SGD" (lr: 1e-3) {
        numbers {
            /// The fraction of the buffer of gradients that a step keeps; 0 means no buffer.
            momentum: 0.0, AtLeastZero;
            /// The fraction of a gradient that does not enter the buffer.
            dampening: 0.0, Any;
            /// L2 regularisation, added to the gradient.
            weight_decay: 0.0, AtLeastZero;
        }
        flags {
            /// Whether to use Nesterov momentum, which looks one step ahead.
            nesterov;
        }
        derived(options) {
            has_momentum: options.momentum != 0.0;
        }
        conflict(options) {
            (options.nesterov && (options.momentum <= 0.0 || options.dampening != 0.0))
                .then_some("nesterov needs a momentum above 0 and no dampening")
        }
        states(_options) {
            momentum_buffer if has_momentum: 0.0;
        }
        scalar_states(_step, _learning_rate) {}
        step(parameter, gradient, step, learning_rate) {
            gradient = gradient + parameter * weight_decay;
            if has_momentum {
                let later = momentum_buffer * momentum + gradient * (1.0 - dampening);
                momentum_buffer = step.is(1.0).select(gradient, later);
                gradient = if nesterov { gradient + momentum_buffer * momentum } else { momentum_buffer };
            }
            parameter = parameter - learning_rate * gradient;
        }
    }

    /// Adagrad (Duchi, Hazan and Singer, <https://jmlr.org/papers/v12/duchi11a.html>):
    /// <https://docs.pytorch.org/docs/stable/generated/torch.optim.Adagrad.html>
    Adagrad adagrad ADAGRAD AdagradOptions "Adagrad" (lr: 1e-2) {
        numbers {
            /// The rate at which the learning rate decays: it is divided by 1 + (steps − 1) · this.
            lr_decay: 0.0, AtLeastZero;
            /// L2 regularisation, added to the gradient.
            weight_decay: 0.0, AtLeastZero;
            /// The initial value of the sum of squares.
            initial_accumulator_value: 0.0, AtLeastZero;
            /// The term that keeps the division finite.
            eps: 1e-10, AtLeastZero;
        }
        flags {}
        states(options) {
            sum: options.initial_accumulator_value;
        }
        scalar_states(_step, _learning_rate) {}
        step(parameter, gradient, step, learning_rate) {
            gradient = gradient + parameter * weight_decay;
            sum = sum + gradient * gradient;
            let rate = learning_rate / (1.0 + (step - 1.0) * lr_decay);
            parameter = parameter - rate * (gradient / (sum.sqrt() + eps));
        }
    }

    /// NAdam (Dozat, <https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ>):
    /// <https://docs.pytorch.org/docs/stable/generated/torch.optim.NAdam.html>
    NAdam nadam NADAM NAdamOptions "NAdam" (lr: 2e-3) {
        pairs {
            /// The factors by which a step decays the first and the second moment.
            betas(beta1, beta2): (0.9, 0.999), BelowOne;
        }
        numbers {
            /// The term that keeps the division finite.
            eps: 1e-8, AtLeastZero;
            /// L2 regularisation, added to the gradient.
            weight_decay: 0.0, AtLeastZero;
            /// The rate at which the momentum grows to the first of `betas`.
            momentum_decay: 4e-3, AtLeastZero;
        }
        flags {
            /// Whether the weight decay is subtracted from the parameter instead of added to the gradient.
            decoupled_weight_decay;
        }
        states(_options) {
            exp_avg: 0.0;
            exp_avg_sq: 0.0;
        }
        scalar_states(step, _learning_rate) {
            mu_product: 1.0 => mu_product * (beta1 * (1.0 - 0.5 * (step * momentum_decay).power_of(0.96)));
        }
        step(parameter, gradient, step, learning_rate) {
            if decoupled_weight_decay {
                parameter = parameter - learning_rate * weight_decay * parameter;
            } else {
                gradient = gradient + parameter * weight_decay;
            }
            let mu = beta1 * (1.0 - 0.5 * (step * momentum_decay).power_of(0.96));
            let next_mu = beta1 * (1.0 - 0.5 * ((step + 1.0) * momentum_decay).power_of(0.96));
            exp_avg = exp_avg + (gradient - exp_avg) * (1.0 - beta1);
            exp_avg_sq = exp_avg_sq * beta2 + gradient * gradient * (1.0 - beta2);
            let denominator = (exp_avg_sq / (1.0 - beta2.pow(step))).sqrt() + eps;
            parameter = parameter - learning_rate * (1.0 - mu) / (1.0 - mu_product) * gradient / denominator;
            let rate = learning_rate * next_mu / (1.0 - mu_product * next_mu);
            parameter = parameter - rate * exp_avg / denominator;
        }
    }

    /// RAdam (Liu and others, <https://arxiv.org/abs/1908.03265>):
    /// <https://docs.pytorch.org/docs/stable/generated/torch.optim.RAdam.html>
    RAdam radam RADAM RAdamOptions "RAdam" (lr: 1e-3) {
        pairs {
            /// The factors by which a step decays the first and the second moment.
            betas(beta1, beta2): (0.9, 0.999), BelowOne;
        }
        numbers {
            /// The term that keeps the division finite.
            eps: 1e-8, AtLeastZero;
            /// L2 regularisation, added to the gradient.
            weight_decay: 0.0, AtLeastZero;
        }
        flags {
            /// Whether the weight decay is subtracted from the parameter instead of added to the gradient.
            decoupled_weight_decay;
        }
        states(_options) {
            exp_avg: 0.0;
            exp_avg_sq: 0.0;
        }
        scalar_states(_step, _learning_rate) {}
        step(parameter, gradient, step, learning_rate) {
            if decoupled_weight_decay {
                parameter = parameter - learning_rate * weight_decay * parameter;
            } else {
                gradient = gradient + parameter * weight_decay;
            }
            exp_avg = exp_avg + (gradient - exp_avg) * (1.0 - beta1);
            exp_avg_sq = exp_avg_sq * beta2 + gradient * gradient * (1.0 - beta2);
            let correction2 = 1.0 - beta2.pow(step);
            let longest = 2.0 / (1.0 - beta2) - 1.0;
            let length = longest - 2.0 * step * beta2.pow(step) / correction2;
            let ratio = (length - 4.0) * (length - 2.0) * longest;
            let rectified = (ratio / ((longest - 4.0) * (longest - 2.0) * length)).sqrt();
            let adaptive = correction2.sqrt() * rectified / (exp_avg_sq.sqrt() + eps);
            let factor = length.is_above(5.0).select(adaptive, adaptive.like(1.0));
            parameter = parameter - learning_rate / (1.0 - beta1.pow(step)) * exp_avg * factor;
        }
    }

    /// RMSprop (Hinton's lectures; centered as in Graves, <https://arxiv.org/abs/1308.0850>):
    /// <https://docs.pytorch.org/docs/stable/generated/torch.optim.RMSprop.html>
    RMSprop rmsprop RMSPROP RMSpropOptions "RMSprop" (lr: 1e-2) {
        numbers {
            /// The fraction of the mean of the squares that a step keeps.
            alpha: 0.99, AtLeastZero;
            /// The term that keeps the division finite.
            eps: 1e-8, AtLeastZero;
            /// L2 regularisation, added to the gradient.
            weight_decay: 0.0, AtLeastZero;
            /// The fraction of the buffer of updates that a step keeps; 0 means no buffer.
            momentum: 0.0, AtLeastZero;
        }
        flags {
            /// Whether to divide by the square root of the variance instead of that of the mean square.
            centered;
        }
        derived(options) {
            has_momentum: options.momentum > 0.0;
        }
        states(_options) {
            square_avg: 0.0;
            grad_avg if centered: 0.0;
            momentum_buffer if has_momentum: 0.0;
        }
        scalar_states(_step, _learning_rate) {}
        step(parameter, gradient, step, learning_rate) {
            gradient = gradient + parameter * weight_decay;
            square_avg = square_avg * alpha + gradient * gradient * (1.0 - alpha);
            let mut variance = square_avg;
            if centered {
                grad_avg = grad_avg + (gradient - grad_avg) * (1.0 - alpha);
                variance = square_avg - grad_avg * grad_avg;
            }
            let mut update = gradient / (variance.sqrt() + eps);
            if has_momentum {
                momentum_buffer = momentum_buffer * momentum + update;
                update = momentum_buffer;
            }
            parameter = parameter - learning_rate * update;
        }
    }

    /// SparseAdam, for gradients that are dense here: an element whose gradient is 0 is treated as one that PyTorch's sparse
    /// gradient lacks. It does not change, nor do its moments.
    /// <https://docs.pytorch.org/docs/stable/generated/torch.optim.SparseAdam.html>
    SparseAdam sparse_adam SPARSE_ADAM SparseAdamOptions "SparseAdam" (lr: 1e-3) {
        pairs {
            /// The factors by which a step decays the first and the second moment.
            betas(beta1, beta2): (0.9, 0.999), BelowOne;
        }
        numbers {
            /// The term that keeps the division finite.
            eps: 1e-8, Positive;
        }
        flags {}
        states(_options) {
            exp_avg: 0.0;
            exp_avg_sq: 0.0;
        }
        scalar_states(_step, _learning_rate) {}
        step(parameter, gradient, step, learning_rate) {
            let is_missing = gradient.eq(0.0);
            let first = exp_avg + (gradient - exp_avg) * (1.0 - beta1);
            let second = exp_avg_sq + (gradient * gradient - exp_avg_sq) * (1.0 - beta2);
            let rate = learning_rate * (1.0 - beta2.pow(step)).sqrt() / (1.0 - beta1.pow(step));
            let moved = parameter - rate * (first / (second.sqrt() + eps));
            parameter = is_missing.select(parameter, moved);
            exp_avg = is_missing.select(exp_avg, first);
            exp_avg_sq = is_missing.select(exp_avg_sq, second);
        }
    }

    /// Adamax (Kingma and Ba, <https://arxiv.org/abs/1412.6980>):
    /// <https://docs.pytorch.org/docs/stable/generated/torch.optim.Adamax.html>
    Adamax adamax ADAMAX AdamaxOptions "Adamax" (lr: 2e-3) {
        pairs {
            /// The factors by which a step decays the first moment and the greatest gradient.
            betas(beta1, beta2): (0.9, 0.999), BelowOne;
        }
        numbers {
            /// The term that keeps the division finite.
            eps: 1e-8, AtLeastZero;
            /// L2 regularisation, added to the gradient.
            weight_decay: 0.0, AtLeastZero;
        }
        flags {}
        states(_options) {
            exp_avg: 0.0;
            exp_inf: 0.0;
        }
        scalar_states(_step, _learning_rate) {}
        step(parameter, gradient, step, learning_rate) {
            gradient = gradient + parameter * weight_decay;
            exp_avg = exp_avg + (gradient - exp_avg) * (1.0 - beta1);
            exp_inf = (exp_inf * beta2).maximum(gradient.abs() + eps);
            parameter = parameter - learning_rate / (1.0 - beta1.pow(step)) * exp_avg / exp_inf;
        }
    }

    /// Adadelta (Zeiler, <https://arxiv.org/abs/1212.5701>):
    /// <https://docs.pytorch.org/docs/stable/generated/torch.optim.Adadelta.html>
    Adadelta adadelta ADADELTA AdadeltaOptions "Adadelta" (lr: 1.0) {
        numbers {
            /// The fraction of both means of squares that a step keeps.
            rho: 0.9, BelowOne;
            /// The term that keeps the division finite, and the first update above 0.
            eps: 1e-6, AtLeastZero;
            /// L2 regularisation, added to the gradient.
            weight_decay: 0.0, AtLeastZero;
        }
        flags {}
        states(_options) {
            square_avg: 0.0;
            acc_delta: 0.0;
        }
        scalar_states(_step, _learning_rate) {}
        step(parameter, gradient, step, learning_rate) {
            gradient = gradient + parameter * weight_decay;
            square_avg = square_avg * rho + gradient * gradient * (1.0 - rho);
            let update = (acc_delta + eps).sqrt() / (square_avg + eps).sqrt() * gradient;
            acc_delta = acc_delta * rho + update * update * (1.0 - rho);
            parameter = parameter - learning_rate * update;
        }
    }

    /// Lion (Chen and others, <https://arxiv.org/abs/2302.06675>). PyTorch has none.
    Lion lion LION LionOptions "Lion" (lr: 1e-4) {
        pairs {
            /// The weight of the momentum in an update, and the factor by which a step decays the momentum.
            betas(beta1, beta2): (0.9, 0.99), BelowOne;
        }
        numbers {
            /// The fraction of a parameter that a step of size 1 subtracts.
            weight_decay: 0.0, AtLeastZero;
        }
        flags {}
        states(_options) {
            exp_avg: 0.0;
        }
        scalar_states(_step, _learning_rate) {}
        step(parameter, gradient, step, learning_rate) {
            let direction = sign(exp_avg * beta1 + gradient * (1.0 - beta1));
            parameter = parameter - learning_rate * (direction + parameter * weight_decay);
            exp_avg = exp_avg * beta2 + gradient * (1.0 - beta2);
        }
    }

    /// Averaged stochastic gradient descent (Polyak and Juditsky, <https://doi.org/10.1137/0330046>). The step size and the
    /// weight of the average are those that the step before computed from its number and learning rate:
    /// <https://docs.pytorch.org/docs/stable/generated/torch.optim.ASGD.html>
    Asgd asgd ASGD AsgdOptions "ASGD" (lr: 1e-2) {
        numbers {
            /// The decay of parameters and step size.
            lambd: 1e-4, Any;
            /// The power by which the step size decays.
            alpha: 0.75, Any;
            /// The step at which averaging begins.
            t0: 1e6, Any;
            /// L2 regularisation, added to the gradient.
            weight_decay: 0.0, AtLeastZero;
        }
        flags {}
        states(_options) {
            ax: 0.0;
        }
        scalar_states(step, learning_rate) {
            eta: 0.0 => learning_rate / (1.0 + lambd * learning_rate * step).pow(alpha);
            mu: 1.0 => 1.0 / (step - t0).maximum(1.0);
            eta_of_step (temporary): 0.0 => learning_rate.where_or(step.is(1.0), eta);
            mu_of_step (temporary): 1.0 => mu;
        }
        step(parameter, gradient, step, learning_rate) {
            gradient = gradient + parameter * weight_decay;
            parameter = parameter - lambd * eta_of_step * parameter - eta_of_step * gradient;
            ax = mu_of_step.is(1.0).select(parameter, ax + (parameter - ax) * mu_of_step);
        }
    }

    /// Rprop (Riedmiller and Braun, <https://doi.org/10.1109/ICNN.1993.298623>):
    /// <https://docs.pytorch.org/docs/stable/generated/torch.optim.Rprop.html>
    Rprop rprop RPROP RpropOptions "Rprop" (lr: 1e-2) {
        pairs {
            /// The factors of a step size for elements whose gradient changed its sign, and for those whose gradient kept it.
            etas(eta_minus, eta_plus): (0.5, 1.2), Positive;
            /// The smallest and the greatest step size.
            step_sizes(min_step_size, max_step_size): (1e-6, 50.0), AtLeastZero;
        }
        numbers {}
        flags {}
        conflict(options) {
            (options.etas.0 >= 1.0 || options.etas.1 <= 1.0)
                .then_some("etas must be less than 1 and more than 1")
        }
        states(options) {
            prev: 0.0;
            step_size: options.lr;
        }
        scalar_states(_step, _learning_rate) {}
        step(parameter, gradient, step, learning_rate) {
            let change = gradient * prev;
            let (shrinks, grows) = (change.lt(0.0), change.gt(0.0));
            let factor = grows.select(eta_plus.to(change.dtype()), change.like(1.0));
            let factor = shrinks.select(eta_minus.to(change.dtype()), factor);
            // The first step has the learning rate of that time.
            let former = step.is(1.0).select(learning_rate.to(step_size.dtype()), step_size);
            step_size = (former * factor).maximum(min_step_size).minimum(max_step_size);
            prev = shrinks.select(gradient.like(0.0), gradient);
            parameter = parameter - sign(prev) * step_size;
        }
    }
}

/// Returns −1, 0 or 1.
fn sign(value: thalweg_ir::Value<'_>) -> thalweg_ir::Value<'_> {
    let positive = value.gt(0.0).select(value.like(1.0), value.like(0.0));
    value.lt(0.0).select(value.like(-1.0), positive)
}
