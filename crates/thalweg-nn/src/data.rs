//! Batches of a data set on the device (`torch.utils.data`): worker threads fill pinned memory, and copies run on a separate
//! stream while the previous batch is being used.
//!
//! ```
//! # use std::sync::Arc;
//! # use thalweg_ir::DType;
//! # use thalweg_nn::data::{DataLoader, DataLoaderOptions, Dataset, Field, SampleField};
//! # use thalweg_runtime::{Device, Result};
//! struct Squares;
//!
//! impl Dataset for Squares {
//!     fn len(&self) -> usize {
//!         10
//!     }
//!
//!     fn fields(&self) -> Vec<Field> {
//!         vec![Field { shape: vec![1], dtype: DType::F32 }, Field { shape: vec![], dtype: DType::I64 }]
//!     }
//!
//!     fn read(&self, index: usize, fields: &mut [SampleField<'_>]) -> Result<()> {
//!         fields[0].put(&[index as f32])?;
//!         fields[1].put(&[(index * index) as i64])
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! # let device = Device::sim(0)?;
//! let options = DataLoaderOptions { batch_size: 4, num_workers: 2, ..DataLoaderOptions::default() };
//! let mut loader = DataLoader::new(Arc::new(Squares), options, &device)?;
//! let batches = loader.epoch()?.collect::<Result<Vec<_>>>()?;
//! assert_eq!(batches.len(), 3);
//! assert_eq!(batches[1][1].to_vec::<i64>()?, [16, 25, 36, 49]);
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use thalweg_derive::at_line;
use thalweg_ir::{DType, Element, byte_count};
use thalweg_lock::Mutex;
use thalweg_runtime::{Device, Error, Event, PinnedBuffer, Result, Stream, invalid, options, refuse_if};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::label_at;
use thalweg_tensor::random::Generator;

/// One part of a sample: an image, a class.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// The extents of one sample.
    pub shape: Vec<usize>,
    /// The dtype.
    pub dtype: DType,
}

/// Samples by number, all of the same fields (`torch.utils.data.Dataset`). Several threads read it concurrently.
pub trait Dataset: Send + Sync + 'static {
    /// Returns the number of samples.
    fn len(&self) -> usize;

    /// Returns whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the fields of a sample.
    fn fields(&self) -> Vec<Field>;

    /// Reads a sample, and writes it into its fields, all of them.
    ///
    /// # Errors
    /// Those of the data set, which end the epoch, as a field does to which nothing is written.
    fn read(&self, index: usize, fields: &mut [SampleField<'_>]) -> Result<()>;
}

/// The memory for one field of a sample, to be written.
#[derive(Debug)]
pub struct SampleField<'a> {
    dtype: DType,
    bytes: &'a mut [u8],
    is_written: bool,
}

impl SampleField<'_> {
    /// Writes the elements of the field.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if their dtype or number differs from the field's.
    #[track_caller]
    pub fn put<T: Element>(&mut self, elements: &[T]) -> Result<()> {
        let count = self.bytes.len() / self.dtype.size_bytes();
        if T::DTYPE != self.dtype || elements.len() != count {
            let text = format!(
                "SampleField::put: {} elements of {} for a field of {count} elements of {}",
                elements.len(),
                T::DTYPE,
                self.dtype
            );
            return Err(Error::invalid(text).at(Location::caller()));
        }
        self.bytes_mut().copy_from_slice(bytemuck::cast_slice(elements));
        Ok(())
    }

    /// Returns the dtype of the field.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the bytes of the field, elements of its dtype in row-major order, for example to be filled by a file reader.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.is_written = true;
        self.bytes
    }
}

options! {
    /// The options of a [`DataLoader`], by PyTorch's names.
    #[derive(Clone, Debug)]
    pub struct DataLoaderOptions {
        /// The number of samples per batch.
        pub batch_size: usize = 1,
        /// The seed with which each epoch is shuffled; without one, samples keep the order of the data set.
        pub shuffle: Option<u64> = None,
        /// The number of threads that read samples; with 0 the caller's thread reads them.
        pub num_workers: usize = 0,
        /// The number of batches that each worker reads ahead.
        pub prefetch_factor: usize = 2,
        /// Whether an incomplete last batch is dropped.
        pub drop_last: bool = false,
    }
}

