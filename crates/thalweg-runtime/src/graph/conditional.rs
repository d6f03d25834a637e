//! Conditional nodes in a captured region: parts that run, or run again, depending on a value in device memory at each replay.
//!
//! Each function here is called inside a capture, with the stream that captures, a [`Condition`] in device memory, and regions
//! for the bodies. Every region is captured immediately, whatever the current value is, on a stream of its own that is current
//! meanwhile. Which of them run is decided at each replay. Work that is submitted after the call runs after the body.
//!
//! ```text
//! stream   ── a ── set ──[ if ]── b ──      [ if ] stands for one of its bodies, or for nothing
//! body                 └─ region ─┘
//! ```
//!
//! The memory that a body allocates comes from the graph's pool. Each stream of a capture has one stream for its bodies and keeps
//! it: so bodies that are captured there in sequence also run in that sequence, as memory that is ordered by the stream requires.
//! Host actions in a region (a counter, a print) happen once, at the capture.
//!
//! A region that fails breaks the whole capture, even if its error is swallowed, because a graph must not contain half a body.

use thalweg_driver::{Access, CaptureMode, ConditionFormat, Conditional, DevicePointer, GraphHandle, Label};

use super::steps::Command;
use crate::deferred::queue_deferred;
use crate::refuse_if;
use crate::{Device, Error, Result, Stream};

/// The location of the value that decides on a conditional node: memory that is read when the graph runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Condition {
    pointer: DevicePointer,
    format: ConditionFormat,
}

impl Condition {
    /// Creates a condition of one byte: a truth value, or a number below 256.
    pub const fn u8(pointer: DevicePointer) -> Self {
        Self { pointer, format: ConditionFormat::U8 }
    }

    /// Creates a condition of four bytes, aligned to four.
    pub const fn u32(pointer: DevicePointer) -> Self {
        Self { pointer, format: ConditionFormat::U32 }
    }
}

/// A region of a conditional node, by reference: there may be several of different types.
pub type Region<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Captures a region that runs where the condition is not 0.
///
/// # Errors
/// [`Error::is_capture`] if the stream does not capture for Thalweg; [`Error::is_invalid_argument`] if the device does not
/// support conditional nodes (CUDA 12.4 and later, and the simulator, support them); the region's own error, which breaks the
/// whole capture.
#[track_caller]
pub fn if_(stream: &Stream, condition: Condition, then: impl FnOnce() -> Result<()>) -> Result<()> {
    let label = Label::here("if");
    let mut then = once(then);
    Node { stream, condition, conditional: Conditional::If, label }.capture(&mut [&mut then])
}

/// Captures two regions: the first runs if the condition is not 0, the second if it is 0.
///
/// # Errors
/// The errors of [`if_`]. (The second region needs CUDA 12.8 or later.)
#[track_caller]
pub fn if_else(
    stream: &Stream,
    condition: Condition,
    then: impl FnOnce() -> Result<()>,
    otherwise: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let label = Label::here("if");
    let (mut then, mut otherwise) = (once(then), once(otherwise));
    let node = Node { stream, condition, conditional: Conditional::IfElse, label };
    node.capture(&mut [&mut then, &mut otherwise])
}

/// Captures a region that runs as long as the condition is not 0. The condition is read before each iteration, so the region and
/// the work before the loop must write it.
#[track_caller]
pub fn while_(stream: &Stream, condition: Condition, body: impl FnOnce() -> Result<()>) -> Result<()> {
    let label = Label::here("while");
    let mut body = once(body);
    Node { stream, condition, conditional: Conditional::While, label }.capture(&mut [&mut body])
}

/// Captures several regions. At a replay, the region runs whose index, counted from 0, equals the condition. If no region has
/// that index, none runs.
///
/// # Errors
/// The errors of [`if_`]; [`Error::is_invalid_argument`] for no region, or for more than [`Conditional::MOST_CASES`]. (Needs CUDA
/// 12.8 or later.)
#[track_caller]
pub fn switch(stream: &Stream, condition: Condition, cases: &mut [Region<'_>]) -> Result<()> {
    let label = Label::here("switch");
    let count = u32::try_from(cases.len()).unwrap_or(u32::MAX);
    Node { stream, condition, conditional: Conditional::Switch { cases: count }, label }.capture(cases)
}

/// Wraps a region that can be captured once in the type of one that can be captured again.
fn once(region: impl FnOnce() -> Result<()>) -> impl FnMut() -> Result<()> {
    let mut region = Some(region);
    move || region.take().map_or(Ok(()), |region| region())
}

/// A conditional node that is being added.
struct Node<'a> {
    stream: &'a Stream,
    condition: Condition,
    conditional: Conditional,
    label: Label,
}

