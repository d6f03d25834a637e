//! What of a page is text: names, figures and findings, as JSON.

use std::fmt::Write as _;

use crate::encode;
use crate::model::{Curve, DevicePage, Figure, FigureValue, Mark, MarkKind, PageModel, StageRow, Tone};

/// The object that `page/data.js` reads as `meta`.
pub fn meta(model: &PageModel) -> String {
    let mut json = Json::default();
    json.open('{');
    json.key("title").text(&model.title);
    json.key("categories").texts(model.categories.iter().map(String::as_str));
    json.key("texts").texts(encode::texts(model));
    json.key("frames").number(model.frames.len() as f64);
    json.key("stacks").number(model.stacks.len() as f64);
    json.key("devices").list(&model.devices, device);
    json.close('}');
    json.out
}

fn device(json: &mut Json, device: &DevicePage) {
    json.open('{');
    json.key("name").text(&device.name);
    json.key("events").number(f64::from(device.event_count));
    match device.times_us.first() {
        // A double is exact to the microsecond until the year 2255.
        Some(&first) => json.key("firstTime").number(first as f64),
        None => json.key("firstTime").null(),
    }
    json.key("streams").texts(device.streams.iter().map(String::as_str));
    json.key("pools").texts(device.pools.iter().map(String::as_str));
    json.key("blocks").number(device.blocks.len() as f64);
    json.key("segments").number(device.segments.len() as f64);
    json.key("marks").list(&device.marks, mark);
    json.key("curves").list(&device.curves, curve);
    json.key("figures").list(&device.figures, figure);
    json.key("findings").texts(device.findings.iter().map(String::as_str));
    json.key("stages").list(&device.stages, stage);
    json.key("settings").list(&device.settings, |json, (name, value)| {
        json.texts([name.as_str(), value.as_str()]);
    });
    match device.card_bytes {
        Some(bytes) => json.key("cardBytes").number(bytes as f64),
        None => json.key("cardBytes").null(),
    }
    json.close('}');
}

fn mark(json: &mut Json, mark: &Mark) {
    json.open('{');
    // A position: see `encode`.
    json.key("position").number(f64::from(mark.event) + 1.0);
    json.key("kind").text(match mark.kind {
        MarkKind::OutOfMemory => "oom",
        MarkKind::Snapshot => "snapshot",
        MarkKind::Annotation => "annotation",
    });
    json.key("text").text(&mark.text);
    json.close('}');
}

fn stage(json: &mut Json, stage: &StageRow) {
    json.open('{');
    json.key("name").text(&stage.name);
    json.key("times").number(f64::from(stage.times));
    json.key("duration").number(stage.duration_us as f64);
    json.key("live").number(stage.peak_live_bytes as f64);
    json.key("own").number(stage.peak_own_bytes as f64);
    json.key("reserved").number(stage.peak_reserved_bytes as f64);
    json.key("position").number(f64::from(stage.peak_position));
    json.close('}');
}

fn curve(json: &mut Json, curve: &Curve) {
    json.open('{');
    json.key("name").text(&curve.name);
    json.key("isEstimate").number(f64::from(u8::from(curve.is_estimate)));
    json.key("steps").number(curve.steps.len() as f64);
    json.close('}');
}

fn figure(json: &mut Json, figure: &Figure) {
    json.open('{');
    json.key("key").text(&figure.key);
    json.key("label").text(&figure.label);
    match &figure.value {
        FigureValue::Bytes(bytes) => json.key("bytes").number(*bytes as f64),
        FigureValue::Count(count) => json.key("count").number(*count as f64),
        FigureValue::Share(share) => json.key("share").number(*share),
        FigureValue::Text(text) => json.key("text").text(text),
    }
    json.key("note").text(&figure.note);
    json.key("tone").text(match figure.tone {
        Tone::Plain => "plain",
        Tone::Warning => "warning",
        Tone::Bad => "bad",
    });
    json.close('}');
}

/// Text that may stand between two tags.
pub fn html_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// JSON under construction: commas come by themselves.
#[derive(Default)]
struct Json {
    out: String,
}

impl Json {
    fn separate(&mut self) {
        if !matches!(self.out.as_bytes().last(), None | Some(b'{' | b'[' | b':')) {
            self.out.push(',');
        }
    }

    fn open(&mut self, bracket: char) {
        self.separate();
        self.out.push(bracket);
    }

    fn close(&mut self, bracket: char) {
        self.out.push(bracket);
    }

    fn key(&mut self, key: &str) -> &mut Self {
        self.text(key);
        self.out.push(':');
        self
    }

    fn null(&mut self) {
        self.separate();
        self.out.push_str("null");
    }

    fn number(&mut self, value: f64) {
        self.separate();
        if value.is_finite() {
            write!(self.out, "{value}").expect("writing to a string succeeds");
        } else {
            self.out.push_str("null");
        }
    }

    /// A string. No `<` in it: one could end the element that the object stands in.
    fn text(&mut self, text: &str) {
        self.separate();
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                special if u32::from(special) < 0x20 || special == '<' => {
                    write!(self.out, "\\u{:04x}", u32::from(special)).expect("writing to a string succeeds");
                }
                other => self.out.push(other),
            }
        }
        self.out.push('"');
    }

    fn texts<'a>(&mut self, texts: impl IntoIterator<Item = &'a str>) {
        self.open('[');
        texts.into_iter().for_each(|text| self.text(text));
        self.close(']');
    }

    fn list<T>(&mut self, items: &[T], one: impl Fn(&mut Self, &T)) {
        self.open('[');
        items.iter().for_each(|item| one(self, item));
        self.close(']');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_strangers_cannot_leave_their_element() {
        let model = PageModel { title: "</script><b>\"\\\n".into(), ..PageModel::default() };
        let json = meta(&model);
        assert!(!json.contains('<'), "{json}");
        assert!(
            json.starts_with(r#"{"title":"\u003c/script>\u003cb>\"\\\u000a","categories":[],"#),
            "{json}"
        );
        assert_eq!(html_text("a<b>&c"), "a&lt;b&gt;&amp;c");
    }
}
