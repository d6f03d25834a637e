//! Files that PyTorch and the `safetensors` package wrote (`tests/files/make.py`), and files of ours.

use std::path::{Path, PathBuf};

use thalweg_ir::{DType, c128};
use thalweg_nn::module::{Forward, Linear, Module, ReLU, Sequential, StateDict};
use thalweg_nn::optim::{AdamW, AdamWOptions, OptimizerState};
use thalweg_nn::serialize::{Object, SafeTensorsFile, load, load_file, save, save_file};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use crate::support::{assert_close, device, values};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files").join(name)
}

/// A file of a test, which is deleted when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("thalweg-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.0);
    }
}

const DTYPES: [(&str, DType); 13] = [
    ("bool", DType::Bool),
    ("uint8", DType::U8),
    ("int8", DType::I8),
    ("int16", DType::I16),
    ("int32", DType::I32),
    ("int64", DType::I64),
    ("float16", DType::F16),
    ("bfloat16", DType::Bf16),
    ("float32", DType::F32),
    ("float64", DType::F64),
    ("uint16", DType::U16),
    ("float8_e4m3fn", DType::F8E4m3),
    ("float8_e5m2", DType::F8E5m2),
];

/// Compares a dictionary with that of `make.py`: 0 to 5 in every dtype, an empty tensor and one of one number.
fn check_dtypes(tensors: &StateDict) {
    for (name, dtype) in DTYPES {
        let (tensor, odd) = (&tensors[name], [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]);
        assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &[2, 3][..]), "{name}");
        let expected = if dtype == DType::Bool { odd } else { [0.0, 1.0, 2.0, 3.0, 4.0, 5.0] };
        assert_eq!(values(tensor), expected, "{name}");
    }
    assert_eq!(tensors["empty"].shape(), [0, 4]);
    assert_eq!((tensors["scalar"].shape(), values(&tensors["scalar"])), (&[][..], vec![2.5]));
    assert_eq!(tensors.len(), DTYPES.len() + 2);
}

#[test]
fn every_dtype_of_pytorchs_file_is_read_and_written() {
    let read = load(file("dtypes.pt"), &device()).unwrap();
    check_dtypes(&read.state_dict().unwrap());
    let scratch = Scratch::new("dtypes.pt");
    save(&read, &scratch.0).unwrap();
    check_dtypes(&load(&scratch.0, &device()).unwrap().state_dict().unwrap());
}

#[test]
fn every_dtype_of_a_safetensors_file_is_read_and_written() {
    let read = load_file(file("dtypes.safetensors"), &device()).unwrap();
    check_dtypes(&read);
    let scratch = Scratch::new("dtypes.safetensors");
    save_file(&read, &scratch.0, &[("format", "pt")]).unwrap();
    // The package sorts by the name of the dtype if the width is the same; the bytes of each tensor are the same.
    check_dtypes(&load_file(&scratch.0, &device()).unwrap());
    let mut written = SafeTensorsFile::open(&scratch.0).unwrap();
    assert_eq!(written.notes()["format"], "pt");
    assert_eq!(values(&written.tensor("int16", &device()).unwrap()), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let error = written.tensor("int128", &device()).unwrap_err();
    assert!(error.to_string().contains("there is no tensor int128"), "{error}");
}

#[test]
fn rows_of_a_tensor_are_read_without_the_others() {
    let count = (3 << 20) / 4 + 5;
    let whole = Tensor::arange(4 * count, 0i64, 1i64, DType::F32, &device()).unwrap();
    let tensors =
        [("weight", whole.reshape(&[4, count])), ("number", Tensor::zeros(&[], DType::F32, &device()))];
    let tensors = tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor.unwrap())).collect();
    let scratch = Scratch::new("rows.safetensors");
    save_file(&tensors, &scratch.0, &[]).unwrap();
    let mut file = SafeTensorsFile::open(&scratch.0).unwrap();
    for rows in [0..4, 1..3, 3..4, 2..2] {
        let found = file.tensor_rows("weight", rows.clone(), &device()).unwrap();
        assert_eq!(found.shape(), [rows.len(), count]);
        let expected = tensors["weight"].narrow(0, rows.start, rows.len()).unwrap();
        assert_eq!(found.to_vec::<f32>().unwrap(), expected.contiguous().unwrap().to_vec::<f32>().unwrap());
    }
    for (name, rows) in [("weight", 3..5), ("number", 0..1)] {
        let error = file.tensor_rows(name, rows, &device()).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains("has no rows"), "{error}");
    }
}

