//! Learning-rate schedules (`torch.optim.lr_scheduler`): pure functions of the epoch in closed form, and [`LrScheduler`], which
//! sets the rates that they return. Only [`ReduceLrOnPlateau`] follows a metric.

use std::f64::consts::PI;
use std::panic::Location;

use thalweg_derive::at_line;
use thalweg_runtime::{Error, Result, invalid, options, refuse};

use super::{Optimizer, OptimizerOptions};
use thalweg_tensor::caller::at_line;

/// The learning rate as a function of the epoch.
pub trait Schedule {
    /// Returns the learning rate of an epoch (counted from 0) for a group whose options have the rate `base`.
    fn learning_rate(&self, base: f64, epoch: u64) -> f64;

    /// Checks the parameters of the schedule, before it is used.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] naming the parameter that is out of its bounds.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl<S: Schedule + ?Sized> Schedule for Box<S> {
    fn learning_rate(&self, base: f64, epoch: u64) -> f64 {
        (**self).learning_rate(base, epoch)
    }

    fn check(&self) -> Result<()> {
        (**self).check()
    }
}

/// Checks that numbers of epochs or steps of a schedule are at least 1.
fn at_least_one(schedule: &str, numbers: &[(&str, u64)]) -> Result<()> {
    match numbers.iter().find(|(_, number)| *number == 0) {
        Some((name, _)) => Err(invalid!("{schedule}: {name} must be at least 1, and is 0")),
        None => Ok(()),
    }
}

/// A schedule that multiplies by a factor every `step_size` epochs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StepLr {
    /// The number of epochs from one factor to the next: at least 1.
    pub step_size: u64,
    /// The factor; PyTorch's default is 0.1.
    pub gamma: f64,
}

impl Schedule for StepLr {
    fn learning_rate(&self, base: f64, epoch: u64) -> f64 {
        base * self.gamma.powf((epoch / self.step_size.max(1)) as f64)
    }

    fn check(&self) -> Result<()> {
        at_least_one("StepLr", &[("step_size", self.step_size)])
    }
}

/// A schedule that multiplies by a factor at given epochs.
#[derive(Clone, PartialEq, Debug)]
pub struct MultiStepLr {
    /// The epochs at which the rate is multiplied by the factor once more; a repeated epoch counts twice.
    pub milestones: Vec<u64>,
    /// The factor; PyTorch's default is 0.1.
    pub gamma: f64,
}

impl Schedule for MultiStepLr {
    fn learning_rate(&self, base: f64, epoch: u64) -> f64 {
        let passed = self.milestones.iter().filter(|&&milestone| milestone <= epoch).count();
        base * self.gamma.powf(passed as f64)
    }
}

/// A schedule that multiplies by a factor after every epoch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ExponentialLr {
    /// The factor.
    pub gamma: f64,
}

impl Schedule for ExponentialLr {
    fn learning_rate(&self, base: f64, epoch: u64) -> f64 {
        base * self.gamma.powf(epoch as f64)
    }
}

/// A schedule that falls along half a cosine wave in `t_max` epochs, then rises again (<https://arxiv.org/abs/1608.03983>,
/// without restarts).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CosineAnnealingLr {
    /// The number of epochs to the lowest rate.
    pub t_max: u64,
    /// The lowest rate; PyTorch's default is 0.
    pub eta_min: f64,
}

impl Schedule for CosineAnnealingLr {
    fn learning_rate(&self, base: f64, epoch: u64) -> f64 {
        Anneal::Cos.between(base, self.eta_min, epoch as f64 / self.t_max.max(1) as f64)
    }

    fn check(&self) -> Result<()> {
        at_least_one("CosineAnnealingLr", &[("t_max", self.t_max)])
    }
}

/// A schedule that falls along half a cosine wave repeatedly (<https://arxiv.org/abs/1608.03983>).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CosineAnnealingWarmRestarts {
    /// The number of epochs of the first wave: at least 1.
    pub t_0: u64,
    /// The ratio of each wave's length to the previous one's: at least 1, which is PyTorch's default.
    pub t_mult: u64,
    /// The lowest rate; PyTorch's default is 0.
    pub eta_min: f64,
}

