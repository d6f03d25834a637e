//! A call of a flight record, and its text form: one line that can be parsed back.

use std::fmt;

use thalweg_ir::{DType, Shape};
use thalweg_tensor::Tensor;

/// Operations for which all ranks pass tensors of the same dtypes and numbers of elements.
const SYMMETRIC: [&str; 5] =
    ["all_reduce", "reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor"];

/// The text for a call without tensors.
const NOTHING: &str = "nothing";

/// The progress of a call of a flight record when it was written (PyTorch's flight recorder: `state`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlightState {
    /// The call waits for earlier work of its rank.
    Scheduled,
    /// The call runs, or waits for other ranks.
    Started,
    /// The call is done.
    Completed,
    /// The call is a part of a graph. Replays of the graph are calls of their own.
    Captured,
}

impl FlightState {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Scheduled, "scheduled"),
        (Self::Started, "started"),
        (Self::Completed, "completed"),
        (Self::Captured, "captured"),
    ];

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, name)| *name == text).map(|(state, _)| state)
    }
}

impl fmt::Display for FlightState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.into_iter().find(|(state, _)| state == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

/// The dtype and shape of a tensor that a call reads or writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlightTensor {
    /// The dtype.
    pub dtype: DType,
    /// The extent of each dimension.
    pub shape: Shape,
}

impl FlightTensor {
    pub(super) fn of(tensor: &Tensor) -> Self {
        Self { dtype: tensor.dtype(), shape: tensor.shape().into() }
    }

    /// Reads tensors as [`list`] writes them.
    fn parse(text: &str) -> Option<Vec<Self>> {
        if text == NOTHING {
            return Some(Vec::new());
        }
        let tensor = |text: &str| {
            let (dtype, shape) = text.trim_start_matches(", ").split_once(" [")?;
            let extents = shape.split(", ").filter(|extent| !extent.is_empty());
            Some(Self {
                dtype: dtype.parse().ok()?,
                shape: extents.map(str::parse).collect::<Result<_, _>>().ok()?,
            })
        };
        text.strip_suffix(']')?.split(']').map(tensor).collect()
    }
}

impl fmt::Display for FlightTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.shape.as_slice())
    }
}

/// A call of a rank in its group. Its text form has the operation and line, the tensors, and the progress if known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlightCall {
    /// The operation and its source line.
    pub label: String,
    /// The sender and the receiver, if the call is a message.
    pub message: Option<[u32; 2]>,
    /// The first eight tensors that the call reads. A tensor that it changes in place is in the inputs and in the outputs.
    pub inputs: Vec<FlightTensor>,
    /// The first eight tensors that the call writes.
    pub outputs: Vec<FlightTensor>,
    /// The progress of the call; `None` if its rank has not written its record, so that only the label is known.
    pub state: Option<FlightState>,
}

impl FlightCall {
    /// Returns a call of which only the label is known.
    pub(super) fn labelled(label: &str) -> Self {
        Self { label: label.to_owned(), message: None, inputs: Vec::new(), outputs: Vec::new(), state: None }
    }

    /// Returns the name of the operation, without the source line.
    pub fn operation(&self) -> &str {
        self.label.split_once(" at ").map_or(&self.label, |(operation, _)| operation)
    }

    /// Returns whether this call of one rank and another rank's cannot be the same collective: their operations differ, or the
    /// dtypes or sizes differ although the operation needs the same on all ranks.
    pub fn differs(&self, other: &Self) -> bool {
        if self.operation() != other.operation() {
            return true;
        }
        let are_known = self.state.is_some() && other.state.is_some();
        let sizes = |call: &Self| -> Vec<(DType, usize)> {
            let tensors = call.inputs.iter().chain(&call.outputs);
            tensors.map(|tensor| (tensor.dtype, tensor.shape.iter().product())).collect()
        };
        // A rank that is not the root of a reduction writes nothing.
        let is_reduce = self.operation() == "reduce";
        let (own, others) = (sizes(self), sizes(other));
        let count = if is_reduce { 1 } else { own.len().max(others.len()) };
        let first = |sizes: &[(DType, usize)]| sizes.iter().take(count).copied().collect::<Vec<_>>();
        are_known && SYMMETRIC.contains(&self.operation()) && first(&own) != first(&others)
    }

    /// Returns the call as a line of a record.
    pub(super) fn to_line(&self, sequence: u64) -> String {
        let state = self.state.unwrap_or(FlightState::Scheduled);
        format!("call {sequence} is {}; {}; {state}", self.label, self.what_moves())
    }

