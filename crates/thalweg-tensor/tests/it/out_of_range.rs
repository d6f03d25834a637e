//! Indices out of range: nothing is read or written at them, and the next wait for the device names operator, index and line.

use std::sync::Arc;

use thalweg_driver::Driver;
use thalweg_ir::DType;
use thalweg_nn::functional::{self, ClassLossOptions};
use thalweg_runtime::sim::Check;
use thalweg_runtime::{CaptureOptions, Device, Environment, Error, Event, Graph, Result, Stream};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::{Tensor, i};

use crate::support::own_device;

fn indices(device: &Device, list: &[i64]) -> Tensor {
    Tensor::from_slice(list, &[list.len()], device).unwrap()
}

fn ramp(device: &Device, shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    Tensor::arange(count, 0, 1, DType::F32, device).unwrap().reshape(shape).unwrap()
}

fn classes(x: &Tensor, index: &Tensor, label_smoothing: f64) -> Result<Tensor> {
    let options = ClassLossOptions { label_smoothing, ..ClassLossOptions::default() };
    functional::cross_entropy_with(x, index, options)
}

/// A call on a matrix (3, 4) and two indices.
type Case = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>);

/// Operators that count no index from the end, along the first dimension, of extent 3; the last one along the second, of extent
/// 4.
const STRICT: &[Case] = &[
    ("gather", |x, index| x.gather(0, &index.reshape(&[2, 1])?)),
    ("index_select", |x, index| x.index_select(0, index)),
    ("embedding", |x, index| functional::embedding(index, x, None)),
    ("scatter", |x, index| x.scatter(0, &index.reshape(&[2, 1])?, &x.narrow(0, 0, 2)?)),
    ("scatter", |x, index| x.scatter_value(0, &index.reshape(&[2, 1])?, 1.0)),
    ("scatter_add", |x, index| x.scatter_add(0, &index.reshape(&[2, 1])?, &x.narrow(0, 0, 2)?)),
    ("scatter_reduce", |x, index| {
        x.scatter_reduce(0, &index.reshape(&[2, 1])?, &x.narrow(0, 0, 2)?, "amax", false)
    }),
    ("index_add", |x, index| x.index_add(0, index, &x.narrow(0, 0, 2)?)),
    ("index_copy", |x, index| x.index_copy(0, index, &x.narrow(0, 0, 2)?)),
    ("index_reduce", |x, index| x.index_reduce(0, index, &x.narrow(0, 0, 2)?, "prod", true)),
    ("index_copy_", |x, index| {
        let target = x.narrow(0, 0, 3)?.contiguous()?.mul_scalar(1.0)?;
        target.index_copy_(0, index, &x.narrow(0, 0, 2)?.mul_scalar(1.0)?)?;
        Ok(target)
    }),
];

/// Operators that count negative indices from the end, along the first dimension.
const WRAPPING: &[Case] = &[
    ("index", |x, index| x.i(i![index])),
    ("index", |x, index| x.index(&[Some(index.clone()), Some(index.clamp(0, 3)?)])),
    ("index_put", |x, index| x.index_put(&[Some(index.clone())], &x.narrow(0, 0, 1)?, true)),
    ("index_fill", |x, index| x.index_fill(0, index, 7.0)),
    ("take_along_dim", |x, index| x.take_along_dim(&index.reshape(&[2, 1])?, Some(0))),
];

/// Classes of rows, of which there are 4.
const CLASSES: &[Case] = &[
    ("cross_entropy", |x, index| classes(&x.narrow(0, 0, 2)?, index, 0.0)),
    ("cross_entropy", |x, index| classes(&x.narrow(0, 0, 2)?, index, 0.1)),
    ("nll_loss", |x, index| functional::nll_loss(&x.narrow(0, 0, 2)?, index, ClassLossOptions::default())),
    ("one_hot", |_, index| index.one_hot(4)),
];

/// Checks that the call is accepted, that the next wait returns this error, and that the device continues to work.
#[track_caller]
fn assert_reported(device: &Device, (name, call): Case, list: [i64; 2], words: &str) {
    let x = ramp(device, &[3, 4]);
    let index = indices(device, &list);
    device.synchronize().unwrap();
    call(&x, &index).unwrap_or_else(|error| panic!("{name} at {list:?} is refused at once: {error}"));
    let error = device.synchronize().expect_err(name);
    let text = error.to_string();
    assert!(error.is_out_of_range() && error.is_invalid_argument() && error.is_asynchronous(), "{text}");
    assert!(text.starts_with(&format!("{name}: ")) && text.contains(words), "{name} at {list:?}: {text}");
    let [cause] = error.possible_causes() else { panic!("{text}") };
    assert_eq!((cause.operator, cause.location.file()), (name, file!()), "{text}");
    device.synchronize().expect("it was told once");
    assert_eq!(x.to_vec::<f32>().unwrap(), (0..12).map(|n| n as f32).collect::<Vec<_>>(), "{name}");
}

