//! Results: the solution found for each product of a kind of device, and the files that store them.
//!
//! A file has lines of the form `Validator,KEY,VALUE`, which describe the device and libraries of the results after them, and
//! lines of the form `operator,parameters,solution,milliseconds`. A file may contain several such sections. Those of another
//! device or library are skipped, and so is a line that cannot be read or names an unknown solution.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::signature::{Signature, Solution};

/// The keys and values that results depend on: of the device, and of the libraries.
pub(super) type Validators = Vec<(String, String)>;

/// The result for a product.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Entry {
    pub(super) solution: Solution,
    pub(super) milliseconds: f64,
}

/// The results of a process, by validators.
#[derive(Debug, Default)]
pub(super) struct Results {
    kinds: HashMap<Validators, BTreeMap<Signature, Entry>>,
    /// The validators of the latest section of each file that was written.
    written: HashMap<PathBuf, Validators>,
}

/// The keys that a file must contain. All other keys are optional.
const REQUIRED: [&str; 2] = ["CUBLASLT_VERSION", "CUDA_DEVICE"];
/// The key of PyTorch's version. It is ignored for results of Thalweg, but must match for those for PyTorch.
pub(super) const PYTORCH_VERSION: &str = "PT_VERSION";

/// Returns whether results under the validators `found` apply to a device with the validators `here`. PyTorch requires that all
/// are equal.
fn holds(found: &Validators, here: &Validators) -> bool {
    let has = |pairs: &Validators, key: &str| pairs.iter().any(|(name, _)| name == key);
    if has(here, PYTORCH_VERSION) {
        return found.len() == here.len() && found.iter().all(|pair| here.contains(pair));
    }
    found.iter().all(|pair| pair.0 == PYTORCH_VERSION || here.contains(pair))
        && REQUIRED.into_iter().all(|key| has(found, key))
}

/// The counts of results after reading a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Taken {
    /// The number of results that apply here.
    pub(super) results: usize,
    /// The number of results of another device or library.
    pub(super) external: usize,
    /// The number of lines that cannot be read.
    pub(super) unread: usize,
}

impl Results {
    /// Returns the result for a product: by its name, or, with `wildcards`, by a name in which `*` stands for a number.
    pub(super) fn find(&self, kind: &Validators, signature: &Signature, wildcards: bool) -> Option<Entry> {
        let entries = self.kinds.get(kind)?;
        if let Some(entry) = entries.get(signature) {
            return Some(*entry);
        }
        let matches = |pattern: &Signature| {
            pattern.operator == signature.operator
                && pattern.parameters.contains('*')
                && pattern.parameters.split('_').count() == signature.parameters.split('_').count()
                && pattern
                    .parameters
                    .split('_')
                    .zip(signature.parameters.split('_'))
                    .all(|(pattern, word)| pattern == "*" || pattern == word)
        };
        let found = wildcards.then(|| entries.iter().find(|(pattern, _)| matches(pattern)));
        found.flatten().map(|(_, entry)| *entry)
    }

    pub(super) fn insert(&mut self, kind: &Validators, signature: Signature, entry: Entry) {
        self.kinds.entry(kind.clone()).or_default().insert(signature, entry);
    }

    pub(super) fn remove(&mut self, kind: &Validators, signature: &Signature) {
        if let Some(entries) = self.kinds.get_mut(kind) {
            entries.remove(signature);
        }
    }

    /// Returns the results of a kind of device, ordered by name.
    pub(super) fn of(&self, kind: &Validators) -> impl Iterator<Item = (&Signature, &Entry)> {
        self.kinds.get(kind).into_iter().flatten()
    }

