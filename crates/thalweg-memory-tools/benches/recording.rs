//! The cost of reading a large snapshot, summarising it and naming its code locations: seconds, and memory in proportion to the
//! length of the file.
//!
//! `cargo bench -p thalweg-memory-tools --bench recording` writes files of 1 GB to the folder for temporary files: without
//! stacks, with 2,000 of them, and with stacks that are all distinct, of frames that are shared, of frames that are written out
//! each time, and of frames that are distinct too. They are written as Python's pickler does, and read back. `-- --only NAME`
//! does one of them, `-- --mb 100` makes them smaller, `-- --keep` does not delete them, and `-- --json` prints one object per
//! line (`name`, `value`, `unit`). Memory is the resident peak of the process, as reported by Linux.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use thalweg_memory_tools::analysis::{self, Categories, FrameChoice};
use thalweg_snapshot::Recording;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let after = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    if let Some(path) = after("--read") {
        return measure(Path::new(&path), &after("--name").unwrap_or_default(), has("--json"));
    }
    let megabytes: u64 = after("--mb").map_or(1000, |text| text.parse().expect("--mb takes a number"));
    let only = after("--only");
    for (name, stacks) in [
        ("without_stacks", Stacks::None),
        ("with_stacks", Stacks::Repeated),
        ("distinct_stacks", Stacks::Distinct),
        ("unshared_frames", Stacks::Unshared),
        ("distinct_frames", Stacks::DistinctFrames),
    ] {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        let path = std::env::temp_dir().join(format!("thalweg-bench-{name}-{}.pickle", std::process::id()));
        let file = BufWriter::new(File::create(&path).expect("the temporary folder can be written"));
        Generator::new(file, stacks).write(megabytes * 1_000_000).expect("there is room for the file");
        // A separate process, so that its peak is that of the reading only.
        let mut reading = Command::new(std::env::current_exe().expect("this program has a path"));
        reading.arg("--read").arg(&path).args(["--name", name]);
        if has("--json") {
            reading.arg("--json");
        }
        let status = reading.status().expect("this program starts");
        if !has("--keep") {
            std::fs::remove_file(&path).expect("it was written");
        }
        assert!(status.success(), "reading {name} failed");
    }
}

fn measure(path: &Path, name: &str, json: bool) {
    let start = Instant::now();
    let recording = Recording::read(File::open(path).expect("it was written")).expect("it is a snapshot");
    let read_s = start.elapsed().as_secs_f64();
    let summary = analysis::summarise(&recording, 0);
    let summarised_s = start.elapsed().as_secs_f64();
    assert!(summary.peak_live_bytes > 0);
    // The parts of both moments that `thalweg memory show` prints.
    let (mut choice, categories) = (FrameChoice::of(&recording), Categories::default());
    let mut sorting = categories.over(&recording);
    let mut places = HashSet::new();
    for group in [&summary.at_peak, &summary.at_end].into_iter().flat_map(|moment| &moment.by_stack) {
        places.insert((group.stack.and_then(|stack| choice.frame(stack)), sorting.category(group.stack)));
    }
    let told_s = start.elapsed().as_secs_f64();
    let bytes = recording.file_bytes() as f64;
    for (figure, value, unit) in [
        ("entries", recording.trace_len(0) as f64, "entries"),
        ("file", bytes, "bytes"),
        ("read", read_s, "s"),
        ("summarised", summarised_s, "s"),
        ("places", places.len() as f64, "places"),
        ("told", told_s, "s"),
        ("peak_over_file", peak_resident_bytes().unwrap_or(f64::NAN) / bytes, "ratio"),
    ] {
        if json {
            println!("{{\"name\":\"recording_{name}_{figure}\",\"value\":{value},\"unit\":\"{unit}\"}}");
        } else {
            println!("{name:>15} {figure:<15} {value:>14.3} {unit}");
        }
    }
}

fn peak_resident_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok().map(|kilobytes| kilobytes * 1024.0)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stacks {
    None,
    /// 2,000 distinct stacks of 40 frames.
    Repeated,
    /// Distinct stacks of 160 frames, one of 100 at each level.
    Distinct,
    /// Distinct stacks of 24 frames, one of 100 at each level, each frame with a dictionary of its own.
    Unshared,
    /// Distinct stacks of 24 frames that no other stack has, and 48 that all have.
    DistinctFrames,
}

/// A writer of a trace that is extended until the file is large enough, in the way of `pickle.dump` with protocol 4: every
/// dictionary, list and text is stored in the memo, and lists are appended to a thousand items at a time.
struct Generator<W> {
    out: W,
    written: u64,
    memoised: u32,
    stacks: Stacks,
    /// The memo numbers of the keys, and of the frames.
    texts: Vec<(&'static str, u32)>,
    frames: Vec<u32>,
    random: u64,
}

impl<W: Write> Generator<W> {
    fn new(out: W, stacks: Stacks) -> Self {
        Self { out, written: 0, memoised: 0, stacks, texts: Vec::new(), frames: Vec::new(), random: 1 }
    }