#[test]
fn the_next_wait_names_operator_and_index() {
    let device = own_device();
    let bounds = |index: i64| format!("index {index} is out of bounds for dimension 0 with size 3");
    for &case in STRICT {
        for bad in [3, -1, i64::MAX, i64::MIN] {
            assert_reported(&device, case, [2, bad], &bounds(bad));
        }
    }
    for &case in WRAPPING {
        for bad in [3, -4, i64::MAX, i64::MIN] {
            assert_reported(&device, case, [-3, bad], &bounds(bad));
        }
    }
    for &case in CLASSES {
        for bad in [4, -1, i64::MIN] {
            assert_reported(&device, case, [0, bad], &format!("Target {bad} is out of bounds"));
        }
    }
    for bad in [12, -13] {
        let words = format!("tried to access index {bad} on a tensor of 12 elements");
        assert_reported(&device, ("take", |x, index| x.take(index)), [-12, bad], &words);
        assert_reported(
            &device,
            ("put", |x, index| x.put(index, &x.narrow(0, 0, 1)?.narrow(1, 0, 2)?, false)),
            [0, bad],
            &words,
        );
    }
    assert_reported(
        &device,
        ("index", |x, index| x.index(&[None, Some(index.clone())])),
        [3, 4],
        "index 4 is out of bounds for dimension 1 with size 4",
    );
}

#[test]
fn what_is_in_range_is_not_told() {
    let device = own_device();
    let x = ramp(&device, &[3, 4]);
    let call = |(name, call): &Case, list: &[i64]| {
        call(&x, &indices(&device, list)).unwrap();
        device.synchronize().unwrap_or_else(|error| panic!("{name} at {list:?}: {error}"));
    };
    STRICT.iter().chain(CLASSES).for_each(|case| call(case, &[2, 0]));
    WRAPPING.iter().for_each(|case| call(case, &[-3, 2]));
    // An ignored class is not out of range, and if a target has more elements than there are indices, nothing is written.
    CLASSES[..3].iter().for_each(|case| call(case, &[-100, 3]));
    let leaf = x.mul_scalar(1.0).unwrap().requires_grad_().unwrap();
    for case in STRICT.iter().take(10).chain(WRAPPING).chain(&CLASSES[..3]) {
        case.1(&leaf, &indices(&device, &[1, 0])).unwrap().sum(&[], false).unwrap().backward().unwrap();
        device.synchronize().unwrap_or_else(|error| panic!("{}: {error}", case.0));
    }
}

/// Checks that an error is that of a call on a line of this file, noticed on another one.
#[track_caller]
fn is_of(error: &Error, called: u32, noticed: Option<u32>) {
    let text = error.to_string();
    let line = |words: &str, line: u32| text.contains(&format!("{words} at {}:{line}", file!()));
    assert!(error.is_out_of_range() && line("called", called), "{text}");
    assert!(noticed.is_none_or(|noticed| line("noticed", noticed)), "{text}");
}

#[test]
fn every_wait_tells() {
    let device = own_device();
    let (x, bad) = (ramp(&device, &[3]), indices(&device, &[5]));
    let (y, line) = (x.gather(0, &bad).unwrap(), line!());
    let (error, noticed) = (y.to_vec::<f32>().unwrap_err(), line!());
    is_of(&error, line, Some(noticed));
    assert!(y.to_vec::<f32>().unwrap()[0].is_nan(), "nothing was read there");
    let (_, line) = (x.gather(0, &bad).unwrap(), line!());
    is_of(&device.current_stream().synchronize().unwrap_err(), line, None);
    let (_, line) = (x.gather(0, &bad).unwrap(), line!());
    let event = Event::new();
    event.record(&device.current_stream()).unwrap();
    is_of(&event.synchronize().unwrap_err(), line, None);
    let (_, line) = (x.gather(0, &bad).unwrap(), line!());
    is_of(&device.synchronize().unwrap_err(), line, None);
    // If there are several lines, the error names the first, and all are reset.
    let (_, line) = (x.index_select(0, &bad).unwrap(), line!());
    let _later = x.take(&bad).unwrap();
    is_of(&device.synchronize().unwrap_err(), line, None);
    device.synchronize().unwrap();
}