    /// Adds the results of a file's text that apply under these validators; later lines replace earlier ones.
    pub(super) fn read(&mut self, text: &str, here: &Validators) -> Taken {
        let mut taken = Taken::default();
        let mut section: Validators = Vec::new();
        let mut in_results = false;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(rest) = line.strip_prefix("Validator,") {
                if std::mem::take(&mut in_results) {
                    section.clear();
                }
                let (key, value) = rest.split_once(',').unwrap_or((rest, ""));
                section.push((key.to_owned(), value.to_owned()));
                continue;
            }
            in_results = true;
            let parsed = parse_result(line);
            match parsed {
                None => taken.unread += 1,
                Some(_) if !holds(&section, here) => taken.external += 1,
                Some((signature, entry)) => {
                    taken.results += 1;
                    self.insert(here, signature, entry);
                }
            }
        }
        taken
    }

    /// Appends a result to a file, after the validators if its latest section has different ones.
    pub(super) fn append(
        &mut self,
        path: &Path,
        kind: &Validators,
        signature: &Signature,
        entry: &Entry,
    ) -> io::Result<()> {
        let latest = match self.written.get(path) {
            Some(latest) => Some(latest.clone()),
            None => match std::fs::read_to_string(path) {
                Ok(text) => Some(latest_section(&text)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            },
        };
        let mut text = String::new();
        if latest.as_ref() != Some(kind) {
            write_validators(&mut text, kind);
        }
        write_result(&mut text, signature, entry);
        // A single write, so that lines of several processes do not mix.
        OpenOptions::new().create(true).append(true).open(path)?.write_all(text.as_bytes())?;
        self.written.insert(path.to_owned(), kind.clone());
        Ok(())
    }

    /// Overwrites a file with all results.
    pub(super) fn write(&mut self, path: &Path) -> io::Result<()> {
        let mut text = String::new();
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort_by_key(|(kind, _)| *kind);
        for (kind, entries) in kinds {
            write_validators(&mut text, kind);
            entries.iter().for_each(|(signature, entry)| write_result(&mut text, signature, entry));
        }
        self.written.remove(path);
        std::fs::write(path, text)
    }
}

fn parse_result(line: &str) -> Option<(Signature, Entry)> {
    let mut fields = line.split(',');
    let [operator, parameters, solution, milliseconds] = std::array::from_fn(|_| fields.next());
    let signature = Signature { operator: operator?.to_owned(), parameters: parameters?.to_owned() };
    let solution = Solution::parse(solution?)?;
    // A result that was added by hand may have no time.
    let milliseconds = milliseconds.and_then(|text| text.parse().ok()).unwrap_or(0.0);
    signature.operator.contains("TunableOp_").then_some((signature, Entry { solution, milliseconds }))
}

fn latest_section(text: &str) -> Validators {
    let mut section = Validators::new();
    let mut in_results = false;
    for line in text.lines() {
        match line.trim().strip_prefix("Validator,") {
            Some(rest) => {
                if std::mem::take(&mut in_results) {
                    section.clear();
                }
                let (key, value) = rest.split_once(',').unwrap_or((rest, ""));
                section.push((key.to_owned(), value.to_owned()));
            }
            None => in_results = true,
        }
    }
    section
}

fn write_validators(text: &mut String, kind: &Validators) {
    for (key, value) in kind {
        let _ = writeln!(text, "Validator,{key},{value}");
    }
}

