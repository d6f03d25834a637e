//! The work of `derive(Module)`: names, state dictionaries, modes, moves.

use thalweg_ir::DType;
use thalweg_nn::functional::ConvOptions;
use thalweg_nn::module::{
    BatchNorm2d, BatchNormOptions, Conv2d, Dropout, Forward, Linear, Module, ReLU, Sequential, StateDict,
};
use thalweg_nn::optim::{Adam, AdamOptions, Ema};
use thalweg_runtime::{Device, Environment, Result};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::{DeviceGenerator, Generator};

use crate::support::{device, values};

#[derive(Module)]
struct Network<M> {
    conv: Conv2d,
    norm: BatchNorm2d,
    #[module(name = "layers")]
    blocks: Vec<M>,
    #[module(parameter)]
    scale: Tensor,
    #[module(parameter)]
    shift: Option<Tensor>,
    #[module(buffer)]
    seen: Tensor,
    head: Option<Linear>,
    #[module(flatten)]
    tail: Linear,
    dropout: Dropout,
    #[module(skip)]
    _sizes: [usize; 2],
}

fn network(device: &Device) -> Network<Linear> {
    let generator = &mut Generator::new(3);
    let mut linear = || Linear::new(2, 2, generator, device).unwrap();
    let (blocks, tail) = (vec![linear(), linear()], linear());
    let scale = Tensor::ones(&[2], DType::F32, device).unwrap().requires_grad_().unwrap();
    Network {
        conv: Conv2d::new(1, 2, [3; 2], ConvOptions::default(), generator, device).unwrap(),
        norm: BatchNorm2d::new(2, BatchNormOptions::default(), device).unwrap(),
        blocks,
        scale,
        shift: None,
        seen: Tensor::zeros(&[], DType::I64, device).unwrap(),
        head: None,
        tail,
        dropout: Dropout::new(0.5, &DeviceGenerator::new(1, device).unwrap().into()).unwrap(),
        _sizes: [2; 2],
    }
}

#[test]
fn names_are_those_of_pytorchs_module() {
    let network = network(&device());
    let names: Vec<String> = network.state_dict().into_keys().collect();
    // Own parameters, own buffers, then the modules within, in the order of declaration.
    assert_eq!(
        names,
        [
            "scale",
            "weight",
            "bias",
            "seen",
            "conv.weight",
            "conv.bias",
            "norm.weight",
            "norm.bias",
            "norm.running_mean",
            "norm.running_var",
            "norm.num_batches_tracked",
            "layers.0.weight",
            "layers.0.bias",
            "layers.1.weight",
            "layers.1.bias",
        ]
    );
    assert_eq!(network.parameters().len(), 11);
    assert_eq!(network.named_buffers().len(), 4);
    assert_eq!(network.type_name(), "Network");
}

#[test]
fn the_mode_reaches_every_module() {
    let mut network = network(&device());
    assert!(network.is_training());
    network.eval();
    assert!(!network.is_training());
    let x = Tensor::ones(&[64], DType::F32, &device()).unwrap();
    assert_eq!(values(&network.dropout.forward(&x).unwrap()), [1.0; 64]);
    network.train(true);
    assert_ne!(values(&network.dropout.forward(&x).unwrap()), [1.0; 64]);
}

#[test]
fn a_state_is_loaded_where_it_lies_and_converted() {
    let [target, source] = [1, 2].map(|seed| {
        let mut generator = Generator::new(seed);
        let hidden = Linear::new(3, 4, &mut generator, &device()).unwrap();
        Sequential::new()
            .then(hidden)
            .then(ReLU {})
            .then(Linear::new(4, 2, &mut generator, &device()).unwrap())
    });
    let mut source = source;
    source.to_dtype(DType::F64).unwrap();
    let parameters = target.parameters();
    target.load_state_dict(&source.state_dict()).unwrap();
    for (mine, (name, theirs)) in parameters.iter().zip(source.named_parameters()) {
        assert_eq!((mine.dtype(), theirs.dtype()), (DType::F32, DType::F64));
        assert!(theirs.requires_grad(), "{name} collects a gradient after the conversion");
        assert_eq!(values(mine), values(&theirs), "{name}");
    }
    let names: Vec<String> = source.state_dict().into_keys().collect();
    assert_eq!(names, ["0.weight", "0.bias", "2.weight", "2.bias"]);
}