/// A batch in pinned memory: a buffer per field, and the event after the copies that last read them.
struct PinnedBatch {
    buffers: Vec<PinnedBuffer>,
    copied: Event,
    /// The bytes of a field before they are written to its buffer.
    staging: Vec<Vec<u8>>,
}

/// Samples to be read into a pinned batch.
struct Task {
    number: usize,
    samples: Vec<usize>,
    into: PinnedBatch,
}

/// A finished task, with its filled batch.
struct Filled {
    number: usize,
    count: usize,
    batch: PinnedBatch,
    outcome: Result<()>,
}

/// Batches of a data set, epoch by epoch (`torch.utils.data.DataLoader` with `pin_memory=True`).
pub struct DataLoader<D> {
    dataset: Arc<D>,
    options: DataLoaderOptions,
    fields: Vec<Field>,
    device: Device,
    stream: Stream,
    epoch: u64,
    free: Vec<PinnedBatch>,
}

impl<D: Dataset> DataLoader<D> {
    /// Makes a loader that copies batches to a device.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a batch has no samples or too many bytes; [`Error::is_out_of_memory`] if the host has
    /// not enough memory for the pinned batches.
    #[at_line]
    pub fn new(dataset: Arc<D>, options: DataLoaderOptions, device: &Device) -> Result<Self> {
        refuse_if!(options.batch_size == 0, "DataLoader: batch_size must be at least 1");
        let fields = dataset.fields();
        let ahead = options.num_workers.checked_mul(options.prefetch_factor.max(1));
        let ahead = ahead.and_then(|ahead| ahead.max(1).checked_add(1));
        let ahead =
            ahead.ok_or_else(|| invalid!("DataLoader: num_workers times prefetch_factor is too large"))?;
        let batch = || {
            let sizes = fields.iter().map(|field| Ok(byte_count(&field.shape, field.dtype)?));
            let sizes = sizes.collect::<Result<Vec<usize>>>()?;
            let buffer = |&bytes: &usize| {
                let bytes = bytes.checked_mul(options.batch_size);
                let bytes = bytes.ok_or_else(|| invalid!("DataLoader: a batch is too large"))?;
                PinnedBuffer::new(device, bytes.max(1) as u64)
            };
            let buffers = sizes.iter().map(buffer).collect::<Result<_>>()?;
            Ok(PinnedBatch { buffers, copied: Event::new(), staging: vec![Vec::new(); fields.len()] })
        };
        let free = (0..ahead).map(|_| batch()).collect::<Result<_>>()?;
        // The allocator's cache is per stream, so loaders share one stream.
        let stream = Stream::for_copies(device)?;
        Ok(Self { dataset, options, fields, device: device.clone(), stream, epoch: 0, free })
    }

    /// Returns the number of batches of an epoch.
    pub fn len(&self) -> usize {
        match self.options.drop_last {
            true => self.dataset.len() / self.options.batch_size,
            false => self.dataset.len().div_ceil(self.options.batch_size),
        }
    }

    /// Returns whether an epoch has no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the number of the next epoch, from 0 on, which determines the order of a loader that shuffles
    /// (`torch.utils.data.DistributedSampler.set_epoch`), for resumed training.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Begins the next epoch, and returns its batches: a tensor per field, whose first extent is the batch size.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the data set is too large to be shuffled.
    #[track_caller]
    pub fn epoch(&mut self) -> Result<Epoch<'_, D>> {
        let count = self.dataset.len();
        // Each epoch draws from a separate random stream.
        let stream = |seed: u64| seed.wrapping_add(self.epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let shuffled = |seed| Generator::new(stream(seed)).permutation(count);
        let order = self.options.shuffle.map(shuffled).transpose()?;
        self.epoch = self.epoch.wrapping_add(1);
        let (tasks, todo) = channel();
        let (results, filled) = channel();
        let todo = Arc::new(Mutex::new(todo));
        let layout = self.layout();
        let workers = (0..self.options.num_workers)
            .map(|_| {
                let (dataset, todo) = (Arc::clone(&self.dataset), Arc::clone(&todo));
                let (results, layout) = (results.clone(), layout.clone());
                let started = Builder::new().spawn(move || work(&*dataset, &layout, &todo, &results));
                started.map_err(|error| invalid!("DataLoader: a worker has no thread: {error}"))
            })
            .collect::<Result<_>>()?;
        let batches = self.len();
        Ok(Epoch {
            loader: self,
            count,
            order,
            batches,
            asked: 0,
            given: 0,
            next: 0,
            tasks: Some(tasks),
            todo,
            filled,
            early: BTreeMap::new(),
            ahead: VecDeque::new(),
            workers,
        })
    }