fn write_result(text: &mut String, signature: &Signature, entry: &Entry) {
    let _ = writeln!(text, "{signature},{},{:.6}", entry.solution, entry.milliseconds);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Validators {
        [("THALWEG_VERSION", "1"), ("CUBLASLT_VERSION", "130100"), ("CUDA_DEVICE", "9.0:H100")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .to_vec()
    }

    fn gemm(parameters: &str) -> Signature {
        Signature { operator: "GemmTunableOp_float_NN".into(), parameters: parameters.into() }
    }

    const ALGORITHM: &str =
        "Gemm_Cublaslt_id_6_tile_2_stages_3_splitk_1_red_0_swizzle_0_custom_0_inner_0_cluster_0";

    fn read(text: &str) -> (Results, Taken) {
        let mut results = Results::default();
        let taken = results.read(text, &here());
        (results, taken)
    }

    #[test]
    fn a_file_of_pytorchs_is_taken_and_a_line_that_is_stale_is_left_out() {
        let text = format!(
            "Validator,PT_VERSION,2.15.0\nValidator,CUBLASLT_VERSION,130100\nValidator,CUDA_DEVICE,9.0:H100\r\n\
             GemmTunableOp_float_NN,nn_1_2_3_ld_1_3_1,{ALGORITHM},0.012\n\
             GemmTunableOp_float_NN,nn_4_4_4_ld_4_4_4,Gemm_Hipblaslt_77,0.5\n\
             GemmTunableOp_float_NN\n\
             GemmTunableOp_float_NN,nn_5_5_5_ld_5_5_5,Default\n"
        );
        let (results, taken) = read(&text);
        assert_eq!(taken, Taken { results: 2, external: 0, unread: 2 });
        let found = results.find(&here(), &gemm("nn_1_2_3_ld_1_3_1"), false).unwrap();
        assert_eq!((found.solution.to_string().as_str(), found.milliseconds), (ALGORITHM, 0.012));
        let by_hand = results.find(&here(), &gemm("nn_5_5_5_ld_5_5_5"), false).unwrap();
        assert_eq!(by_hand, Entry { solution: Solution::Default, milliseconds: 0.0 });
        assert!(results.find(&here(), &gemm("nn_4_4_4_ld_4_4_4"), false).is_none());
    }

    #[test]
    fn sections_of_another_library_or_device_are_passed_over() {
        let line = |size: u32| format!("GemmTunableOp_float_NN,nn_{size}_1_1_ld_1_1_1,Default,1\n");
        let section = |version: &str, device: &str, more: &str| {
            format!("Validator,CUBLASLT_VERSION,{version}\nValidator,CUDA_DEVICE,{device}\n{more}")
        };
        let text = [
            line(1),
            section("120000", "9.0:H100", ""),
            line(2),
            section("130100", "8.0:A100", ""),
            line(3),
            section("130100", "9.0:H100", ""),
            line(4),
            section("130100", "9.0:H100", "Validator,THALWEG_VERSION,0\n"),
            line(5),
            "Validator,CUDA_DEVICE,9.0:H100\n".to_owned(),
            line(6),
        ]
        .concat();
        let (results, taken) = read(&text);
        assert_eq!(taken, Taken { results: 1, external: 5, unread: 0 });
        assert!(results.find(&here(), &gemm("nn_4_1_1_ld_1_1_1"), false).is_some());
    }

    #[test]
    fn results_for_pytorch_are_those_that_it_takes() {
        let pytorch = |version: &str| -> Validators {
            [("PT_VERSION", version), ("CUBLASLT_VERSION", "130100"), ("CUDA_DEVICE", "9.0:H100")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .to_vec()
        };
        let mut text = String::new();
        for (kind, size) in [(&pytorch("2.11.0"), 1), (&pytorch("2.10.0"), 2), (&here(), 3)] {
            write_validators(&mut text, kind);
            writeln!(text, "GemmTunableOp_float_NN,nn_{size}_1_1_ld_1_1_1,Default,1").unwrap();
        }
        let mut results = Results::default();
        let taken = results.read(&text, &pytorch("2.11.0"));
        assert_eq!(taken, Taken { results: 1, external: 2, unread: 0 });
        assert!(results.find(&pytorch("2.11.0"), &gemm("nn_1_1_1_ld_1_1_1"), false).is_some());
    }

    #[test]
    fn stars_stand_for_numbers_where_they_are_asked_for() {
        let mut results = Results::default();
        let entry = Entry { solution: Solution::Tiles, milliseconds: 1.0 };
        results.insert(&here(), gemm("nn_*_2_3_ld_*_3_*"), entry);
        let wanted = gemm("nn_640_2_3_ld_640_3_640");
        assert_eq!(results.find(&here(), &wanted, true), Some(entry));
        assert_eq!(results.find(&here(), &wanted, false), None);
        assert_eq!(results.find(&here(), &gemm("nn_640_2_4_ld_640_3_640"), true), None);
        assert_eq!(results.find(&here(), &gemm("nn_640_2_3_B_4_ld_640_3_640"), true), None);
    }

    #[test]
    fn results_are_added_to_a_file_and_come_back() {
        let path = std::env::temp_dir().join(format!("thalweg-results-{}.csv", std::process::id()));
        let other = [("CUBLASLT_VERSION", "1"), ("CUDA_DEVICE", "8.0:A100")];
        let other: Validators = other.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let entry = Entry { solution: Solution::parse(ALGORITHM).unwrap(), milliseconds: 0.25 };
        let mut results = Results::default();
        for (kind, size) in [(&here(), 1), (&here(), 2), (&other, 3), (&here(), 4)] {
            results.append(&path, kind, &gemm(&format!("nn_{size}_1_1_ld_1_1_1")), &entry).unwrap();
        }
        // Another process continues where this one ended.
        Results::default().append(&path, &here(), &gemm("nn_5_1_1_ld_1_1_1"), &entry).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches("Validator,CUDA_DEVICE").count(), 3, "{text}");
        let (mut read, taken) = read(&text);
        assert_eq!(taken, Taken { results: 4, external: 1, unread: 0 });
        assert_eq!(read.find(&here(), &gemm("nn_5_1_1_ld_1_1_1"), false), Some(entry));
        read.write(&path).unwrap();
        let (again, taken) = super::tests::read(&std::fs::read_to_string(&path).unwrap());
        assert_eq!(taken.results, 4);
        assert_eq!(again.of(&here()).count(), 4);
        std::fs::remove_file(&path).unwrap();
    }
}
