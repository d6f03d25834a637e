//! [`Schedule`] and [`Profile`]: the choice of the recorded steps of a training loop, with the names of `torch.profiler`.

use std::fmt;
use std::sync::Arc;

use thalweg_driver::{Code, Error, Result};

use crate::annotation::{RecordFunction, record_function};
use crate::driver::ProfilerDriver;
use crate::trace::Trace;

/// The action of a profiler during a step (`torch.profiler.ProfilerAction`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProfilerAction {
    /// Does nothing.
    None,
    /// Does nothing yet: recording begins soon. Events need no preparation.
    Warmup,
    /// Records.
    Record,
    /// Records, and passes the trace on when the step ends.
    RecordAndSave,
}

/// The choice of the recorded steps (`torch.profiler.schedule`): after `skip_first` steps, cycles of `wait`, `warmup` and
/// `active` steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Schedule {
    wait: u64,
    warmup: u64,
    active: u64,
    repeat: u64,
    skip_first: u64,
    skip_first_wait: bool,
}

/// Returns cycles of `wait` idle steps, `warmup` steps before recording and `active` recorded steps. `repeat` is the number of
/// cycles, 0 for no end; `skip_first` is the number of steps before the first cycle.
///
/// # Errors
/// [`Code::InvalidValue`] if `active` is 0, or a cycle has more steps than 64 bits count.
pub fn schedule(wait: u64, warmup: u64, active: u64, repeat: u64, skip_first: u64) -> Result<Schedule> {
    let is_countable = wait.checked_add(warmup).and_then(|sum| sum.checked_add(active)).is_some();
    if active == 0 || !is_countable {
        return Err(Error::new(
            Code::InvalidValue,
            "schedule",
            format!(
                "Invalid profiler schedule arguments: wait={wait}, warmup={warmup}, active={active}; `active` must be \
                 at least 1, and the steps of a cycle a number of 64 bits"
            ),
        ));
    }
    Ok(Schedule { wait, warmup, active, repeat, skip_first, skip_first_wait: false })
}

impl Schedule {
    /// Skips the idle steps of the first cycle (`skip_first_wait=1`).
    #[must_use]
    pub const fn skip_first_wait(self) -> Self {
        Self { skip_first_wait: true, ..self }
    }

    /// Returns the action during a step, counted from 0.
    pub const fn action(&self, step: u64) -> ProfilerAction {
        let Some(step) = step.checked_sub(self.skip_first) else { return ProfilerAction::None };
        let step = if self.skip_first_wait { step.saturating_add(self.wait) } else { step };
        let steps = self.wait + self.warmup + self.active;
        if self.repeat > 0 && step / steps >= self.repeat {
            return ProfilerAction::None;
        }
        let step = step % steps;
        if step < self.wait {
            ProfilerAction::None
        } else if step < self.wait + self.warmup {
            ProfilerAction::Warmup
        } else if step < steps - 1 {
            ProfilerAction::Record
        } else {
            ProfilerAction::RecordAndSave
        }
    }
}

/// A function that is called with each trace.
type OnTraceReady = Box<dyn FnMut(&Trace) + Send>;

/// A profiler that follows the steps of a loop (`torch.profiler.profile`). Without a schedule it records from
/// [`start`](Self::start) to [`stop`](Self::stop); with one, each step is a region `ProfilerStep#N` as well.
///
/// ```
/// use thalweg_profiler::{Profile, ProfilerDriver, SortBy, schedule};
/// use thalweg_sim::{SimConfig, SimDriver};
///
/// let driver = ProfilerDriver::new(SimDriver::new(SimConfig::default())?);
/// let mut profile = Profile::new(&driver)
///     .schedule(schedule(1, 1, 3, 1, 0)?)
///     .on_trace_ready(|trace| println!("{}", trace.key_averages().table(SortBy::DeviceTime, 10)));
/// profile.start()?;
/// for _ in 0..5 {
///     // A training step.
///     profile.step()?;
/// }
/// profile.stop()?;
/// # Ok::<(), thalweg_driver::Error>(())
/// ```
pub struct Profile {
    driver: Arc<ProfilerDriver>,
    schedule: Option<Schedule>,
    on_trace_ready: Option<OnTraceReady>,
    /// The action of the current step; `None` while the profile is not started.
    action: Option<ProfilerAction>,
    step: u64,
    region: Option<RecordFunction>,
    trace: Option<Trace>,
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile")
            .field("schedule", &self.schedule)
            .field("action", &self.action)
            .field("step", &self.step)
            .finish_non_exhaustive()
    }
}

