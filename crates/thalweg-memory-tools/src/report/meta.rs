//! The texts of a page: names, figures and findings, as JSON.

use serde_json::{Value, json};

use crate::report::encode;
use crate::report::model::{
    Curve, DevicePage, Figure, FigureValue, Mark, MarkKind, PageModel, StageRow, Tone,
};

/// Returns the object that `page/data.js` reads as `meta`. It contains no `<`, which could end the element that contains the
/// object.
pub fn meta(model: &PageModel) -> String {
    let meta = json!({
        "title": model.title,
        "categories": model.categories,
        "texts": encode::texts(model),
        "frames": model.frames.len(),
        "stacks": model.stacks.len(),
        "devices": model.devices.iter().map(device).collect::<Vec<_>>(),
    });
    meta.to_string().replace('<', "\\u003c")
}

fn device(device: &DevicePage) -> Value {
    json!({
        "name": device.name,
        "events": device.event_count,
        // The page reads a double, which is exact to the microsecond until the year 2255.
        "firstTime": device.times_us.first(),
        "streams": device.streams,
        "pools": device.pools,
        "blocks": device.blocks.len(),
        "segments": device.segments.len(),
        "marks": device.marks.iter().map(mark).collect::<Vec<_>>(),
        "curves": device.curves.iter().map(curve).collect::<Vec<_>>(),
        "figures": device.figures.iter().map(figure).collect::<Vec<_>>(),
        "findings": device.findings,
        "stages": device.stages.iter().map(stage).collect::<Vec<_>>(),
        "settings": device.settings,
        "gpuBytes": device.gpu_bytes,
    })
}

fn mark(mark: &Mark) -> Value {
    let kind = match mark.kind {
        MarkKind::OutOfMemory => "oom",
        MarkKind::Snapshot => "snapshot",
        MarkKind::Annotation => "annotation",
    };
    // A position: see `encode`.
    json!({ "position": u64::from(mark.event) + 1, "kind": kind, "text": mark.text })
}

fn stage(stage: &StageRow) -> Value {
    json!({
        "name": stage.name,
        "times": stage.times,
        "duration": stage.duration_us,
        "live": stage.peak_live_bytes,
        "own": stage.peak_own_bytes,
        "reserved": stage.peak_reserved_bytes,
        "position": stage.peak_position,
    })
}

fn curve(curve: &Curve) -> Value {
    json!({ "name": curve.name, "isEstimate": u8::from(curve.is_estimate), "steps": curve.steps.len() })
}

fn figure(figure: &Figure) -> Value {
    let (unit, value) = match &figure.value {
        FigureValue::Bytes(bytes) => ("bytes", json!(bytes)),
        FigureValue::Count(count) => ("count", json!(count)),
        FigureValue::Share(share) => ("share", json!(share)),
        FigureValue::Text(text) => ("text", json!(text)),
    };
    let tone = match figure.tone {
        Tone::Plain => "plain",
        Tone::Warning => "warning",
        Tone::Bad => "bad",
    };
    json!({ "key": figure.key, "label": figure.label, unit: value, "note": figure.note, "tone": tone })
}

/// Returns text that may be placed between two tags.
pub fn html_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_strangers_cannot_leave_their_element() {
        let model = PageModel { title: "</script><b>\"\\\n".into(), ..PageModel::default() };
        let json = meta(&model);
        assert!(!json.contains('<'), "{json}");
        assert!(json.starts_with(r#"{"title":"\u003c/script>\u003cb>\"\\\n","categories":[],"#), "{json}");
        assert_eq!(html_text("a<b>&c"), "a&lt;b&gt;&amp;c");
    }
}
