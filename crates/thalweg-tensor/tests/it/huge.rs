//! Tensors of more than 2³¹ elements: values and indices on both sides of that number. They take 5 GB of memory, so they run only
//! on request: `cargo test --release -p thalweg-tensor --test it huge -- --ignored --test-threads=1`, on a GPU with
//! `THALWEG_TEST_DEVICE=cuda`.

use std::sync::Arc;

use thalweg_ir::DType;
use thalweg_runtime::{Device, Environment, Label};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::find_operator;

use crate::support::{device, values};

/// The number of rows: together with the columns slightly more than 2³¹ elements.
const ROWS: usize = (1 << 20) + 3;
const COLUMNS: usize = 1 << 11;
const COUNT: usize = ROWS * COLUMNS;

/// Returns a GPU, or a simulated one with memory for two such tensors and some more.
fn large_device() -> Device {
    if std::env::var_os("THALWEG_TEST_DEVICE").is_some() {
        return device();
    }
    let config = SimConfig { memory_bytes: 6 << 30, ..SimConfig::default() };
    let driver = SimDriver::new(config).expect("a simulated GPU needs nothing");
    Device::all_of(driver as Arc<_>, Environment::get()).expect("its device opens").remove(0)
}

/// The indices that are checked: the first, those around 2³¹, and the last.
const PLACES: [usize; 5] = [0, (1 << 31) - 1, 1 << 31, COUNT - 2, COUNT - 1];

/// Returns a vector of zeros with 1, 2, … at these indices.
fn marked(device: &Device) -> Tensor {
    let x = Tensor::zeros(&[COUNT], DType::U8, device).unwrap();
    for (number, &place) in PLACES.iter().enumerate() {
        x.narrow(0, place, 1).unwrap().fill_(number as i64 + 1).unwrap();
    }
    x
}

fn indices(places: &[usize], device: &Device) -> Tensor {
    let places: Vec<i64> = places.iter().map(|&place| place as i64).collect();
    Tensor::from_slice(&places, &[places.len()], device).unwrap()
}

/// Returns the elements at these indices.
fn at_places(x: &Tensor) -> Vec<f64> {
    PLACES.iter().flat_map(|&place| values(&x.narrow(0, place, 1).unwrap())).collect()
}

fn embedding(table: &Tensor, index: &Tensor) -> Tensor {
    let arguments = [table.into(), index.into()];
    find_operator("embedding")
        .unwrap()
        .call(&arguments, None, Label::here("embedding"))
        .unwrap()
        .swap_remove(0)
}

const MARKS: [f64; 5] = [1.0, 2.0, 3.0, 4.0, 5.0];

#[test]
#[ignore = "it takes 5 GB of memory"]
fn elementwise_operators_and_reductions() {
    let device = large_device();
    let x = marked(&device);
    assert_eq!(at_places(&x), MARKS);
    assert_eq!(at_places(&x.add_scalar(7).unwrap()), MARKS.map(|mark| mark + 7.0));
    assert_eq!(values(&x.sum(&[], false).unwrap()), [15.0]);
    assert_eq!(values(&x.count_nonzero(&[]).unwrap()), [5.0]);
    assert_eq!(values(&x.argmax(0).unwrap()), [(COUNT - 1) as f64]);
    assert_eq!(values(&x.max().unwrap()), [5.0]);
    assert_eq!(values(&x.eq_scalar(4).unwrap().any().unwrap()), [1.0]);
    x.narrow(0, 1 << 31, COUNT - (1 << 31)).unwrap().add_scalar_(1).unwrap();
    assert_eq!(at_places(&x), [1.0, 2.0, 4.0, 5.0, 6.0]);
    let rows = x.reshape(&[ROWS, COLUMNS]).unwrap();
    let sums = values(&rows.sum(&[1], false).unwrap());
    assert_eq!(sums[..2], [1.0, 0.0]);
    assert_eq!(sums[ROWS - 4..], [2.0, (COLUMNS + 3) as f64, COLUMNS as f64, (COLUMNS + 9) as f64][..]);
    let columns = values(&rows.sum(&[0], false).unwrap());
    assert_eq!((columns[0], columns[1], columns[COLUMNS - 1]), (7.0, 3.0, 10.0));
}