impl Node<'_> {
    fn capture(&self, regions: &mut [Region<'_>]) -> Result<()> {
        let name = self.label.operator;
        self.check().map_err(|error| error.context(name))?;
        let captured = self.capture_node(regions);
        if let Err(error) = &captured {
            self.stream.device().captures().break_capture(self.stream, format!("{name}: {error}"));
        }
        captured
    }

    /// Checks whether a conditional node is allowed here.
    fn check(&self) -> Result<()> {
        let device = self.stream.device();
        let support = device.properties().conditional_nodes;
        let (is_there, since) = match self.conditional {
            Conditional::If | Conditional::While => (support.if_and_while, "12.4"),
            Conditional::IfElse | Conditional::Switch { .. } => (support.else_and_switch, "12.8"),
        };
        refuse_if!(
            !is_there,
            "{device} has no conditional nodes of the kind '{}': its driver must be one for CUDA {since} or later",
            self.conditional
        );
        if device.captures().mode_of(self.stream).is_none() {
            return Err(Error::capture(format!(
                "{:?} does not capture: call this inside a captured region, with the stream that captures",
                self.stream
            )));
        }
        Ok(())
    }

    fn capture_node(&self, regions: &mut [Region<'_>]) -> Result<()> {
        let Self { stream, conditional, label, .. } = *self;
        let (device, driver) = (stream.device(), stream.device().driver());
        let named = |error: Error| error.context(label.operator);
        let condition = device.check(driver.condition_create(stream.handle(), 0)).map_err(named)?;
        let set = |stream: &Stream| {
            let Condition { pointer, format } = self.condition;
            let command =
                Command::Other { label, accesses: &[Access::read(pointer, format.bytes())], parameters: &[] };
            let call = || driver.condition_set_async(stream.handle(), condition, pointer, format, label);
            stream.submit(command, call)
        };
        set(stream)?;
        device.captures().look(stream);
        let added = driver.conditional_node_add(stream.handle(), condition, conditional, label);
        let bodies = device.check(added).map_err(named)?;
        device.captures().declared(stream, &[], label);
        let body_stream = device.captures().body_stream(stream)?;
        for (body, region) in bodies.into_iter().zip(regions) {
            let open = Body::begin(device, stream, &body_stream, body).map_err(named)?;
            {
                let _current = body_stream.make_current();
                region()?;
            }
            if conditional == Conditional::While {
                set(&body_stream)?;
            }
            open.end().map_err(named)?;
        }
        Ok(())
    }
}

/// A capture into a body, which is always ended.
struct Body<'a> {
    device: &'a Device,
    stream: &'a Stream,
    id: u64,
    is_open: bool,
}

impl<'a> Body<'a> {
    /// Begins the capture of a body. It allows threads the same calls as the outer capture does: a call that breaks the outer
    /// capture must not break the body's, for the reason that [`check_in_body`](super::captures::Captures::check_in_body)
    /// documents.
    fn begin(device: &'a Device, outer: &Stream, stream: &'a Stream, body: GraphHandle) -> Result<Self> {
        queue_deferred(Label::here("conditional"))?;
        let driver = device.driver();
        let mode = CaptureMode::Relaxed;
        device.check(driver.stream_begin_capture_to_graph(stream.handle(), body, mode))?;
        let mut open = Self { device, stream, id: 0, is_open: true };
        open.id = device.check(driver.stream_capture_info(stream.handle()))?.id;
        device.captures().body_began(outer, open.id);
        Ok(open)
    }

    fn end(mut self) -> Result<()> {
        queue_deferred(Label::here("end of a conditional"))?;
        let unjoined = self.device.captures().unjoined(self.stream, self.id);
        self.device.captures().look(self.stream);
        self.is_open = false;
        let ended = self.device.check(self.device.driver().stream_end_capture(self.stream.handle()));
        ended.map(drop).map_err(|error| super::capture::explain(error, unjoined))
    }
}

impl Drop for Body<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // The region failed; the captured nodes are destroyed with the graph that contains them.
            let _ = self.device.driver().stream_end_capture(self.stream.handle());
        }
    }
}