#[test]
fn complex_numbers_are_read_and_written() {
    let expected: Vec<c128> =
        (0..6).map(f64::from).map(|number| c128 { re: number, im: -2.0 * number }).collect();
    let check = |tensor: &Tensor, dtype: DType| {
        assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &[2, 3][..]));
        assert_eq!(tensor.to_dtype(DType::C128).unwrap().to_vec::<c128>().unwrap(), expected);
    };
    let read = load(file("complex.pt"), &device()).unwrap();
    let scratch = Scratch::new("complex.pt");
    save(&read, &scratch.0).unwrap();
    for tensors in [&read, &load(&scratch.0, &device()).unwrap()].map(|object| object.state_dict().unwrap()) {
        check(&tensors["complex64"], DType::C64);
        check(&tensors["complex128"], DType::C128);
    }
    let mut tensors = read.state_dict().unwrap();
    let scratch = Scratch::new("complex.safetensors");
    let error = save_file(&tensors, &scratch.0, &[]).unwrap_err();
    assert!(error.to_string().contains("complex128"), "the format has no such dtype: {error}");
    tensors.shift_remove("complex128");
    save_file(&tensors, &scratch.0, &[]).unwrap();
    check(&load_file(&scratch.0, &device()).unwrap()["complex64"], DType::C64);
}

#[test]
fn views_and_plain_values_come_as_they_were() {
    let read = load(file("checkpoint.pt"), &device()).unwrap();
    let model = read.get("model").unwrap().state_dict().unwrap();
    let rows: Vec<f64> = (0..12).map(f64::from).collect();
    assert_eq!(values(&model["weight"]), rows);
    assert_eq!(values(&model["transposed"]), [0.0, 4.0, 8.0, 1.0, 5.0, 9.0, 2.0, 6.0, 10.0, 3.0, 7.0, 11.0]);
    assert_eq!(values(&model["row"]), [5.0, 6.0, 7.0]);
    assert!(model["weight"].shares_storage_with(&model["tied"]));
    assert!(model["weight"].shares_storage_with(&model["row"]));
    let names: Vec<&str> = model.keys().map(String::as_str).collect();
    assert_eq!(names, ["weight", "tied", "transposed", "row"]);
    assert!(matches!(read.get("parameter"), Some(Object::Tensor(tensor)) if values(tensor) == [1.0, 1.0]));
    assert!(matches!(read.get("epoch"), Some(Object::Int(7))));
    assert!(matches!(read.get("large"), Some(Object::Int(number)) if *number == 1 << 40));
    assert!(matches!(read.get("negative"), Some(Object::Int(number)) if *number == -(1 << 40)));
    assert!(matches!(read.get("rate"), Some(Object::Float(rate)) if *rate == 0.125));
    assert!(matches!(read.get("done"), Some(Object::Bool(false))));
    assert!(matches!(read.get("nothing"), Some(Object::None)));
    let Some(Object::List(names)) = read.get("names") else { panic!("a list") };
    assert!(matches!(&names[1], Object::Str(name) if name == "ö"));
    assert!(matches!(read.get("shape"), Some(Object::Tuple(sizes)) if sizes.len() == 2));
    let scratch = Scratch::new("checkpoint.pt");
    save(&read, &scratch.0).unwrap();
    let again = load(&scratch.0, &device()).unwrap();
    assert_eq!(values(&again.get("model").unwrap().state_dict().unwrap()["row"]), [5.0, 6.0, 7.0]);
    assert!(matches!(again.get("negative"), Some(Object::Int(number)) if *number == -(1 << 40)));
}

#[test]
fn a_model_of_pytorch_gives_pytorchs_results() {
    let mut generator = Generator::new(1);
    let mut linear = |inputs, outputs| Linear::new(inputs, outputs, &mut generator, &device()).unwrap();
    let model = Sequential::new().then(linear(3, 4)).then(ReLU {}).then(linear(4, 2));
    model.load_state_dict(&load(file("model.pt"), &device()).unwrap().state_dict().unwrap()).unwrap();
    let expected = load(file("model_values.pt"), &device()).unwrap().state_dict().unwrap();
    assert_close(&values(&model.forward(&expected["x"]).unwrap()), &values(&expected["y"]), 1e-6);
}

#[test]
fn code_is_refused_and_broken_files_are_errors() {
    let error = load(file("code.pt"), &device()).unwrap_err();
    assert!(error.to_string().contains("Weights only load failed. Unsupported global"), "{error}");
    let whole = std::fs::read(file("checkpoint.pt")).unwrap();
    let scratch = Scratch::new("broken.pt");
    for length in [0, 10, whole.len() / 2] {
        std::fs::write(&scratch.0, &whole[..length]).unwrap();
        assert!(load(&scratch.0, &device()).unwrap_err().is_invalid_argument());
    }
    // Every changed byte results in a value or an error.
    for place in (0..whole.len()).step_by(7) {
        let mut bytes = whole.clone();
        bytes[place] ^= 0x55;
        std::fs::write(&scratch.0, &bytes).unwrap();
        _ = load(&scratch.0, &device());
    }
    let whole = std::fs::read(file("dtypes.safetensors")).unwrap();
    for length in [0, 7, 8, 100, whole.len() - 1] {
        std::fs::write(&scratch.0, &whole[..length]).unwrap();
        assert!(load_file(&scratch.0, &device()).unwrap_err().is_invalid_argument());
    }
    for place in 0..600.min(whole.len()) {
        let mut bytes = whole.clone();
        bytes[place] ^= 0x15;
        std::fs::write(&scratch.0, &bytes).unwrap();
        _ = load_file(&scratch.0, &device());
    }
}

