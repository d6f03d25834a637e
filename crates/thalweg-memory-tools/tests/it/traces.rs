//! The recorded traces in `tests/data`, which its README describes.

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use flate2::read::GzDecoder;
use thalweg_snapshot::Snapshot;

/// The traces by name.
pub const NAMES: [&str; 3] = ["gpt_train", "resnet_sizes", "fsdp_streams"];

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file)
}

/// Returns the pickle that PyTorch wrote.
pub fn pickle(name: &str) -> Vec<u8> {
    let packed = fs::read(path(&format!("{name}.pickle.gz"))).expect("the trace is in the repository");
    let mut pickle = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut pickle).expect("the trace is whole");
    pickle
}

pub fn snapshot(name: &str) -> Snapshot {
    Snapshot::from_pickle(&pickle(name)).expect("PyTorch wrote a snapshot")
}

/// A row of `truth.tsv`.
pub struct Truth {
    pub workload: String,
    pub conf: String,
    columns: Vec<(String, String)>,
}

impl Truth {
    /// Returns a figure under its key; `None` if the row lacks it.
    pub fn figure(&self, key: &str) -> Option<u64> {
        self.text(key)?.parse().ok()
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        let (_, value) =
            self.columns.iter().find(|(name, _)| name == key).expect("truth.tsv has this column");
        Some(value.as_str()).filter(|value| *value != "-")
    }

    pub fn died(&self) -> bool {
        self.text("out_of_memory") == Some("true")
    }
}

/// Returns the results of PyTorch's allocator under each setting.
pub fn truth() -> Vec<Truth> {
    let text = fs::read_to_string(path("truth.tsv")).expect("the figures are in the repository");
    let mut lines = text.lines().map(|line| line.split('\t').map(str::to_owned));
    let names: Vec<String> = lines.next().expect("the first line has the names").collect();
    lines
        .map(|values| {
            let mut columns: Vec<_> = names.iter().cloned().zip(values).collect();
            assert_eq!(columns.len(), names.len(), "every row has every column");
            let conf = columns.remove(1).1;
            let workload = columns.remove(0).1;
            Truth { workload, conf, columns }
        })
        .collect()
}
