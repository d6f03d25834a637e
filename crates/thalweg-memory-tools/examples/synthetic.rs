//! Writes a page with invented events, for viewing and for measuring: `synthetic EVENTS OUT.html`. Open it with
//! `?selftest=frames` after the address, and the element `self-test` shows how long the first picture and the frames took.

#[path = "../tests/it/synthetic.rs"]
mod synthetic;

use std::fs::File;
use std::io::{BufWriter, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [events, out] = arguments.as_slice() else { return Err("usage: synthetic EVENTS OUT.html".into()) };
    let model = synthetic::model(vec![synthetic::device("GPU 0", events.parse()?, 7)]);
    let mut file = BufWriter::new(File::create(out)?);
    thalweg_memory_tools::report::write(&model, &mut file)?;
    file.flush()?;
    Ok(())
}
