//! Conversion of the values of a file's dictionary to a [`Recording`].
//!
//! A file may use one list in many places, and so describe far more than it contains. So each segment, block and entry of a
//! recording is charged against a budget, which is the length of the file. No valid file comes near it, since each of these takes
//! dozens of bytes to write.

use std::sync::Arc;

use super::build::{BuildResult, Builder, Value};
use super::records::{Mended, RecordedSegment, Recording, Trace};
use super::{Annotation, SettingValue};

/// Creates the recording from `root`, which is the dictionary or the list of segments; the file has `file_bytes`.
pub(super) fn finish(builder: Builder, root: Value, file_bytes: u64) -> BuildResult<Recording> {
    let mut reader = Reader { builder: &builder, budget: file_bytes };
    let mut recording = if builder.items(root).is_some() {
        Recording { segments: reader.segments(root)?, ..Recording::default() }
    } else if builder.pairs(root).is_some() {
        reader.whole(root)?
    } else {
        return Err("the file holds neither a snapshot's dictionary nor a list of segments".into());
    };
    recording.file_bytes = file_bytes;
    let Recording { segments, traces, host_segments, host_trace, settings, annotations, .. } = recording;
    let mut whole = Recording {
        segments,
        traces,
        host_segments,
        host_trace,
        settings,
        annotations,
        file_bytes,
        // The builder's other tables are freed before more memory is allocated.
        ..builder.into_recording()
    };
    whole.mended = (0..whole.traces.len()).map(|device| Mended::of(&mut whole, device)).collect();
    Ok(whole)
}

struct Reader<'b> {
    builder: &'b Builder,
    budget: u64,
}

impl<'b> Reader<'b> {
    fn whole(&mut self, root: Value) -> BuildResult<Recording> {
        if self.get(root, "segments").is_none() && self.get(root, "device_traces").is_none() {
            return Err("the file's dictionary has neither segments nor device_traces".into());
        }
        Ok(Recording {
            segments: self.at(root, "segments", Self::segments)?,
            traces: self.at(root, "device_traces", Self::traces)?,
            host_segments: self.at(root, "host_segments", Self::segments)?,
            host_trace: self.at(root, "host_traces", Self::host_trace)?,
            settings: self.at(root, "allocator_settings", Self::settings)?,
            annotations: self.at(root, "external_annotations", Self::annotations)?,
            ..Recording::default()
        })
    }

    /// Returns the value of a key; of the last, if there are several. Python's `None` counts as a missing value.
    fn get(&self, dict: Value, key: &str) -> Option<Value> {
        let is_key = |name| self.text(name).is_some_and(|text| **text == *key);
        let (_, value) = *self.builder.pairs(dict)?.iter().rev().find(|&&(name, _)| is_key(name))?;
        Some(value).filter(|value| *value != Value::None)
    }

    fn at<T: Default>(
        &mut self,
        dict: Value,
        key: &str,
        read: impl FnOnce(&mut Self, Value) -> BuildResult<T>,
    ) -> BuildResult<T> {
        let Some(value) = self.get(dict, key) else { return Ok(T::default()) };
        read(self, value).map_err(|what| format!("{key}: {what}"))
    }

    fn text(&self, value: Value) -> Option<&'b Arc<str>> {
        match value {
            Value::Text(text) => Some(&self.builder.recording.texts[text as usize]),
            _ => None,
        }
    }

    fn pay(&mut self, count: usize) -> BuildResult<()> {
        let left = self.budget.checked_sub(count as u64);
        self.budget =
            left.ok_or("the file stands for more entries than it has bytes, which no real snapshot does")?;
        Ok(())
    }

    fn items(&mut self, value: Value) -> BuildResult<&'b [Value]> {
        let items = self.builder.items(value).ok_or("expected a list")?;
        self.pay(items.len())?;
        Ok(items)
    }

    fn segments(&mut self, value: Value) -> BuildResult<Vec<RecordedSegment>> {
        let mut segments = Vec::new();
        for (index, &item) in self.items(value)?.iter().enumerate() {
            let segment = self.builder.is_segment(item);
            let segment =
                segment.ok_or_else(|| format!("number {index} is not a segment with a total_size"))?;
            self.pay(segment.blocks.iter().map(|range| range.len()).sum())?;
            segments.push(segment);
        }
        Ok(segments)
    }

    fn traces(&mut self, value: Value) -> BuildResult<Vec<Trace>> {
        let mut traces = Vec::new();
        for (index, &item) in self.items(value)?.iter().enumerate() {
            traces.push(self.trace(item).map_err(|what| format!("number {index}: {what}"))?);
        }
        Ok(traces)
    }

    fn trace(&mut self, value: Value) -> BuildResult<Trace> {
        let trace = self.builder.trace(value).ok_or("expected a list of entries, with an action each")?;
        self.pay(trace.len())?;
        Ok(trace)
    }

    /// Returns the traces of the host: a list of entries, or one list for the one host.
    fn host_trace(&mut self, value: Value) -> BuildResult<Trace> {
        if self.builder.trace(value).is_some() {
            return self.trace(value);
        }
        let traces = self.traces(value)?;
        Ok(Trace(traces.into_iter().flat_map(|trace| trace.0).collect()))
    }

    fn annotations(&mut self, value: Value) -> BuildResult<Vec<Annotation>> {
        let mut annotations = Vec::new();
        for &item in self.items(value)? {
            let pairs = self.builder.pairs(item).ok_or("expected a list of dictionaries")?;
            // One dictionary can appear in many places, and is read in each.
            self.pay(pairs.len())?;
            let text = |key| self.get(item, key).and_then(|value| self.text(value)).cloned();
            let int = |key| match self.get(item, key) {
                Some(Value::Int(value)) => value,
                _ => 0,
            };
            annotations.push(Annotation {
                name: text("name").unwrap_or_else(|| "".into()),
                stage: text("stage").unwrap_or_else(|| "".into()),
                device: i32::try_from(int("device")).unwrap_or(-1),
                time_us: int("time_us"),
            });
        }
        Ok(annotations)
    }

    /// Returns the settings of the types that settings have had so far; values of other types are left out.
    fn settings(&mut self, value: Value) -> BuildResult<Vec<(Arc<str>, SettingValue)>> {
        let pairs = self.builder.pairs(value).unwrap_or_default();
        self.pay(pairs.len())?;
        let mut settings = Vec::new();
        for &(name, value) in pairs {
            if let (Some(name), Some(value)) = (self.text(name), self.setting(value)?) {
                settings.push((Arc::clone(name), value));
            }
        }
        Ok(settings)
    }

    fn setting(&mut self, value: Value) -> BuildResult<Option<SettingValue>> {
        Ok(Some(match value {
            Value::None => SettingValue::None,
            Value::Bool(value) => SettingValue::Bool(value),
            Value::Int(value) => SettingValue::Int(value),
            Value::Float(value) => SettingValue::Float(value),
            Value::Text(_) => SettingValue::Text(self.text(value).cloned().expect("it is a text")),
            Value::Object(_) => {
                let Some(pairs) = self.builder.pairs(value) else { return Ok(None) };
                self.pay(pairs.len())?;
                let entry = |&(name, value): &(Value, Value)| match value {
                    Value::Int(value) => Some((self.text(name).cloned()?, value)),
                    _ => None,
                };
                SettingValue::Table(pairs.iter().filter_map(entry).collect())
            }
            Value::Frame(_) | Value::Opaque => return Ok(None),
        }))
    }
}