impl Schedule for CosineAnnealingWarmRestarts {
    fn learning_rate(&self, base: f64, epoch: u64) -> f64 {
        let (mut length, mut place) = (self.t_0.max(1), epoch);
        if self.t_mult <= 1 {
            place %= length;
        }
        while place >= length {
            place -= length;
            length = length.saturating_mul(self.t_mult);
        }
        Anneal::Cos.between(base, self.eta_min, place as f64 / length as f64)
    }

    fn check(&self) -> Result<()> {
        at_least_one("CosineAnnealingWarmRestarts", &[("t_0", self.t_0), ("t_mult", self.t_mult)])
    }
}

/// The height of later cycles of a [`CyclicLr`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum CyclicMode {
    /// The height of the first cycle.
    Triangular,
    /// Half the height of the previous cycle.
    Triangular2,
    /// A height that is multiplied by this factor with every epoch (`exp_range`, `gamma`).
    ExpRange(f64),
}

/// A schedule that rises and falls linearly and repeatedly (<https://arxiv.org/abs/1506.01186>), regardless of the options'
/// rates. Momenta are not changed (`cycle_momentum=False`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CyclicLr {
    /// The lowest rate.
    pub base_lr: f64,
    /// The highest rate of the first cycle.
    pub max_lr: f64,
    /// The number of rising epochs: at least 1. PyTorch's default is 2000.
    pub step_size_up: u64,
    /// The number of falling epochs: at least 1. PyTorch's default is `step_size_up`.
    pub step_size_down: u64,
    /// The height of later cycles.
    pub mode: CyclicMode,
}

impl Schedule for CyclicLr {
    fn learning_rate(&self, _: f64, epoch: u64) -> f64 {
        let (up, down) = (self.step_size_up.max(1), self.step_size_down.max(1));
        let (cycle, place) = (epoch / (up + down), epoch % (up + down));
        let part = match place.checked_sub(up) {
            None => place as f64 / up as f64,
            Some(after) => 1.0 - after as f64 / down as f64,
        };
        let factor = match self.mode {
            CyclicMode::Triangular => 1.0,
            CyclicMode::Triangular2 => 0.5f64.powf(cycle as f64),
            CyclicMode::ExpRange(gamma) => gamma.powf(epoch as f64),
        };
        self.base_lr + (self.max_lr - self.base_lr) * part * factor
    }

    fn check(&self) -> Result<()> {
        let numbers = [("step_size_up", self.step_size_up), ("step_size_down", self.step_size_down)];
        at_least_one("CyclicLr", &numbers)
    }
}

/// A schedule that multiplies by the product of a function's factors for epochs 1 to the current one.
#[derive(Clone, Copy, Debug)]
pub struct MultiplicativeLr<F>(pub F);

impl<F: Fn(u64) -> f64> Schedule for MultiplicativeLr<F> {
    fn learning_rate(&self, base: f64, epoch: u64) -> f64 {
        base * (1..=epoch).map(&self.0).product::<f64>()
    }
}

/// A schedule that multiplies by the factors of several schedules (`ChainedScheduler`). These must multiply the rate, and not add
/// to it (cosines) or set it (`OneCycleLr`, `CyclicLr`).
pub struct ChainedLr(pub Vec<Box<dyn Schedule>>);

impl std::fmt::Debug for ChainedLr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChainedLr({} schedules)", self.0.len())
    }
}

impl Schedule for ChainedLr {
    fn learning_rate(&self, base: f64, epoch: u64) -> f64 {
        base * self.0.iter().map(|schedule| schedule.learning_rate(1.0, epoch)).product::<f64>()
    }

    fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|schedule| schedule.check())
    }
}

