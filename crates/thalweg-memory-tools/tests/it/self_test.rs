//! A page that tests itself: drawing, zooming, searching, filtering.

use std::fs::{self, File};
use std::path::PathBuf;

use thalweg_memory_tools::report::{BlockLife, DevicePage, Mark, MarkKind, PageModel, write};

use crate::{browser, synthetic};

/// Returns a folder of this test process.
fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("thalweg-page-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("the folder of temporary files takes folders");
    folder
}

fn self_test(name: &str, model: &PageModel) -> Option<String> {
    let folder = scratch(name);
    let path = folder.join("page.html");
    write(model, &mut File::create(&path).expect("the scratch folder takes files"))
        .expect("the page is written");
    let result = browser::self_test(&path, &folder);
    fs::remove_dir_all(&folder).expect("the folder is ours");
    result
}

/// Returns the bytes at each position, before the first event and after each, computed in a slow and simple way.
fn sums(events: u32, lives: impl Iterator<Item = (Option<u32>, Option<u32>, u64)>) -> Vec<u64> {
    let mut sums = vec![0; events as usize + 1];
    for (begin, end, bytes) in lives {
        let from = begin.map_or(0, |event| event as usize + 1);
        let to = end.map_or(sums.len(), |event| event as usize + 1);
        sums[from..to].iter_mut().for_each(|sum| *sum += bytes);
    }
    sums
}

fn live(device: &DevicePage, counts: impl Fn(&BlockLife) -> bool) -> Vec<u64> {
    let blocks = device.blocks.iter().filter(|block| counts(block));
    sums(device.event_count, blocks.map(|block| (block.allocated, block.completed, block.requested_bytes)))
}

fn peaks(device: &DevicePage, count: usize, of: impl Fn(&BlockLife) -> u16) -> String {
    let peaks = (0..count).map(|index| {
        let sums = live(device, |block| usize::from(of(block)) == index);
        sums.into_iter().max().expect("there is a position").to_string()
    });
    format!("[{}]", peaks.collect::<Vec<_>>().join(","))
}

/// Returns the number after a name in the page's answer.
fn number(result: &str, name: &str) -> f64 {
    let rest =
        result.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {result}")).1;
    let end = rest.find([',', '}', ']']).expect("an object has an end");
    rest[..end].parse().unwrap_or_else(|_| panic!("{name} is {}", &rest[..end]))
}

fn expect(result: &str, member: &str) {
    assert!(result.contains(member), "expected {member} in {result}");
}

#[test]
fn the_figures_of_a_page_are_those_of_a_plain_model() {
    let devices =
        vec![synthetic::device("rank 0, GPU 0", 30_000, 11), synthetic::device("rank 1, GPU 0", 4_000, 5)];
    let model = synthetic::model(devices);
    let Some(result) = self_test("figures", &model) else { return };
    assert!(!result.contains("\"error\""), "{result}");
    let parts: Vec<&str> = result.split("{\"name\":").skip(1).collect();
    assert_eq!(parts.len(), model.devices.len(), "{result}");
    for (device, part) in model.devices.iter().zip(parts) {
        check(device, &model, part);
    }
}

fn check(device: &DevicePage, model: &PageModel, part: &str) {
    let live_sums = live(device, |_| true);
    let peak = *live_sums.iter().max().expect("there is a position");
    let at = live_sums.iter().position(|bytes| *bytes == peak).expect("the greatest is one of them");
    let segments = device.segments.iter();
    let reserved = sums(
        device.event_count,
        segments.map(|segment| (segment.taken, segment.returned, segment.size_bytes)),
    );
    expect(
        part,
        &format!(
            "\"blocks\":{},\"peak_live_bytes\":{peak},\"peak_live_position\":{at},",
            device.blocks.len()
        ),
    );
    expect(
        part,
        &format!("\"peak_reserved_bytes\":{},", reserved.iter().max().expect("there is a position")),
    );
    expect(part, &format!("\"final_live_bytes\":{},", live_sums.last().expect("there is a position")));
    expect(part, &format!("\"first_live_bytes\":{},", live_sums[0]));
    expect(part, &format!("\"peak_by_stream\":{},", peaks(device, 2, |block| block.stream)));
    expect(part, &format!("\"peak_by_pool\":{},", peaks(device, 2, |block| block.pool)));
    expect(
        part,
        &format!("\"peak_by_category\":{},", peaks(device, model.categories.len(), |block| block.category)),
    );
    expect(part, "[\"expandable_segments:True (estimate)\",3221225472]");
    let there = |at: usize| {
        let exists = |begin: Option<u32>, end: Option<u32>| {
            begin.is_none_or(|event| (event as usize) < at) && end.is_none_or(|event| event as usize >= at)
        };
        device.segments.iter().filter(|segment| exists(segment.taken, segment.returned)).count()
    };
    assert_eq!(number(part, "mapped_segments"), there(at) as f64, "{part}");
    assert_eq!(number(part, "first_mapped_segments"), there(0) as f64, "{part}");
    check_tables(device, part, peak);
    check_picture(device, part);
    check_search(device, model, part);
}