impl Profile {
    /// Creates a profiler of the work that is submitted to a driver.
    pub fn new(driver: &Arc<ProfilerDriver>) -> Self {
        Self {
            driver: Arc::clone(driver),
            schedule: None,
            on_trace_ready: None,
            action: None,
            step: 0,
            region: None,
            trace: None,
        }
    }

    /// Sets whether each block that a caching allocator hands out or takes back is recorded (`profile_memory=True`).
    #[must_use]
    pub fn profile_memory(self, keeps_memory: bool) -> Self {
        self.driver.profile_memory(keeps_memory);
        self
    }

    /// Sets the schedule, which chooses the recorded steps.
    #[must_use]
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = Some(schedule);
        self
    }

    /// Sets the function that is called with each trace, at the end of each cycle and in [`stop`](Self::stop).
    #[must_use]
    pub fn on_trace_ready(mut self, call: impl FnMut(&Trace) + Send + 'static) -> Self {
        self.on_trace_ready = Some(Box::new(call));
        self
    }

    /// Begins with step 0, or continues with the step at which it was stopped.
    ///
    /// # Errors
    /// [`Code::InvalidValue`] if it is already started, or another profiler of the driver records.
    pub fn start(&mut self) -> Result<()> {
        if self.action.is_some() {
            return Err(Error::new(
                Code::InvalidValue,
                "start",
                "the profiler is started already: stop it first",
            ));
        }
        self.go_to(self.action_of(self.step))
    }

    /// Ends a step and begins the next. *Blocks* until the devices are idle if a recording ends.
    ///
    /// # Errors
    /// [`Code::InvalidValue`] if it is not started; the errors of [`ProfilerDriver::start`] and [`ProfilerDriver::stop`].
    pub fn step(&mut self) -> Result<()> {
        self.expect_started("step")?;
        self.region = None;
        self.step += 1;
        self.go_to(self.action_of(self.step))
    }

    /// Ends the last step. *Blocks* until the devices are idle if it records.
    pub fn stop(&mut self) -> Result<()> {
        let action = self.expect_started("stop")?;
        self.region = None;
        self.action = None;
        if is_recorded(action) { self.hand_over() } else { Ok(()) }
    }

    /// Returns the latest trace that was passed on.
    pub const fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// Returns the number of the step, from 0 on.
    pub const fn step_num(&self) -> u64 {
        self.step
    }

    fn action_of(&self, step: u64) -> ProfilerAction {
        self.schedule.map_or(ProfilerAction::Record, |schedule| schedule.action(step))
    }

    fn expect_started(&self, call: &'static str) -> Result<ProfilerAction> {
        self.action.ok_or_else(|| {
            Error::new(Code::InvalidValue, call, "the profiler is not started: start it first")
        })
    }

    /// Ends and begins recordings as the actions of the previous and the next step require.
    fn go_to(&mut self, next: ProfilerAction) -> Result<()> {
        let mut is_recording = self.action.is_some_and(is_recorded);
        if self.action == Some(ProfilerAction::RecordAndSave) {
            // Set first, so that after any failure the driver does not record.
            self.action = Some(ProfilerAction::None);
            self.hand_over()?;
            is_recording = false;
        }
        if is_recorded(next) && !is_recording {
            self.driver.start()?;
        }
        self.action = Some(next);
        self.region = self.schedule.map(|_| record_function(&format!("ProfilerStep#{}", self.step)));
        Ok(())
    }

    fn hand_over(&mut self) -> Result<()> {
        let trace = self.trace.insert(self.driver.stop()?);
        if let Some(call) = &mut self.on_trace_ready {
            call(trace);
        }
        Ok(())
    }
}

impl Drop for Profile {
    /// Discards a recording that was not passed on.
    fn drop(&mut self) {
        self.region = None;
        if self.action.is_some_and(is_recorded) {
            let _ = self.driver.stop();
        }
    }
}

const fn is_recorded(action: ProfilerAction) -> bool {
    matches!(action, ProfilerAction::Record | ProfilerAction::RecordAndSave)
}