    /// Returns the dtype and the bytes of each field of a sample.
    fn layout(&self) -> Vec<(DType, usize)> {
        let bytes = |field: &Field| field.shape.iter().product::<usize>() * field.dtype.size_bytes();
        self.fields.iter().map(|field| (field.dtype, bytes(field))).collect()
    }
}

impl<D> std::fmt::Debug for DataLoader<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataLoader").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Processes tasks until there are no more.
fn work<D: Dataset>(
    dataset: &D,
    layout: &[(DType, usize)],
    todo: &Mutex<Receiver<Task>>,
    results: &Sender<Filled>,
) {
    loop {
        let task = todo.lock().recv();
        let Ok(task) = task else { return };
        if results.send(fill(dataset, layout, task)).is_err() {
            return;
        }
    }
}

/// Reads the samples of a task into its pinned batch.
fn fill<D: Dataset>(dataset: &D, layout: &[(DType, usize)], task: Task) -> Filled {
    let Task { number, samples, into: mut batch } = task;
    let count = samples.len();
    let mut read = || {
        // Copies of the previous batch in this memory may still be in progress.
        batch.copied.synchronize()?;
        for (bytes, (_, size)) in batch.staging.iter_mut().zip(layout) {
            bytes.resize(count * size, 0);
        }
        for (place, &sample) in samples.iter().enumerate() {
            let fields = batch.staging.iter_mut().zip(layout);
            let mut fields: Vec<SampleField<'_>> = fields
                .map(|(bytes, &(dtype, size))| SampleField {
                    dtype,
                    bytes: &mut bytes[place * size..(place + 1) * size],
                    is_written: size == 0,
                })
                .collect();
            read_sample(dataset, sample, &mut fields)?;
        }
        let mut pairs = batch.buffers.iter().zip(&batch.staging);
        pairs.try_for_each(|(buffer, bytes)| buffer.write(0, &bytes[..]))
    };
    let outcome = read();
    Filled { number, count, batch, outcome }
}

/// Reads a sample; an error or a panic is returned with the sample's number. (The loader would wait forever for a batch lost in a
/// panic.)
fn read_sample<D: Dataset>(dataset: &D, sample: usize, fields: &mut [SampleField<'_>]) -> Result<()> {
    match catch_unwind(AssertUnwindSafe(|| dataset.read(sample, fields))) {
        Ok(outcome) => {
            // The memory of a field that was not written has the sample of an earlier batch.
            let missing = || fields.iter().position(|field| !field.is_written);
            let written = outcome.and_then(|()| match missing() {
                Some(field) => Err(invalid!("the data set wrote nothing to field {field}")),
                None => Ok(()),
            });
            written.map_err(|error| error.context(format!("DataLoader: sample {sample}")))
        }
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let text = text.map_or_else(String::new, |text| format!(": {text}"));
            Err(invalid!("DataLoader: the data set panicked as it read sample {sample}{text}"))
        }
    }
}

/// A batch on its way to the device.
struct Coming {
    tensors: Vec<Tensor>,
    ready: Event,
}

/// The batches of an epoch, in order. Dropping it ends the workers.
pub struct Epoch<'a, D: Dataset> {
    loader: &'a mut DataLoader<D>,
    count: usize,
    /// The samples in the order of a loader that shuffles.
    order: Option<Vec<usize>>,
    batches: usize,
    /// The numbers of batches requested and received, and the next batch to be copied.
    asked: usize,
    given: usize,
    next: usize,
    tasks: Option<Sender<Task>>,
    todo: Arc<Mutex<Receiver<Task>>>,
    filled: Receiver<Filled>,
    /// Batches that were filled out of order, before it is their turn.
    early: BTreeMap<usize, Filled>,
    ahead: VecDeque<Result<Coming>>,
    workers: Vec<JoinHandle<()>>,
}

