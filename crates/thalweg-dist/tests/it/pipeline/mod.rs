//! Pipelines: the tables against those of PyTorch, training by stages against one device, and what is refused.

mod errors;
mod goldens;
mod training;