#[test]
#[ignore = "it takes 5 GB of memory"]
fn reads_at_indices() {
    let device = large_device();
    let x = marked(&device);
    let index = indices(&PLACES, &device);
    assert_eq!(values(&x.index_select(0, &index).unwrap()), MARKS);
    assert_eq!(values(&x.gather(0, &index).unwrap()), MARKS);
    assert_eq!(values(&x.take(&index).unwrap()), MARKS);
    let rows = x.reshape(&[ROWS, COLUMNS]).unwrap();
    let last = indices(&[0, ROWS - 1], &device);
    for read in [rows.index_select(0, &last).unwrap(), embedding(&rows, &last)] {
        let read = values(&read);
        assert_eq!((read[0], read[2 * COLUMNS - 2], read[2 * COLUMNS - 1]), (1.0, 4.0, 5.0));
        assert_eq!(read.iter().sum::<f64>(), 10.0);
    }
    assert_eq!(values(&x.nonzero().unwrap()), PLACES.map(|place| place as f64));
}

#[test]
#[ignore = "it takes 5 GB of memory"]
fn writes_at_indices() {
    let device = large_device();
    let x = Tensor::zeros(&[COUNT], DType::U8, &device).unwrap();
    let index = indices(&PLACES, &device);
    let marks = Tensor::from_slice(&[1u8, 2, 3, 4, 5], &[5], &device).unwrap();
    x.index_copy_(0, &index, &marks).unwrap();
    assert_eq!(at_places(&x), MARKS);
    assert_eq!(values(&x.sum(&[], false).unwrap()), [15.0], "the others are as they were");
}

#[test]
#[ignore = "it takes 5 GB of memory"]
fn copies() {
    let device = large_device();
    let x = marked(&device);
    let rows = x.reshape(&[ROWS, COLUMNS]).unwrap();
    let turned = rows.transpose(0, 1).unwrap().contiguous().unwrap();
    for (number, &place) in PLACES.iter().enumerate() {
        let found = turned.narrow(0, place % COLUMNS, 1).unwrap().narrow(1, place / COLUMNS, 1).unwrap();
        assert_eq!(values(&found), [number as f64 + 1.0]);
    }
    assert_eq!(values(&turned.sum(&[], false).unwrap()), [15.0]);
    drop(turned);
    drop(rows);
    let (first, second) =
        (x.narrow(0, 0, 1 << 30).unwrap(), x.narrow(0, 1 << 30, COUNT - (1 << 30)).unwrap());
    let joined = Tensor::cat(&[first, second], 0).unwrap();
    assert_eq!(at_places(&joined), MARKS);
}

#[test]
#[ignore = "it takes 24 GB of a GPU's memory"]
fn what_takes_eight_bytes_an_element_on_a_gpu() {
    if std::env::var_os("THALWEG_TEST_DEVICE").is_none() {
        return;
    }
    let device = device();
    let x = marked(&device);
    assert_eq!(
        at_places(&x.index_fill(0, &indices(&PLACES[3..], &device), 9).unwrap()),
        [1.0, 2.0, 3.0, 9.0, 9.0]
    );
    assert_eq!(
        at_places(&x.scatter_value(0, &indices(&PLACES[2..4], &device), 8).unwrap()),
        [1.0, 2.0, 8.0, 8.0, 5.0]
    );
    let turned = x.flip(&[0]).unwrap();
    assert_eq!(values(&turned.narrow(0, 0, 2).unwrap()), [5.0, 4.0]);
    assert_eq!(values(&turned.narrow(0, COUNT - 1, 1).unwrap()), [1.0]);
}

#[test]
#[ignore = "it takes 9 GB of a GPU's memory"]
fn running_sums_on_a_gpu() {
    if std::env::var_os("THALWEG_TEST_DEVICE").is_none() {
        return;
    }
    let x = marked(&device()).to_dtype(DType::F16).unwrap();
    assert_eq!(at_places(&x.cumsum(0).unwrap()), [1.0, 3.0, 6.0, 10.0, 15.0]);
}