/// Checks the flame graph and the lists below the pictures.
fn check_tables(device: &DevicePage, part: &str, peak: u64) {
    assert_eq!(number(part, "flame_bytes"), peak as f64, "{part}");
    assert_eq!(number(part, "flame_widest"), number(part, "flame_chosen"), "{part}");
    assert!(number(part, "flame_widest") > 0.0, "{part}");
    assert!(number(part, "events_shown") > 1.0, "{part}");
    expect(part, "\"events_freed\":true,\"events_none\":0,");
    let names: Vec<_> = device.stages.iter().map(|stage| format!("\"{}\"", stage.name)).collect();
    expect(part, &format!("\"stages\":[{}],\"settings\":{}", names.join(","), device.settings.len()));
}

/// Checks that the picture is there, and becomes finer when zooming in.
fn check_picture(device: &DevicePage, part: &str) {
    assert!(number(part, "painted_share") > 0.02, "the picture is empty: {part}");
    assert!(number(part, "painted_blocks") > 50.0, "{part}");
    assert!(number(part, "zoomed_blocks") > 50.0, "{part}");
    assert!(
        (number(part, "zoomed_span") - (f64::from(device.event_count) + 1.0) / 10.0).abs() < 1.0,
        "{part}"
    );
}

/// Checks the search for the line of code that has the most memory at the peak.
fn check_search(device: &DevicePage, model: &PageModel, part: &str) {
    let text = part
        .split_once("\"search\":{\"text\":\"")
        .expect("the page searched")
        .1
        .split_once('"')
        .expect("it ends")
        .0;
    let words: Vec<String> = text.to_lowercase().split_whitespace().map(str::to_owned).collect();
    let matches = |frame: u32| {
        let frame = &model.frames[frame as usize];
        let text = format!("{}:{} {}", frame.file, frame.line, frame.function).to_lowercase();
        words.iter().all(|word| text.contains(word))
    };
    let found = |block: &BlockLife| {
        block
            .stack
            .is_some_and(|stack| model.stacks[stack as usize].frames.iter().any(|&frame| matches(frame)))
    };
    // The page has labelled it with the frame that the model calls the most informative.
    let reported = |block: &BlockLife| {
        let stack = &model.stacks[block.stack? as usize];
        Some(stack.frames[stack.frame as usize])
    };
    let whole = live(device, |_| true);
    let at =
        whole.iter().enumerate().max_by_key(|&(at, bytes)| (bytes, std::cmp::Reverse(at))).expect("it has").0;
    let groups =
        (0..model.frames.len() as u32).map(|frame| live(device, |block| reported(block) == Some(frame))[at]);
    let largest = groups.max().expect("there are frames");
    let is_named = |block: &BlockLife| {
        let frame = reported(block).map(|frame| &model.frames[frame as usize]);
        frame.is_some_and(|frame| format!("{}:{} {}", frame.file, frame.line, frame.function) == text)
    };
    assert_eq!(live(device, is_named)[at], largest, "{text}");
    let count = device.blocks.iter().filter(|block| found(block)).count();
    let peak = live(device, found).into_iter().max().expect("there is a position");
    expect(part, &format!("\"blocks\":{count},\"peak\":{peak},"));
    expect(part, &format!("\"lit\":{count},\"only_peak\":{peak}}}"));
}

#[test]
fn a_page_opens_where_memory_ran_out() {
    let mut failed = synthetic::device("GPU 1", 3_000, 3);
    failed.marks = vec![Mark { event: 1_234, kind: MarkKind::OutOfMemory, text: "2 GiB asked for".into() }];
    let mut other = synthetic::device("GPU 0", 3_000, 4);
    other.marks.clear();
    let model = synthetic::model(vec![other, failed]);
    let Some(result) = self_test("failed", &model) else { return };
    expect(&result, "\"opened\":{\"device\":\"1\",\"moment\":1235}");
}

#[test]
fn pages_with_little_on_them_open() {
    let empty = DevicePage { name: "GPU 0".into(), ..DevicePage::default() };
    let still = DevicePage {
        name: "GPU 1".into(),
        streams: vec!["s".into()],
        pools: vec!["p".into()],
        blocks: vec![BlockLife {
            address: 1 << 47,
            size_bytes: 1,
            requested_bytes: 3,
            ..BlockLife::default()
        }],
        ..DevicePage::default()
    };
    let model =
        PageModel { devices: vec![empty, still], categories: vec!["c".into()], ..PageModel::default() };
    let Some(result) = self_test("little", &model) else { return };
    assert!(!result.contains("\"error\""), "{result}");
    expect(&result, "\"peak_live_bytes\":0,");
    expect(&result, "\"peak_live_bytes\":3,");
    assert_eq!(
        number(result.split_once("GPU 1").expect("both are there").1, "painted_blocks"),
        1.0,
        "{result}"
    );
}