#[test]
fn nothing_is_written_out_of_bounds() {
    let device = own_device();
    let whole = ramp(&device, &[9]);
    let part = whole.narrow(0, 3, 3).unwrap();
    for bad in [-1, 3, -3, 5, i64::MIN, i64::MAX] {
        part.index_copy_(0, &indices(&device, &[bad]), &Tensor::ones(&[1], DType::F32, &device).unwrap())
            .unwrap();
        assert!(device.synchronize().unwrap_err().is_out_of_range());
    }
    assert_eq!(whole.to_vec::<f32>().unwrap(), (0..9).map(|n| n as f32).collect::<Vec<_>>());
}

#[test]
fn a_graph_tells_of_what_its_replays_meet() {
    let device = own_device();
    let (x, index) = (ramp(&device, &[3, 2]), indices(&device, &[1]));
    let look_up = || Ok((functional::embedding(&index, &x, None)?, line!()));
    look_up().unwrap();
    let (graph, (row, line)) = Graph::capture(&device, CaptureOptions::default(), look_up).unwrap();
    for round in 0..3 {
        index.copy_(&indices(&device, &[round])).unwrap();
        graph.replay().unwrap();
        assert_eq!(row.to_vec::<f32>().unwrap(), [2 * round, 2 * round + 1].map(|n| n as f32));
        index.copy_(&indices(&device, &[3 + round])).unwrap();
        graph.replay().unwrap();
        let error = device.synchronize().unwrap_err();
        is_of(&error, line, None);
        let words = format!("index {} is out of bounds for dimension 0 with size 3", 3 + round);
        assert!(error.to_string().contains(&words), "{error}");
    }
}

#[test]
fn launch_blocking_tells_at_the_call() {
    let driver: Arc<dyn Driver> = SimDriver::new(SimConfig::default()).unwrap();
    let environment = Environment { launch_blocking: true, ..Environment::default() };
    let device = Device::all_of(driver, &environment).unwrap().remove(0);
    let (x, bad) = (ramp(&device, &[3]), indices(&device, &[3]));
    let (error, line) = (x.gather(0, &bad).unwrap_err(), line!());
    is_of(&error, line, Some(line));
}

/// Two streams read indices out of range at one line, and the host waits for one of them while the other works: that is not a race.
#[test]
fn telling_is_no_race() {
    Check::new().seeds(0..20).run(|gpu| {
        let device = gpu.device();
        let x = Tensor::ones(&[4, 2], DType::F32, device)?;
        let main = device.current_stream();
        let lists = [[0i64, 3], [7, -1]].map(|list| Tensor::from_slice(&list, &[2], device));
        let streams = [Stream::new(device)?, Stream::new(device)?];
        let mut reported = 0;
        for _ in 0..2 {
            for (stream, list) in streams.iter().zip(&lists) {
                let list = list.as_ref().map_err(Clone::clone)?;
                stream.wait_stream(&main)?;
                let _current = stream.make_current();
                let row = x.index_select(0, list)?;
                row.record_stream(stream);
            }
            for wait in [streams[0].synchronize(), streams[1].synchronize()] {
                reported += usize::from(wait.is_err_and(|error| error.is_out_of_range()));
            }
        }
        assert_eq!(reported, 2, "each round has one wait that tells");
        streams.iter().try_for_each(|stream| main.wait_stream(stream))?;
        device.synchronize()
    });
}

#[test]
fn an_index_outside_an_unpooled_image_is_refused_in_the_words_for_it() {
    let device = own_device();
    let (x, index) =
        (ramp(&device, &[1, 1, 1, 2]), indices(&device, &[1, 12]).reshape(&[1, 1, 1, 2]).unwrap());
    let error = x.max_unpool2d(&index, &[3, 4]).unwrap().to_vec::<f32>().unwrap_err();
    assert!(
        error.to_string().contains("Found an invalid max index: 12 (output volumes are of size 3x4)"),
        "{error}"
    );
    assert!(error.is_out_of_range() && !error.is_index(), "{error}");
    // Nothing may remain of one of several padded dimensions.
    assert_eq!(ramp(&device, &[2, 3, 3]).reflection_pad2d(&[-2, -1, 0, 1]).unwrap().shape(), [2, 4, 0]);
    assert!(ramp(&device, &[2, 3, 3]).reflection_pad2d(&[-2, -1, -3, 0]).is_err());
    assert!(ramp(&device, &[2, 3]).reflection_pad1d(&[-2, -1]).is_err());
}