#[test]
fn differences_are_listed_in_pytorchs_words_and_nothing_changes() {
    let mut generator = Generator::new(1);
    let layer = Linear::new(3, 2, &mut generator, &device()).unwrap();
    let before = values(&layer.weight);
    let other = Linear::new(3, 3, &mut generator, &device()).unwrap();
    let mut saved: StateDict = other.state_dict();
    saved.shift_remove("bias");
    saved.insert("extra".to_owned(), other.weight.clone());
    let error = layer.load_state_dict(&saved).unwrap_err();
    assert!(error.is_invalid_argument());
    let expected = "Error(s) in loading state_dict for Linear:\n\tMissing key(s) in state_dict: \"bias\".\n\tUnexpected key(s) in \
                    state_dict: \"extra\".\n\tsize mismatch for weight: copying a param with shape torch.Size([3, 3]) from \
                    checkpoint, the shape in current model is torch.Size([2, 3]).";
    assert!(error.to_string().contains(expected), "{error}");
    assert!(layer.load_state_dict_partially(&saved).unwrap_err().to_string().contains("size mismatch"));
    assert_eq!(values(&layer.weight), before);
    saved.insert("weight".to_owned(), Tensor::ones(&[2, 3], DType::F32, &device()).unwrap());
    let keys = layer.load_state_dict_partially(&saved).unwrap();
    assert_eq!(
        (keys.missing_keys, keys.unexpected_keys),
        (vec!["bias".to_owned()], vec!["extra".to_owned()])
    );
    assert_eq!(values(&layer.weight), [1.0; 6]);
}

#[test]
fn modules_move_between_devices() -> Result<()> {
    let driver = SimDriver::new(SimConfig { devices: 2, ..SimConfig::default() })?;
    let devices = Device::all_of(driver, Environment::get())?;
    let mut layer = Linear::new(3, 2, &mut Generator::new(5), &devices[0])?;
    let before = layer.weight.to_vec::<f32>()?;
    layer.to_device(&devices[1])?;
    assert!(layer.parameters().iter().all(|tensor| tensor.device() == &devices[1] && tensor.requires_grad()));
    assert_eq!(layer.weight.to_vec::<f32>()?, before);
    let y = layer.forward(&Tensor::ones(&[3], DType::F32, &devices[1])?)?;
    y.sum(&[], false)?.backward()?;
    assert_eq!(layer.weight.grad().expect("a leaf").to_vec::<f32>()?, [1.0; 6]);
    // So do the states of an optimizer, to its parameters.
    let mut optimizer = Adam::new(layer.parameters(), AdamOptions::default())?;
    optimizer.step()?;
    let mut saved = optimizer.state_dict();
    let states = saved.state.values_mut().flat_map(|states| states.values_mut());
    states.into_iter().try_for_each(|state| state.to_device(&devices[0]).map(|moved| *state = moved))?;
    optimizer.load_state_dict(&saved)?;
    let loaded = &optimizer.state_dict().state[&0]["exp_avg"];
    assert_eq!(
        (loaded.device(), loaded.to_vec::<f32>()?),
        (&devices[1], saved.state[&0]["exp_avg"].to_vec()?)
    );
    Ok(())
}

#[test]
fn running_statistics_move_in_training_alone() {
    let mut norm = BatchNorm2d::new(1, BatchNormOptions::default(), &device()).unwrap();
    let x = Tensor::from_slice(&[1.0f32, 3.0], &[1, 1, 1, 2], &device()).unwrap();
    let state = |norm: &BatchNorm2d| {
        let buffers = norm.named_buffers();
        buffers.iter().flat_map(|(_, tensor)| values(tensor)).collect::<Vec<_>>()
    };
    norm.forward(&x).unwrap();
    // 0.9 · 0 + 0.1 · mean, 0.9 · 1 + 0.1 · unbiased variance, one batch.
    for (found, expected) in state(&norm).into_iter().zip([0.2, 1.1, 1.0]) {
        assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
    }
    norm.eval();
    let before = state(&norm);
    norm.forward(&x).unwrap();
    assert_eq!(state(&norm), before);
}

