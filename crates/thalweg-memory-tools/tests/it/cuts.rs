//! Histories that lost their beginning: forecasts for them are compared with the results for the complete history.

use thalweg_memory::Policy;
use thalweg_memory_tools::analysis::forecast::{Answer, Forecast, Recommendation, recommend};
use thalweg_memory_tools::analysis::what_if::{self, CANDIDATES};
use thalweg_memory_tools::replay::RecordedProgram;
use thalweg_snapshot::Recording;

use crate::traces;

/// Returns the program of a trace without the first `percent` hundredths of its entries.
fn cut(name: &str, percent: usize) -> RecordedProgram {
    let mut snapshot = traces::snapshot(name);
    let trace = &mut snapshot.device_traces[0];
    trace.drain(..trace.len() * percent / 100);
    let recording = Recording::read(&snapshot.to_pickle()[..]).expect("we wrote it");
    RecordedProgram::from_recording(&recording, 0).expect("the rest is whole")
}

/// Returns the settings that a search without a GPU tries.
fn confs() -> Vec<&'static str> {
    CANDIDATES.iter().copied().filter(|conf| !conf.contains("garbage")).collect()
}

fn forecast(program: &RecordedProgram, conf: &str, gpu: Option<u64>) -> Forecast {
    let settings = what_if::settings(Policy::PyTorch, conf).expect("PyTorch takes it");
    Forecast::of(program, &settings, conf.is_empty(), gpu, |_| {}).expect("lack of memory is not an error")
}

fn forecasts(program: &RecordedProgram, gpu: Option<u64>) -> Vec<Forecast> {
    confs().into_iter().map(|conf| forecast(program, conf, gpu)).collect()
}

/// Returns the result for the complete program under each setting: PyTorch's own figure if there is one.
fn truths(name: &str) -> Vec<u64> {
    let rows = traces::truth();
    let own = |conf: &str| {
        let conf = match conf {
            "" => "default",
            "expandable_segments:True" => "expandable",
            "max_split_size_mb:128" => "split128",
            "roundup_power2_divisions:8" => "pow2_8",
            _ => return None,
        };
        let row = rows.iter().find(|row| row.workload == name && row.conf == conf)?;
        row.figure("reserved_bytes.all.peak")
    };
    let whole = cut(name, 0);
    confs()
        .into_iter()
        .map(|conf| own(conf).unwrap_or_else(|| forecast(&whole, conf, None).tidy.peak_reserved_bytes))
        .collect()
}

/// No lower bound is above the truth, and no claimed saving exceeds the true one by more than a tenth of the peak. If nearly
/// everything is known, helpful settings are found.
#[test]
fn nothing_is_claimed_of_what_was_lost() {
    let mut saved = 0;
    for name in traces::NAMES {
        let truths = truths(name);
        let live_bytes = cut(name, 0).peak_live_bytes();
        for percent in [2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95] {
            let what = format!("{name} without its first {percent} %");
            let program = cut(name, percent);
            assert!(program.peak_live_bytes() <= live_bytes, "{what}");
            let forecasts = forecasts(&program, None);
            for ((conf, forecast), truth) in confs().iter().zip(&forecasts).zip(&truths) {
                assert!(forecast.is_partial(), "{what}");
                let bound = forecast.least_reserved_bytes;
                assert!(bound <= *truth, "{what}, {conf}: {bound} is not a lower bound of {truth}");
                let (least, most) = forecast.recorded_part_bytes();
                assert!(least <= most, "{what}, {conf}");
            }
            if let Recommendation::Saves { index, least_bytes, .. } = recommend(&forecasts) {
                let truth = i128::from(truths[0]) - i128::from(truths[index]);
                let most = truth + i128::from(truths[0] / 10);
                assert!(i128::from(least_bytes) <= most, "{what}: {least_bytes} said, {truth} true");
                assert!(truth > 0, "{what}: {} saves nothing", confs()[index]);
                saved += 1;
            } else {
                assert!(percent > 5, "{what}: nearly all is known, and nothing is recommended");
            }
        }
    }
    assert!(saved >= 6, "{saved}");
}

/// A GPU that is smaller than the memory reserved at the beginning of the trace is handled like others: the program runs out of
/// memory on it or not.
#[test]
fn a_gpu_smaller_than_the_beginning_is_answered() {
    let program = cut("gpt_train", 60);
    let recorded = forecast(&program, "", None).nearest().peak_reserved_bytes;
    for forecast in forecasts(&program, Some(1 << 30)) {
        assert_eq!(forecast.out_of_memory(), Answer::Yes, "more than that is live");
    }
    assert_eq!(recommend(&forecasts(&program, Some(1 << 30))), Recommendation::NoneFits);
    for conf in ["", "expandable_segments:True", "max_split_size_mb:128"] {
        let settings = what_if::settings(Policy::PyTorch, conf).expect("PyTorch takes it");
        let mut found = forecast(&program, conf, None);
        found.find_gpu(&program, &settings).expect("lack of memory is not an error");
        let enough = found.fits_from_bytes.expect("some GPU is enough");
        assert!(enough >= found.least_reserved_bytes.min(program.least_reserved_bytes(&settings)), "{conf}");
        assert!(enough < recorded, "{conf}: what is cached can go back");
        assert_eq!(forecast(&program, conf, Some(enough)).out_of_memory(), Answer::No, "{conf}");
        assert_ne!(forecast(&program, conf, Some(enough / 100 * 97)).out_of_memory(), Answer::No, "{conf}");
    }
}

/// For a complete program the smallest GPU is one on which it really runs.
#[test]
fn the_smallest_gpu_is_found() {
    for (name, conf) in [("gpt_train", ""), ("gpt_train", "expandable_segments:True"), ("resnet_sizes", "")] {
        let program = cut(name, 0);
        let settings = what_if::settings(Policy::PyTorch, conf).expect("PyTorch takes it");
        let mut found = forecast(&program, conf, None);
        found.find_gpu(&program, &settings).expect("lack of memory is not an error");
        let enough = found.fits_from_bytes.expect("some GPU is enough");
        let dies = |gpu| forecast(&program, conf, Some(gpu)).out_of_memory() == Answer::Yes;
        assert!(!dies(enough) && dies(enough / 100 * 97), "{name} {conf}: {enough}");
    }
}
