//! Advice where memory ran out: the change that would have helped.

pub(crate) mod advice;
