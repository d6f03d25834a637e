//! Complete models compared with PyTorch's, from the same weights: outputs, all gradients, running statistics, and fifty steps of
//! training. `tests/models/make.py` wrote the expected values and documents them.

mod bert;
mod gpt2;
mod graph;
mod llama;
mod lstm;
mod names;
mod published;
mod resnet;
mod unet;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use flate2::read::GzDecoder;
use thalweg_ir::DType;
use thalweg_nn::module::{Module, StateDict};
use thalweg_nn::optim::Optimizer;
use thalweg_nn::serialize::{Object, load};
use thalweg_ops::optimizer::OptimizerOptions;
use thalweg_runtime::sim::Check;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::autocast::autocast;
use thalweg_tensor::random::Generator;

use crate::support::{close, device, values};

/// A model with the step that trains it.
trait Network: Module + Sized {
    type Options: OptimizerOptions;

    /// The number of steps of training that agree with PyTorch's to rounding. After that the sign of a ReLU's operand may depend on the
    /// order of a sum, and losses may be off by a tenth.
    const SMOOTH_STEPS: usize = usize::MAX;

    fn new(generator: &mut Generator, device: &Device) -> Result<Self>;

    /// Runs a model at its full size if `THALWEG_MODELS` names the folder with PyTorch's results.
    fn full(generator: &mut Generator, device: &Device) -> Result<Self> {
        Self::new(generator, device)
    }

    fn forward(&self, batch: &StateDict) -> Result<Tensor>;

    fn loss(&self, output: &Tensor, batch: &StateDict) -> Result<Tensor>;

    fn options() -> Self::Options;
}

/// Results of a model of PyTorch's.
struct Golden {
    is_full: bool,
    weights: StateDict,
    batches: Vec<StateDict>,
    file: Object,
}