/// A schedule that changes linearly from one factor to another, for a warm-up.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinearLr {
    /// The factor of epoch 0; PyTorch's default is 1/3.
    pub start_factor: f64,
    /// The factor from epoch `total_iters` on; PyTorch's default is 1.
    pub end_factor: f64,
    /// The number of epochs between the two factors; PyTorch's default is 5.
    pub total_iters: u64,
}

impl Schedule for LinearLr {
    fn learning_rate(&self, base: f64, epoch: u64) -> f64 {
        let part = epoch.min(self.total_iters) as f64 / self.total_iters.max(1) as f64;
        base * (self.start_factor + (self.end_factor - self.start_factor) * part)
    }
}

/// A schedule that multiplies by a factor in the first epochs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ConstantLr {
    /// The factor; PyTorch's default is 1/3.
    pub factor: f64,
    /// The number of epochs in which the factor applies; PyTorch's default is 5.
    pub total_iters: u64,
}

impl Schedule for ConstantLr {
    fn learning_rate(&self, base: f64, epoch: u64) -> f64 {
        if epoch < self.total_iters { base * self.factor } else { base }
    }
}

/// A schedule that falls to 0 along a power.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PolynomialLr {
    /// The number of epochs to 0; PyTorch's default is 5.
    pub total_iters: u64,
    /// The power; PyTorch's default is 1.
    pub power: f64,
}

impl Schedule for PolynomialLr {
    fn learning_rate(&self, base: f64, epoch: u64) -> f64 {
        let part = epoch.min(self.total_iters) as f64 / self.total_iters.max(1) as f64;
        base * (1.0 - part).powf(self.power)
    }
}

/// The curve from one rate to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Anneal {
    /// Half a cosine wave.
    Cos,
    /// A straight line.
    Linear,
}

impl Anneal {
    /// Returns the rate at a fraction of the way from start to end.
    pub fn between(self, start: f64, end: f64, part: f64) -> f64 {
        match self {
            Self::Cos => end + (start - end) / 2.0 * (1.0 + (PI * part).cos()),
            Self::Linear => start + (end - start) * part,
        }
    }
}

/// A schedule that rises and falls once (<https://arxiv.org/abs/1708.07120>), regardless of the groups' rates. Momenta are not
/// changed, as in PyTorch with `cycle_momentum=False`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OneCycleLr {
    /// The highest rate.
    pub max_lr: f64,
    /// The number of steps of the cycle. Later steps, which PyTorch refuses, have the last rate.
    pub total_steps: u64,
    /// The fraction of the steps in which the rate rises.
    pub pct_start: f64,
    /// The way in which the rate rises and falls.
    pub anneal: Anneal,
    /// The ratio of the highest rate to the first.
    pub div_factor: f64,
    /// The ratio of the first rate to the last.
    pub final_div_factor: f64,
    /// Whether the rate has three phases: it rises, falls back to its first value in the same number of steps, then falls to the
    /// last value.
    pub three_phase: bool,
}

impl OneCycleLr {
    /// Returns a cycle with PyTorch's defaults.
    pub fn new(max_lr: f64, total_steps: u64) -> Self {
        Self {
            max_lr,
            total_steps,
            pct_start: 0.3,
            anneal: Anneal::Cos,
            div_factor: 25.0,
            final_div_factor: 1e4,
            three_phase: false,
        }
    }
}

impl Schedule for OneCycleLr {
    fn learning_rate(&self, _base: f64, epoch: u64) -> f64 {
        let first = self.max_lr / self.div_factor;
        let last = first / self.final_div_factor;
        let (total, end) = (self.total_steps as f64, self.total_steps.saturating_sub(1) as f64);
        let peak = self.pct_start * total - 1.0;
        let phases = match self.three_phase {
            true => vec![
                (peak, first, self.max_lr),
                (2.0 * self.pct_start * total - 2.0, self.max_lr, first),
                (end, first, last),
            ],
            false => vec![(peak, first, self.max_lr), (end, self.max_lr, last)],
        };
        let (step, mut start) = ((epoch as f64).min(end), 0.0);
        for (end, from, to) in phases {
            if step <= end {
                return self.anneal.between(from, to, (step - start) / (end - start));
            }
            start = end;
        }
        last
    }

