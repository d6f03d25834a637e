//! Pictures of a [`Timeline`].

use std::fmt::Write as _;

use super::{Action, Computation, Timeline, TimelineSpan};

/// The offset of rows, their width, and their distance.
const LEFT: f64 = 60.0;
const WIDTH: f64 = 900.0;
const TOP: f64 = 48.0;
const STEP: f64 = 26.0;

/// The colours around the boxes, light and dark as those of the other pages.
const STYLE: &str = "text { fill: #161b22 } .panel { fill: #fff } .idle { fill: #edf0f4 } .work { stroke: #fff; stroke-width: .5 } \
    @media (prefers-color-scheme: dark) { text { fill: #e8ecf2 } .panel { fill: #151920 } .idle { fill: #2a313b } .work { stroke: #151920 } } \
    .number { fill: #161b22 }";

impl Timeline {
    /// Draws one line per rank, `width` characters after the rank's name: `F2` marks the begin of the forward pass of microbatch
    /// 2, and points mark idle time.
    pub fn to_text(&self, width: usize) -> String {
        let [begin, _] = self.ends();
        let scale = width as f64 / self.total_ms().max(f64::MIN_POSITIVE);
        let mut text = String::new();
        for (rank, row) in self.rows.iter().enumerate() {
            let mut line = vec!['.'; width];
            for span in row {
                let place = |time: f64| (((time - begin) * scale).round() as usize).min(width);
                let (from, to) = (place(span.begin_ms), place(span.end_ms));
                let letters = format!("{}{}", span.action.computation.letters(), number(span.action));
                for (cell, letter) in
                    line[from..to].iter_mut().zip(letters.chars().chain(std::iter::repeat('-')))
                {
                    *cell = letter;
                }
            }
            let line: String = line.into_iter().collect();
            let _ = writeln!(text, "rank {rank} {line}");
        }
        text
    }

    /// Draws an SVG picture: one row per rank, one box per computation with its microbatch, and the share of idle time. Later
    /// stages of a rank are paler.
    pub fn to_svg(&self, title: &str) -> String {
        let height = TOP + STEP * self.rows.len() as f64 + 34.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" font-family=\"system-ui, sans-serif\" font-size=\"11\" role=\"img\" \
             aria-labelledby=\"name\">\n<style>{STYLE}</style>\n\
             <rect class=\"panel\" width=\"100%\" height=\"100%\"/>\n\
             <text id=\"name\" x=\"8\" y=\"20\" font-size=\"14\">{}: {:.2} ms, bubble {:.1} %</text>\n",
            LEFT + WIDTH + 12.0,
            escaped(title),
            self.total_ms(),
            100.0 * self.bubble_share()
        );
        self.legend(&mut svg);
        for (rank, row) in self.rows.iter().enumerate() {
            let y = TOP + STEP * rank as f64;
            let _ = writeln!(
                svg,
                "<text x=\"8\" y=\"{}\">rank {rank}</text><rect x=\"{LEFT}\" y=\"{y}\" width=\"{WIDTH}\" height=\"20\" class=\"idle\"/>",
                y + 14.0
            );
            row.iter().for_each(|span| self.span(&mut svg, span, y));
        }
        let bottom = height - 12.0;
        let _ = writeln!(
            svg,
            "<text x=\"{LEFT}\" y=\"{bottom}\">0</text><text x=\"{}\" y=\"{bottom}\" text-anchor=\"end\">{:.2} ms</text>\n</svg>",
            LEFT + WIDTH,
            self.total_ms()
        );
        svg
    }

    fn legend(&self, svg: &mut String) {
        let mut x = LEFT;
        for (computation, name) in NAMES {
            if !self.rows.iter().flatten().any(|span| span.action.computation == computation) {
                continue;
            }
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"30\" width=\"10\" height=\"10\" fill=\"{}\"/><text x=\"{}\" y=\"39\">{name}</text>",
                color(computation, 0),
                x + 14.0
            );
            x += 150.0;
        }
    }

    fn span(&self, svg: &mut String, span: &TimelineSpan, y: f64) {
        let scale = WIDTH / self.total_ms().max(f64::MIN_POSITIVE);
        let time = span.end_ms - span.begin_ms;
        let (x, width) = (LEFT + (span.begin_ms - self.ends()[0]) * scale, time * scale);
        let fill = color(span.action.computation, span.action.stage / self.rows.len());
        let _ = write!(
            svg,
            "<rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"20\" fill=\"{fill}\" class=\"work\"><title>{} \
             {time:.3} ms</title></rect>",
            span.action
        );
        let number = number(span.action);
        if width > 8.0 * number.len() as f64 {
            let middle = x + width / 2.0;
            let _ = write!(
                svg,
                "<text x=\"{middle:.2}\" y=\"{}\" text-anchor=\"middle\" class=\"number\">{number}</text>",
                y + 14.0
            );
        }
        svg.push('\n');
    }
}

/// The computations with their names in a legend.
const NAMES: [(Computation, &str); 4] = [
    (Computation::Forward, "forward"),
    (Computation::FullBackward, "backward"),
    (Computation::BackwardInput, "backward of inputs"),
    (Computation::BackwardWeight, "backward of weights"),
];

/// Returns the color of a computation in a rank's first, second, … stage.
fn color(computation: Computation, chunk: usize) -> &'static str {
    let pair = match computation {
        Computation::Forward => ["#7fa8e0", "#b9d0f0"],
        Computation::FullBackward => ["#7cc08a", "#b5dfbd"],
        Computation::BackwardInput => ["#5fc0b8", "#a9dfda"],
        _ => ["#e0b060", "#f0d6a6"],
    };
    pair[chunk % 2]
}

/// Returns the number of an action's microbatch.
fn number(action: Action) -> String {
    action.microbatch.map(|microbatch| microbatch.to_string()).unwrap_or_default()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