    /// Describes the moved data: the sender and the receiver of a message, and the tensors.
    fn what_moves(&self) -> String {
        let tensors = format!("{} -> {}", list(&self.inputs), list(&self.outputs));
        match self.message {
            Some([from, to]) => format!("rank {from} to rank {to}: {tensors}"),
            None => tensors,
        }
    }

    /// Reads a line of a record: the call's number, and the call.
    pub(super) fn parse(line: &str) -> Option<(u64, Self)> {
        let (sequence, rest) = line.trim().strip_prefix("call ")?.split_once(" is ")?;
        let mut parts = rest.rsplitn(3, "; ");
        let (state, tensors, label) = (parts.next()?, parts.next()?, parts.next()?);
        let (message, tensors) = match tensors.strip_prefix("rank ") {
            Some(message) => {
                let (ranks, tensors) = message.split_once(": ")?;
                let (from, to) = ranks.split_once(" to rank ")?;
                (Some([from.parse().ok()?, to.parse().ok()?]), tensors)
            }
            None => (None, tensors),
        };
        let (inputs, outputs) = tensors.split_once(" -> ")?;
        let call = Self {
            label: label.to_owned(),
            message,
            inputs: FlightTensor::parse(inputs)?,
            outputs: FlightTensor::parse(outputs)?,
            state: Some(FlightState::parse(state)?),
        };
        Some((sequence.parse().ok()?, call))
    }
}

impl fmt::Display for FlightCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(state) = self.state else { return f.write_str(&self.label) };
        write!(f, "{} ({}, {state})", self.label, self.what_moves())
    }
}

fn list(tensors: &[FlightTensor]) -> String {
    if tensors.is_empty() {
        return NOTHING.to_owned();
    }
    tensors.iter().map(FlightTensor::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(dtype: DType, shape: &[usize]) -> FlightTensor {
        FlightTensor { dtype, shape: shape.into() }
    }

    #[test]
    fn lines_are_read_back() {
        let calls = [
            (vec![tensor(DType::F32, &[2, 3])], vec![tensor(DType::F32, &[2, 3])], FlightState::Started),
            (vec![tensor(DType::Bf16, &[])], vec![], FlightState::Scheduled),
            (vec![], vec![tensor(DType::I64, &[7]), tensor(DType::Bool, &[0, 1])], FlightState::Completed),
            (vec![], vec![], FlightState::Captured),
        ];
        for (sequence, (inputs, outputs, state)) in (1..).zip(calls) {
            let message = (sequence == 2).then_some([3, 12]);
            let label = "gather at a; b/c.rs:7".to_owned();
            let call = FlightCall { label, message, inputs, outputs, state: Some(state) };
            assert_eq!(FlightCall::parse(&call.to_line(sequence)), Some((sequence, call)));
        }
        for text in ["", "call 1", "call x is a; nothing -> nothing; started", "call 1 is a; b; started"] {
            assert_eq!(FlightCall::parse(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_differ_where_all_ranks_give_the_same() {
        let call = |label: &str, inputs: &[&FlightTensor], outputs: &[&FlightTensor]| FlightCall {
            label: format!("{label} at file.rs:1"),
            message: None,
            inputs: inputs.iter().copied().cloned().collect(),
            outputs: outputs.iter().copied().cloned().collect(),
            state: Some(FlightState::Started),
        };
        let (six, flat) = (&tensor(DType::F32, &[2, 3]), &tensor(DType::F32, &[6]));
        let (seven, whole) = (&tensor(DType::F32, &[7]), &tensor(DType::I32, &[6]));
        let reduced = |of: &FlightTensor| call("all_reduce", &[of], &[of]);
        assert!(!reduced(six).differs(&reduced(flat)), "shapes may differ");
        assert!(reduced(six).differs(&reduced(seven)) && reduced(six).differs(&reduced(whole)));
        assert!(reduced(six).differs(&call("broadcast", &[six], &[six])));
        let root = call("reduce", &[six], &[six]);
        assert!(!root.differs(&call("reduce", &[flat], &[])) && root.differs(&call("reduce", &[seven], &[])));
        // Only the root has lists, and splits differ.
        assert!(!call("gather", &[six], &[]).differs(&call("gather", &[six], &[seven])));
        assert!(!FlightCall::labelled("all_reduce at file.rs:1").differs(&reduced(six)));
    }
}
