//! The moment of a recording that a subcommand looks at, as an argument.

use clap::ValueEnum;
use thalweg::memory_tools::analysis::{Moment, Summary};

/// A moment of a recording.
#[derive(Clone, Copy, ValueEnum)]
pub(super) enum At {
    Peak,
    End,
}

impl At {
    pub(super) fn of(self, summary: &Summary) -> &Moment {
        match self {
            Self::Peak => &summary.at_peak,
            Self::End => &summary.at_end,
        }
    }
}
