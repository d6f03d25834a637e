//! Shapes and dtypes of the tensors that go from stage to stage. A stage's rank reads those of its input from the store, after
//! the previous stage has run for the first time.

use std::str::FromStr;
use std::time::{Duration, Instant};

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, refuse_if};
use thalweg_tensor::Tensor;

use crate::ProcessGroup;

/// The maximum time of one query of the store.
const LONGEST_QUERY: Duration = Duration::from_millis(100);

/// The shape and dtype of a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Meta {
    pub shape: Vec<usize>,
    pub dtype: DType,
}

impl Meta {
    pub(super) fn of(tensor: &Tensor) -> Self {
        Self { shape: tensor.shape().to_vec(), dtype: tensor.dtype() }
    }

    /// Checks that a tensor has this shape and dtype. The message is PyTorch's.
    pub(super) fn check(&self, what: &str, tensor: &Tensor) -> Result<()> {
        refuse_if!(
            self.shape != tensor.shape(),
            "{what}: value 0 has a shape mismatch: expected {:?} actual {:?}",
            self.shape,
            tensor.shape()
        );
        refuse_if!(
            self.dtype != tensor.dtype(),
            "{what}: value 0 has a dtype mismatch: expected {} actual {}",
            self.dtype,
            tensor.dtype()
        );
        Ok(())
    }

    /// Publishes the shape and dtype of a stage's result to the rank of the next stage.
    pub(super) fn publish(&self, link: &ProcessGroup, stage: usize) -> Result<()> {
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        let text = format!("{} {}", self.dtype, shape.join(" "));
        link.0.store.set(&key(stage), text.as_bytes())
    }

    /// Reads the shape and dtype that [`publish`](Self::publish) wrote. *Blocks* until the other rank's host has run the stage
    /// once.
    pub(super) fn read(link: &ProcessGroup, stage: usize) -> Result<Self> {
        let (key, begin) = (key(stage), Instant::now());
        let text = loop {
            if let Some(text) = link.0.store.find(&key)? {
                break String::from_utf8_lossy(&text).into_owned();
            }
            link.check()?;
            if let Some(reason) = link.failure_elsewhere() {
                return Err(Error::distributed(reason));
            }
            let timeout = link.0.options.timeout;
            if begin.elapsed() > timeout {
                return Err(Error::distributed(format!(
                    "stage {} waited more than {} ms for the first result of stage {stage}",
                    stage + 1,
                    timeout.as_millis()
                )));
            }
            // An error means that the key is not set yet.
            let _ = link.0.store.wait(&[&key], LONGEST_QUERY);
        };
        let refuse =
            || Error::distributed(format!("the result of stage {stage} was announced as \"{text}\""));
        let mut words = text.split_ascii_whitespace();
        let dtype = words.next().and_then(|word| DType::from_str(word).ok()).ok_or_else(refuse)?;
        let shape = words.map(|word| word.parse().map_err(|_| refuse())).collect::<Result<_>>()?;
        Ok(Self { shape, dtype })
    }
}

fn key(stage: usize) -> String {
    format!("pipeline/stage/{stage}")
}