impl<D: Dataset> Epoch<'_, D> {
    /// Queues tasks as long as there are free pinned batches.
    fn queue_tasks(&mut self) {
        while self.asked < self.batches {
            let Some(into) = self.loader.free.pop() else { return };
            let size = self.loader.options.batch_size;
            let first = self.asked * size;
            let last = first.saturating_add(size).min(self.count);
            let samples = match &self.order {
                Some(order) => order[first..last].to_vec(),
                None => (first..last).collect(),
            };
            let task = Task { number: self.asked, samples, into };
            if let Some(tasks) = &self.tasks {
                _ = tasks.send(task);
            }
            self.asked += 1;
        }
    }

    /// Returns the next batch in order if it has been filled; with `waits`, waits for it.
    fn take(&mut self, waits: bool) -> Option<Filled> {
        loop {
            if let Some(filled) = self.early.remove(&self.next) {
                return Some(filled);
            }
            if self.workers.is_empty() {
                let task = self.todo.lock().try_recv().ok()?;
                let filled = fill(&*self.loader.dataset, &self.loader.layout(), task);
                self.early.insert(filled.number, filled);
                continue;
            }
            let filled = if waits { self.filled.recv().ok()? } else { self.filled.try_recv().ok()? };
            self.early.insert(filled.number, filled);
        }
    }

    /// Starts the copies of a filled batch. An error is returned when it is the batch's turn.
    fn copy(&mut self, filled: Filled) {
        let Filled { count, batch, outcome, .. } = filled;
        self.next += 1;
        let (stream, label) = (&self.loader.stream, label_at("DataLoader", Location::caller()));
        let started = outcome.and_then(|()| {
            let _current = stream.make_current();
            let mut tensors = Vec::new();
            for (field, buffer) in self.loader.fields.iter().zip(&batch.buffers) {
                let shape: Vec<usize> = [count].into_iter().chain(field.shape.iter().copied()).collect();
                let tensor = Tensor::empty(&shape, field.dtype, &self.loader.device)?;
                let bytes = (tensor.elements() * field.dtype.size_bytes()) as u64;
                if bytes > 0 {
                    stream.copy_from_pinned(tensor.pointer(), buffer, 0, bytes, label)?;
                }
                tensors.push(tensor);
            }
            batch.copied.record(stream)?;
            Ok(Coming { tensors, ready: stream.record_event()? })
        });
        self.loader.free.push(batch);
        self.ahead.push_back(started);
    }

    fn advance(&mut self) -> Result<Vec<Tensor>> {
        self.queue_tasks();
        if self.ahead.is_empty() {
            let stopped = || invalid!("DataLoader: a worker stopped without a batch: did it panic?");
            let filled = self.take(true).ok_or_else(stopped)?;
            self.copy(filled);
        }
        self.queue_tasks();
        // The following batch, if it is ready: its copy runs in parallel with the work on this one.
        if self.next < self.batches
            && let Some(filled) = self.take(false)
        {
            self.copy(filled);
            self.queue_tasks();
        }
        let Coming { tensors, ready } = self.ahead.pop_front().expect("one was just copied")?;
        let current = self.loader.device.current_stream();
        current.wait_event(&ready)?;
        tensors.iter().for_each(|tensor| tensor.record_stream(&current));
        self.given += 1;
        Ok(tensors)
    }
}

impl<D: Dataset> Iterator for Epoch<'_, D> {
    type Item = Result<Vec<Tensor>>;

    /// Returns the next batch, ready for work on the current stream. *Blocks* only until the batch is in pinned memory. An error ends
    /// the epoch.
    fn next(&mut self) -> Option<Self::Item> {
        if self.given == self.batches {
            return None;
        }
        let batch = self.advance();
        if batch.is_err() {
            self.given = self.batches;
        }
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.batches - self.given, Some(self.batches - self.given))
    }
}

impl<D: Dataset> Drop for Epoch<'_, D> {
    fn drop(&mut self) {
        self.tasks = None;
        // Pinned batches of tasks that have not begun, and filled ones, are returned to the loader.
        while let Ok(task) = self.todo.lock().try_recv() {
            self.loader.free.push(task.into);
        }
        for worker in self.workers.drain(..) {
            _ = worker.join();
        }
        self.loader.free.extend(self.filled.try_iter().map(|filled| filled.batch));
        let early = std::mem::take(&mut self.early);
        self.loader.free.extend(early.into_values().map(|filled| filled.batch));
    }
}
