//! The data loader: order, shuffles, workers, errors; and its streams under the sanitizer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_ir::DType;
use thalweg_nn::data::{DataLoader, DataLoaderOptions, Dataset, Field, SampleField};
use thalweg_runtime::sim::Check;
use thalweg_runtime::{Error, Result};
use thalweg_tensor::Tensor;

use crate::support::device;

/// Sample n is (n, n + 0.5) and n².
struct Numbers {
    count: usize,
    /// A sample that cannot be read.
    broken: Option<usize>,
    reads: AtomicUsize,
}

impl Numbers {
    fn new(count: usize) -> Self {
        Self { count, broken: None, reads: AtomicUsize::new(0) }
    }
}

impl Dataset for Numbers {
    fn len(&self) -> usize {
        self.count
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field { shape: vec![2], dtype: DType::F32 }, Field { shape: vec![], dtype: DType::I64 }]
    }

    fn read(&self, index: usize, fields: &mut [SampleField<'_>]) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.broken == Some(index) {
            return Err(Error::invalid(format!("sample {index} is broken")));
        }
        fields[0].put(&[index as f32, index as f32 + 0.5])?;
        fields[1].put(&[(index * index) as i64])
    }
}

fn loader(dataset: Numbers, options: DataLoaderOptions) -> DataLoader<Numbers> {
    DataLoader::new(Arc::new(dataset), options, &device()).unwrap()
}

/// Returns the samples of an epoch, by their squares, each batch checked against its other field.
fn squares(loader: &mut DataLoader<Numbers>) -> Vec<Vec<i64>> {
    let mut batches = Vec::new();
    for batch in loader.epoch().unwrap() {
        let batch = batch.unwrap();
        let (pairs, squares) = (batch[0].to_vec::<f32>().unwrap(), batch[1].to_vec::<i64>().unwrap());
        assert_eq!(batch[0].shape(), [squares.len(), 2]);
        for (pair, &square) in pairs.chunks_exact(2).zip(&squares) {
            assert_eq!((pair[0] * pair[0], pair[1]), (square as f32, pair[0] + 0.5));
        }
        batches.push(squares);
    }
    batches
}

#[test]
fn batches_come_in_order_whatever_the_workers() {
    for num_workers in [0, 1, 3] {
        let options = DataLoaderOptions { batch_size: 4, num_workers, ..DataLoaderOptions::default() };
        let mut loader = loader(Numbers::new(10), options);
        for _ in 0..2 {
            let expected = [vec![0, 1, 4, 9], vec![16, 25, 36, 49], vec![64, 81]];
            assert_eq!(squares(&mut loader), expected, "{num_workers} workers");
        }
    }
}

#[test]
fn a_shuffle_has_each_sample_once_and_differs_between_epochs() {
    let options = DataLoaderOptions {
        batch_size: 8,
        shuffle: Some(3),
        num_workers: 2,
        drop_last: true,
        ..DataLoaderOptions::default()
    };
    let mut first = loader(Numbers::new(64), options.clone());
    assert_eq!(first.len(), 8);
    let epochs = [squares(&mut first).concat(), squares(&mut first).concat()];
    assert_ne!(epochs[0], epochs[1]);
    for epoch in &epochs {
        let mut sorted = epoch.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..64).map(|n| n * n).collect::<Vec<i64>>());
    }
    let mut again = loader(Numbers::new(67), options.clone());
    assert_eq!(again.len(), 8, "three samples are left out");
    assert_eq!(squares(&mut loader(Numbers::new(64), options)).concat(), epochs[0], "the seed decides");
    assert_eq!(squares(&mut again).concat().len(), 64);
}

#[test]
fn an_error_ends_the_epoch_and_the_next_one_begins_anew() {
    for num_workers in [0, 2] {
        let dataset = Numbers { broken: Some(5), ..Numbers::new(12) };
        let options = DataLoaderOptions { batch_size: 2, num_workers, ..DataLoaderOptions::default() };
        let mut loader = loader(dataset, options);
        for _ in 0..3 {
            let outcomes: Vec<bool> = loader.epoch().unwrap().map(|batch| batch.is_ok()).collect();
            assert_eq!(outcomes, [true, true, false], "the error is in the place of its batch");
        }
        // An epoch that is dropped early returns its pinned batches.
        for _ in 0..20 {
            assert!(loader.epoch().unwrap().next().unwrap().is_ok());
        }
    }
    for (batch_size, num_workers) in [(0, 0), (usize::MAX, 0), (1, usize::MAX)] {
        let options = DataLoaderOptions { batch_size, num_workers, ..DataLoaderOptions::default() };
        assert!(
            DataLoader::new(Arc::new(Numbers::new(1)), options, &device()).unwrap_err().is_invalid_argument()
        );
    }
    // A data set without an end needs no list of its samples.
    let mut endless = loader(Numbers::new(usize::MAX), DataLoaderOptions::default());
    assert!(endless.epoch().unwrap().next().unwrap().is_ok());
}