    fn write(mut self, bytes: u64) -> std::io::Result<()> {
        self.put(b"\x80\x04}")?;
        self.memoise()?;
        self.put(b"(")?;
        self.text("segments")?;
        self.put(b"]")?;
        self.memoise()?;
        self.text("device_traces")?;
        self.put(b"]")?;
        self.memoise()?;
        self.put(b"]")?;
        self.memoise()?;
        let mut live: Vec<(u64, u64)> = Vec::new();
        let mut addresses = HashSet::new();
        let is_distinct = !matches!(self.stacks, Stacks::None | Stacks::Repeated);
        let most_live = if is_distinct { 300_000 } else { 1000 };
        let mut time_us = 1_795_219_331_198_012;
        while self.written < bytes {
            self.put(b"(")?;
            for _ in 0..500 {
                time_us += 3;
                let random = self.next();
                let (freed, new) = if live.len() >= most_live {
                    (Some(random as usize % most_live), None)
                } else {
                    (None, Some(random))
                };
                match (freed, new) {
                    (Some(index), _) => {
                        let (address, size) = live.swap_remove(index);
                        addresses.remove(&address);
                        self.entry("free_requested", address, size, time_us)?;
                        self.entry("free_completed", address, size, time_us)?;
                    }
                    (_, Some(random)) => {
                        let address = 0x7f00_0000_0000 + (random % (1 << 26)) * 512;
                        if !addresses.insert(address) {
                            continue;
                        }
                        let size = 512 * (1 + (random >> 40) % 1000);
                        live.push((address, size));
                        self.entry("alloc", address, size, time_us)?;
                    }
                    _ => {}
                }
            }
            self.put(b"e")?;
        }
        self.put(b"au.")?;
        self.out.flush()
    }

    fn entry(&mut self, action: &'static str, address: u64, size: u64, time_us: u64) -> std::io::Result<()> {
        self.put(b"}")?;
        self.memoise()?;
        self.put(b"(")?;
        self.text("action")?;
        self.text(action)?;
        self.text("addr")?;
        self.long(address)?;
        self.text("size")?;
        self.put(b"J")?;
        self.put(&(size as u32).to_le_bytes())?;
        self.text("stream")?;
        self.put(b"K\x00")?;
        self.text("time_us")?;
        self.long(time_us)?;
        self.text("compile_context")?;
        self.text("N/A")?;
        self.text("user_metadata")?;
        self.text("")?;
        if self.stacks != Stacks::None {
            self.text("frames")?;
            self.stack()?;
        }
        self.put(b"u")
    }

    fn stack(&mut self) -> std::io::Result<()> {
        self.put(b"]")?;
        self.memoise()?;
        self.put(b"(")?;
        match self.stacks {
            Stacks::None => {}
            Stacks::Repeated => {
                let which = self.next() as usize % 2000;
                for level in 0..40 {
                    self.frame(if level < 4 { which * 4 + level } else { 8000 + level })?;
                }
            }
            Stacks::Distinct => {
                for level in 0..160 {
                    let choice = self.next() as usize % 100;
                    self.frame(level * 100 + choice)?;
                }
            }
            Stacks::Unshared => {
                for level in 0..24 {
                    let choice = self.next() as usize % 100;
                    self.frame_dict(level * 100 + choice)?;
                }
            }
            Stacks::DistinctFrames => {
                for _ in 0..24 {
                    self.frame(self.frames.len().max(48))?;
                }
                for level in 0..48 {
                    self.frame(level)?;
                }
            }
        }
        self.put(b"e")
    }

    fn frame(&mut self, frame: usize) -> std::io::Result<()> {
        if self.frames.len() <= frame {
            self.frames.resize(frame + 1, u32::MAX);
        }
        if self.frames[frame] != u32::MAX {
            return self.recall(self.frames[frame]);
        }
        self.frames[frame] = self.frame_dict(frame)?;
        Ok(())
    }

    fn frame_dict(&mut self, frame: usize) -> std::io::Result<u32> {
        self.put(b"}")?;
        let number = self.memoise()?;
        self.put(b"(")?;
        self.text("filename")?;
        self.text("workspace/model/layers.py")?;
        self.text("line")?;
        self.put(b"J")?;
        self.put(&(frame as u32).to_le_bytes())?;
        self.text("name")?;
        self.text("forward")?;
        self.put(b"u")?;
        Ok(number)
    }

    fn text(&mut self, text: &'static str) -> std::io::Result<()> {
        if let Some(&(_, number)) = self.texts.iter().find(|(known, _)| *known == text) {
            return self.recall(number);
        }
        self.put(&[0x8c, text.len() as u8])?;
        self.put(text.as_bytes())?;
        let number = self.memoise()?;
        self.texts.push((text, number));
        Ok(())
    }

    fn recall(&mut self, number: u32) -> std::io::Result<()> {
        match u8::try_from(number) {
            Ok(number) => self.put(&[b'h', number]),
            Err(_) => {
                self.put(b"j")?;
                self.put(&number.to_le_bytes())
            }
        }
    }

    fn long(&mut self, value: u64) -> std::io::Result<()> {
        self.put(b"\x8a\x07")?;
        self.put(&value.to_le_bytes()[..7])
    }

    fn memoise(&mut self) -> std::io::Result<u32> {
        self.put(b"\x94")?;
        self.memoised += 1;
        Ok(self.memoised - 1)
    }

    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