/// Two layers with one weight.
#[derive(Module)]
struct Tied {
    encoder: Linear,
    decoder: Linear,
}

#[test]
fn a_tied_weight_is_one_parameter_of_two_names_and_stays_tied() {
    let encoder = Linear::new(3, 3, &mut Generator::new(1), &device()).unwrap();
    let decoder = Linear { weight: encoder.weight.clone(), bias: None };
    let mut network = Tied { encoder, decoder };
    let names =
        |network: &Tied| network.named_parameters().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(&network), ["encoder.weight", "encoder.bias"]);
    let saved: Vec<String> = network.state_dict().into_keys().collect();
    assert_eq!(saved, ["encoder.weight", "encoder.bias", "decoder.weight"]);
    network.to_dtype(DType::F64).unwrap();
    assert!(network.encoder.weight.is_same(&network.decoder.weight));
    assert!(!network.encoder.weight.is_same(&network.encoder.weight.detach()));
    assert_eq!(network.parameters().len(), 2);
    network.load_state_dict(&network.state_dict()).unwrap();
    let x = Tensor::ones(&[2, 3], DType::F64, &device()).unwrap();
    let y = network.decoder.forward(&network.encoder.forward(&x).unwrap()).unwrap();
    y.sum(&[], false).unwrap().backward().unwrap();
    assert!(network.decoder.weight.grad().unwrap().is_same(&network.encoder.weight.grad().unwrap()));
}

#[test]
fn a_deep_clone_has_tensors_of_its_own() -> Result<()> {
    let layer = Linear::new(3, 2, &mut Generator::new(5), &device())?;
    let copy = layer.deep_clone()?;
    let before = values(&layer.weight);
    assert_eq!(values(&copy.weight), before);
    assert!(copy.weight.requires_grad() && copy.weight.is_leaf());
    copy.weight.data().fill_(0)?;
    assert_eq!(values(&layer.weight), before);
    Ok(())
}

#[test]
fn an_average_decays_as_its_formula_says() -> Result<()> {
    let norm = BatchNorm2d::new(2, BatchNormOptions::default(), &device())?;
    let ema = Ema::new(&norm, 0.75)?;
    let (weight, mean) = (norm.parameters()[0].clone(), norm.named_buffers()[0].1.clone());
    let mut wanted = 1.0;
    for step in 1_u8..=5 {
        weight.data().fill_(f64::from(step * step))?;
        mean.fill_(i64::from(step))?;
        ema.update(&norm)?;
        wanted = 0.75 * wanted + 0.25 * f64::from(step * step);
        assert_eq!(values(&ema.module().parameters()[0]), [wanted; 2]);
        assert_eq!(values(&ema.module().named_buffers()[0].1), [f64::from(step); 2]);
    }
    assert!(!ema.module().parameters()[0].requires_grad());
    assert!(Ema::new(&norm, 1.5).unwrap_err().is_invalid_argument());
    // A module of other tensors changes nothing.
    let plain = BatchNormOptions { affine: false, ..BatchNormOptions::default() };
    let before = values(&ema.module().named_buffers()[0].1);
    assert!(ema.update(&BatchNorm2d::new(2, plain, &device())?).unwrap_err().is_invalid_argument());
    assert_eq!(values(&ema.module().named_buffers()[0].1), before);
    Ok(())
}

#[derive(Module)]
struct Twice {
    #[module(flatten)]
    first: Linear,
    #[module(flatten)]
    second: Linear,
}

#[test]
fn tensors_of_one_name_are_not_loaded() -> Result<()> {
    let linear = || Linear::new(1, 1, &mut Generator::new(0), &device());
    let twice = Twice { first: linear()?, second: linear()? };
    // The dictionary has the last ones, with a warning.
    assert_eq!(twice.state_dict().len(), 2);
    let error = twice.load_state_dict(&twice.state_dict()).unwrap_err().to_string();
    assert!(error.contains("several tensors of the same name: \"weight\", \"bias\""), "{error}");
    Ok(())
}
