//! Versions of NCCL, and the features that they introduced.

use std::fmt;

use crate::collective::{Collective, CollectiveOperation, Reduction};
use crate::cuda::search::Library;
use crate::library::ElementFormat;
use crate::{Code, Error, Result};

/// A version of NCCL, as its releases are numbered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::cuda) struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Decodes the number that `ncclGetVersion` returns (`NCCL_VERSION`): 2.8 and earlier have one digit for the minor
    /// number.
    pub(in crate::cuda) const fn of_code(code: u32) -> Self {
        let unit = if code < 10_000 { 1_000 } else { 10_000 };
        Self::new(code / unit, code % unit / 100, code % 100)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A feature that not every version of NCCL has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cuda) enum Feature {
    /// `ncclSend` and `ncclRecv`.
    Messages,
    /// Collectives in CUDA graphs.
    Capture,
    /// `ncclAvg`.
    Average,
    /// `ncclBfloat16`.
    Bfloat16,
    /// `ncclCommSplit`.
    Split,
    /// `ncclMemAlloc` and `ncclCommRegister`.
    Registration,
    /// `ncclCommWindowRegister`.
    Symmetric,
}

impl Feature {
    /// Returns the version that introduced the feature, and its name in errors.
    const fn entry(self) -> (Version, &'static str) {
        match self {
            Self::Messages => (Version::new(2, 7, 3), "sends and receives"),
            Self::Capture => (Version::new(2, 9, 6), "collectives in a capture"),
            Self::Average => (Version::new(2, 10, 3), "averages"),
            Self::Bfloat16 => (Version::new(2, 10, 3), "bfloat16"),
            Self::Split => (Version::new(2, 18, 1), "split of communicators"),
            Self::Registration => (Version::new(2, 19, 1), "memory for collectives"),
            Self::Symmetric => (Version::new(2, 27, 3), "symmetric memory"),
        }
    }

    /// Returns the features that a collective needs, except for captures.
    fn of(call: &Collective) -> impl Iterator<Item = Self> {
        let averages = matches!(
            call.operation,
            CollectiveOperation::AllReduce(Reduction::Average)
                | CollectiveOperation::ReduceScatter(Reduction::Average)
                | CollectiveOperation::Reduce { reduction: Reduction::Average, .. }
        );
        let needed = [
            (call.operation.is_between_two(), Self::Messages),
            (averages, Self::Average),
            (call.format == ElementFormat::R_16BF, Self::Bfloat16),
        ];
        needed.into_iter().filter(|(is_needed, _)| *is_needed).map(|(_, feature)| feature)
    }
}

impl Version {
    /// Returns whether this version has the feature.
    pub(in crate::cuda) fn has(self, feature: Feature) -> bool {
        self >= feature.entry().0
    }

    /// Checks that this version has the feature, for a call.
    ///
    /// # Errors
    /// [`Code::NotSupported`] with both versions and what to do.
    pub(in crate::cuda) fn require(
        self,
        feature: Feature,
        call: &'static str,
        of: &dyn fmt::Display,
    ) -> Result<()> {
        if self.has(feature) {
            return Ok(());
        }
        let (since, name) = feature.entry();
        let detail = format!(
            "`{of}`: NCCL {self} has no {name}, which came with {since}: {}, or name a newer file by {}",
            Library::Nccl.advice(),
            Library::Nccl.variable()
        );
        Err(Error::new(Code::NotSupported, call, detail))
    }

    /// Checks that this version has all that a collective needs, except for captures.
    pub(in crate::cuda) fn allows(self, collective: &Collective, call: &'static str) -> Result<()> {
        Feature::of(collective).try_for_each(|feature| self.require(feature, call, &collective.label))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CommunicatorHandle, DevicePointer, Label, StreamHandle};

    #[test]
    fn versions_are_read_as_nccl_writes_them() {
        for (code, text) in [(2_408, "2.4.8"), (2_708, "2.7.8"), (2_804, "2.8.4"), (20_906, "2.9.6")] {
            assert_eq!(Version::of_code(code).to_string(), text);
        }
        for (code, text) in [(21_003, "2.10.3"), (21_801, "2.18.1"), (22_705, "2.27.5"), (30_000, "3.0.0")] {
            assert_eq!(Version::of_code(code).to_string(), text);
        }
        let codes = [2_408, 2_804, 20_906, 21_003, 22_705, 30_000];
        assert!(codes.windows(2).all(|pair| Version::of_code(pair[0]) < Version::of_code(pair[1])));
    }

    fn call(operation: CollectiveOperation, format: ElementFormat) -> Collective {
        let (communicator, stream) = (CommunicatorHandle::from_raw(1), StreamHandle::from_raw(1));
        let (send, receive) = (DevicePointer::new(64), DevicePointer::new(64));
        let label = Label::here("all_reduce");
        Collective { communicator, stream, operation, format, count: 1, send, receive, label }
    }

    #[test]
    fn an_older_library_refuses_by_name() {
        let average = CollectiveOperation::AllReduce(Reduction::Average);
        let sum = CollectiveOperation::AllReduce(Reduction::Sum);
        let cases = [
            (call(average, ElementFormat::R_32F), 20_906, 21_003, "averages, which came with 2.10.3"),
            (call(sum, ElementFormat::R_16BF), 20_906, 21_003, "bfloat16, which came with 2.10.3"),
            (
                call(CollectiveOperation::Send { peer: 1 }, ElementFormat::R_32F),
                2_604,
                2_708,
                "sends and receives, which came with 2.7.3",
            ),
        ];
        for (call, older, newer, wanted) in cases {
            let error = Version::of_code(older).allows(&call, "ncclGroupStart").unwrap_err();
            assert_eq!(error.code(), Code::NotSupported);
            for text in [wanted, "all_reduce at", "THALWEG_NCCL_LIBRARY", "pip install"] {
                assert!(error.detail().contains(text), "no {text} in {error}");
            }
            Version::of_code(newer).allows(&call, "ncclGroupStart").unwrap();
        }
        let error =
            Version::of_code(22_605).require(Feature::Symmetric, "call", &"register_mem_pool").unwrap_err();
        assert!(
            error.detail().contains("NCCL 2.26.5 has no symmetric memory, which came with 2.27.3"),
            "{error}"
        );
        Version::of_code(2_408).allows(&call(sum, ElementFormat::R_32F), "ncclGroupStart").unwrap();
        assert!(
            !Version::of_code(2_804).has(Feature::Capture) && Version::of_code(20_906).has(Feature::Capture)
        );
    }
}
