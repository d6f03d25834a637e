//! OpInfo's samples on the meta device: dtypes and shapes without elements.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value as Json;
use thalweg_ir::DType;
use thalweg_runtime::Device;
use thalweg_tensor::{Tensor, no_grad};

use super::file::{File, list};
use super::program::{Machine, Stop};
use super::table;
use super::unspecified::is_statistic;

/// Runs a sample; `Ok(false)` if the host must read elements.
fn agrees(file: &File, sample: &Json, meta: &Device) -> Result<bool, String> {
    let inputs = list(&sample["inputs"]).iter().map(|index| {
        let row = file.row(index);
        let dtype: DType = row.dtype.parse().map_err(|_| format!("dtype {} does not exist", row.dtype))?;
        let storage = row.storage.map_or(0, |storage| file.storage(storage).len() / dtype.size_bytes());
        let (sizes, strides) =
            [&row.shape, &row.strides].map(|list| list.iter().map(|&n| n as i64).collect::<Vec<_>>()).into();
        Tensor::empty(&[storage], dtype, meta)
            .and_then(|whole| whole.as_strided(&sizes, &strides, Some(row.offset as i64)))
            .map(|view| view.detach())
            .map_err(|error| error.to_string())
    });
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let mut machine = Machine::on(&inputs, meta);
    match no_grad(|| machine.run(list(&sample["calls"]))) {
        Ok(()) => {}
        Err(stop) => {
            let message = Stop::into_message(stop);
            return if message.contains("have no elements to read") { Ok(false) } else { Err(message) };
        }
    }
    for (index, output) in list(&sample["outputs"]).iter().enumerate() {
        let (found, row) = (machine.tensor(&output[0])?, file.row(&output[1]));
        let is_wider = is_statistic(sample, index) && found.dtype() == DType::F32;
        if !found.device().is_meta()
            || found.shape() != row.shape
            || found.dtype().name() != row.dtype && !is_wider
        {
            return Err(format!("output {index} is {found:?}, PyTorch's {} {:?}", row.dtype, row.shape));
        }
    }
    Ok(true)
}

#[test]
fn dtypes_and_shapes_need_no_elements() {
    let meta = Device::meta().expect("the meta device opens");
    let (mut failures, mut reading, mut agreed) = (Vec::new(), BTreeSet::new(), 0);
    for name in table::listed() {
        let file = File::read(&table::folder().join(format!("goldens/{name}.gz")));
        for sample in list(&file.header["samples"]) {
            let run = || agrees(&file, sample, &meta);
            match catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("panics".to_owned())) {
                Ok(true) => agreed += 1,
                Ok(false) => {
                    reading.insert(name.clone());
                }
                Err(reason) => {
                    failures.push(format!("{name} {} {}: {reason}", sample["dtype"], sample["calls"]))
                }
            }
        }
    }
    for failure in failures.iter().take(200) {
        println!("{failure}");
    }
    assert!(failures.is_empty(), "{} samples differ on the meta device", failures.len());
    assert!(agreed > 5000, "{agreed} samples agree");
    // The host must read elements for these: what they return depends on them, or whether they refuse their input.
    let path = table::folder().join("reading.txt");
    let list: String = reading.iter().map(|name| format!("{name}\n")).collect();
    if std::env::var_os("THALWEG_OPINFO_WRITE").is_some() {
        std::fs::write(path, list).expect("the list is written");
        return;
    }
    assert_eq!(
        list,
        std::fs::read_to_string(path).expect("the list is read"),
        "these operators read elements"
    );
}
