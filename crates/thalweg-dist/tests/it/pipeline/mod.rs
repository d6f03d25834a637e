//! Pipelines: the tables against PyTorch's.

mod goldens;