#[test]
fn tensors_larger_than_a_piece_are_whole() {
    // Three pieces of 4 MiB, the last one incomplete.
    let count = (9 << 20) / 4;
    let large = Tensor::arange(count, 0.0, 1.0, DType::F32, &device()).unwrap();
    let scratch = Scratch::new("large.safetensors");
    save_file(&StateDict::from_iter([("large".to_owned(), large)]), &scratch.0, &[]).unwrap();
    let read = load_file(&scratch.0, &device()).unwrap()["large"].to_vec::<f32>().unwrap();
    assert!(read.iter().enumerate().all(|(place, &value)| value == place as f32));
    assert_eq!(read.len(), count);
}

#[test]
fn an_optimizer_goes_on_from_a_file_by_pytorchs_keys() {
    let parameter =
        |start: f32| Tensor::from_slice(&[start, -start], &[2], &device()).unwrap().requires_grad_().unwrap();
    let options = AdamWOptions { lr: 0.25, amsgrad: true, ..AdamWOptions::default() };
    let steps = |optimizer: &AdamW, parameter: &Tensor, factors: &[f64]| {
        for &factor in factors {
            optimizer.zero_grad();
            parameter
                .mul_scalar(factor)
                .unwrap()
                .square()
                .unwrap()
                .sum(&[], false)
                .unwrap()
                .backward()
                .unwrap();
            optimizer.step().unwrap();
        }
    };
    let whole = parameter(2.0);
    let first = AdamW::new(vec![whole.clone()], options).unwrap();
    steps(&first, &whole, &[1.0, 3.0]);
    let scratch = Scratch::new("optimizer.pt");
    save(&first.state_dict().into(), &scratch.0).unwrap();
    let half = whole.deep_clone().unwrap().detach().requires_grad_().unwrap();
    steps(&first, &whole, &[0.5, 2.0]);

    let saved = load(&scratch.0, &device()).unwrap();
    let Some(Object::List(groups)) = saved.get("param_groups") else { panic!("groups: {saved:?}") };
    assert!(matches!(groups[0].get("betas"), Some(Object::Tuple(betas)) if betas.len() == 2), "{groups:?}");
    assert!(matches!(groups[0].get("lr"), Some(Object::Float(0.25))), "{groups:?}");
    let state: OptimizerState = saved.optimizer_state().unwrap();
    assert_eq!(
        state.state[&0].keys().collect::<Vec<_>>(),
        ["exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"]
    );
    assert_eq!(state.param_groups, first.state_dict().param_groups);
    // The saved options replace those of the optimizer, `amsgrad` among them.
    let mut second = AdamW::new(vec![half.clone()], AdamWOptions::default()).unwrap();
    second.load_state_dict(&state).unwrap();
    steps(&second, &half, &[0.5, 2.0]);
    assert_eq!(values(&half), values(&whole), "bit by bit");
    assert!(Object::Dict(Vec::new()).optimizer_state().is_none());
}

#[test]
fn a_file_of_another_kind_is_named_by_its_first_bytes() {
    let path = std::env::temp_dir().join(format!("thalweg-kind-{}", std::process::id()));
    let device = device();
    let cases: [(&[u8], &str); 9] = [
        (b"", "the file is empty"),
        (b"abc", "the file is cut short"),
        (b"GGUF\x03\0\0\0\0\0\0\0", "GGUF"),
        (b"\x93NUMPY\x01\0v\0{'descr'", "NumPy"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "PyTorch before 1.6"),
        (b"\x08\x07\x12\x07pytorch\x1a\x05", "ONNX"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
        (b"<!DOCTYPE html><html>", "page"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\0", "gzip"),
    ];
    for (bytes, expected) in cases {
        std::fs::write(&path, bytes).unwrap();
        for error in [load_file(&path, &device).map(drop), load(&path, &device).map(drop)] {
            let error = error.unwrap_err();
            assert!(error.is_invalid_argument() && error.to_string().contains(expected), "{error}");
        }
    }
    // Values that Python cannot read are refused, and the file stays as it is.
    let nested = (0..100_000).fold(Object::None, |inner, _| Object::List(vec![inner]));
    let unhashable = Object::Dict(vec![(Object::Tuple(vec![Object::List(vec![])]), Object::None)]);
    let before = std::fs::read(&path).unwrap();
    for value in [&nested, &unhashable] {
        assert!(save(value, &path).unwrap_err().is_invalid_argument());
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
    std::mem::forget(nested); // its drop is as deep
    // Each of the two kinds, truncated, and passed to the reader of the other.
    let tensors = StateDict::from_iter([("x".to_owned(), Tensor::ones(&[64], DType::F32, &device).unwrap())]);
    save_file(&tensors, &path, &[]).unwrap();
    let text = load(&path, &device).unwrap_err().to_string();
    assert!(text.contains("a safetensors file: read it by `serialize::load_file`"), "{text}");
    save(&tensors.clone().into(), &path).unwrap();
    let text = load_file(&path, &device).unwrap_err().to_string();
    assert!(text.contains("`torch.save`") && text.contains("`serialize::load`"), "{text}");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let text = load(&path, &device).unwrap_err().to_string();
    assert!(text.contains("cut short"), "{text}");
    std::fs::remove_file(&path).unwrap();
}
