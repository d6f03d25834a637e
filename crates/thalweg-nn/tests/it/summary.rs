//! Files of numbers over steps: their bytes are those of TensorBoard's own writer.

use std::path::PathBuf;

use thalweg_nn::summary::SummaryWriter;

/// The records that `tensorboard.summary.writer.record_writer.RecordWriter` writes for the calls of the test, in hexadecimal.
const RECORDS: &str = "1800000000000000a37f4b220900000000000004402a0d0a0b0a046c6f73731500001040bf277d26\
    2100000000000000017becf6090000000000000c4010ac022a130a110a0a6c722f67726f75702030156f12833a35cda74a\
    2300000000000000b09f774309000000000000104010ffffffffffffffffff012a0d0a0b0a046c6f7373150000807f5a914c01";

fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("thalweg-{}-{name}", std::process::id()))
}

#[test]
fn the_files_are_those_that_tensorboard_writes_and_json_lines() {
    let folder = folder("summary");
    let mut writer = SummaryWriter::new(folder.join("run")).unwrap();
    writer.add_scalar_at("loss", 2.25, 0, 2.5).unwrap();
    writer.add_scalar_at("lr/group 0", 1e-3, 300, 3.5).unwrap();
    writer.add_scalar_at("loss", f64::INFINITY, -1, 4.0).unwrap();
    writer.flush().unwrap();
    let is_events = |name: &str| name.starts_with("events.out.tfevents.");
    let names = std::fs::read_dir(folder.join("run")).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    let name = names.iter().find(|name| is_events(name)).unwrap();
    let events = std::fs::read(folder.join("run").join(name)).unwrap();
    // They are preceded by the version with the time of the call: 12 bytes, a record of 24, and 4.
    assert_eq!(events[21..36], *b"\x1a\x0dbrain.Event:2");
    let written: String = events[40..].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(written, RECORDS);
    // A second writer adds to the lines.
    let mut again = SummaryWriter::new(folder.join("run")).unwrap();
    again.add_scalar_at("loss", 0.5, 1, 5.0).unwrap();
    drop(again);
    let lines = std::fs::read_to_string(folder.join("run/metrics.jsonl")).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let expected = [
        r#"{"wall_time":2.5,"step":0,"tag":"loss","value":2.25}"#,
        r#"{"wall_time":3.5,"step":300,"tag":"lr/group 0","value":0.001}"#,
        r#"{"wall_time":4.0,"step":-1,"tag":"loss","value":"inf"}"#,
        r#"{"wall_time":5.0,"step":1,"tag":"loss","value":0.5}"#,
    ];
    assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error_that_names_it() {
    let file = folder("summary-file");
    std::fs::write(&file, "a file").unwrap();
    let error = SummaryWriter::new(file.join("run")).unwrap_err();
    std::fs::remove_file(&file).unwrap();
    assert!(error.is_invalid_argument() && error.to_string().contains("summary-file"), "{error}");
}
