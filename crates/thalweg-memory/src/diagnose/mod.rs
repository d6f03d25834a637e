//! What would have helped where memory ran out.

pub(crate) mod advice;
