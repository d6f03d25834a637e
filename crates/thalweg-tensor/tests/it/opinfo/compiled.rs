//! OpInfo's samples, compiled: the same bits as eager ones, where an operator's inputs are computed in the compiled function, and its
//! results are used there.

use std::thread;

use thalweg_ir::DType;
use thalweg_lock::Mutex;
use thalweg_runtime::Device;
use thalweg_tensor::compile::{compiled, counters};
use thalweg_tensor::random::default_generator;
use thalweg_tensor::{Tensor, no_grad};

use super::file::{File, Inputs, list};
use super::program::{Machine, Stop};
use super::table;
use crate::support::{device, on_own_device};

/// The number of samples per name that are compared, one after the other; `THALWEG_CASES` is another one.
const SAMPLES: usize = 6;

/// The operators whose results are not written.
const UNWRITTEN: [&str; 5] = ["empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"];

/// Returns the bits of a tensor's elements; all NaNs are one.
fn bits(tensor: &Tensor) -> Result<Vec<u64>, thalweg_runtime::Error> {
    let tensor = if tensor.dtype().is_complex() { tensor.view_as_real()? } else { tensor.clone() };
    if !tensor.dtype().is_floating_point() {
        return Ok(tensor
            .to_dtype(DType::I64)?
            .to_vec::<i64>()?
            .into_iter()
            .map(|value| value as u64)
            .collect());
    }
    let values = tensor.to_dtype(DType::F64)?.to_vec::<f64>()?;
    Ok(values.into_iter().map(|value| if value.is_nan() { 1 } else { value.to_bits() }).collect())
}

type Outcome = Result<Vec<(Vec<usize>, Vec<u64>)>, String>;

/// Runs a sample, whose inputs and results are copied by loops before and after it.
fn outcome(file: &File, sample: &serde_json::Value, device: &Device, is_compiled: bool) -> Outcome {
    let text = |error: thalweg_runtime::Error| error.to_string();
    default_generator(device).and_then(|generator| generator.manual_seed(7)).map_err(text)?;
    let mut inputs = Inputs::new(file, false);
    let made = list(&sample["inputs"])
        .iter()
        .map(|index| inputs.make(index)?.detach().to_device(device).map_err(text));
    let made = made.collect::<Result<Vec<_>, _>>()?;
    let run = || -> thalweg_runtime::Result<Result<Vec<Tensor>, String>> {
        // Views of other inputs keep what they share.
        let shares = |x: &Tensor| made.iter().filter(|other| other.shares_storage_with(x)).count() > 1;
        let copies = made.iter().map(|x| if shares(x) { Ok(x.clone()) } else { x.deep_clone() });
        let copies = copies.collect::<thalweg_runtime::Result<Vec<_>>>()?;
        let mut machine = Machine::on(&copies, device);
        if let Err(stop) = machine.run(list(&sample["calls"])) {
            return Ok(Err(Stop::into_message(stop)));
        }
        let outputs = list(&sample["outputs"]).iter().map(|output| machine.tensor(&output[0]).cloned());
        let outputs = match outputs.collect::<Result<Vec<_>, _>>() {
            Ok(outputs) => outputs,
            Err(message) => return Ok(Err(message)),
        };
        let copied: Vec<Tensor> = outputs.iter().map(Tensor::deep_clone).collect::<Result<_, _>>()?;
        Ok(Ok([outputs, copied, copies].concat()))
    };
    let results = no_grad(|| if is_compiled { compiled(run) } else { run() }).map_err(text)??;
    no_grad(|| {
        results.iter().map(|x| Ok((x.shape().to_vec(), bits(x)?))).collect::<thalweg_runtime::Result<_>>()
    })
    .map_err(text)
}

/// Compares the samples of a file. Returns the differences, and the number of samples that have the same bits.
fn compared(file: &File, device: &Device, most: usize) -> (Vec<String>, usize) {
    let (mut failures, mut agreed) = (Vec::new(), 0);
    for sample in list(&file.header["samples"]).iter().take(most) {
        let eager = outcome(file, sample, device, false);
        let compiled = outcome(file, sample, device, true);
        match (eager, compiled) {
            (Ok(eager), Ok(compiled)) if eager == compiled => agreed += 1,
            (Err(_), Err(_)) => {}
            (eager, compiled) => {
                let description = format!("{} {}", sample["dtype"], sample["calls"]);
                failures.push(format!("{description}: {compiled:?}, not {eager:?}"));
            }
        }
    }
    (failures, agreed)
}

#[test]
fn compiled_operators_have_the_bits_of_eager_ones() {
    let most = std::env::var("THALWEG_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(SAMPLES);
    let mut names = table::listed();
    names.retain(|name| !UNWRITTEN.iter().any(|unwritten| name.ends_with(unwritten)));
    let (names, failures, total) = (Mutex::new(names), Mutex::new(Vec::new()), Mutex::new((0, 0, 0)));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                on_own_device(|| {
                    loop {
                        let Some(name) = names.lock().pop_first() else { break };
                        let file = File::read(&table::folder().join(format!("goldens/{name}.gz")));
                        let (found, agreed) = compared(&file, &device(), most);
                        let found = found.into_iter().map(|failure| format!("{name}: {failure:.2000}"));
                        failures.lock().extend(found);
                        total.lock().0 += agreed;
                    }
                });
                let counters = counters();
                let mut total = total.lock();
                (total.1, total.2) = (total.1 + counters.loops, total.2 + counters.kernels);
            });
        }
    });
    let (failures, (agreed, loops, kernels)) = (failures.into_inner(), total.into_inner());
    assert!(failures.is_empty(), "{} samples differ:\n{}", failures.len(), failures.join("\n"));
    println!("{agreed} samples agree, {loops} loops as {kernels} kernels");
    assert!(agreed > 1000 && kernels < loops, "{agreed} samples agree, {loops} loops as {kernels} kernels");
}
