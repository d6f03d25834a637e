//! Writing a [`Snapshot`] as a dictionary, key by key, in any form.
//!
//! This is the only place that defines which keys there are. A [`Dump`] receives values in the order of the file, and writes them
//! in its form: [`PickleWriter`](super::pickle::PickleWriter), [`JsonWriter`](super::json::JsonWriter).

use super::{Action, Annotation, Frame, Frames, Segment, SegmentBlock, SettingValue, Snapshot, TraceEntry};
use crate::SizeClass;

/// A writer of values. `'a` is the lifetime of the snapshot, whose texts need not be copied.
pub(crate) trait Dump<'a> {
    fn none(&mut self);
    fn bool(&mut self, value: bool);
    fn int(&mut self, value: i64);
    fn float(&mut self, value: f64);
    fn text(&mut self, value: &'a str);
    /// Begins a list. The list's elements follow until the matching [`end_list`](Self::end_list).
    fn begin_list(&mut self);
    fn end_list(&mut self);
    /// Begins a dictionary; keys, each before its value, follow until the matching [`end_dict`](Self::end_dict).
    fn begin_dict(&mut self);
    fn end_dict(&mut self);
    fn key(&mut self, key: &'a str);
    /// Writes two numbers, as a tuple if the form has tuples.
    fn pair(&mut self, pair: (u64, u64));
    /// Writes a stack; the writer may write it once and refer to it later.
    fn frames(&mut self, frames: &'a Frames);

    /// Writes a number that is an address, a size or a handle, as a signed number with the same bits.
    fn unsigned(&mut self, value: u64) {
        self.int(value as i64);
    }
}

pub(crate) fn snapshot<'a>(snapshot: &'a Snapshot, to: &mut impl Dump<'a>) {
    to.begin_dict();
    to.key("segments");
    list(&snapshot.segments, to, segment);
    to.key("device_traces");
    list(&snapshot.device_traces, to, |entries, to| list(entries, to, trace_entry));
    to.key("allocator_settings");
    to.begin_dict();
    for (name, value) in &snapshot.allocator_settings {
        to.key(name);
        setting(value, to);
    }
    to.end_dict();
    to.key("external_annotations");
    list(&snapshot.external_annotations, to, annotation);
    to.key("host_segments");
    list(&snapshot.host_segments, to, segment);
    to.key("host_traces");
    list(&snapshot.host_traces, to, trace_entry);
    to.end_dict();
}

fn list<'a, T, D: Dump<'a>>(items: &'a [T], to: &mut D, each: impl Fn(&'a T, &mut D)) {
    to.begin_list();
    items.iter().for_each(|item| each(item, to));
    to.end_list();
}

fn unsigned<'a>(to: &mut impl Dump<'a>, key: &'static str, value: u64) {
    to.key(key);
    to.unsigned(value);
}

fn text<'a>(to: &mut impl Dump<'a>, key: &'static str, value: &'a str) {
    to.key(key);
    to.text(value);
}

fn frames<'a>(to: &mut impl Dump<'a>, key: &'static str, frames: Option<&'a Frames>) {
    if let Some(frames) = frames {
        to.key(key);
        to.frames(frames);
    }
}

fn segment<'a>(segment: &'a Segment, to: &mut impl Dump<'a>) {
    to.begin_dict();
    to.key("device");
    to.int(segment.device.into());
    unsigned(to, "address", segment.address);
    unsigned(to, "total_size", segment.total_bytes);
    unsigned(to, "allocated_size", segment.allocated_bytes);
    unsigned(to, "active_size", segment.active_bytes);
    unsigned(to, "requested_size", segment.requested_bytes);
    unsigned(to, "stream", segment.stream.raw());
    text(to, "segment_type", class_name(segment.class));
    to.key("segment_pool_id");
    to.pair(segment.pool_id);
    to.key("is_expandable");
    to.bool(segment.is_expandable);
    frames(to, "frames", Some(&segment.frames));
    to.key("blocks");
    list(&segment.blocks, to, block);
    to.end_dict();
}

/// Returns PyTorch's name of a size class.
fn class_name(class: SizeClass) -> &'static str {
    match class {
        SizeClass::Small => "small",
        SizeClass::Large => "large",
    }
}

fn block<'a>(block: &'a SegmentBlock, to: &mut impl Dump<'a>) {
    to.begin_dict();
    unsigned(to, "address", block.address);
    unsigned(to, "size", block.size_bytes);
    unsigned(to, "requested_size", block.requested_bytes);
    text(to, "state", block.state.name());
    frames(to, "frames", Some(&block.frames));
    frames(to, "forward_frames", block.forward_frames.as_ref());
    to.end_dict();
}

fn trace_entry<'a>(entry: &'a TraceEntry, to: &mut impl Dump<'a>) {
    to.begin_dict();
    text(to, "action", entry.action.name());
    let address_key = if entry.action == Action::Oom { "device_free" } else { "addr" };
    unsigned(to, address_key, entry.address);
    unsigned(to, "size", entry.size_bytes);
    unsigned(to, "stream", entry.stream.raw());
    if let Some(time_us) = entry.time_us {
        to.key("time_us");
        to.int(time_us);
    }
    for (key, value) in [
        ("compile_context", &entry.compile_context),
        ("user_metadata", &entry.user_metadata),
        ("internal_metadata", &entry.internal_metadata),
    ] {
        if let Some(value) = value {
            text(to, key, value);
        }
    }
    if let Some(pool_id) = entry.pool_id {
        to.key("pool_id");
        to.pair(pool_id);
    }
    frames(to, "frames", entry.frames.as_ref());
    frames(to, "forward_frames", entry.forward_frames.as_ref());
    to.end_dict();
}

/// Writes one frame, for the writers' own [`Dump::frames`].
pub(crate) fn frame<'a>(frame: &'a Frame, to: &mut impl Dump<'a>) {
    to.begin_dict();
    text(to, "filename", &frame.filename);
    to.key("line");
    to.int(frame.line.into());
    text(to, "name", &frame.name);
    to.end_dict();
}

fn annotation<'a>(annotation: &'a Annotation, to: &mut impl Dump<'a>) {
    to.begin_dict();
    text(to, "name", &annotation.name);
    text(to, "stage", &annotation.stage);
    to.key("device");
    to.int(annotation.device.into());
    to.key("time_us");
    to.int(annotation.time_us);
    to.end_dict();
}

fn setting<'a>(value: &'a SettingValue, to: &mut impl Dump<'a>) {
    match value {
        SettingValue::None => to.none(),
        SettingValue::Bool(value) => to.bool(*value),
        SettingValue::Int(value) => to.int(*value),
        SettingValue::Float(value) => to.float(*value),
        SettingValue::Text(value) => to.text(value),
        SettingValue::Table(entries) => {
            to.begin_dict();
            for (name, value) in entries {
                to.key(name);
                to.int(*value);
            }
            to.end_dict();
        }
    }
}