#[test]
fn copies_are_ordered_before_the_work_and_memory_is_not_reused_too_early() {
    Check::new().seeds(0..60).run(|gpu| -> Result<()> {
        let device = gpu.device();
        let options = DataLoaderOptions { batch_size: 3, ..DataLoaderOptions::default() };
        let mut loader = DataLoader::new(Arc::new(Numbers::new(12)), options, device)?;
        let mut total = Tensor::zeros(&[], DType::I64, device)?;
        for _ in 0..2 {
            for batch in loader.epoch()? {
                total = total.add(&batch?[1].sum(&[], false)?)?;
            }
        }
        assert_eq!(total.item::<i64>()?, 2 * (0..12).map(|n| n * n).sum::<i64>());
        Ok(())
    });
}

#[test]
fn an_epoch_that_is_set_has_the_order_that_it_would_have_had() {
    let options = || DataLoaderOptions { batch_size: 4, shuffle: Some(3), ..DataLoaderOptions::default() };
    let mut whole = loader(Numbers::new(10), options());
    let epochs: Vec<_> = (0..3).map(|_| squares(&mut whole)).collect();
    let mut resumed = loader(Numbers::new(10), options());
    resumed.set_epoch(2);
    assert_eq!(squares(&mut resumed), epochs[2]);
}

/// Writes one field wrongly, or panics.
struct Wrong(fn(&mut [SampleField<'_>]) -> Result<()>);

impl Dataset for Wrong {
    fn len(&self) -> usize {
        8
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field { shape: vec![], dtype: DType::I64 }, Field { shape: vec![2], dtype: DType::F32 }]
    }

    fn read(&self, index: usize, fields: &mut [SampleField<'_>]) -> Result<()> {
        if index == 5 {
            return self.0(fields);
        }
        fields[0].put(&[0_i64])?;
        fields[1].put(&[0.0_f32; 2])
    }
}

#[test]
fn a_sample_of_another_dtype_or_count_is_refused_and_named() {
    type Case = (fn(&mut [SampleField<'_>]) -> Result<()>, &'static str);
    let cases: [Case; 6] = [
        (|fields| fields[0].put(&[1_i64]), "the data set wrote nothing to field 1"),
        (|fields| fields[0].put(&[1.0_f64]), "1 elements of float64 for a field of 1 elements of int64"),
        (|fields| fields[1].put(&[1.0_f64]), "1 elements of float64 for a field of 2 elements of float32"),
        (|fields| fields[1].put(&[1.0_f32]), "1 elements of float32 for a field of 2 elements of float32"),
        (|_| panic!("the file of {} is gone", 7), "panicked as it read sample 5: the file of 7 is gone"),
        (|_| panic!("no file"), "panicked as it read sample 5: no file"),
    ];
    for (wrong, text) in cases {
        for num_workers in [0, 1] {
            let options = DataLoaderOptions { batch_size: 4, num_workers, ..DataLoaderOptions::default() };
            let mut loader = DataLoader::new(Arc::new(Wrong(wrong)), options, &device()).unwrap();
            let error = loader.epoch().unwrap().collect::<Result<Vec<_>>>().unwrap_err();
            assert!(error.is_invalid_argument(), "{error}");
            assert!(error.to_string().contains(text) && error.to_string().contains("sample 5"), "{error}");
        }
    }
}

#[test]
fn one_loader_after_the_other_finds_the_memory_of_the_first() {
    // On a separate machine, where nothing else takes memory.
    Check::new().seeds(0..1).run(|gpu| -> Result<()> {
        let device = gpu.device();
        let mut before = None;
        for _ in 0..6 {
            let options = DataLoaderOptions::default();
            squares(&mut DataLoader::new(Arc::new(Numbers::new(10)), options, device)?);
            device.synchronize()?;
            let reserved = device.allocator().statistics().reserved_bytes.all.current;
            assert_eq!(*before.get_or_insert(reserved), reserved);
        }
        Ok(())
    });
}
