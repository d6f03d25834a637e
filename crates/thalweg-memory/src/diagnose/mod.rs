//! Advice for requests that failed for lack of memory: the change that would have helped.

pub(crate) mod advice;