    fn check(&self) -> Result<()> {
        at_least_one("OneCycleLr", &[("total_steps", self.total_steps)])?;
        if !(0.0..=1.0).contains(&self.pct_start) {
            let text = format!("OneCycleLr: pct_start must be from 0 to 1, and is {}", self.pct_start);
            return Err(Error::invalid(text));
        }
        Ok(())
    }
}

/// A schedule that multiplies by a function of the epoch.
#[derive(Clone, Copy, Debug)]
pub struct LambdaLr<F>(
    /// The function.
    pub F,
);

impl<F: Fn(u64) -> f64> Schedule for LambdaLr<F> {
    fn learning_rate(&self, base: f64, epoch: u64) -> f64 {
        base * (self.0)(epoch)
    }
}

/// Several schedules in sequence; each begins with its epoch 0.
pub struct SequentialLr {
    /// The schedules.
    pub schedules: Vec<Box<dyn Schedule + Send + Sync>>,
    /// The epochs at which the second schedule, the third schedule and so on begin.
    pub milestones: Vec<u64>,
}

impl std::fmt::Debug for SequentialLr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SequentialLr({} schedules, {:?})", self.schedules.len(), self.milestones)
    }
}

impl Schedule for SequentialLr {
    fn learning_rate(&self, base: f64, epoch: u64) -> f64 {
        let passed = self.milestones.iter().filter(|&&milestone| milestone <= epoch).count();
        let passed = passed.min(self.schedules.len().saturating_sub(1));
        let start = if passed == 0 { 0 } else { self.milestones[passed - 1] };
        let schedule = self.schedules.get(passed);
        schedule.map_or(base, |schedule| schedule.learning_rate(base, epoch - start))
    }

    fn check(&self) -> Result<()> {
        self.schedules.iter().try_for_each(|schedule| schedule.check())
    }
}

/// A scheduler that sets the learning rates of an optimizer according to a [`Schedule`], epoch by epoch.
#[derive(Clone, Debug)]
pub struct LrScheduler<S> {
    schedule: S,
    base_rates: Vec<f64>,
    epoch: u64,
}

impl<S: Schedule> LrScheduler<S> {
    /// Makes a scheduler from the optimizer's present learning rates, and sets those of epoch 0.
    #[track_caller]
    pub fn new<O: OptimizerOptions>(optimizer: &Optimizer<O>, schedule: S) -> Result<Self> {
        let base_rates = optimizer.param_groups().iter().map(|group| group.learning_rate()).collect();
        Self::resume(optimizer, schedule, base_rates, 0)
    }

    /// Makes a scheduler that continues at an epoch, from the groups' learning rates before the first epoch, and sets the rates
    /// of this epoch.
    ///
    /// # Errors
    /// Those of [`LrScheduler::new`]; also if there is not one rate per group.
    #[track_caller]
    pub fn resume<O: OptimizerOptions>(
        optimizer: &Optimizer<O>,
        schedule: S,
        base_rates: Vec<f64>,
        epoch: u64,
    ) -> Result<Self> {
        let scheduler = Self { schedule, base_rates, epoch };
        at_line(Location::caller(), || {
            scheduler.schedule.check()?;
            optimizer.set_learning_rates(&scheduler.learning_rates())
        })?;
        Ok(scheduler)
    }

    /// Begins the next epoch, and sets the optimizer's learning rates for it. Asynchronous.
    ///
    /// # Errors
    /// Those of [`LrScheduler::new`]; also if a group was added to the optimizer.
    #[track_caller]
    pub fn step<O: OptimizerOptions>(&mut self, optimizer: &Optimizer<O>) -> Result<()> {
        self.epoch = self.epoch.saturating_add(1);
        at_line(Location::caller(), || optimizer.set_learning_rates(&self.learning_rates()))
    }

    /// Returns the learning rates of this epoch, one per group (`get_last_lr`).
    pub fn learning_rates(&self) -> Vec<f64> {
        self.base_rates.iter().map(|&base| self.schedule.learning_rate(base, self.epoch)).collect()
    }