impl Golden {
    fn read(name: &str, packed: &[u8], device: &Device) -> Self {
        let mut bytes = Vec::new();
        GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
        static FILES: AtomicUsize = AtomicUsize::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("thalweg-{}-{number}-{name}.pt", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let golden = Self::open(&path, device);
        std::fs::remove_file(&path).unwrap();
        golden
    }

    /// Opens a file that is not compressed.
    fn open(path: &Path, device: &Device) -> Self {
        let file = load(path, device).unwrap();
        let weights = file.get("weights").unwrap().state_dict().unwrap();
        let Some(Object::List(batches)) = file.get("batches") else {
            panic!("no batches in {}", path.display())
        };
        let batches = batches.iter().map(|batch| batch.state_dict().unwrap()).collect();
        Self { is_full: false, weights, batches, file }
    }

    fn tensors(&self, name: &str) -> StateDict {
        self.file.get(name).unwrap().state_dict().unwrap()
    }

    fn numbers(&self, name: &str) -> Vec<f64> {
        let Some(Object::List(list)) = self.file.get(name) else { panic!("no list {name}") };
        list.iter().map(float).collect()
    }

    /// Returns a model with the weights of the file.
    fn model<N: Network>(&self, dtype: DType, device: &Device) -> Result<N> {
        let mut generator = Generator::new(5);
        let mut model =
            if self.is_full { N::full(&mut generator, device) } else { N::new(&mut generator, device) }?;
        model.to_dtype(dtype)?;
        model.load_state_dict(&self.weights)?;
        Ok(model)
    }

    /// Returns the tolerance of a tensor, relative to its greatest number: at full size in f32 at least three times the error of
    /// PyTorch's.
    fn tolerance(&self, dtype: DType, name: &str) -> f64 {
        match (dtype, self.file.get("errors")) {
            (DType::F64, _) => 2e-7,
            (_, None) => 2e-5,
            (_, Some(errors)) => (3.0 * float(errors.get(name).unwrap())).max(2e-5),
        }
    }

    fn batch(&self, step: usize, dtype: DType) -> StateDict {
        let convert = |(name, tensor): (&String, &Tensor)| {
            let is_float = tensor.dtype().is_floating_point();
            (name.clone(), if is_float { tensor.to_dtype(dtype).unwrap() } else { tensor.clone() })
        };
        self.batches[step % self.batches.len()].iter().map(convert).collect()
    }
}

fn float(object: &Object) -> f64 {
    let Object::Float(number) = object else { panic!("{object:?} is not a number") };
    *number
}

/// Returns the greatest absolute value of a list.
fn greatest(list: &[f64]) -> f64 {
    list.iter().fold(0.0, |greatest, number| number.abs().max(greatest))
}

/// Everything in which tensors differ from those of PyTorch by more than this fraction of the greatest number of each, plus a
/// thousandth of that of the greatest number of all: some gradients are zero except for rounding, such as that of a key's bias.
fn differences(
    found: &[(String, Tensor)],
    expected: &StateDict,
    tolerance: impl Fn(&str) -> f64,
) -> Vec<String> {
    let names: Vec<&String> = found.iter().map(|(name, _)| name).collect();
    assert!(names.iter().copied().eq(expected.keys()), "{names:?}, and PyTorch's {:?}", expected.keys());
    let all = expected.values().map(|tensor| greatest(&values(tensor))).fold(0.0, f64::max);
    let of_one = |(name, tensor): &(String, Tensor)| {
        let (found, expected) = (values(tensor), values(&expected[name]));
        assert_eq!(found.len(), expected.len(), "{name}");
        let allowed = tolerance(name) * (greatest(&expected) + 1e-3 * all);
        let off: Vec<f64> = found.iter().zip(&expected).map(|(found, expected)| found - expected).collect();
        let off = if off.iter().all(|off| off.is_finite()) { greatest(&off) } else { f64::INFINITY };
        (off > allowed).then(|| format!("{name}: off by {off:.2e}, and {allowed:.2e} is allowed"))
    };
    found.iter().filter_map(of_one).collect()
}

fn gradients<N: Network>(model: &N) -> Vec<(String, Tensor)> {
    let gradient = |(name, parameter): (String, Tensor)| {
        let gradient = parameter.grad().unwrap_or_else(|| panic!("{name} has no gradient"));
        (name, gradient)
    };
    model.named_parameters().into_iter().map(gradient).collect()
}

/// Compares output, loss, gradients and statistics with PyTorch's in f64, which are in the file as f32.
fn check_once<N: Network>(golden: &Golden) {
    for dtype in [DType::F64, DType::F32] {
        let tolerance = |name: &str| golden.tolerance(dtype, name);
        let model: N = golden.model(dtype, &device()).unwrap();
        let batch = golden.batch(0, dtype);
        let output = model.forward(&batch).unwrap();
        let loss = model.loss(&output, &batch).unwrap();
        loss.backward().unwrap();
        let Some(Object::Tensor(expected)) = golden.file.get("output") else { panic!("no output") };
        assert_eq!(output.shape(), expected.shape());
        let expected = [("output".to_owned(), expected.clone())].into_iter().collect();
        let mut wrong = differences(&[("output".to_owned(), output)], &expected, tolerance);
        let (found, expected) = (values(&loss)[0], float(golden.file.get("loss").unwrap()));
        assert!(close(found, expected, tolerance("loss")), "{dtype}: the loss is {found}, not {expected}");
        wrong.extend(differences(&gradients(&model), &golden.tensors("gradients"), tolerance));
        wrong.extend(differences(&model.named_buffers(), &golden.tensors("buffers"), tolerance));
        assert!(wrong.is_empty(), "{dtype}:\n{}", wrong.join("\n"));
    }
}

/// Trains for fifty steps in f32, and compares each loss with PyTorch's: it may differ by 2e-4 of it, plus four times the
/// greatest difference so far between PyTorch's own in f32 and f64; more after [`Network::SMOOTH_STEPS`]. `THALWEG_LOSSES=FOLDER` writes both curves.
fn check_training<N: Network>(name: &str, golden: &Golden) {
    let model: N = golden.model(DType::F32, &device()).unwrap();
    let optimizer = Optimizer::new(model.parameters(), N::options()).unwrap();
    let [torch, torch64] = ["losses", "losses64"].map(|name| golden.numbers(name));
    let (mut losses, mut apart, mut wrong) = (Vec::new(), 0.0f64, Vec::new());
    for (step, (&expected, exact)) in torch.iter().zip(&torch64).enumerate() {
        let batch = golden.batch(step, DType::F32);
        optimizer.zero_grad();
        let loss = model.loss(&model.forward(&batch).unwrap(), &batch).unwrap();
        loss.backward().unwrap();
        optimizer.step().unwrap();
        losses.push(values(&loss)[0]);
        apart = apart.max((expected - exact).abs());
        let off = (losses[step] - expected).abs();
        let share = if step < N::SMOOTH_STEPS { 2e-4 } else { 0.1 };
        if off.is_nan() || off > share * expected + 4.0 * apart {
            wrong.push(format!(
                "step {step}: {}, not {expected}; PyTorch's are {apart:.1e} apart",
                losses[step]
            ));
        }
    }
    if let Ok(folder) = std::env::var("THALWEG_LOSSES") {
        let lines: Vec<String> =
            losses.iter().zip(&torch).map(|(found, expected)| format!("{found} {expected}\n")).collect();
        std::fs::write(format!("{folder}/{name}.txt"), lines.concat()).unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(losses[49] < 0.6 * losses[0], "the model learns: {} to {}", losses[0], losses[49]);
}

/// Compares a pass under autocast to bfloat16 with that in f64: gradients may be off by half more than PyTorch's, in the L2 norm,
/// or by 0.02.
fn check_half<N: Network>(golden: &Golden) {
    let half = golden.file.get("half").unwrap();
    let model: N = golden.model(DType::F32, &device()).unwrap();
    let batch = golden.batch(0, DType::F32);
    let loss = autocast(DType::Bf16, || {
        let output = model.forward(&batch)?;
        assert_eq!(output.dtype(), DType::Bf16, "products run in bf16");
        model.loss(&output, &batch)
    });
    let loss = loss.unwrap();
    loss.backward().unwrap();
    let exact = float(golden.file.get("loss").unwrap());
    assert!(close(values(&loss)[0], exact, 1e-2), "{} is not {exact}", values(&loss)[0]);
    let (expected, mut wrong) = (golden.tensors("gradients"), Vec::new());
    for (name, gradient) in gradients(&model) {
        assert_eq!(gradient.dtype(), DType::F32, "{name}");
        let exact = values(&expected[&name]);
        let norm =
            |list: &mut dyn Iterator<Item = f64>| list.map(|number| number * number).sum::<f64>().sqrt();
        let off = norm(&mut values(&gradient).into_iter().zip(&exact).map(|(found, exact)| found - exact));
        let (off, allowed) = (
            off / norm(&mut exact.iter().copied()),
            float(half.get("errors").unwrap().get(&name).unwrap()) * 1.5,
        );
        if off.is_nan() || off > allowed.max(0.02) {
            wrong.push(format!("{name}: off by {off:.1e}, and {allowed:.1e} is allowed"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Trains for two steps under schedules, watched for races and for uses of freed memory.
fn check_order<N: Network>(name: &str, packed: &[u8]) {
    Check::new().seeds(0..6).run(|gpu| -> Result<()> {
        let golden = Golden::read(name, packed, gpu.device());
        let model: N = golden.model(DType::F32, gpu.device())?;
        let optimizer = Optimizer::new(model.parameters(), N::options())?;
        let mut last = Vec::new();
        for step in 0..2 {
            let batch = golden.batch(step, DType::F32);
            optimizer.zero_grad();
            let loss = model.loss(&model.forward(&batch)?, &batch)?;
            loss.backward()?;
            optimizer.step()?;
            last.push(loss);
        }
        for (loss, expected) in last.iter().zip(golden.numbers("losses")) {
            assert!(close(values(loss)[0], expected, 1e-4));
        }
        Ok(())
    });
}

macro_rules! models {
    ($($model:ident: $network:ty $(, $half:ident)?;)*) => {$(
        mod $model {
            use super::*;

            const PACKED: &[u8] = include_bytes!(concat!("../../models/", stringify!($model), ".pt.gz"));

            fn golden() -> Golden {
                Golden::read(stringify!($model), PACKED, &device())
            }

            #[test]
            fn agrees_with_pytorch() {
                check_once::<$network>(&golden());
            }

            #[test]
            fn learns_as_in_pytorch() {
                check_training::<$network>(stringify!($model), &golden());
            }

            #[test]
            fn is_ordered_under_every_schedule() {
                check_order::<$network>(stringify!($model), PACKED);
            }

            $(
                #[test]
                fn agrees_under_autocast() {
                    $half::<$network>(&golden());
                }
            )?
        }
    )*};
}

mod against_pytorch {
    use thalweg_nn::models::bert::BertForSequenceClassification;
    use thalweg_nn::models::gpt2::GPT2LMHeadModel;
    use thalweg_nn::models::llama::LlamaForCausalLM;
    use thalweg_nn::models::resnet::ResNet;

    use super::graph::GraphNetwork;
    use super::lstm::LanguageModel;
    use super::unet::UNet;
    use super::*;

    models! {
        gpt2: GPT2LMHeadModel, check_half;
        bert: BertForSequenceClassification;
        llama: LlamaForCausalLM;
        resnet: ResNet, check_half;
        unet: UNet;
        lstm: LanguageModel;
        graph: GraphNetwork;
    }
    /// Compares a model at its full size with PyTorch's, if `python3 make.py FOLDER full` has written its file:
    /// `THALWEG_MODELS=FOLDER cargo test --release -p thalweg-nn --test it full -- --ignored`.
    fn check_full<N: Network>(name: &str) {
        let folder = std::env::var_os("THALWEG_MODELS").expect("THALWEG_MODELS is the folder of make.py");
        let golden = Golden::open(&PathBuf::from(folder).join(format!("{name}_full.pt")), &device());
        check_once::<N>(&Golden { is_full: true, ..golden });
    }

    #[test]
    #[ignore = "it takes 5 GB of memory, and a file of PyTorch's"]
    fn full_gpt2_agrees_with_pytorch() {
        check_full::<GPT2LMHeadModel>("gpt2");
    }

    #[test]
    #[ignore = "it takes minutes, and a file of PyTorch's"]
    fn full_resnet_agrees_with_pytorch() {
        check_full::<ResNet>("resnet");
    }
}
