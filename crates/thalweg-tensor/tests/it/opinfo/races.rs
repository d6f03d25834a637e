//! OpInfo's samples on a simulated GPU with the sanitizer: no operator races with itself or uses freed memory.

use std::thread;

use thalweg_lock::Mutex;
use thalweg_runtime::Device;
use thalweg_runtime::sim::Check;

use thalweg_tensor::{Tensor, no_grad};

use super::file::{File, Inputs, list};
use super::program::{Machine, Stop};
use super::table;

/// The number of samples per name that are run.
const SAMPLES: usize = 3;

/// Runs samples on a device, with contiguous inputs and with gaps between their elements, and reads the results.
fn run(file: &File, device: &Device) -> Result<(), String> {
    let samples = list(&file.header["samples"]).iter();
    for sample in samples.filter(|sample| sample["dtype"] == "float32").take(SAMPLES) {
        let mut inputs = Inputs::new(file, false);
        let made = list(&sample["inputs"]).iter().map(|index| {
            let text = |error: thalweg_runtime::Error| error.to_string();
            inputs.make(index)?.detach().to_device(device).map_err(text)
        });
        let made = made.collect::<Result<Vec<_>, _>>()?;
        let spread = made.iter().map(|x| Tensor::stack(&[x.clone(), x.clone()], -1)?.select(-1, 0));
        let spread =
            spread.collect::<thalweg_runtime::Result<Vec<_>>>().map_err(|error| error.to_string())?;
        for (inputs, is_spread) in [(&made, false), (&spread, true)] {
            match no_grad(|| Machine::on(inputs, device).run(list(&sample["calls"]))) {
                // A view may be impossible with other strides.
                Err(Stop::Refused { .. }) if is_spread => {}
                outcome => outcome.map_err(Stop::into_message)?,
            }
        }
    }
    device.synchronize().map_err(|error| error.to_string())
}

#[test]
fn operators_are_free_of_races() {
    let names = Mutex::new(table::listed());
    let failures = Mutex::new(Vec::new());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(name) = names.lock().pop_first() else { break };
                    let file = File::read(&table::folder().join(format!("goldens/{name}.gz")));
                    // The device keeps its default generator.
                    let check = Check::new().seeds(0..1).without_shrinking().quarantine(false).allow_leaks();
                    if let Err(failure) = check.find(|gpu| run(&file, gpu.device())) {
                        failures.lock().push(format!("{name}: {failure}"));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner();
    assert!(failures.is_empty(), "{} names:\n{}", failures.len(), failures.join("\n"));
}