    /// Returns the groups' learning rates before the first epoch (`base_lrs`).
    pub fn base_rates(&self) -> &[f64] {
        &self.base_rates
    }

    /// Returns the epoch (`last_epoch`).
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// The direction in which a metric improves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlateauMode {
    /// The metric improves when it falls.
    Min,
    /// The metric improves when it rises.
    Max,
}

/// The quantity that a threshold is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThresholdMode {
    /// The fraction of the best value by which a metric must improve.
    Relative,
    /// The difference by which a metric must improve.
    Absolute,
}

options! {
    /// The options of [`ReduceLrOnPlateau`], with PyTorch's defaults.
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct PlateauOptions {
        /// The direction in which the metric improves.
        pub mode: PlateauMode = PlateauMode::Min,
        /// The factor of the rates: below 1.
        pub factor: f64 = 0.1,
        /// The number of epochs without improvement that are tolerated.
        pub patience: u64 = 10,
        /// The threshold by which a value must improve.
        pub threshold: f64 = 1e-4,
        /// The quantity that the threshold is compared with.
        pub threshold_mode: ThresholdMode = ThresholdMode::Relative,
        /// The number of epochs after a reduction that are not counted.
        pub cooldown: u64 = 0,
        /// The lowest rate.
        pub min_lr: f64 = 0.0,
        /// The smallest change of a rate that is applied.
        pub eps: f64 = 1e-8,
    }
}

/// A scheduler that lowers the learning rates once a metric has stopped improving (`ReduceLROnPlateau`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReduceLrOnPlateau {
    options: PlateauOptions,
    best: Option<f64>,
    bad_epochs: u64,
    cooldown_left: u64,
}

impl ReduceLrOnPlateau {
    /// Makes a scheduler without any metric so far.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the factor is not below 1.
    #[at_line]
    pub fn new(options: PlateauOptions) -> Result<Self> {
        if options.factor.is_nan() || options.factor >= 1.0 {
            let factor = options.factor;
            refuse!("ReduceLrOnPlateau: factor is {factor}, and must be below 1");
        }
        Ok(Self { options, best: None, bad_epochs: 0, cooldown_left: 0 })
    }

    /// Records the metric of an epoch, and lowers the learning rates if it has not improved for long enough. Asynchronous.
    #[at_line]
    pub fn step<O: OptimizerOptions>(&mut self, metric: f64, optimizer: &Optimizer<O>) -> Result<()> {
        let PlateauOptions { factor, patience, cooldown, min_lr, eps, .. } = self.options;
        if self.best.is_none_or(|best| self.is_better(metric, best)) && !metric.is_nan() {
            self.best = Some(metric);
            self.bad_epochs = 0;
        } else {
            self.bad_epochs += 1;
        }
        if self.cooldown_left > 0 {
            self.cooldown_left -= 1;
            self.bad_epochs = 0;
        }
        if self.bad_epochs <= patience {
            return Ok(());
        }
        self.cooldown_left = cooldown;
        self.bad_epochs = 0;
        let lower = |old: f64| {
            let new = (old * factor).max(min_lr);
            if old - new > eps { new } else { old }
        };
        let rates = optimizer.param_groups().iter().map(|group| lower(group.learning_rate()));
        optimizer.set_learning_rates(&rates.collect::<Vec<_>>())
    }

    fn is_better(&self, metric: f64, best: f64) -> bool {
        let PlateauOptions { mode, threshold, threshold_mode, .. } = self.options;
        match (mode, threshold_mode) {
            (PlateauMode::Min, ThresholdMode::Relative) => metric < best * (1.0 - threshold),
            (PlateauMode::Min, ThresholdMode::Absolute) => metric < best - threshold,
            (PlateauMode::Max, ThresholdMode::Relative) => metric > best * (1.0 + threshold),
            (PlateauMode::Max, ThresholdMode::Absolute) => metric > best + threshold,
        }
    }
}
